"""Baseline without collaboration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from p2pfl.policy import Me, Merge, Peers, PlannedTraining, ReportedStage, built_in, check_epochs


@built_in("local")
@dataclass
class Local:
    """Train alone.

    Attributes:
        epochs: epochs of training in each round.
        reported_stage: the model that drives early stopping and is reported.
    """

    epochs: int = 1
    reported_stage: ReportedStage = "trained"

    cohort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        return Merge(await me.train(epochs=self.epochs), {me.id: 1.0})

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
