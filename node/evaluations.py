"""Evaluations of a node's models: begun after a round, looked at one round later.

So they never hold a round back, and the simulator can compute them together with other work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.parameters import Parameters
from p2pfl.policy import Stage

Metrics = dict[str, float]


class Evaluation(NamedTuple):
    """Models of a round whose metrics were not looked at yet.

    Attributes:
        snapshots: the models by stage, float32 [P].
        metrics: in the order of the snapshots; None where the computation has not begun either.
    """

    round: int
    snapshots: Mapping[Stage, Parameters]
    metrics: Awaitable[list[Metrics]] | None


class Evaluations:
    """
    Args:
        judge: takes note of each round's model.
        stage: of the model that it takes note of; "merged" where a round has none of that stage.
        measure: begins to compute the metrics of some models.
        report: is called with the metrics of a round's models by stage.

    Attributes:
        pending: the newest evaluation, if it was not looked at yet.
    """

    def __init__(
        self,
        judge: EarlyStopping,
        stage: Stage,
        *,
        measure: Callable[[Sequence[Parameters]], Awaitable[list[Metrics]]],
        report: Callable[[int, Mapping[Stage, Metrics]], None],
    ) -> None:
        self.pending: Evaluation | None = None
        self._judge = judge
        self._stage = stage
        self._measure = measure
        self._report = report

    async def begin(self, round: int, snapshots: Mapping[Stage, Parameters]) -> None:
        """Begin to evaluate the models of a round, and look at the evaluation before."""
        started = self._measure(list(snapshots.values()))
        previous, self.pending = self.pending, Evaluation(round, snapshots, started)
        if previous is not None:
            await self._look(previous)

    async def finish(self) -> None:
        """Look at the evaluation that is pending."""
        if self.pending is not None:
            await self._look(self.pending)
            self.pending = None

    def restore(self, round: int, snapshots: Mapping[Stage, Parameters]) -> None:
        """Take up models that an earlier run has not looked at."""
        self.pending = Evaluation(round, snapshots, None)

    async def _look(self, evaluation: Evaluation) -> None:
        begun = evaluation.metrics or self._measure(list(evaluation.snapshots.values()))
        metrics = dict(zip(evaluation.snapshots, await begun, strict=True))
        stage = self._stage if self._stage in metrics else "merged"
        self._judge.see(evaluation.round, evaluation.snapshots[stage], metrics[stage].get("validation_loss"))
        self._report(evaluation.round, metrics)
