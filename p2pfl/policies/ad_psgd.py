"""Asynchronous decentralised SGD: an average with one random neighbour at a time, without waiting for anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from p2pfl.algorithms.selection import uniform
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
)
from p2pfl.update_rules import Steps


@built_in("ad-psgd")
@dataclass
class AdPsgd:
    """AD-PSGD (Lian, Zhang, Zhang and Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018,
    algorithm 1): compute a gradient at x_i, average x_i with the x_j of a random neighbour, then apply the gradient, which
    is of the model before the average.

    It needs `mode = "asynchronous"`. It differs from the paper in one point: there, one atomic step writes the average into
    both nodes. Here no node writes into another one: the node that is active takes the average with the newest model of
    its neighbour, and the neighbour takes its own averages when it is active. So a step costs one model and not two, the
    mean of all models is kept only in expectation and between nodes of equal speed, and a slow node is averaged rarely.

    Attributes:
        steps: steps of training between two averages; 0 trains for `epochs`.
        epochs: epochs of training between two averages, without `steps`.
        reported_stage: the model that drives early stopping and is reported.
    """

    asynchronous: ClassVar[bool] = True

    steps: int = 0
    epochs: int = 1
    reported_stage: ReportedStage = "merged"

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}")
        check_epochs(self.epochs)

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return passes_and_steps(rounds, self.epochs, self.steps)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs, rule=Steps(self.steps) if self.steps else None)
        partner = uniform(me.rng("partner"), peers.ids, 1)
        updates = await peers.models(peers.within_budget(partner), "merged")
        average = await merge(me, me.params, updates, halves(me.id, updates))
        step = trained - me.params
        step[me.layout.n_trained :] *= average.weights[me.id]  # as in the average, so that no running variance is below 0
        moved = average.params + step
        await peers.publish(moved, stage="merged")
        return Merge(moved, average.weights)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def halves(own: str, updates: Sequence[Update]) -> dict[str, float]:
    """Return a half for the own node and for the sender of the only update; 1 for the own node without one."""
    return {id: 1 / (1 + len(updates)) for id in (own, *(update.sender for update in updates))}
