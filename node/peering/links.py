"""Handling of links and their frames: authentication, refusals, faults.

Routing of authentic messages to the parts of a node that handle them.

Introduction of peers to each other, with a hello that contains all settings that must be equal on both sides.

Exchange of entries of the membership log with peers.

Detection of two processes, or two copies of a folder, that use the same node key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from p2pfl._util.printable import printable
from p2pfl.errors import P2pflError
from p2pfl.node.peering.peer import BackgroundTasks, Messenger, Peer, Traffic
from p2pfl.node.peering.peer_table import PeerEvents, PeerTable, Prober
from p2pfl.node.peering.peering_config import JoinReply, LocalState, Newcomers, PeeringConfig
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl, Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened, Payload

EXPECTED = frozenset({"unknown session"})
SETTLED = 5.0  # seconds after which no data is in transit over a replaced link
CONFIRMED, LONGEST_PAUSE = 5.0, 320.0  # seconds until unconfirmed entries are sent again; doubled each time
NO_ENTRIES = msgspec.msgpack.encode([])
NEWS_RATE, NEWS_BURST = 0.2, 3  # introductions per second of one peer that are sent missing entries


"""Causes of refusal that occur without a fault: packets through a broker cross the end of a link, or arrive after a
restart."""


class LinkHandler:
    """Handler of a transport's links (see p2pfl.protocols.transport.Handler).

    It verifies every frame, counts refused frames by cause and sender, and passes all others on.
    """

    def __init__(
        self,
        config: PeeringConfig,
        events: PeerEvents,
        *,
        table: PeerTable,
        messenger: Messenger,
        tasks: BackgroundTasks,
        incarnations: IncarnationCheck,
        router: MessageRouter,
    ) -> None:
        self._name = config.name
        self._verifier = config.verifier
        self._transport = config.transport
        self._options = config.options
        self._events = events
        self._table = table
        self._rejected = messenger.rejected
        self._tasks = tasks
        self._incarnations = incarnations
        self._router = router
        self._newcomers = Newcomers(config.options.answer_join)

    def received(self, link: Link, frame: memoryview) -> None:
        """Handle a frame. Errors are counted, not raised."""
        try:
            if link.joining:
                answer = self._newcomers.ask(link, frame)
                self.serve(link, self._answer(link, answer), f"{self._name}: answer to a newcomer")
                return
            self._expect_member(link)
            opened = self._verifier.open(frame, link.session, link.key, link.payload_digest)
            peer = self._table.peers[opened.sender]
            peer.bytes_in += len(frame)
            self._router.receive(peer, link, opened)
        except ProtocolError as error:
            self._refuse(link, error)
        except TransportError:
            self._rejected["link lost"] += 1
        except Exception as error:
            self._fail(link, error)

    def drained(self, link: Link) -> None:
        """Report that a peer has read most of the data sent to it."""
        for peer in self._with(link):
            self._events.drained(peer)

    def lost(self, link: Link, reason: str) -> None:
        """Mark the peer at the other end of a link as disconnected."""
        for peer in self._with(link):
            self._table.disconnect(peer, reason)

    def refused(self, cause: str, detail: str) -> None:
        """Count a refused connection; log the first one of each cause that shows a fault or an attack."""
        self._rejected[cause] += 1
        if self._rejected[cause] == 1 and cause not in EXPECTED:  # the status file counts the rest
            self._options.log.warning(f"refused a connection: {detail}", kind="connection-refused", cause=cause)

    def serve(self, link: Link | None, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run the work that a frame of a link requested. An error in it ends only that link."""

        async def count_errors() -> None:
            try:
                await work
            except TransportError:
                self._rejected["link lost"] += 1
            except Exception as error:
                self._fail(link, error)

        self._tasks.spawn(count_errors(), name)

    def _with(self, link: Link) -> list[Peer]:
        return [peer for peer in self._table.peers.values() if peer.link is link]

    async def _answer(self, link: Link, answer: Awaitable[JoinReply]) -> None:
        """Send the answer to a newcomer."""
        reply = await answer
        if reply.cause:
            self.refused(reply.cause, reply.detail)
        link.send([reply.frame])

    def _expect_member(self, link: Link) -> None:
        """Close the link of a peer whose membership has ended. A peer may have other links than the one in use."""
        access = self._options.access
        if access is not None and link.key is not None and (cause := access.refusal(link.key)):
            link.close()
            raise ProtocolError(cause, f"{link.key.hex()} is no longer a member")

    def _refuse(self, link: Link, error: ProtocolError) -> None:
        """Count a refused frame by cause and sender. Exclude a member that sends many invalid frames."""
        self._rejected[error.cause] += 1
        peer = self._table.with_key(link.key)
        if peer is None:
            return
        peer.offences[error.cause] += 1
        if error.cause == "replay":
            self._incarnations.show_newest(link, peer)
        if error.cause == "version" and not peer.introduced:
            self._table.suspect(peer, str(error).removeprefix("version: "))
        guard = self._options.guard
        if guard is not None and guard.offend(peer.key, error.cause):
            self._transport.expel(peer.key)
            seconds = guard.seconds_left(peer.key)
            self._table.disconnect(peer, f"excluded for {seconds:.0f} s after invalid messages ({error.cause})")

    def _fail(self, link: Link | None, error: Exception) -> None:
        """End a link after an unexpected error in one of its frames, or the node if faults are not counted."""
        on_fault = self._options.on_fault
        if on_fault is None:
            self._tasks.fail(error, f"{self._name}: message of a peer")
            return
        on_fault("links", error)
        if link is not None:
            link.close()
            self.lost(link, "one of its messages could not be handled")


