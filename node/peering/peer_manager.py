"""Peers of a node: who may speak to it, what they may say, and which part answers.

Theory of operation. A peer, as this node sees it, is in one of four states:

- unknown: its key belongs to no neighbour. No link with it becomes part of the peering: the transport refuses the
  handshake, unless this node invites newcomers, whose links may carry one request and one answer.
- not connected: `peer.link` is None. The Dialler dials its addresses, less and less often, and never stops.
- introduced: both sides have exchanged a hello over `peer.link`, and all settings that must be equal are equal. Only
  the Introducer sets `peer.link`, and only `disconnect` and `remove` clear it.
- excluded: `peer.problem` names a setting that differs. Its next hello may end this, because it may have other settings
  after a restart.

A second, independent state is an opinion of this node: it waits for a peer, or it suspects the peer (`view.suspected`).
A suspicion ends with the next authentic message of a peer that keeps up. It decides for whom this node waits, never who
is a member: the membership log alone decides that, through `add` and `remove` (p2pfl.node.federation.membership_sync).

A frame takes one path. The transport calls `received`, which asks in this order:

1. Is the link that of a newcomer? Then the frame is a request to join, the first and only one of this link.
2. Is the owner of the link's key still a member, and not excluded by the Guard for earlier offences? The transport has
   asked this at the handshake, but a membership can end while a frame is in transit.
3. Is the frame authentic, for this node, of this session, and new (FrameVerifier)? Nothing in it is believed before,
   and nothing in it is decoded but its fixed-size header.
4. Has the sender been introduced? If not, only a hello or a conflict of incarnations may pass.

Then `_route` records the round in the message, counts it, and passes it on: introductions, probes, entries of the
membership log and conflicts to the parts in p2pfl.node.peering.control_messages; everything about learning to the
exchange (PeerEvents.handle). The parts share the PeerTable. Only two calls go from one part to another: the Dialler lets
the Introducer greet over a new link, and the Introducer lets the gossip send what a newly introduced peer lacks.

What must never be:

- An error in the frame of one peer must not end the node or another link. `received` raises nothing. A violation
  (ProtocolError) is counted by cause and by sender, and too many grave ones exclude the sender for a time. A lost link
  is only counted. Any other error is a fault of this node: it ends this one link, and the node if it does not run under
  a supervisor (`options.on_fault`), so that tests find it.
- The round of a peer must not decrease because of an old frame. Only RoundReached and a hello may move it back.
- A frame must not move a peer to another link. Only a hello does, because frames of an older link can arrive late.
- A request must not stay open when its peer is gone: `disconnect` and `remove` end all of them (`peer.give_up`).
"""

from __future__ import annotations

import asyncio
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any
from weakref import WeakSet

from p2pfl.node.peering.control_messages import IncarnationCheck, Introducer, MembershipGossip, Prober
from p2pfl.node.peering.dialler import Dialler
from p2pfl.node.peering.peering_config import JoinReply, Member, PeeringConfig
from p2pfl.node.peering.peers import MOST_ADDRESSES, NEW, Peer, PeerEvents, PeerTable
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened
from p2pfl.random_streams import RandomStreams

# Causes of refusal that occur without a fault: packets through a broker cross the end of a link, or arrive after a restart.
EXPECTED = frozenset({"unknown session"})


