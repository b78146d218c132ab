"""One run of a scenario as an order to a worker, and the callbacks that follow it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from p2pfl.errors import DivergenceError
from p2pfl.sim.execution.snapshots import Snapshot, SnapshotCollector
from p2pfl.sim.execution.worker_pool import name_errors
from p2pfl.sim.results.results import Result, result_of
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.sharding import ShardSource
from p2pfl.sim.simulation.simulation import Simulation


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


QUIET = Listener()


@dataclass(frozen=True)
class RunOrder:
    """A job and how to run it.

    Attributes:
        graph: the topology, in place of the job's.
        models: see `run_all`.
        watch: whether to take snapshots.
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
    with name_errors(order.job):
        return _run(order, tell, shards)


def _run(order: RunOrder, tell: Callable[[Any], None], shards: ShardSource | None) -> Result:
    done = 0
    simulation = Simulation(order.job, order.graph, workers=order.workers, shards=shards)
    photographer = SnapshotCollector(simulation) if order.watch else None

    def report(total: int) -> None:
        nonlocal done
        tell(total - done)
        done = total
        if photographer is not None and photographer.due():
            tell(photographer.take())

    result = result_of(simulation.run(report), order.models)
    gc.collect()  # an earlier run's nodes are cycles, and collections are rare in this process
    if order.explain and order.workers > 1 and simulation.processes == 1 and order.job.nodes > 1:
        result.notes.append(
            "one process trained all nodes of a run: smaller stacks of nodes would change the last bits of the results"
        )
    return result


def raise_if_diverged(errors: Sequence[DivergenceError]) -> None:
    """Raise the first of the errors of diverged runs; its name of the run counts the others."""
    if not errors:
        return
    error, others = errors[0], len(errors) - 1
    if others:
        error.run += f", and {others} other run{'s' * (others > 1)}"
    raise error
