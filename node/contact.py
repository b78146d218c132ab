"""Who is there: a node's links with its neighbours, their introduction, suspicion and probing, and news of the membership.

A peer is silent until it was introduced: both sides say what must be alike (`Terms`), and where something differs each of
them keeps the other out and says what it was. Whatever a peer sends is opened by one door; what is wrong with it is counted
by cause and dropped. What is not about being there is handed on to the exchange.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, TaskGroup
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, Protocol
from weakref import WeakSet

import msgspec

from node.guard import Guard
from node.liveness import AskOthers, Dead, Detector, Ping, Suspect
from node.peer import MOST_ADDRESSES, Member, Peer
from node.roster import Roster
from node.traffic import Traffic
from p2pfl.errors import P2pflError
from p2pfl.randomness import Draws
from protocols import messages as m
from protocols.allowance import Allowance
from protocols.envelope import EMPTY, OVERHEAD, Door, Opened, Payload, Sealer
from protocols.errors import ProtocolError, TransportError
from protocols.printable import printable
from protocols.transport import Gate, Link, Transport

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 4.0  # seconds between attempts to reach a silent peer
GRACE = 1.0  # seconds that the node with the greater key leaves the dialling to the other one
INTRODUCTION = 5.0  # seconds for the answer to a hello
UPGRADE = 15.0  # seconds between attempts to reach a peer without the broker
SETTLED = 5.0  # seconds after which nothing is on its way over a link that was replaced
DEAF = 5  # unanswered pings after which a link is given up, though others hear the peer
PENDING_PROBES = 8  # pings on behalf of one other that are remembered
HINT_RATE, HINT_BURST = 1.0, MOST_ADDRESSES  # addresses a second of one peer that are dialled on the word of others
NEWS_RATE, NEWS_BURST = 0.2, 3  # introductions a second of one peer that are answered with news of the membership


class IncarnationConflictError(P2pflError):
    """A peer has shown a later frame of this node's key, which this process has not made.

    Attributes:
        boot: of that frame.
    """

    def __init__(self, boot: int) -> None:
        super().__init__(f"a frame of start {boot} of this node is known to others")
        self.boot = boot


class Customer(Protocol):
    """Who uses the contacts: the exchange."""

    def handle(self, peer: Peer, opened: Opened) -> None:
        """An introduced peer has said something that is about learning, or about who coordinates it.

        Raises:
            ProtocolError: it should not have.
        """

    def may_return(self, peer: Peer) -> bool:
        """Return whether a suspected peer that was heard, and keeps up, may be waited for again."""

    def late(self, peer: Peer) -> None:
        """Note that a peer has answered a request that was not waited for."""

    def drained(self, peer: Peer) -> None:
        """A peer has read most of what it was sent."""

    def moved(self) -> None:
        """Something has changed that somebody may wait for: who is there, or where they are."""


class Contacts:
    """
    Args:
        name: this node's.
        key: its public one.
        neighbours: the members with which it may exchange anything. More may be admitted later.
        agreed: what all nodes must have alike, in words, by key.
        about: public facts of this node.
        seed: of the federation.
        asynchronous: whether a peer that is behind may be learned with.
        sources: names of those neighbours that may be fetched from; by default all.
        gate: who is a member; None where that never changes.
        period: seconds between probes of peers that are silent; inf, for nodes in one process, probes only those that are
            suspected.
    """

    def __init__(
        self,
        name: str,
        key: bytes,
        neighbours: Mapping[str, Member],
        *,
        transport: Transport,
        sealer: Sealer,
        door: Door,
        agreed: Mapping[str, str],
        about: Mapping[str, Any],
        seed: int,
        asynchronous: bool,
        sources: Collection[str] | None = None,
        gate: Gate | None = None,
        period: float = inf,
    ) -> None:
        self.name = name
        self.roster = Roster(neighbours if sources is None else sources)
        self.traffic = Traffic()
        self.rejected: Counter[str] = Counter()
        self.round = 0
        self.final = False
        self.broker = ""  # what is wrong with it
        self.about = dict(about)
        self.peers = {id: Peer(id, neighbours[id]) for id in sorted(neighbours)}
        self.customer: Customer
        self.on_join: Callable[[bytes, bytes, str], Awaitable[bytes]] | None = None  # (key, frame, host) -> answer
        self.on_refused: Callable[[str, str], None] = lambda cause, detail: None
        self.on_fault: Callable[[str, Exception], None] | None = None  # (part, error); None: an error ends the node
        self.transport = transport
        self.sealer = sealer
        self.door = door
        self.gate = gate
        self.numbers = count(1)
        self.listening = asyncio.Event()
        self._key = key
        self._names = {peer.key: peer.name for peer in self.peers.values()}
        self._agreed = dict(agreed)
        self._directly = transport.address != "mqtt:"
        self._asynchronous = asynchronous
        self._draws = Draws(seed, name)
        self._period = period
        self._detector = Detector(self._draws.generator(0, "probing"), period if period < inf else 1.0)
        self._on_behalf: dict[int, tuple[Peer, m.Probe]] = {}  # our ping's number -> who asked for it, and how
        self._asked_after: dict[int, tuple[str, bytes]] = {}  # our probe's number -> whom it was sent to, and about whom
        self._news = Allowance(NEWS_RATE, NEWS_BURST)
        self._hints = Allowance(HINT_RATE, HINT_BURST)
        self._shown: WeakSet[Link] = WeakSet()  # links whose other end was shown a later frame of its own
        self._progress: asyncio.Future[None] | None = None
        self._tasks: TaskGroup
        self._joining: WeakSet[Link] = WeakSet()  # over which somebody has asked to join
        self._running: set[Task[None]] = set()
        self._keeping: dict[str, Task[None]] = {}

    # Life

    async def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        await self.transport.listen(self)
        self.listening.set()
        for peer in self.peers.values():
            self._keep(peer)
        if self._period < inf:
            self.begin(self._watch(), f"{self.name} watches its peers")

    async def close(self) -> None:
        for peer in self.introduced():
            self.tell(peer, m.Bye(self.round, leaving=True))
        for task in list(self._running):
            task.cancel()
        await self.transport.close()

    def introduced(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.introduced]

    # Membership

    def admit(self, name: str, member: Member, source: bool = True) -> None:
        """Get in touch with a member from now on; `source`: it may be learned from."""
        if name in self.peers and self.peers[name].key == member.key:
            return
        if name in self.peers:  # it has another key now
            self.expel(name, "has another key now")
        peer = Peer(name, member)
        self.peers = dict(sorted([*self.peers.items(), (name, peer)]))
        self._names[member.key] = name
        self.door.admit(name, member.key)
        if source:
            self.roster.add(name)
        self.roster.suspect(name, "not connected yet")
        self._keep(peer)

    def expel(self, name: str, reason: str) -> None:
        """Have nothing to do with a former member any more; what is on its way from it is cut off."""
        peer = self.peers.pop(name)
        self._names.pop(peer.key, None)
        self.door.expel(peer.key)
        self.roster.remove(name)
        self._detector.unwatch(name)
        if (task := self._keeping.pop(name, None)) is not None:
            task.cancel()
        if peer.link is not None:
            self.rejected[reason] += 1
            peer.link.close()
            peer.link = None
        self.transport.expel(peer.key)  # it may have more links than the one in use
        peer.problem = reason
        peer.give_up()
        self.moved()

    def spread(self) -> None:
        """Tell the neighbours what they do not know of the membership log."""
        for peer in self.introduced():
            self._tell_news(peer)

    def _tell_news(self, peer: Peer) -> None:
        if self.gate is None:
            return
        try:
            while peer.epoch < self.gate.epoch:  # a long log takes several messages
                news = self.gate.after(peer.epoch, m.Entries.LIMIT)
                self.say(peer, m.Entries(self.gate.epoch), Payload.of(news))
                peer.epoch += len(msgspec.msgpack.decode(news, type=list[msgspec.Raw]))
        except TransportError:
            self.rejected["link lost"] += 1

    def found(self, key: bytes, address: str, source: str) -> None:
        """Note where a member may be. A hint: who is there is proven when it is dialled."""
        name = self._names.get(key)
        if name is None:
            return
        peer = self.peers[name]
        news = peer.hint(address, source)
        if not is_direct(address) and peer.link is None:  # it has just said itself that it is there
            peer.untried = True
        if news and (peer.link is None or not peer.link.direct) and self._is_news(peer):
            peer.trouble.set()
        self.moved()

    def knows(self, beginning: bytes) -> bool:
        """Return whether a neighbour's key begins with these bytes."""
        return any(key.startswith(beginning) for key in self._names)

    def hinted(self, key: bytes) -> None:
        """Somebody says that a member is gone: ask it."""
        name = self._names.get(key)
        if name is not None and self.peers[name].introduced:
            self.tell(self.peers[name], m.Ping(next(self.numbers)))

    # What comes in (see protocols.transport.Handler)

    def received(self, link: Link, frame: memoryview) -> None:
        try:
            if link.joining:
                self._join(link, frame)
                return
            self._expect_member(link)
            opened = self.door.open(frame, link.session, link.key)
            peer = self.peers[opened.sender]
            peer.bytes_in += len(frame)
            if not isinstance(opened.message, m.Hello | m.Welcome | m.Conflict):
                if peer.problem:
                    raise ProtocolError("differs", peer.problem)
                if not peer.introduced:
                    raise ProtocolError("not introduced", peer.name)
                if isinstance(opened.message, m.Have):  # it alone may say that the sender went back
                    self._is_at(peer, opened.message.round)
                elif isinstance(opened.message, m.Get | m.Submit | m.Absent | m.Pong | m.Bye):
                    self._is_at(peer, max(peer.round, opened.message.round))
                self._heard(peer)
            self._handle(peer, link, opened)
        except ProtocolError as error:
            self._refuse(link, error)
        except TransportError:
            self.rejected["link lost"] += 1
        except Exception as error:
            self._fault(link, error)

    def _refuse(self, link: Link, error: ProtocolError) -> None:
        """Count a frame that is refused, by its cause and by its sender, who is kept out if it sent many such."""
        self.rejected[error.cause] += 1
        name = self._names.get(link.key or b"")
        if name is None:
            return
        peer = self.peers[name]
        peer.offences[error.cause] += 1
        if error.cause == "replay":
            self._show_newest(link, peer)
        if isinstance(self.gate, Guard) and self.gate.offend(peer.key, error.cause):
            self.transport.expel(peer.key)
            self._unlink(peer, f"kept out for {self.gate.seconds_left(peer.key):.0f} s, as it sent nonsense ({error.cause})")

    def _fault(self, link: Link | None, error: Exception) -> None:
        """End a link of which a frame could not be handled, by a fault of ours; or the node, where nobody counts faults."""
        if self.on_fault is None:
            self.begin(_fail(error), f"{self.name} handles a frame")
            return
        self.on_fault("links", error)
        if link is not None:
            link.close()
            self.lost(link, "a message of it could not be handled")

    def serve(self, link: Link | None, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin what answers a frame of a link; an error in it ends that link only."""

        async def guarded() -> None:
            try:
                await work
            except TransportError:
                self.rejected["link lost"] += 1
            except Exception as error:
                self._fault(link, error)

        self.begin(guarded(), name)

    def _show_newest(self, link: Link, peer: Peer) -> None:
        """Show the other end of a link, once, the newest frame of its key: its folder may be a copy, or an old one."""
        if link not in self._shown:
            self._shown.add(link)
            with suppress(TransportError):
                self._say_over(link, peer, m.Conflict(), Payload.of(self.door.newest(peer.key)))

    def drained(self, link: Link) -> None:
        for peer in self.peers.values():
            if peer.link is link:
                self.customer.drained(peer)

    def lost(self, link: Link, reason: str) -> None:
        for peer in self.peers.values():
            if peer.link is link:
                self._unlink(peer, reason)

    def refused(self, cause: str, detail: str) -> None:
        self.rejected[cause] += 1
        self.on_refused(cause, detail)

    def _expect_member(self, link: Link) -> None:
        """Close a link of one whose membership has ended since: a peer may have more links than the one in use."""
        if self.gate is not None and link.key is not None and (cause := self.gate.refusal(link.key)):
            link.close()
            raise ProtocolError(cause, f"{link.key.hex()} is no member any more")

    def _join(self, link: Link, frame: memoryview) -> None:
        """Have the first and only frame of one who wants to join answered; a second one closes the link."""
        if link in self._joining:
            link.close()
            raise ProtocolError("malformed", "more than one question over a link of one who wants to join")
        self._joining.add(link)
        if self.on_join is None or link.key is None:
            raise ProtocolError("not inviting")
        host = link.remote.rpartition(":")[0].strip("[]") if link.direct else "broker"
        answer = self.on_join(link.key, bytes(frame), host)

        async def say() -> None:
            link.send([await answer])

        self.serve(link, say(), f"{self.name} answers one who wants to join")

    def _handle(self, peer: Peer, link: Link, opened: Opened) -> None:
        message = opened.message
        if isinstance(message, m.Learning):
            self.customer.handle(peer, opened)
            return
        self.traffic.received_control += OVERHEAD + len(opened.payload)
        match message:
            case m.Vote() | m.Voted() | m.Leading() | m.Following():
                self.customer.handle(peer, opened)
            case m.Hello() | m.Welcome():
                if peer.boot != opened.boot:  # what an earlier life of it was asked is lost
                    peer.boot = opened.boot
                    peer.give_up()
                self._introduce(peer, link, m.decode_terms(opened.payload), answer=isinstance(message, m.Hello))
            case m.Conflict():
                if (boot := self.sealer.foreign(opened.payload)) is not None:
                    self.begin(_fail(IncarnationConflictError(boot)), f"{self.name} has started elsewhere")
            case m.Absent():
                self.resolve(peer, message.request, None)
            case m.Ping():
                self.say(peer, m.Pong(message.request, self.round))
            case m.Pong():
                self._vouch(peer, message.request)
                if message.request == peer.checking:
                    peer.checking = 0
                    self.moved()
            case m.Probe():
                self._probe(peer, message)
            case m.Vouch():
                self._vouched(peer, message)
            case m.Entries():
                peer.epoch = max(peer.epoch, message.epoch)
                if self.gate is None:
                    raise ProtocolError("membership", "there is no log here")
                self.gate.extend(bytes(opened.payload))
            case m.Bye() if message.leaving:
                self._unlink(peer, "has left")
            case m.Bye():
                peer.stopped = True
                self._heard(peer)
                self.moved()

    # Introduction

    def _terms(self) -> Payload:
        epoch = self.gate.epoch if self.gate is not None else 0
        return Payload.of(m.Terms(self._agreed, self.about, self.round, self.final, epoch).encode())

    def _introduce(self, peer: Peer, link: Link, terms: m.Terms, answer: bool) -> None:
        if answer:
            self._say_over(link, peer, m.Welcome(), self._terms())
        if problem := difference(self._agreed, terms.agreed):
            peer.problem = problem
            self.suspect(peer, problem)
            raise ProtocolError("differs", problem)
        peer.problem = ""
        link.trust()
        before = peer.link
        slower = before is not None and before.direct and not link.direct
        if answer or not slower:  # the answer through the broker may come after a direct link was made
            peer.link = link
        if before is not None and link.direct and not before.direct:
            asyncio.get_running_loop().call_later(SETTLED, before.close)
        elif answer and slower:  # whether it cannot be reached directly any more, or has dialled both ways at once
            peer.trouble.set()
        peer.known = True
        peer.about, peer.stopped = terms.about, terms.stopped
        peer.round, peer.checking = terms.round, 0  # also back: a peer that has lost its disk starts anew
        peer.epoch = terms.epoch
        self._detector.watch(peer.name, asyncio.get_running_loop().time())
        self._heard(peer)
        if self._news.take(peer.key, asyncio.get_running_loop().time()):
            self._tell_news(peer)
        self.moved()

    def _keep(self, peer: Peer) -> None:
        task = self.begin(self._keep_in_touch(peer), f"{self.name} keeps in touch with {peer.name}")
        self._keeping[peer.name] = task

    async def _keep_in_touch(self, peer: Peer) -> None:
        """Dial a peer that is not there, and probe one that is silent; for ever, but less and less often."""
        pause = FIRST_PAUSE
        if peer.key < self._key and self._period < inf:  # so that not both dial at once
            await self.until(lambda: peer.introduced, GRACE)
        for attempt in count():
            if peer.problem or (peer.introduced and peer.name not in self.roster.suspected):
                pause = FIRST_PAUSE
                peer.trouble.clear()
                await self._undisturbed(peer)
            if isinstance(self.gate, Guard) and (seconds := self.gate.seconds_left(peer.key)):
                await self.until(lambda: False, seconds)
            if peer.introduced and (peer.name in self.roster.suspected or not self._could_be_direct(peer)):
                peer.unanswered += 1
                self.tell(peer, m.Ping(next(self.numbers)))
                self.moved()
            else:
                await self._dial(peer)
            jitter = self._draws.generator(attempt, f"probe {peer.name}").uniform(0.75, 1.25)
            await self.until(lambda: self._news_of(peer), pause * jitter)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _news_of(self, peer: Peer) -> bool:
        """Whether there is no reason to wait before a peer is dialled or probed again."""
        if peer.link is None:
            return self._is_news(peer)
        return peer.name not in self.roster.suspected

    def _is_news(self, peer: Peer) -> bool:
        """Return whether a peer has an address that was not dialled yet and may be dialled now."""
        return peer.untried and self._hints.left(peer.key, asyncio.get_running_loop().time()) >= 1

    async def _undisturbed(self, peer: Peer) -> None:
        """Wait for trouble with a peer; or, where it is reached through a broker, until another way may be tried."""
        while True:
            if self._could_be_direct(peer) and self._is_news(peer):
                return
            seconds = UPGRADE if self._could_be_direct(peer) else None
            try:
                async with asyncio.timeout(seconds):
                    await peer.trouble.wait()
                return
            except TimeoutError:
                if self._could_be_direct(peer):
                    return

    def _could_be_direct(self, peer: Peer) -> bool:
        return (
            self._directly
            and peer.link is not None
            and not peer.link.direct
            and any(is_direct(address) for address in peer.addresses)
        )

    async def _dial(self, peer: Peer) -> None:
        """Try the addresses of a peer at once; where none answers, the broker."""
        before, peer.untried = peer.link, False
        link = await self._first_of(peer, self._to_dial(peer) if self._directly else [])
        if link is None and before is None:
            link = await self._first_of(peer, [address for address in peer.addresses if not is_direct(address)])
        if not peer.addresses and peer.name in self.roster.suspected:
            self.suspect(peer, "no address of it is known yet")
        if link is None:
            return
        if peer.link is not before:  # it was quicker
            link.close()
            return
        try:
            self._say_over(link, peer, m.Hello(), self._terms())
        except TransportError as error:
            self._note(peer, str(error))
            return
        if not await self.until(lambda: peer.link is not before or bool(peer.problem), INTRODUCTION):
            link.close()

    def _to_dial(self, peer: Peer) -> list[str]:
        """Return the addresses to be dialled now; of hints as many as are allowed, the one dialled last at the end."""
        now = asyncio.get_running_loop().time()
        direct = [address for address in peer.addresses if is_direct(address)]
        hints = [address for address in direct if peer.is_hint(address)]
        later = {address for address in hints if not self._hints.take(peer.key, now)}
        for address in hints:
            if address not in later:
                peer.addresses[address] = peer.addresses.pop(address)
        return [address for address in direct if address not in later]

    async def _reach(self, peer: Peer, address: str) -> Link:
        link = await self.transport.dial(address, peer.key)
        if address in peer.addresses:
            peer.reached_at(address)
        return link

    async def _first_of(self, peer: Peer, addresses: list[str]) -> Link | None:
        """Return a link over the first of some addresses that answers, or None; the others are given up."""
        attempts = [asyncio.ensure_future(self._reach(peer, address)) for address in addresses]
        found: Link | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    found = await attempt
                    break
                except TransportError as error:
                    self._note(peer, str(error))
        finally:
            for attempt in attempts:
                if attempt.cancel():
                    continue
                if not attempt.cancelled() and attempt.exception() is None and attempt.result() is not found:
                    attempt.result().close()
        return found

    def _note(self, peer: Peer, reason: str) -> None:
        if peer.name in self.roster.suspected:
            self.suspect(peer, reason)

    # Suspicion and probing

    def _heard(self, peer: Peer) -> None:
        """Something authentic came from a peer. It is learned with again if it keeps up, so that no deadline is lost."""
        peer.unanswered = 0
        self._detector.heard(peer.name, asyncio.get_running_loop().time())
        if peer.name not in self.roster.suspected:
            return
        if not (peer.stopped or self._asynchronous or peer.round >= self.round - 1):
            self.roster.suspect(peer.name, f"is in round {peer.round}, behind")
        elif self.customer.may_return(peer):
            self.roster.heard(peer.name)
            self.moved()

    def suspect(self, peer: Peer, reason: str) -> None:
        self.roster.suspect(peer.name, printable(reason))
        peer.trouble.set()
        self.moved()

    def _unlink(self, peer: Peer, reason: str) -> None:
        peer.link = None
        self._detector.unwatch(peer.name)
        self.suspect(peer, reason)
        peer.give_up()
        self.moved()

    def _is_at(self, peer: Peer, round: int) -> None:
        if round != peer.round:
            peer.round = round
            self.moved()

    def check(self, peer: Peer) -> None:
        """Ask a peer where it is now: a frame that was long on its way may have said where it was."""
        peer.checking = next(self.numbers)
        self.tell(peer, m.Ping(peer.checking))

    async def _watch(self) -> None:
        """Probe who is silent, at receipt times: what a peer says about learning is proof enough of its life."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, self._detector.next_tick(loop.time()) - loop.time()))
            for peer in self.introduced():
                if peer.link is not None and peer.link.progress != peer.progress:  # a part of a frame, which may take long
                    peer.progress = peer.link.progress
                    self._detector.heard(peer.name, loop.time())
            for step in self._detector.tick(loop.time()):
                self._do(step)

    def _do(self, step: Ping | AskOthers | Suspect | Dead) -> None:
        match step:
            case Ping():
                peer = self.peers[step.name]
                peer.unanswered += 1
                if peer.unanswered > DEAF and peer.link is not None:  # others hear it, so that it is not dead
                    peer.link.close()
                    self._unlink(peer, "does not answer")
                else:
                    self.tell(peer, m.Ping(next(self.numbers)))
            case AskOthers():
                subject = self.peers[step.about].key
                for helper in step.helpers:
                    number = next(self.numbers)
                    self._asked_after[number] = helper, subject
                    asyncio.get_running_loop().call_later(2 * INTRODUCTION, self._asked_after.pop, number, None)
                    self.tell(self.peers[helper], m.Probe(number, subject))
            case Suspect():
                peer = self.peers[step.name]
                self.suspect(peer, step.reason)
                peer.give_up()
            case Dead():
                peer = self.peers[step.name]
                if peer.link is not None:
                    peer.link.close()
                self._unlink(peer, step.reason)

    def _probe(self, asker: Peer, probe: m.Probe) -> None:
        """Ping a member on behalf of another one."""
        name = self._names.get(probe.subject)
        pending = sum(other is asker for other, _ in self._on_behalf.values())
        if name is None or not self.peers[name].introduced or pending >= PENDING_PROBES:
            return
        number = next(self.numbers)
        self._on_behalf[number] = asker, probe
        asyncio.get_running_loop().call_later(2 * INTRODUCTION, self._on_behalf.pop, number, None)
        self.say(self.peers[name], m.Ping(number))

    def _vouch(self, peer: Peer, number: int) -> None:
        """Say that a member has answered a ping on behalf of another one. Nobody else can answer in its place."""
        asked = self._on_behalf.get(number)
        if asked is not None and asked[1].subject == peer.key:
            asker, probe = self._on_behalf.pop(number)
            self.tell(asker, m.Vouch(probe.request, probe.subject))

    def _vouched(self, peer: Peer, vouch: m.Vouch) -> None:
        """Believe that a member is there, if whoever says so was asked."""
        name = self._names.get(vouch.subject)
        if name is not None and self._asked_after.get(vouch.request) == (peer.name, vouch.subject):
            del self._asked_after[vouch.request]
            self._detector.vouched(name, asyncio.get_running_loop().time())

    def resolve(self, peer: Peer, number: int, answer: Any) -> None:
        """Give the answer to a request, or (None) the news that there is none, whether it is still waited for or not."""
        if number in peer.overdue:
            peer.overdue.remove(number)
            self.customer.late(peer)
            self._heard(peer)
        peer.resolve(number, answer)

    # Saying

    def say(self, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Say something to a peer that was introduced.

        Raises:
            TransportError: it is not connected.
        """
        if peer.link is None:
            raise TransportError(self.roster.suspected.get(peer.name, "not connected"))
        self._say_over(peer.link, peer, message, payload)

    def _say_over(self, link: Link, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        link.send(self.sealer.seal(message, peer.key, payload, link.session))
        peer.bytes_out += OVERHEAD + payload.size
        if not isinstance(message, m.Learning):
            self.traffic.sent_control += OVERHEAD + payload.size

    def tell(self, peer: Peer, message: m.Message) -> None:
        """Say something that may be lost."""
        try:
            self.say(peer, message)
        except TransportError:
            self.rejected["link lost"] += 1

    # Waiting

    def moved(self) -> None:
        """Something has changed that somebody may wait for."""
        self.customer.moved()
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something has changed so that `condition` holds. Return False if it took longer than that."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                while not condition():
                    if self._progress is None or self._progress.done():
                        self._progress = loop.create_future()
                    await asyncio.shield(self._progress)
        except TimeoutError:
            return False
        return True

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task[None]:
        task = self._tasks.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def is_direct(address: str) -> bool:
    """Return whether an address is reached without a broker."""
    return not address.startswith("mqtt:")


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Say in one sentence what two nodes do not agree on, with both values; "" if they agree."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, "not set"), theirs.get(key, "not set")
        if mine != other:
            return f"{printable(key)} differs: ours is {mine}, theirs {printable(other)}"
    return ""


async def _fail(error: Exception) -> None:
    raise error
