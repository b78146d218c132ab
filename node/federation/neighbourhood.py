"""Roles of the other members for one node, derived from the membership log and the topology."""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.node.coordination.election_runner import electorate
from p2pfl.node.federation.agreement import neighbours
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.peering.peer import Member
from p2pfl.protocols.election.types import Electorate


class Neighbourhood:
    """Members that concern a node: its peers, the peers from which it learns, and the voters.

    Args:
        addresses: addresses that are the same for every member, such as the broker's.
        coordinated: whether the policy has a coordinator. It may be any member, so this node connects to all of them,
            whatever the topology is.
    """

    def __init__(self, ready: LoadedNode, addresses: Sequence[str], coordinated: bool = False) -> None:
        assert ready.membership is not None
        assert ready.agreement is not None
        self._name = ready.config.name
        self._log = ready.membership
        self._edges = ready.agreement.edges
        self._configured = ready.config.addresses
        self._addresses = tuple(addresses)
        self._coordinated = coordinated

    def members(self) -> dict[str, Member]:
        """Return the members with which this node may exchange messages, by name."""
        found = {}
        for name in sorted(neighbours("all" if self._coordinated else self._edges, self._name, self._log.members)):
            known = (self._configured[name],) if name in self._configured else ()
            found[name] = Member(self._log.members[name].key, (*known, *self._addresses))
        return found

    def may_learn_from(self, name: str) -> bool:
        """Return whether this node may learn from a member's models; it may not for observers."""
        near = name in neighbours(self._edges, self._name, self._log.members)
        return near and self._log.members[name].role != "observer"

    def askers(self) -> set[str] | None:
        """Return the names of the nodes that may fetch from this node, members or not; None for all."""
        if self._edges == "all":
            return None
        return neighbours(self._edges, self._name, {name for pair in self._edges for name in pair})

    def electorate(self) -> Electorate:
        """Return the members that vote for a coordinator."""
        return electorate(self._log.membership_version, self._log.members.values())
