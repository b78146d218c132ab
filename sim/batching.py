"""Trainings that hundreds of nodes ask for one by one, computed together.

A request is not computed when it is made but when the first result is due on the virtual clock; everything asked for by
then is computed at once. Results are handed out each at its own time, so nodes see nothing of it.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Protocol, TypeVar

import numpy as np

from p2pfl.memory import Company
from p2pfl.parameters import Parameters
from p2pfl.policy import Split
from p2pfl.rules import Rule
from p2pfl.slopes import Slopes
from p2pfl.stacked import EvaluateJob, LossJob, MeanJob, SlopesJob, TallyJob, TrainJob
from p2pfl.tally import Tally
from sim.clock import VirtualLoop

T = TypeVar("T")


class Crew(Protocol):
    """Computes many nodes' jobs: `Stacked` together, `OneByOne` in turn."""

    def train(self, jobs: Sequence[TrainJob]) -> Sequence[Parameters]: ...

    def mean(self, jobs: Sequence[MeanJob]) -> Sequence[Parameters]: ...

    def loss(self, jobs: Sequence[LossJob]) -> Sequence[np.ndarray]: ...

    def evaluate(self, jobs: Sequence[EvaluateJob]) -> Sequence[list[dict[str, float]]]: ...

    def tally(self, jobs: Sequence[TallyJob]) -> Sequence[Tally]: ...

    def slopes(self, jobs: Sequence[SlopesJob]) -> Sequence[Slopes]: ...


class _Queue:
    """Jobs of one kind that wait to be computed.

    Attributes:
        due: when the first result is; inf without jobs, or without hurry.
        batches, jobs: how often jobs were computed, and how many.
    """

    def __init__(self, compute: Callable[[Any], Sequence[Any]]) -> None:
        self._compute = compute
        self.entries: list[tuple[Any, float, Future[Any]]] = []
        self.due = inf
        self.batches = self.jobs = 0

    def run(self, loop: VirtualLoop) -> None:
        """Compute all jobs. What is due is handed out now, the rest at its time."""
        entries, self.entries, self.due = self.entries, [], inf
        entries.sort(key=_node)  # so that nothing depends on the order in which nodes have asked
        results = self._compute([entry[0] for entry in entries])
        self.batches += 1
        self.jobs += len(entries)
        now = loop.now
        for (_, due, future), result in zip(entries, results, strict=True):
            if due > now:
                loop.call_at(due, _deliver, future, result)
            elif not future.done():
                future.set_result(result)


def _node(entry: tuple[Any, float, Future[Any]]) -> int:
    node: int = entry[0].node
    return node


class Batcher:
    """Collects jobs until the first of a kind is due, and computes those of its kind together.

    Attributes:
        due: when the next one is.
    """

    def __init__(self, crew: Crew, loop: VirtualLoop) -> None:
        self._loop = loop
        self.queues = {
            "train": _Queue(crew.train),
            "loss": _Queue(crew.loss),
            "mean": _Queue(crew.mean),
            "evaluate": _Queue(crew.evaluate),
            "tally": _Queue(crew.tally),
            "slopes": _Queue(crew.slopes),
        }
        self.due = inf
        loop.defer(self)

    def ask(self, kind: str, job: Any, seconds: float = 0.0) -> Future[Any]:
        """Ask for the result of a job that takes so many virtual seconds."""
        queue, due = self.queues[kind], self._loop.now + seconds
        if due < queue.due:
            queue.due = due
            if due < self.due:
                self.due = due
        future: Future[Any] = Future(loop=self._loop)
        queue.entries.append((job, due, future))
        return future

    def evaluate(self, job: EvaluateJob) -> Future[list[dict[str, float]]]:
        """Ask for metrics, which cost no virtual time and are in no hurry: they are computed along with trainings."""
        future = _Unhurried(self, loop=self._loop)
        self.queues["evaluate"].entries.append((job, self._loop.now, future))
        return future

    def hurry(self) -> None:
        """Somebody waits for an evaluation."""
        self.queues["evaluate"].due = self.due = min(self.due, self._loop.now)

    def run(self) -> None:
        """Compute every kind of which something is due, and evaluations along with trainings."""
        now = self._loop.now
        if self.queues["train"].due <= now and self.queues["evaluate"].entries:
            self.queues["evaluate"].due = now
        for queue in self.queues.values():
            if queue.due <= now:
                queue.run(self._loop)
        self.due = min(queue.due for queue in self.queues.values())


class _Unhurried(Future[Any]):
    """A result that is computed with the next batch, or at once when somebody waits for it."""

    def __init__(self, batcher: Batcher, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._batcher = batcher

    def __await__(self) -> Any:
        if not self.done():
            self._batcher.hurry()
        return super().__await__()

    __iter__ = __await__


def _deliver(future: Future[Any], result: Any) -> None:
    if not future.done():  # whoever asked may have been cancelled
        future.set_result(result)


class BatchedTrainer:
    """One node's trainer (see node.trainer.Trainer) in a batcher.

    Args:
        node: the node's place.
        seconds: how long an epoch takes this node, in virtual seconds.
    """

    def __init__(self, batcher: Batcher, node: int, seconds: float) -> None:
        self._batcher = batcher
        self._node = node
        self._seconds = seconds

    def train(
        self,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
        rule: Rule | None = None,
    ) -> Future[Parameters]:
        job = TrainJob(self._node, params, round, epochs, proximal, purpose, rule)
        return self._batcher.ask("train", job, epochs * self._seconds)

    def mean(self, models: Sequence[Parameters], weights: Sequence[float]) -> Future[Parameters]:
        return self._batcher.ask("mean", MeanJob(self._node, models, weights))

    def loss(self, stack: Sequence[Parameters], *, split: Split) -> Future[np.ndarray]:
        return self._batcher.ask("loss", LossJob(self._node, stack, split))

    def evaluate(
        self, stack: Sequence[Parameters], splits: Sequence[Split], memory: Company | None = None
    ) -> Future[list[dict[str, float]]]:
        return self._batcher.evaluate(EvaluateJob(self._node, stack, splits, memory))

    def tally(self, params: Parameters) -> Future[Tally]:
        return self._batcher.ask("tally", TallyJob(self._node, params))

    def slopes(self, params: Parameters) -> Future[Slopes]:
        return self._batcher.ask("slopes", SlopesJob(self._node, params))

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    def kept(self) -> Mapping[str, np.ndarray]:
        """Return nothing: a simulated node that comes back from a crash finds its learner as it was."""
        return {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        pass
