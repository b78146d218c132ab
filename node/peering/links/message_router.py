"""Routing of authentic messages to the parts of a node that handle them."""

from __future__ import annotations

from p2pfl.node.peering.links.incarnations import IncarnationCheck
from p2pfl.node.peering.links.introducer import Introducer
from p2pfl.node.peering.links.membership_gossip import MembershipGossip
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_table import PeerEvents, PeerTable
from p2pfl.node.peering.prober import Prober
from p2pfl.node.peering.traffic import Traffic
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened


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
            self._traffic.received_control += OVERHEAD + len(opened.payload)
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
