"""Configuration of a message exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.peer import Member
from p2pfl.node.peering.peering_config import PeeringConfig


@dataclass(frozen=True, kw_only=True)
class NeighbourRoles:
    """Neighbours of a node, and the direction in which models may flow.

    Attributes:
        members: the members with which the node may exchange messages, by name.
        sources: names of the members from which the node may fetch; None for all.
        askers: names of the members that may fetch from the node; None for all.
        observer: whether the node is an observer; its round then does not count for any node.
        sparse: whether the topology is incomplete; see p2pfl.node.exchange.rounds.pacing.
    """

    members: Mapping[str, Member]
    sources: Collection[str] | None = None
    askers: Collection[str] | None = None
    observer: bool = False
    sparse: bool = False


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """Configuration of a message exchange.

    Attributes:
        peering: configuration of the node's peering. A period of inf is for nodes in one process: the exchange then
            treats all nodes as honest and always waits for the full deadline of the settings.
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
        """Return whether peers that miss deadlines are put on probation."""
        return self.peering.options.period < inf
