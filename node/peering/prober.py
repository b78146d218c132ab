"""Probes of silent peers, for this node and on behalf of others (SWIM's ping and ping-req)."""

from __future__ import annotations

import asyncio

from p2pfl.node.peering.failure_detector import AskOthers, Dead, Ping, Step, Suspect
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_table import PeerTable
from p2pfl.node.peering.peering_config import LocalState
from p2pfl.protocols.wire import messages as m

REMEMBERED = 10.0  # seconds for which an indirect answer to a probe counts
DEAF = 5  # unanswered pings after which a link is closed, although other peers receive messages of the peer
PENDING_PROBES = 8  # maximum number of pending pings on behalf of one other peer


class Prober:
    """Prober that carries out the steps of the failure detector and answers the probes of others."""

    def __init__(self, local: LocalState, table: PeerTable, messenger: Messenger) -> None:
        self._local = local
        self._table = table
        self._messenger = messenger
        self._on_behalf: dict[int, tuple[Peer, m.PingRequest]] = {}  # by our ping's number: asker and request
        self._asked_after: dict[int, tuple[str, bytes]] = {}  # by our probe's number: recipient and subject

    async def run(self) -> None:
        """Probe silent peers without end. Every message of a peer is proof of life at the time of its receipt."""
        loop, detector = asyncio.get_running_loop(), self._table.detector
        while True:
            await asyncio.sleep(max(0.0, detector.next_tick(loop.time()) - loop.time()))
            for peer in self._table.introduced_peers():
                if peer.link is not None and peer.link.progress != peer.progress:  # a part of a long frame
                    peer.progress = peer.link.progress
                    detector.heard(peer.name, loop.time())
            for step in detector.tick(loop.time()):
                self.take(step)

    def check(self, peer: Peer) -> None:
        """Ask a peer for its current round. A frame with a long transit time may have named an older one."""
        peer.checking = next(self._messenger.numbers)
        self._messenger.try_send(peer, m.Ping(peer.checking))

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
                peer.give_up()
            case Dead():
                self._end(self._table.peers[step.name], step.reason)

    def receive(self, peer: Peer, message: m.Ping | m.Pong | m.PingRequest | m.IndirectAck) -> None:
        """Handle a message of a peer about probing.

        Raises:
            TransportError: the peer to answer or to ping is not connected.
        """
        match message:
            case m.Ping():
                self._messenger.send(peer, m.Pong(message.request, self._local.round))
            case m.Pong():
                self._vouch(peer, message.request)
                if message.request == peer.checking:
                    peer.checking = 0
                    self._table.changes.notify()
            case m.PingRequest():
                self._probe(peer, message)
            case m.IndirectAck():
                self._believe(peer, message)

    def _ping(self, peer: Peer) -> None:
        peer.unanswered += 1
        if peer.unanswered > DEAF and peer.link is not None:  # other peers receive its messages, so it is not dead
            self._end(peer, "does not answer")
        else:
            self._messenger.ping(peer)

    def _end(self, peer: Peer, reason: str) -> None:
        if peer.link is not None:
            peer.link.close()
        self._table.disconnect(peer, reason)

    def _ask_others(self, step: AskOthers) -> None:
        subject = self._table.peers[step.about].key
        for helper in step.helpers:
            number = next(self._messenger.numbers)
            self._asked_after[number] = helper, subject
            asyncio.get_running_loop().call_later(REMEMBERED, self._asked_after.pop, number, None)
            self._messenger.try_send(self._table.peers[helper], m.PingRequest(number, subject))

    def _probe(self, asker: Peer, probe: m.PingRequest) -> None:
        """Ping a member on behalf of another one."""
        subject = self._table.with_key(probe.subject)
        pending = sum(other is asker for other, _ in self._on_behalf.values())
        if subject is None or not subject.introduced or pending >= PENDING_PROBES:
            return
        number = next(self._messenger.numbers)
        self._on_behalf[number] = asker, probe
        asyncio.get_running_loop().call_later(REMEMBERED, self._on_behalf.pop, number, None)
        self._messenger.send(subject, m.Ping(number))

    def _vouch(self, peer: Peer, number: int) -> None:
        """Tell the asking peer that a member has answered a ping on its behalf. Only that member can answer."""
        asked = self._on_behalf.get(number)
        if asked is not None and asked[1].subject == peer.key:
            asker, probe = self._on_behalf.pop(number)
            self._messenger.try_send(asker, m.IndirectAck(probe.request, probe.subject))

    def _believe(self, peer: Peer, vouch: m.IndirectAck) -> None:
        """Record a member as alive after another peer's report."""
        subject = self._table.with_key(vouch.subject)
        if subject is not None and self._asked_after.get(vouch.request) == (peer.name, vouch.subject):
            del self._asked_after[vouch.request]
            self._table.detector.record_indirect_ack(subject.name, asyncio.get_running_loop().time())
