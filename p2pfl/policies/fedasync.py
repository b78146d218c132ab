"""Averages that trust a model less the more rounds it is behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from p2pfl.algorithms.selection import fedavg, uniform
from p2pfl.policy import (
    Me,
    Merge,
    Peers,
    PlannedTraining,
    ReportedStage,
    Update,
    built_in,
    check_epochs,
    merge,
    passes_and_steps,
    samples,
)
from p2pfl.update_rules import Steps


@built_in("fedasync")
@dataclass
class FedAsync:
    """Weights by staleness: s(t) = (1 + t)^-a for a model that is t rounds behind, as in FedAsync (Xie, Koyejo and Gupta,
    "Asynchronous Federated Optimization", 2019, "polynomial") and, with a = 1/2, in FedBuff (Nguyen et al., AISTATS 2022).

    It differs from both papers: these have a server, which mixes the models of clients into its own; here each node mixes
    the newest models of its peers into its own one. A peer's staleness is the number of rounds by which its model is
    behind the own round, 0 if it is not behind. The weight of a model is its number of samples times s, in proportion. In
    synchronous mode no model is behind, and the policy is federated averaging among neighbours.

    Attributes:
        exponent: a; 0 ignores staleness.
        neighbours: number of peers drawn in each round; 0 takes all.
        steps: steps of training in each round; 0 trains for `epochs`.
        epochs: epochs of training in each round, without `steps`.
        reported_stage: the model that drives early stopping and is reported.
    """

    exponent: float = 0.5
    neighbours: int = 0
    steps: int = 0
    epochs: int = 1
    reported_stage: ReportedStage = "merged"

    def __post_init__(self) -> None:
        if not (self.exponent >= 0 and isfinite(self.exponent)):
            raise ValueError(f"exponent must be 0 or more, got {self.exponent}")
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be 0 or more, got {self.neighbours}")
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}")
        check_epochs(self.epochs)

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return passes_and_steps(rounds, self.epochs, self.steps)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs, rule=Steps(self.steps) if self.steps else None)
        await peers.publish(trained)
        ids = uniform(me.rng("peers"), peers.ids, self.neighbours) if self.neighbours else peers.ids
        updates = await peers.models(peers.within_budget(ids))
        return await merge(me, trained, updates, weights_by_staleness(me, updates, self.exponent))

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def weights_by_staleness(me: Me, updates: Sequence[Update], exponent: float) -> dict[str, float]:
    """Return the weight of each model by id, the own included: samples times (1 + rounds behind)^-exponent; the sum is 1."""
    behind = {update.sender: max(0, me.round - update.round) for update in updates}
    if not any(behind.values()):
        return fedavg(samples(me, updates))
    return fedavg({id: count * (1 + behind.get(id, 0)) ** -exponent for id, count in samples(me, updates).items()})