class PeerManager(PeerTable):
    """Peers of a node, and the handler of its transport's links (see p2pfl.protocols.transport.Handler).

    Args:
        events: receives the peers' messages about learning.

    Attributes:
        broker: the current problem of the broker; "" if there is none.
        listening: set once peers can dial this node.
        on_listening: called then.
        on_unknown: called with the key of a member that is no peer and sends a frame over a link of its own; it may add it.
        introducer: introduces this node over new links.
        gossip: exchanges entries of the membership log.
    """

    def __init__(self, config: PeeringConfig, events: PeerEvents) -> None:
        super().__init__(config, events)
        self.transport, self.verifier = config.transport, config.verifier
        self.broker = ""
        self.listening = asyncio.Event()
        self.on_listening: list[Callable[[], None]] = []
        self.gossip = MembershipGossip(config.options.access, self, RandomStreams(config.seed, config.name))
        self.introducer = Introducer(config, self, self.gossip)
        self.on_unknown: Callable[[bytes], None] | None = None
        self._options = config.options
        self._book: dict[bytes, dict[str, str]] = {}  # addresses of members that are no peers, and their sources
        self._prober = Prober(self)
        self._dialler = Dialler(config, self, self.introducer)
        self._incarnations = IncarnationCheck(config, self)
        self._asked: WeakSet[Link] = WeakSet()  # links of newcomers that have sent their request
        if config.options.discovery is not None:
            config.options.discovery.subscribe(self)

    # Lifecycle

    async def start(self, tasks: TaskGroup) -> None:
        """Listen for connections, and connect to all peers.

        Raises:
            TransportError: the address cannot be bound.
        """
        self._group = tasks
        await self.transport.listen(self)
        self.listening.set()
        for report in self.on_listening:
            report()
        for peer in self.peers.values():
            self._dialler.keep(peer)
        if self._options.period < inf:
            self.begin(self._prober.run(), f"{self.name}: failure detector")
            if self._options.access is not None:
                self.begin(self.gossip.run(), f"{self.name}: comparison of membership logs")

    async def close(self) -> None:
        """Tell all peers that this node leaves, and close their links."""
        self._closed = True
        for peer in self.introduced_peers():
            self.tell(peer, m.Bye(self.round, leaving=True))
        for task in list(self._running):
            task.cancel()
        await self.transport.close()

    # Members

    def add(self, name: str, member: Member, source: bool = True) -> None:
        """Add a member as a peer and start to connect to it. Do nothing if it is a peer already.

        Args:
            source: whether this node may learn from it.
        """
        if name in self.peers and self.peers[name].key == member.key:
            return
        if name in self.peers:
            self.remove(name, "has another key now")
        self.verifier.admit(name, member.key)
        self.released.pop(name, None)
        peer = Peer(name, member)
        for address, reported_by in self._book.pop(member.key, {}).items():
            peer.hint(address, reported_by)
        self.peers = dict(sorted([*self.peers.items(), (name, peer)]))
        self._names[member.key] = name
        if source:
            self.view.add(name)
        self.view.suspect(name, NEW)
        self._dialler.keep(peer)

    def set_way(self, name: str, *, dialled: bool, source: bool) -> None:
        """Set whether this node dials a peer that is not connected; let it learn from the peer if that is a source now."""
        peer = self.peers[name]
        if source and name not in self.view.neighbours:
            self.view.add(name)
        if peer.dialled != dialled:
            peer.dialled = dialled
            peer.news.set()

    def release(self, name: str) -> None:
        """Let the link with a member go, which may be a peer again. What it has done and its addresses are not forgotten."""
        peer = self.peers[name]
        self.released[name] = peer.key  # first, because what is known of others than these and the peers is forgotten
        self.remove(name, "", for_now=True)
        self._book[peer.key] = {address: source for address, source in peer.addresses.items() if source != "node.toml"}

    def forget_released(self) -> None:
        """Forget those that are no members any more among the members that were peers, or whose addresses are known."""
        access = self._options.access
        if access is None:
            return
        for name in [name for name, key in self.released.items() if access.refusal(key)]:
            del self.released[name]
            self.view.left_out.pop(name, None)
        self._book = {key: known for key, known in self._book.items() if not access.refusal(key)}

    def remove(self, name: str, reason: str, for_now: bool = False) -> None:
        """Disconnect a former member, and drop its pending messages. It first receives the entry that removes it.

        Args:
            for_now: whether it is a member and may be a peer again; see `release`.
        """
        if self.peers[name].introduced:  # before the link is closed, so that it learns why
            self.gossip.send(self.peers[name])
        peer = self.peers.pop(name)
        self._names.pop(peer.key, None)
        self.view.remove(name, for_now)
        self.detector.unwatch(name)
        self.verifier.expel(peer.key)
        self._dialler.forget(peer)
        if peer.link is not None:
            if not for_now:
                self.rejected[reason] += 1
            peer.link.close()
            peer.link = None
        self.transport.expel(peer.key)  # it may have other links than the one in use
        peer.problem = reason
        peer.repetition.cancel()
        peer.give_up()
        self.notify()

    # Reports about members (see p2pfl.node.peering.peering_config.DiscoveryEvents)

    def found(self, key: bytes, address: str, source: str) -> None:
        """Record an address at which a member may be reachable."""
        if (peer := self.with_key(key)) is not None:
            self._dialler.found(peer, address, source)
        elif self._options.access is not None and not self._options.access.refusal(key):
            known = self._book.setdefault(key, {})
            known.pop(address, None)
            known[address] = source
            if len(known) > MOST_ADDRESSES:
                del known[next(iter(known))]

    def hinted(self, key: bytes) -> None:
        """Probe a member that may be gone."""
        if (peer := self.with_key(key)) is not None and peer.introduced:
            self.ping(peer)

    def broker_changed(self, problem: str) -> None:
        """Record the current problem of the broker, and update the status."""
        self.broker = problem
        self.view.notify()

    # Links (see p2pfl.protocols.transport.Handler)

    def received(self, link: Link, frame: memoryview) -> None:
        """Handle a frame. Errors are counted, not raised."""
        try:
            if link.joining:
                self.serve(link, self._answer_newcomer(link, self._ask(link, frame)), f"{self.name}: answer to a newcomer")
                return
            self._expect_member(link)
            if self.on_unknown is not None and link.key is not None and self.with_key(link.key) is None:
                self.on_unknown(link.key)
            opened = self.verifier.open(frame, link.session, link.key, link.payload_digest, link.version)
            peer = self.peers[opened.sender]
            peer.bytes_in += len(frame)
            self._route(peer, link, opened)
        except ProtocolError as error:
            self._refuse(link, error)
        except TransportError:
            self.rejected["link lost"] += 1
        except Exception as error:
            self._fault(link, error)

    def drained(self, link: Link) -> None:
        """Report that a peer has read most of the data sent to it."""
        for peer in self._with(link):
            self._events.drained(peer)

    def lost(self, link: Link, reason: str) -> None:
        """Mark the peer at the other end of a link as disconnected."""
        for peer in self._with(link):
            self.disconnect(peer, reason)

    def refused(self, cause: str, detail: str) -> None:
        """Count a refused connection; log the first one of each cause that shows a fault or an attack."""
        self.rejected[cause] += 1
        if self.rejected[cause] == 1 and cause not in EXPECTED:  # the status file counts the rest
            self._options.log.warning(f"refused a connection: {detail}", kind="connection-refused", cause=cause)

    def serve(self, link: Link | None, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run the work that a frame of a link requested. An error in it ends only that link."""

        async def count_errors() -> None:
            try:
                await work
            except TransportError:
                self.rejected["link lost"] += 1
            except Exception as error:
                self._fault(link, error)

        self.begin(count_errors(), name)

    def _with(self, link: Link) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.link is link]

    def _ask(self, link: Link, frame: memoryview) -> Awaitable[JoinReply]:
        """Return an awaitable of the answer to a newcomer. A second frame closes its link.

        Raises:
            ProtocolError: it is the second frame, or this node does not admit newcomers.
        """
        if link in self._asked:
            link.close()
            raise ProtocolError("malformed", "a second message over the link of a newcomer")
        self._asked.add(link)
        if self._options.answer_join is None or link.key is None:
            raise ProtocolError("not inviting")
        host = link.remote.rpartition(":")[0].strip("[]") if link.direct else "broker"
        return self._options.answer_join(link.key, bytes(frame), host)

    async def _answer_newcomer(self, link: Link, answer: Awaitable[JoinReply]) -> None:
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
        self.rejected[error.cause] += 1
        peer = self.with_key(link.key)
        if peer is None:
            return
        peer.offences[error.cause] += 1
        if error.cause == "replay":  # an old number of an honest peer: its folder may be a copy or a backup
            self._incarnations.show_newest(link, peer)
        if error.cause == "version" and not peer.introduced:
            self.suspect(peer, str(error).removeprefix("version: "))
        if error.cause == "not signed":  # its frames prove nothing, so nothing else of this link is believed either
            link.close()
            if peer.link is link:
                self.disconnect(peer, str(error))
        guard = self._options.guard
        if guard is not None and guard.offend(peer.key, error.cause):
            self.transport.expel(peer.key)
            seconds = guard.seconds_left(peer.key)
            self.disconnect(peer, f"excluded for {seconds:.0f} s after invalid messages ({error.cause})")

    def _fault(self, link: Link | None, error: Exception) -> None:
        """End a link after an unexpected error in one of its frames, or the node if faults are not counted."""
        if self._options.on_fault is None:
            self.end(error, f"{self.name}: message of a peer")
            return
        self._options.on_fault("links", error)
        if link is not None:
            link.close()
            self.lost(link, "one of its messages could not be handled")

    # Authentic messages

    def _route(self, peer: Peer, link: Link, opened: Opened) -> None:
        """Pass on every message of an introduced peer, and only introductions and conflicts of others.

        Raises:
            ProtocolError: the peer must not send this message.
            TransportError: the answer cannot be sent.
        """
        message = opened.message
        if not isinstance(message, m.Hello | m.Welcome | m.Conflict):
            if peer.problem:
                raise ProtocolError("differs", peer.problem)
            if peer.link is None:
                raise ProtocolError("not introduced", peer.name)
            self._note_round(peer, message)  # before `heard`, which compares the rounds
            self.heard(peer)
        self.traffic.count_message("received", message, OVERHEAD + len(opened.payload))
        match message:
            case m.Hello() | m.Welcome():
                self.introducer.receive(peer, link, opened)
            case m.Conflict():
                self._incarnations.receive(opened)
            case m.Ping() | m.Pong() | m.PingRequest() | m.IndirectAck():
                self._prober.receive(peer, message)
            case m.Entries():
                self.gossip.receive(peer, message, opened)
            case m.MissingEntries():
                self.gossip.answer(peer, message)
            case m.NotAvailable():
                self.resolve(peer, message.request, None)
            case m.Bye():
                self._note_bye(peer, message)
            case m.RoundReached():
                pass  # the message contains only the round
            case _:
                self._events.handle(peer, opened)

    def _note_round(self, peer: Peer, message: m.Message) -> None:
        """Record the round in a message. Only `RoundReached` may move its sender back."""
        if isinstance(message, m.RoundReached):
            self.set_round(peer, message.round)
        elif isinstance(message, m.Get | m.GetFragments | m.Submit | m.SumAnswer | m.NotAvailable | m.Pong | m.Bye):
            self.set_round(peer, max(peer.round, message.round))

    def _note_bye(self, peer: Peer, message: m.Bye) -> None:
        if message.leaving:
            self.disconnect(peer, "has left")
        else:
            peer.stopped = True
            self.heard(peer)
            self.notify()
