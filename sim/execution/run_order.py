"""Orders to run one job of a scenario, the listeners that follow it, and workers that compute orders side by side.

A job is one run with one seed. A `RunOrder` travels to the process that runs it; the numbers of node-rounds and the
snapshots that `run_order` tells travel back, and in the end its result. The engines (p2pfl.sim.execution.runner and
cluster) pass all of them to a `Listener`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Generic, Protocol, TypeVar, cast

from p2pfl.errors import DivergenceError
from p2pfl.sim.execution.snapshots import Snapshot, SnapshotCollector
from p2pfl.sim.results.results import Result, result_of
from p2pfl.sim.scenario.scenario import Scenario, name_errors
from p2pfl.sim.simulation.sharding import ShardSource
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.sim.simulation.workers import Pipe, Worker, end_all

K = TypeVar("K")


@dataclass(frozen=True)
class Listener:
    """Callbacks for events of the runs in progress.

    Attributes:
        progress: receives the number of node-rounds done since the last call.
        finished: receives each result when it is ready, with the number of its job (see
            p2pfl.sim.scenario.scenario.jobs_of).
        watched: receives the number of a job, with None when the job begins and with snapshots while it runs; without
            this callback no snapshots are taken.
        diverged: receives the number of a job that has diverged, if the others go on.
    """

    progress: Callable[[int], None] = lambda node_rounds: None
    finished: Callable[[int, Result], None] = lambda number, result: None
    watched: Callable[[int, Snapshot | None], None] | None = None
    diverged: Callable[[int], None] = lambda number: None

    @classmethod
    def of(cls, follower: Follower) -> Listener:
        """Return the listener that passes a follower everything but the progress."""
        return cls(finished=follower.finished, watched=follower.saw, diverged=follower.diverged)

    def begun(self, number: int) -> None:
        """Report that a job begins."""
        if self.watched is not None:
            self.watched(number, None)

    def tell(self, number: int, message: int | Snapshot) -> None:
        """Report what a job in progress says; see `run_order`."""
        if isinstance(message, int):
            self.progress(message)
        elif self.watched is not None:
            self.watched(number, message)


QUIET = Listener()


class Follower(Protocol):
    """Object that follows jobs, such as the page that shows them; see Listener."""

    def saw(self, number: int, snapshot: Snapshot | None) -> None: ...

    def finished(self, number: int, result: Result) -> None: ...

    def diverged(self, number: int) -> None: ...


def together(*listeners: Listener) -> Listener:
    """Return one listener that passes each event to several, in their order."""
    watching = [each.watched for each in listeners if each.watched is not None]

    def progress(node_rounds: int) -> None:
        for each in listeners:
            each.progress(node_rounds)

    def finished(number: int, result: Result) -> None:
        for each in listeners:
            each.finished(number, result)

    def watched(number: int, snapshot: Snapshot | None) -> None:
        for watch in watching:
            watch(number, snapshot)

    def diverged(number: int) -> None:
        for each in listeners:
            each.diverged(number)

    return Listener(progress, finished, watched if watching else None, diverged)


@dataclass(frozen=True)
class RunOrder:
    """A job and how to run it.

    Attributes:
        graph: the topology, in place of the job's.
        models: see `run_all`.
        workers: number of processes of the run.
        explain: note why the run used only one process, if it may use more.
        files: digests of the files that the job reads, by name; None if they were not determined.
    """

    job: Scenario
    graph: Any
    models: bool
    watch: bool
    workers: int = 1
    explain: bool = False
    files: Mapping[str, str] | None = None


def divide_processes(orders: Mapping[int, RunOrder], processes: int, *, explain: bool) -> dict[int, RunOrder]:
    """Return the orders with their numbers of processes; with more processes than jobs, the first jobs get one more."""
    each, more = divmod(processes, len(orders))
    return {
        number: replace(order, workers=max(1, each + (k < more)), explain=explain)
        for k, (number, order) in enumerate(orders.items())
    }


def run_order(order: RunOrder, tell: Callable[[Any], None], shards: ShardSource | None = None) -> Result:
    """Run a job.

    Args:
        tell: called with the number of node-rounds done since the last call, and with snapshots.
        shards: starts the other processes of the run; by default on this machine.
    """
    done = 0
    snapshots: SnapshotCollector | None = None

    def report(total: int) -> None:
        nonlocal done
        tell(total - done)
        done = total
        if snapshots is not None and snapshots.due():
            tell(snapshots.take())

    with name_errors(order.job):
        simulation = Simulation(order.job, order.graph, workers=order.workers, shards=shards)
        snapshots = SnapshotCollector(simulation) if order.watch else None
        result = result_of(simulation.run(report), order.models)
    gc.collect()  # an earlier run's nodes are cycles, and collections are rare in this process
    if order.explain and order.workers > 1 and simulation.processes == 1 and order.job.nodes > 1:
        result.notes.append(
            "one process trained all nodes of a run: smaller stacks of nodes would change the last bits of the results"
        )
    return result


class Outcomes:
    """Results of the jobs of an engine, and the errors of those that have diverged.

    Args:
        finish_others: keep such an error until all jobs are done; otherwise raise it at once.

    Attributes:
        results: by the number of the job.
    """

    def __init__(self, listener: Listener, finish_others: bool) -> None:
        self.results: dict[int, Result] = {}
        self._listener = listener
        self._finish_others = finish_others
        self._diverged: list[DivergenceError] = []

    def add(self, number: int, found: Result | DivergenceError) -> None:
        """Add the end of a job, and tell the listener of it."""
        if isinstance(found, Result):
            self.results[number] = found
            self._listener.finished(number, found)
            return
        if not self._finish_others:
            raise found
        self._diverged.append(found)
        self._listener.diverged(number)

    def all(self) -> dict[int, Result]:
        """Return the results by the numbers of their jobs.

        Raises:
            DivergenceError: a run has diverged; its name of the run counts the others.
        """
        if self._diverged:
            error, others = self._diverged[0], len(self._diverged) - 1
            if others:
                error.run += f", and {others} other run{'s' * (others > 1)}"
            raise error
        return self.results


@dataclass(frozen=True)
class Assignment(Generic[K]):
    """A job for a worker.

    Attributes:
        scenario: the run that errors name.
    """

    key: K
    scenario: Scenario
    message: Any


def compute_side_by_side(
    jobs: Iterator[Assignment[K] | None],
    most: int,
    start: Callable[[], Worker],
    received: Callable[[K, Any], bool],
    *,
    answers: tuple[type[Exception], ...] = (),
    left: Callable[[], float | None] = lambda: None,
) -> None:
    """Compute jobs in at most `most` processes, and always end the processes.

    Args:
        jobs: yields the next job whenever a process is free. None, or the end, means that there is no next job until
            one of the current jobs is done.
        start: returns a new worker, which answers messages and may send others before its answer.
        received: called with each message from the worker of a job, except exceptions; returns whether the job is done.
        answers: exceptions that `received` is called with, too.
        left: returns the seconds until the jobs are given up; None is no limit.

    Raises:
        WorkerLostError: a process has ended.
        Exception: any other exception that a worker has sent.
    """
    workers: list[Worker] = []
    idle: list[Worker] = []
    busy: dict[Pipe, tuple[Worker, Assignment[K]]] = {}

    def fill() -> None:
        while len(busy) < most and (job := next(jobs, None)) is not None:
            if not idle:
                workers.append(start())
                idle.append(workers[-1])
            worker = idle.pop()
            worker.give(job.message)
            busy[worker.pipe] = worker, job

    try:
        fill()
        while busy and ((seconds := left()) is None or seconds > 0):
            for pipe in wait(list(busy), seconds):
                worker, job = busy[cast(Pipe, pipe)]
                with name_errors(job.scenario):
                    message = worker.take()
                if isinstance(message, Exception) and not isinstance(message, answers):
                    raise message
                if received(job.key, message):
                    del busy[worker.pipe]
                    idle.append(worker)
                    fill()
    finally:
        end_all(workers)