class MessageRouter:
    """Router that passes on every message of an introduced peer, and only introductions of others."""

    def __init__(
        self,
        events: PeerEvents,
        table: PeerTable,
        traffic: Traffic,
        *,
        introducer: Introducer,
        incarnations: IncarnationCheck,
        prober: Prober,
        gossip: MembershipGossip,
    ) -> None:
        self._events = events
        self._table = table
        self._traffic = traffic
        self._introducer = introducer
        self._incarnations = incarnations
        self._prober = prober
        self._gossip = gossip

    def receive(self, peer: Peer, link: Link, opened: Opened) -> None:
        """Handle an authentic message.

        Raises:
            ProtocolError: the peer must not send this message.
            TransportError: the answer cannot be sent.
        """
        message = opened.message
        if not isinstance(message, m.Hello | m.Welcome | m.Conflict):
            self._expect_introduced(peer)
            self._note_round(peer, message)
            self._table.heard(peer)
        if not isinstance(message, m.Learning):
            self._traffic.count("received", "control", OVERHEAD + len(opened.payload))
        match message:
            case m.Hello() | m.Welcome():
                self._introducer.receive(peer, link, opened)
            case m.Conflict():
                self._incarnations.receive(opened)
            case m.Ping() | m.Pong() | m.PingRequest() | m.IndirectAck():
                self._prober.receive(peer, message)
            case m.Entries():
                self._gossip.receive(peer, message, opened)
            case m.NotAvailable():
                self._table.resolve(peer, message.request, None)
            case m.Bye():
                self._note_bye(peer, message)
            case m.RoundReached():
                pass  # the message contains only the round
            case _:
                self._events.handle(peer, opened)

    def _expect_introduced(self, peer: Peer) -> None:
        if peer.problem:
            raise ProtocolError("differs", peer.problem)
        if not peer.introduced:
            raise ProtocolError("not introduced", peer.name)

    def _note_round(self, peer: Peer, message: m.Message) -> None:
        """Record the round in a message. Only `RoundReached` may move its sender back."""
        if isinstance(message, m.RoundReached):
            self._table.set_round(peer, message.round)
        elif isinstance(message, m.Get | m.Submit | m.NotAvailable | m.Pong | m.Bye):
            self._table.set_round(peer, max(peer.round, message.round))

    def _note_bye(self, peer: Peer, message: m.Bye) -> None:
        if message.leaving:
            self._table.disconnect(peer, "has left")
        else:
            peer.stopped = True
            self._table.heard(peer)
            self._table.changes.notify()


