"""Batches of trainings that hundreds of nodes request one by one.

A request is not computed immediately, but when the first result is due on the virtual clock. All requests made by then
are computed together. Each node receives its result at its own time, so it does not notice the batching.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from p2pfl.budget import Effort
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Query, R, Train
from p2pfl.sim.scenario.devices import Speed
from p2pfl.sim.simulation.clock import VirtualLoop

# the order of queues that are due at the same time; others follow
FIRST = (Train.name, Loss.name, Mean.name, Evaluate.name)


Lasting = Callable[[float], float]


class ComputeBackend(Protocol):
    """Computes many nodes' jobs: `BatchedLearner` together, `SequentialLearner` in turn."""

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> Sequence[R]:
        """Return the results of jobs whose queries have one name."""


class _Queue:
    """Jobs of one name that wait to be computed.

    Attributes:
        due: time of the first result; inf without jobs, or without urgent ones.
        batches, jobs: number of batches, and number of computed jobs.
    """

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend = backend
        self.entries: list[tuple[int, NodeQuery[Any], float, Future[Any]]] = []  # node, job, time of the result, result
        self.due = inf
        self.batches = self.jobs = 0

    def run(self, loop: VirtualLoop) -> None:
        """Compute all jobs. Results that are due are delivered now, the rest at their times."""
        entries, self.entries, self.due = self.entries, [], inf
        entries.sort(key=itemgetter(0))  # makes the result independent of the order of the requests
        results = self._backend.compute([entry[1] for entry in entries])
        self.batches += 1
        self.jobs += len(entries)
        now = loop.now
        for (_, _, due, future), result in zip(entries, results, strict=True):
            if due > now:
                loop.call_at(due, _deliver, future, result)
            elif not future.done():
                future.set_result(result)


class Batcher:
    """Collector of jobs, which computes all jobs of one name when the first of them is due.

    Attributes:
        due: time at which the next job is due.
        queues: by the name of their queries, in the order in which they are computed.
        loop: the virtual loop.
    """

    def __init__(self, backend: ComputeBackend, loop: VirtualLoop) -> None:
        self._backend = backend
        self.loop = loop
        self.queues = {name: _Queue(backend) for name in FIRST}
        self._patient: dict[str, _Queue] = {}  # queues of queries that are not urgent
        self.due = inf
        loop.defer(self)

    def ask(self, job: NodeQuery[R], seconds: float = 0.0) -> Future[R]:
        """Request the result of a job that takes the given virtual seconds.

        A job whose query is not `urgent` costs no virtual time: it waits for the next batch of trainings, or until its
        result is awaited.
        """
        query = job.query
        queue = self.queue(query.name)
        future: Future[R]
        if not query.urgent:
            future = _Patient(self, queue, loop=self.loop)
            queue.entries.append((job.node, job, self.loop.now, future))
            self._patient[query.name] = queue
            return future
        due = self.loop.now + seconds
        if due < queue.due:
            queue.due = due
            if due < self.due:
                self.due = due
        future = Future(loop=self.loop)
        queue.entries.append((job.node, job, due, future))
        return future

    def queue(self, name: str) -> _Queue:
        """Return the queue of a name; a new one if there is none."""
        if (found := self.queues.get(name)) is not None:
            return found
        others = {other: queue for other, queue in self.queues.items() if other not in FIRST} | {name: _Queue(self._backend)}
        self.queues = {name: self.queues[name] for name in FIRST} | dict(sorted(others.items()))
        return self.queues[name]

    def run(self) -> None:
        """Compute every queue with a due result; with trainings, also compute jobs that are not urgent."""
        now = self.loop.now
        if self.queues[Train.name].due <= now:
            for queue in self._patient.values():
                if queue.entries:
                    queue.due = now
        for queue in self.queues.values():
            if queue.due <= now:
                queue.run(self.loop)
        self.due = min(queue.due for queue in self.queues.values())


class _Patient(Future[Any]):
    """Result that is computed with the next batch, or as soon as it is awaited."""

    def __init__(self, batcher: Batcher, queue: _Queue, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._batcher = batcher
        self._queue = queue

    def __await__(self) -> Any:
        if not self.done():
            batcher = self._batcher
            self._queue.due = batcher.due = min(batcher.due, batcher.loop.now)
        return super().__await__()

    __iter__ = __await__


def _deliver(future: Future[Any], result: Any) -> None:
    if not future.done():  # the caller may have been cancelled
        future.set_result(result)


class BatchedTrainer:
    """One node's trainer (see p2pfl.node.trainer.Trainer), which sends its jobs to a batcher.

    Args:
        node: number of the node.
        speed: of the node; a number is the virtual seconds of a pass over its training data.
        lasting: returns how long a work of some seconds lasts if it begins now; by default as many seconds.
    """

    def __init__(self, batcher: Batcher, node: int, speed: Speed | float, lasting: Lasting | None = None) -> None:
        self._lasting = lasting
        self._batcher = batcher
        self._node = node
        self.speed = speed if isinstance(speed, Speed) else Speed(speed)
        self._seconds = 0.0  # of its trainings so far

    def submit(self, query: Query[R]) -> Future[R]:
        if not query.passes:
            return self._batcher.ask(NodeQuery(self._node, query))
        seconds = self.speed.seconds(query)
        self._seconds += seconds
        lasts = seconds if self._lasting is None else self._lasting(seconds)
        return self._batcher.ask(NodeQuery(self._node, query), lasts)

    def used(self) -> Effort:
        return Effort(self._seconds, self._seconds * self.speed.watts if self.speed.device else None)

    def joules(self, samples: int) -> float | None:
        return samples * self.speed.sample_s * self.speed.watts if self.speed.device else None

    def learner_state(self) -> Mapping[str, np.ndarray]:
        """Return nothing: the learner of a simulated node survives its crash unchanged."""
        return {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        pass
