"""Evaluations of a node's models: started after a round, and processed one round later.

Evaluations therefore never delay a round, and the simulator can compute them together with other work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf, isnan
from typing import NamedTuple

from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.parameters import Parameters
from p2pfl.policy import ReportedStage, Stage
from p2pfl.task import Task

Metrics = dict[str, float]


class Evaluation(NamedTuple):
    """Models of a round whose metrics have not been processed yet.

    Attributes:
        snapshots: the models by stage, float32 [P].
        metrics: metrics in the order of the snapshots; None if the computation has not started either.
    """

    round: int
    snapshots: Mapping[Stage, Parameters]
    metrics: Awaitable[list[Metrics]] | None


class Evaluations:
    """Evaluator of the models of each round.

    Args:
        stopping: receives each round's model for early stopping.
        stage: stage of that model; see `counted_stage`.
        task: the node's task, for the name of its metric.
        measure: starts to compute the metrics of some models.
        report: called with the metrics of a round's models by stage.

    Attributes:
        pending: the newest evaluation, if it has not been processed yet.
    """

    def __init__(
        self,
        stopping: EarlyStopping,
        stage: ReportedStage,
        *,
        task: Task,
        measure: Callable[[Sequence[Parameters]], Awaitable[list[Metrics]]],
        report: Callable[[int, Mapping[Stage, Metrics]], None],
    ) -> None:
        self.pending: Evaluation | None = None
        self._stopping = stopping
        self._stage = stage
        self._task = task
        self._measure = measure
        self._report = report

    async def begin(self, round: int, snapshots: Mapping[Stage, Parameters]) -> None:
        """Start to evaluate the models of a round, and process the previous evaluation."""
        started = self._measure(list(snapshots.values()))
        previous, self.pending = self.pending, Evaluation(round, snapshots, started)
        if previous is not None:
            await self._look(previous)

    async def finish(self) -> None:
        """Process the pending evaluation."""
        if self.pending is not None:
            await self._look(self.pending)
            self.pending = None

    def restore(self, round: int, snapshots: Mapping[Stage, Parameters]) -> None:
        """Restore models that an earlier run has not evaluated."""
        self.pending = Evaluation(round, snapshots, None)

    async def _look(self, evaluation: Evaluation) -> None:
        begun = evaluation.metrics or self._measure(list(evaluation.snapshots.values()))
        metrics = dict(zip(evaluation.snapshots, await begun, strict=True))
        for stage, values in metrics.items():
            self._stopping.note(evaluation.round, stage, values.get("validation_loss"))
        stage = counted_stage(self._stage, metrics)
        self._stopping.see(evaluation.round, evaluation.snapshots[stage], self._loss(metrics[stage]), stage)
        self._report(evaluation.round, metrics)

    def _loss(self, metrics: Metrics) -> float | None:
        """Return the figure that early stopping minimises; None without validation data."""
        if self._stopping.by == "loss":
            return metrics.get("validation_loss")
        value = metrics.get(f"validation_{self._task.metric}")
        return -value if value is not None and self._task.higher_is_better else value


def counted_stage(reported: ReportedStage, metrics: Mapping[Stage, Mapping[str, float]]) -> Stage:
    """Return the stage of a round whose model counts.

    Args:
        reported: the stage that the policy reports. `auto` takes the model with the lowest validation loss and, if both
            are equal or there is no validation data, the merged one.
        metrics: metrics by stage; `merged` is always among them, and counts if the reported stage is not.
    """
    if reported != "auto":
        return reported if reported in metrics else "merged"

    def loss(stage: Stage) -> float:
        value = metrics[stage].get("validation_loss", inf)
        return inf if isnan(value) else value

    candidates: Sequence[Stage] = ("merged", "trained")
    return min((stage for stage in candidates if stage in metrics), key=loss)
