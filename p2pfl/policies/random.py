"""Random gossip: each round the average with m peers drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from p2pfl.aggregation import fedavg
from p2pfl.policies.schedule import Schedule, stages
from p2pfl.policy import Me, Merge, Peers, Stage, merge, samples
from p2pfl.selection import uniform


@dataclass
class Random:
    """Average with peers drawn uniformly (gossip learning; the "Random" row of Listo Zec et al.).

    Attributes:
        neighbours: m, the peers drawn each round; a node with fewer takes all.
        schedule: `synchronous` (default) or `sequential` (what gives the paper's table); see p2pfl.policies.schedule.
    """

    neighbours: int = 5
    schedule: Schedule = "synchronous"
    judged: Stage = "trained"

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be 0 or more, got {self.neighbours}")

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train()
        await peers.publish(trained)
        chosen = uniform(me.rng("peers"), self.candidates(me, peers), me.budget.cap(self.neighbours))
        updates = await peers.models(chosen, stages(self.schedule, me, peers, chosen))
        merged = await merge(me, trained, updates, fedavg(samples(me, updates)))
        if self.schedule == "sequential":
            await peers.publish(merged.params, stage="merged")
        return merged

    def candidates(self, me: Me, peers: Peers) -> Sequence[str]:
        """Whom to draw from."""
        return peers.ids

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
