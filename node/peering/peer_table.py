"""Table of a node's neighbours, and its opinion of each of them."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Protocol

from p2pfl.node.peering.change_notifier import ChangeNotifier
from p2pfl.node.peering.failure_detector import FailureDetector
from p2pfl.node.peering.peer import Member, Peer
from p2pfl.node.peering.peer_view import PeerView
from p2pfl.node.peering.peering_config import LocalState, PeeringConfig
from p2pfl.protocols.wire.envelope import Opened
from p2pfl.random_streams import RandomStreams
from p2pfl.system.printable import printable

NEW = "not connected yet"  # reason for the suspicion of a new member
_BEHIND = "behind"  # beginning of the reason for the suspicion of a connected peer in an earlier round


class PeerEvents(Protocol):
    """Receiver of peers' messages about learning and of changes among the peers; implemented by the exchange."""

    def handle(self, peer: Peer, opened: Opened) -> None:
        """Handle a message of an introduced peer about learning or elections.

        Raises:
            ProtocolError: the peer must not send this message.
        """

    def may_return(self, peer: Peer) -> bool:
        """Return whether this node may wait again for a suspected peer that has sent a message and keeps up."""

    def late(self, peer: Peer) -> None:
        """Report that a peer has answered a request after its deadline."""

    def drained(self, peer: Peer) -> None:
        """Report that a peer has read most of the data sent to it."""

    def peers_changed(self) -> None:
        """Report a change in the connected peers or their rounds, for which a task may wait."""


class PeerTable:
    """Neighbours by name and key, with their state: connected, suspected, or behind.

    Attributes:
        peers: neighbours by name, sorted. The mapping is replaced when one is added, so that others can iterate over
            it.
        roster: the peers with which this node may learn.
        detector: judges which peers are alive.
        changes: is notified of every change.
    """

    def __init__(self, config: PeeringConfig, local: LocalState, events: PeerEvents) -> None:
        neighbours, period = config.neighbours, config.options.period
        self.peers = {id: Peer(id, neighbours[id]) for id in sorted(neighbours)}
        self.roster = PeerView(neighbours if config.sources is None else config.sources)
        self.detector = FailureDetector(
            RandomStreams(config.seed, config.name).generator(0, "probing"), period if period < inf else 1.0
        )
        self.changes = ChangeNotifier(events.peers_changed)
        self._names = {peer.key: peer.name for peer in self.peers.values()}
        self._local = local
        self._events = events
        self._asynchronous = config.asynchronous

    # Peers

    def introduced_peers(self) -> list[Peer]:
        """Return the peers that are connected and introduced."""
        return [peer for peer in self.peers.values() if peer.introduced]

    def with_key(self, key: bytes | None) -> Peer | None:
        """Return the neighbour with a key; None if there is none."""
        name = self._names.get(key or b"")
        return None if name is None else self.peers[name]

    def knows(self, beginning: bytes) -> bool:
        """Return whether a neighbour's key begins with these bytes."""
        return any(key.startswith(beginning) for key in self._names)

    def add(self, name: str, member: Member, source: bool) -> Peer:
        """Add a neighbour, which is suspected until it is introduced.

        Args:
            source: whether this node may learn from it.
        """
        peer = Peer(name, member)
        self.peers = dict(sorted([*self.peers.items(), (name, peer)]))
        self._names[member.key] = name
        if source:
            self.roster.add(name)
        self.roster.suspect(name, NEW)
        return peer

    def remove(self, name: str) -> Peer:
        """Remove a neighbour."""
        peer = self.peers.pop(name)
        self._names.pop(peer.key, None)
        self.roster.remove(name)
        self.detector.unwatch(name)
        return peer

    # Opinions

    def is_suspected(self, peer: Peer) -> bool:
        """Return whether a peer is suspected, so that this node does not wait for it."""
        return peer.name in self.roster.suspected

    def suspect(self, peer: Peer, reason: str) -> None:
        """Stop waiting for a peer until its next message."""
        self.roster.suspect(peer.name, printable(reason))
        peer.trouble.set()
        self.changes.notify()

    def disconnect(self, peer: Peer, reason: str) -> None:
        """Mark a peer as disconnected, because its link has ended or must be closed."""
        peer.link = None
        peer.repetition.cancel()
        self.detector.unwatch(peer.name)
        self.suspect(peer, reason)
        peer.give_up()
        self.changes.notify()

    def watch(self, peer: Peer) -> None:
        """Start to watch a newly introduced peer for failures."""
        self.detector.watch(peer.name, asyncio.get_running_loop().time())

    def heard(self, peer: Peer) -> None:
        """Record an authentic frame of a peer. If the peer keeps up, end its suspicion, so that no deadline is lost."""
        peer.unanswered = 0
        self.detector.heard(peer.name, asyncio.get_running_loop().time())
        if not self.is_suspected(peer):
            return
        if not (peer.stopped or self._asynchronous or peer.round >= self._local.round - 1):
            reason = f"{_BEHIND}, in round {peer.round}"
            if self.roster.suspected[peer.name] != reason:
                self.roster.suspect(peer.name, reason)
                self.roster.notify()  # it is connected now, if it was not before
        elif self._events.may_return(peer):
            self.roster.heard(peer.name)
            self.changes.notify()

    def set_round(self, peer: Peer, round: int) -> None:
        """Record the round of a peer."""
        if round != peer.round:
            peer.round = round
            self.changes.notify()

    def resolve(self, peer: Peer, number: int, answer: Any) -> None:
        """Resolve a request with its answer, or with None if there will be none, even if no task waits for it."""
        if number in peer.overdue:
            peer.overdue.remove(number)
            self._events.late(peer)
            self.heard(peer)
        peer.resolve(number, answer)


def is_only_behind(peer: Peer, reason: str) -> bool:
    """Return whether a suspected peer is connected, and is suspected only because it is in an earlier round.

    Args:
        reason: why the peer is suspected; "" if it is not.
    """
    return peer.introduced and reason.startswith(_BEHIND)