class Introducer:
    """Introducer that greets peers over new links and accepts peers with equal settings.

    If the settings differ, each side excludes the other and names the difference.
    """

    def __init__(
        self,
        config: PeeringConfig,
        local: LocalState,
        table: PeerTable,
        messenger: Messenger,
        gossip: MembershipGossip,
    ) -> None:
        self._config = config
        self._local = local
        self._table = table
        self._messenger = messenger
        self._gossip = gossip

    def parameters(self) -> Payload:
        """Return the payload of a hello: the settings that must be equal, and the state of this node."""
        local, version = self._local, self._config.membership_version
        return Payload.of(
            m.HelloParameters(dict(self._config.agreed), local.public_info, local.round, local.final, version).encode()
        )

    def greet(self, link: Link, peer: Peer) -> None:
        """Send a hello over a new link.

        Raises:
            TransportError: the link is closed.
        """
        self._messenger.send_over(link, peer, m.Hello(), self.parameters())

    def greet_again(self) -> None:
        """Send the peers a new hello over their present links, because the state of this node in it has changed."""
        for peer in self._table.introduced_peers():
            try:
                if peer.link is not None:
                    self.greet(peer.link, peer)
            except TransportError:
                self._messenger.rejected["link lost"] += 1

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
            self._messenger.send_over(link, peer, m.Welcome(), self.parameters())
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
        self._table.watch(peer)
        self._table.heard(peer)
        self._gossip.greet(peer)
        self._table.changes.notify()

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
    """Gossip that sends peers the entries that they lack and accepts entries from them.

    A frame may be lost while its link remains. A peer therefore confirms entries with its own membership version, and
    receives them again until it does.

    Args:
        access: holds the log; None if there is none.
    """

    def __init__(self, access: AccessControl | None, messenger: Messenger) -> None:
        self._access = access
        self._messenger = messenger
        self._news = TokenBucket(NEWS_RATE, NEWS_BURST)
        self._confirmed: dict[bytes, int] = {}  # membership versions that peers have announced, by key

    def send(self, peer: Peer, pause: float = CONFIRMED) -> None:
        """Send a peer the entries that it is not known to have.

        Args:
            pause: seconds after which to send them again if the peer does not confirm them.
        """
        if self._access is None or peer.membership_version >= self._access.membership_version:
            return
        peer.repetition.start(pause, partial(self._repeat, peer, pause))
        try:
            while peer.membership_version < self._access.membership_version:  # a long log needs several messages
                news = self._access.after(peer.membership_version, m.Entries.LIMIT)
                self._messenger.send(peer, m.Entries(self._access.membership_version), Payload.of(news))
                peer.membership_version += len(msgspec.msgpack.decode(news, type=list[msgspec.Raw]))
        except TransportError:
            self._messenger.rejected["link lost"] += 1

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

    def greet(self, peer: Peer) -> None:
        """Send a newly introduced peer the entries that it lacks, within a rate limit."""
        self._confirmed[peer.key] = peer.membership_version
        if self._news.take(peer.key, asyncio.get_running_loop().time()):
            self.send(peer)

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
        self._access.extend(bytes(opened.payload))
        if opened.payload != NO_ENTRIES and peer.link is not None:
            self._messenger.send(peer, m.Entries(self._access.membership_version), Payload.of(NO_ENTRIES))


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

    def __init__(self, config: PeeringConfig, messenger: Messenger, tasks: BackgroundTasks) -> None:
        self._name = config.name
        self._verifier = config.verifier
        self._signer = config.signer
        self._messenger = messenger
        self._tasks = tasks
        self._shown: WeakSet[Link] = WeakSet()

    def show_newest(self, link: Link, peer: Peer) -> None:
        """Send a peer the newest frame and model of its key, once per link. Its folder may be a copy or a backup."""
        evidence = self._verifier.newest(peer.key) + self._verifier.newest_model(peer.key)
        if evidence and link not in self._shown:
            self._shown.add(link)
            with suppress(TransportError):
                self._messenger.send_over(link, peer, m.Conflict(), Payload.of(evidence))

    def receive(self, opened: Opened) -> None:
        """End the node with IncarnationConflictError if another process signed the frame that a peer shows.

        Raises:
            ProtocolError: the frame does not carry this node's key.
        """
        if (foreign := self._signer.foreign(opened.payload)) is not None:
            self._tasks.fail(IncarnationConflictError(*foreign), f"{self._name}: conflict of incarnations")
