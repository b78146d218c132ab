"""Selection of the peers whose round counts and of the peers that may request a model."""

from __future__ import annotations

from collections.abc import Collection

from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.exchange.rounds.pacing import common_round
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager

SILENT_AFTER = 2  # unanswered probes after which the round of a suspected peer no longer counts


class Participants:
    """Participants among the peers of a node.

    Args:
        askers: names of the peers that may fetch from this node; None: all.
        electing: elections of a coordinator, if the policy is coordinated. Every peer with a vote then counts.
            Otherwise the peers from which this node may fetch count.
    """

    def __init__(self, contacts: PeerManager, askers: Collection[str] | None, electing: ElectionRunner | None) -> None:
        self._contacts = contacts
        self._askers = None if askers is None else frozenset(askers)
        self._electing = electing

    def counts(self, peer: Peer) -> bool:
        """Return whether a peer is a participant, whose round counts."""
        if self._electing is not None:
            return self._electing.votes(peer.name)
        return peer.name in self._contacts.roster.neighbours

    def may_ask(self, peer: Peer) -> bool:
        """Return whether a peer may request a model from this node."""
        if peer.name in self._contacts.roster.left_out:
            return False
        return self._askers is None or peer.name in self._askers

    def is_waited_for(self, peer: Peer) -> bool:
        """Return whether a peer may request a model from this node and is not an observer."""
        return self.counts(peer) if self._askers is None else self.may_ask(peer)

    def present(self) -> list[Peer]:
        """Return the participants that are connected and have not stopped, however slow they are."""
        suspected = self._contacts.roster.suspected
        there = [peer for peer in self._contacts.introduced_peers() if not peer.stopped and self.counts(peer)]
        return [peer for peer in there if peer.name not in suspected or peer.unanswered < SILENT_AFTER]

    def rounds(self) -> list[int]:
        """Return the rounds of the connected participants."""
        return [peer.round for peer in self.present()]

    def common_round(self) -> int:
        """Return the latest plausible round, from the rounds of this node and the participants.

        See p2pfl.node.exchange.rounds.pacing.
        """
        return common_round([self._contacts.round, *self.rounds()])
