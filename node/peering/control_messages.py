"""Messages that keep a federation together, each kind with its part of the node.

- Introducer sends and checks hellos, which contain all settings that must be equal on both sides.
- MembershipGossip exchanges entries of the membership log with peers.
- IncarnationCheck detects two processes, or two copies of a folder, that use the same node key.
- Prober probes silent peers, for this node and on behalf of others (SWIM's ping and ping-req).

p2pfl.node.peering.peer_manager calls each part with authentic messages of its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from math import ceil, log
from weakref import WeakSet

import msgspec

from p2pfl._util.printable import printable
from p2pfl.errors import P2pflError
from p2pfl.node.peering.failure_detector import AskOthers, Dead, Ping, Step, Suspect
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.node.peering.peers import Peer, PeerTable
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.membership import fork
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl, Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import VERSION, Opened, Payload, is_readable
from p2pfl.random_streams import RandomStreams

SETTLED = 5.0  # seconds after which no data is in transit over a replaced link
CONFIRMED, LONGEST_PAUSE = 5.0, 320.0  # seconds until unconfirmed entries are sent again; doubled each time
FANOUT = 5  # peers to which a node sends new entries
COMPARING = 3.0  # seconds between comparisons of the log with that of a random peer in a round, 25 % more or less
NO_ENTRIES = msgspec.msgpack.encode([])
REMEMBERED = 10.0  # seconds for which an indirect answer to a probe counts
DEAF = 5  # unanswered pings after which a link is closed, although other peers receive messages of the peer
PENDING_PROBES = 8  # maximum number of pending pings on behalf of one other peer
NEWS_RATE, NEWS_BURST = 0.2, 3  # introductions per second of one peer that are sent missing entries


class Introducer:
    """Greeting of peers over new links, and acceptance of those with equal settings.

    If the settings differ, each side excludes the other and names the difference.
    """

    def __init__(
        self,
        config: PeeringConfig,
        table: PeerTable,
        gossip: MembershipGossip,
    ) -> None:
        self._config = config
        self._table = table
        self._gossip = gossip

    def parameters(self) -> Payload:
        """Return the payload of a hello: the settings that must be equal, and the state of this node."""
        table, version = self._table, self._config.membership_version
        return Payload.of(
            m.HelloParameters(dict(self._config.agreed), table.public_info, table.round, table.final, version).encode()
        )

    def greet(self, link: Link, peer: Peer) -> None:
        """Send a hello over a new link.

        Raises:
            TransportError: the link is closed.
        """
        self._table.send_over(link, peer, m.Hello(), self.parameters())

    def greet_again(self) -> None:
        """Send the peers a new hello over their present links, because the state of this node in it has changed."""
        for peer in self._table.introduced_peers():
            try:
                if peer.link is not None:
                    self.greet(peer.link, peer)
            except TransportError:
                self._table.rejected["link lost"] += 1

    def receive(self, peer: Peer, link: Link, opened: Opened) -> None:
        """Handle a hello or the answer to one.

        Raises:
            ProtocolError: the message is malformed, or a setting that must be equal differs.
        """
        if peer.incarnation != opened.incarnation:  # requests to an earlier incarnation of the peer are lost
            peer.incarnation = opened.incarnation
            peer.give_up()
        theirs, answer = m.decode_hello_parameters(opened.payload), isinstance(opened.message, m.Hello)
        if answer:
            self._table.send_over(link, peer, m.Welcome(), self.parameters())
        if problem := difference(self._config.agreed, theirs.agreed):
            peer.problem = problem
            self._table.suspect(peer, problem)
            raise ProtocolError("differs", problem)
        peer.problem = peer.dial_problem = ""
        peer.revoked = False
        self._choose_link(peer, link, answer)
        peer.known = True
        peer.public_info, peer.stopped = theirs.public_info, theirs.stopped
        peer.round, peer.checking = theirs.round, 0  # possibly lower: a peer that has lost its disk starts again
        peer.membership_version = theirs.membership_version
        self._table.detector.watch(peer.name, asyncio.get_running_loop().time())
        self._table.heard(peer)
        self._gossip.greet(peer)
        peer.news.set()
        self._table.notify()

    def _choose_link(self, peer: Peer, link: Link, answer: bool) -> None:
        """Use a new link with a peer, unless it is slower than the previous one and this node dialled it."""
        link.trust()
        before = peer.link
        slower = before is not None and before.direct and not link.direct
        if answer or not slower:  # the answer through the broker may arrive after a direct link was made
            peer.link = link
        if before is not None and link.direct and not before.direct:
            asyncio.get_running_loop().call_later(SETTLED, before.close)
        elif answer and slower:  # the peer is no longer reachable directly, or it has dialled both ways at once
            peer.trouble.set()


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return a sentence that names the differing settings of two nodes with both values; "" if they agree."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, "not set"), theirs.get(key, "not set")
        if mine != other:
            return f"{printable(key)} differs: this node has {mine}, the peer has {printable(other)}"
    return ""


class MembershipGossip:
    """Entries of the membership log: those that peers lack are sent until confirmed, those that peers send are accepted.

    A node passes new entries on to five random peers that are not known to have them, and they do the same. If each node
    sent them to all its peers, an entry would cost a complete federation of n members n^2 frames. Five are known to reach
    99.3 % (1 - e^-5) of the members in a few hops. The end of a membership is sent to ln(n) more, which makes it likely
    that all are reached at once: exp(-e^-5), see Kermarrec, Massoulie and Ganesh, "Probabilistic reliable dissemination
    in large-scale systems" (2003).

    A newcomer that has begun with a checkpoint asks for the entries before it in the same way, a piece of the log every few
    seconds, once `fetching` is set: until its first round has ended it needs only what it has begun with, and while it waits
    for other members it would receive all of the log.

    Who is missed, or has only peers that withhold entries, finds out by itself: each node tells a random peer its
    membership version every few seconds, or at rest once per rest period, and a peer that knows more sends the others. One
    honest peer suffices.

    A frame may be lost while its link remains. A peer therefore confirms entries with its own membership version, and
    receives them again until it does.

    A fork of the log is passed on like an entry, because members with one history only would never notice it: a node that
    has seen two entries that contradict each other (p2pfl.protocols.membership.fork) sends both to a few random peers at
    once, and to one in each comparison, but to each peer once, and to none that has sent them. A peer that knows a fork
    already sends nothing back. It is no use to a peer whose log is shorter, which is sent it later.

    Args:
        access: holds the log; None if there is none.
        streams: select the peers.

    Attributes:
        fetching: whether to ask for the entries before a checkpoint, if this node has begun with one.
    """

    def __init__(self, access: AccessControl | None, table: PeerTable, streams: RandomStreams) -> None:
        self._access = access
        self._table = table
        self._streams = streams
        self._spreads = count()
        self._news = TokenBucket(NEWS_RATE, NEWS_BURST)
        self._convinced: set[bytes] = set()  # keys of peers that have sent the proof of a fork, or were sent it
        self._confirmed: dict[bytes, int] = {}  # membership versions that peers have announced, by key
        self.fetching = False

    def spread(self, urgent: bool = False) -> None:
        """Send entries to some of the peers that are not known to have them.

        Args:
            urgent: whether a membership has ended.
        """
        if self._access is None:
            return
        newest = self._access.membership_version
        peers = self._table.introduced_peers()
        for peer in self._draw([peer for peer in peers if peer.membership_version < newest], urgent):
            self.send(peer)
        if self._access.fork is not None:
            for peer in self._draw([peer for peer in peers if peer.key not in self._convinced], urgent=True):
                self._send_fork(peer)

    def _draw(self, peers: Sequence[Peer], urgent: bool) -> Sequence[Peer]:
        """Return some random ones of the peers that lack something."""
        most = FANOUT + (ceil(log(len(peers))) if urgent and peers else 0)
        if len(peers) <= most:
            return peers
        draws = self._streams.generator(next(self._spreads), "spread of entries")
        return [peers[k] for k in draws.choice(len(peers), most, replace=False)]

    def _send_fork(self, peer: Peer) -> None:
        """Send a peer the proof of a fork, unless it knows one or its log is too short to tell."""
        if self._access is None or (proof := self._access.fork) is None or peer.key in self._convinced:
            return
        entries = fork.encode(*proof)
        if peer.membership_version < (fork.number_of(entries) or 0):
            return
        try:
            self._table.send(peer, m.Entries(self._access.membership_version), Payload.of(entries))
            self._convinced.add(peer.key)
        except TransportError:
            self._table.rejected["link lost"] += 1

    async def run(self) -> None:
        """Compare the log with those of random peers without end."""
        for turn in count():
            draws, detector = self._streams.generator(turn, "comparison of logs"), self._table.detector
            rests = detector.resting and not self._fetches_log
            seconds = max(COMPARING, detector.rest) if rests else COMPARING
            await self._table.pause(seconds * float(draws.uniform(0.75, 1.25)))
            if self._access is not None and (peers := self._table.introduced_peers()):
                peer = peers[int(draws.integers(len(peers)))]
                if self._fetches_log and _knows_missing(peer):
                    self._table.tell(peer, m.MissingEntries(self._access.stored))
                self._table.tell(peer, m.Entries(self._access.membership_version), Payload.of(NO_ENTRIES))
                self._send_fork(peer)

    def send(self, peer: Peer, pause: float = CONFIRMED) -> None:
        """Send a peer the entries that it is not known to have, as many as fit into one message.

        It gets the next ones when it has confirmed these, so that a long log takes the memory of one message.

        Args:
            pause: seconds after which to send them again if the peer does not confirm them.
        """
        if self._access is None or peer.membership_version >= self._access.membership_version:
            return
        peer.repetition.start(pause, partial(self._repeat, peer, pause))
        try:
            news = self._access.after(peer.membership_version, m.Entries.LIMIT)
            if news == NO_ENTRIES:  # this node lacks them itself
                return
            self._table.send(peer, m.Entries(self._access.membership_version), Payload.of(news))
            peer.membership_version += len(msgspec.msgpack.decode(news, type=list[msgspec.Raw]))
        except TransportError:
            self._table.rejected["link lost"] += 1

    def _repeat(self, peer: Peer, pause: float) -> None:
        """Send unconfirmed entries again, within the rate limit of introductions."""
        confirmed = self._confirmed.get(peer.key, 0)
        if not peer.introduced or confirmed >= peer.membership_version:
            return
        if not self._news.take(peer.key, asyncio.get_running_loop().time()):
            peer.repetition.start(pause, partial(self._repeat, peer, pause))
            return
        peer.membership_version = confirmed
        self.send(peer, min(2 * pause, LONGEST_PAUSE))

    def answer(self, peer: Peer, message: m.MissingEntries) -> None:
        """Send a peer that has begun with a checkpoint the entries before it that it asks for, within a rate limit.

        Raises:
            TransportError: the answer cannot be sent.
        """
        if self._access is None or not self._news.take(peer.key, asyncio.get_running_loop().time()):
            return
        page = self._access.after(message.known, m.MissingEntries.LIMIT)
        if page != NO_ENTRIES:
            self._table.send(peer, m.Entries(self._access.membership_version), Payload.of(page))

    def greet(self, peer: Peer) -> None:
        """Send a newly introduced peer the entries that it lacks, within a rate limit."""
        self._confirmed[peer.key] = peer.membership_version
        if self._news.take(peer.key, asyncio.get_running_loop().time()):
            self.send(peer)

    @property
    def _fetches_log(self) -> bool:
        """Whether this node asks for entries before the checkpoint with which it has begun."""
        access = self._access
        return self.fetching and access is not None and access.stored < access.membership_version

    def lacks_entries(self, peer: Peer) -> bool:
        """Return whether a peer has announced more entries than this node has."""
        return self._access is not None and peer.membership_version > self._access.membership_version

    def receive(self, peer: Peer, message: m.Entries, opened: Opened) -> None:
        """Accept entries from a peer.

        Raises:
            ProtocolError: this node has no log, or the entries are malformed or not signed.
        """
        announced = max(self._confirmed.get(peer.key, 0), message.membership_version)
        self._confirmed[peer.key] = announced
        peer.membership_version = max(peer.membership_version, announced)
        if self._access is None:
            raise ProtocolError("membership", "this node has no membership log")
        entries = bytes(opened.payload)
        if is_proof := fork.number_of(entries) is not None:
            self._convinced.add(peer.key)
        try:
            self._access.extend(entries)
        except ProtocolError as error:
            if error.cause != "membership fork":
                if is_proof:
                    self._convinced.discard(peer.key)
                raise
            if is_proof:  # the peer has passed it on, and may know the same history
                return
            if peer.link is not None:
                self._send_fork(peer)
            raise
        if opened.payload == NO_ENTRIES and peer.link is not None:
            self.send(peer)  # only what was not sent before, so that a peer that repeats its question gets it once
        elif peer.link is not None:
            self._table.send(peer, m.Entries(self._access.membership_version), Payload.of(NO_ENTRIES))


def _knows_missing(peer: Peer) -> bool:
    """Return whether a peer can be asked for missing entries, which version 6 does not know."""
    return peer.link is not None and peer.link.version >= VERSION


class IncarnationConflictError(P2pflError):
    """Error: a peer has a later frame signed with this node's key that this process did not sign.

    Attributes:
        incarnation: incarnation in that frame.
        round: the newest round whose model of this node peers hold; 0 if they show none.
    """

    def __init__(self, incarnation: int, round: int = 0) -> None:
        super().__init__(f"a peer has a message from start {incarnation} of this node")
        self.incarnation = incarnation
        self.round = round


class IncarnationCheck:
    """Check for reused keys.

    It shows a peer the newest frames of its key if the peer repeats old numbers, and checks the frames that peers show
    to this node.
    """

    def __init__(self, config: PeeringConfig, table: PeerTable) -> None:
        self._verifier = config.verifier
        self._table = table
        self._shown: WeakSet[Link] = WeakSet()

    def show_newest(self, link: Link, peer: Peer) -> None:
        """Send a peer the newest frame and model of its key, once per link. Its folder may be a copy or a backup."""
        newest = self._verifier.newest(peer.key), self._verifier.newest_model(peer.key)
        evidence = b"".join(shown for shown in newest if shown and is_readable(shown, link.version))
        if evidence and link not in self._shown:
            self._shown.add(link)
            with suppress(TransportError):
                self._table.send_over(link, peer, m.Conflict(), Payload.of(evidence))

    def receive(self, opened: Opened) -> None:
        """End the node with IncarnationConflictError if another process signed the frame that a peer shows.

        Raises:
            ProtocolError: the frame does not carry this node's key.
        """
        if (foreign := self._table.signer.foreign(opened.payload)) is not None:
            self._table.end(IncarnationConflictError(*foreign), f"{self._table.name}: conflict of incarnations")


class Prober:
    """The failure detector's steps, carried out, and answers to the probes of others."""

    def __init__(self, table: PeerTable) -> None:
        self._table = table
        self._on_behalf: dict[int, tuple[Peer, m.PingRequest]] = {}  # by our ping's number: asker and request
        self._asked_after: dict[int, tuple[str, bytes]] = {}  # by our probe's number: recipient and subject

    async def run(self) -> None:
        """Probe silent peers without end. Every message of a peer is proof of life at the time of its receipt."""
        loop, detector = asyncio.get_running_loop(), self._table.detector
        while True:
            await self._table.pause(max(0.0, detector.next_tick(loop.time()) - loop.time()))
            for peer in self._table.introduced_peers():
                if peer.link is not None and peer.link.progress != peer.progress:  # a part of a long frame
                    peer.progress = peer.link.progress
                    detector.heard(peer.name, loop.time())
            for step in detector.tick(loop.time()):
                self.take(step)

    def take(self, step: Step) -> None:
        """Carry out a step of the failure detector."""
        match step:
            case Ping():
                self._ping(self._table.peers[step.name])
            case AskOthers():
                self._ask_others(step)
            case Suspect():
                peer = self._table.peers[step.name]
                self._table.suspect(peer, step.reason)
                peer.give_up_requests()
            case Dead():
                self._end(self._table.peers[step.name], step.reason)

    def receive(self, peer: Peer, message: m.Ping | m.Pong | m.PingRequest | m.IndirectAck) -> None:
        """Handle a message of a peer about probing.

        Raises:
            TransportError: the peer to answer or to ping is not connected.
        """
        match message:
            case m.Ping():
                self._table.send(peer, m.Pong(message.request, self._table.round))
            case m.Pong():
                self._vouch(peer, message.request)
                if message.request == peer.checking:
                    peer.checking = 0
                    self._table.notify()
            case m.PingRequest():
                self._probe(peer, message)
            case m.IndirectAck():
                self._believe(peer, message)

    def _ping(self, peer: Peer) -> None:
        peer.unanswered += 1
        if peer.unanswered > DEAF and peer.link is not None:  # other peers receive its messages, so it is not dead
            self._end(peer, "does not answer")
        else:
            self._table.ping(peer)

    def _end(self, peer: Peer, reason: str) -> None:
        if peer.link is not None:
            peer.link.close()
        self._table.disconnect(peer, reason)

    def _ask_others(self, step: AskOthers) -> None:
        subject = self._table.peers[step.about].key
        for helper in step.helpers:
            number = next(self._table.numbers)
            self._asked_after[number] = helper, subject
            asyncio.get_running_loop().call_later(REMEMBERED, self._asked_after.pop, number, None)
            self._table.tell(self._table.peers[helper], m.PingRequest(number, subject))

    def _probe(self, asker: Peer, probe: m.PingRequest) -> None:
        """Ping a member on behalf of another one."""
        subject = self._table.with_key(probe.subject)
        pending = sum(other is asker for other, _ in self._on_behalf.values())
        if subject is None or not subject.introduced or pending >= PENDING_PROBES:
            return
        number = next(self._table.numbers)
        self._on_behalf[number] = asker, probe
        asyncio.get_running_loop().call_later(REMEMBERED, self._on_behalf.pop, number, None)
        self._table.send(subject, m.Ping(number))

    def _vouch(self, peer: Peer, number: int) -> None:
        """Tell the asking peer that a member has answered a ping on its behalf. Only that member can answer."""
        asked = self._on_behalf.get(number)
        if asked is not None and asked[1].subject == peer.key:
            asker, probe = self._on_behalf.pop(number)
            self._table.tell(asker, m.IndirectAck(probe.request, probe.subject))

    def _believe(self, peer: Peer, vouch: m.IndirectAck) -> None:
        """Record a member as alive after another peer's report."""
        subject = self._table.with_key(vouch.subject)
        if subject is not None and self._asked_after.get(vouch.request) == (peer.name, vouch.subject):
            del self._asked_after[vouch.request]
            self._table.detector.record_indirect_ack(subject.name, asyncio.get_running_loop().time())
