"""Values that an exchange of messages is made with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.peer import Member
from p2pfl.node.peering.peering_config import PeeringConfig


@dataclass(frozen=True, kw_only=True)
class NeighbourRoles:
    """Neighbours of a node, and the part that they and the node have.

    Attributes:
        members: the members with which the node may exchange anything, by name.
        sources: names of those that it may fetch from; None for all.
        askers: names of those that may fetch from it; None for all.
        observer: the node is an observer, whose round counts for no node.
        sparse: the topology is not complete; see p2pfl.node.exchange.rounds.pacing.
    """

    members: Mapping[str, Member]
    sources: Collection[str] | None = None
    askers: Collection[str] | None = None
    observer: bool = False
    sparse: bool = False


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """
    Attributes:
        peering: of the node. Where its period is inf, for nodes in one process, the exchange takes all nodes for honest, and
            waits as long as the settings say.
        n_samples: number of the node's training samples.
        askers, observer, sparse: see NeighbourRoles.
    """

    peering: PeeringConfig
    settings: Settings
    n_samples: int
    askers: Collection[str] | None = None
    observer: bool = False
    sparse: bool = False

    @property
    def strict(self) -> bool:
        """Whether peers that miss deadlines are put on probation."""
        return self.peering.options.period < inf
