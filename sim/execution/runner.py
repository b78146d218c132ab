"""Run all runs of a scenario: one after another in this process, in worker processes, or on a cluster.

Results that are `done` already (see p2pfl.sim.execution.resume) are not computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal

from p2pfl._util.machine import READING, free_memory, usable_cores, within
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.sim.execution.cluster import ON_THIS_MACHINE, ClusterOptions, run_in_cluster
from p2pfl.sim.execution.inputs import RunInputs
from p2pfl.sim.execution.memory_estimate import check_model, check_runs
from p2pfl.sim.execution.run_order import (
    QUIET,
    Assignment,
    Listener,
    Outcomes,
    RunOrder,
    compute_side_by_side,
    divide_processes,
    run_order,
    together,
)
from p2pfl.sim.execution.snapshots import Snapshot
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of
from p2pfl.sim.simulation.plan import check, few_tested
from p2pfl.sim.simulation.workers import Pipe, Worker, answer, prepare_process

Engine = Literal["local", "process", "ray"]


def check_all(file: ScenarioFile, processes: int = 1, memory: bool = True) -> list[str]:
    """Make one object of each kind that the runs of a scenario name, to report errors before anything runs.

    Args:
        processes: number of runs in parallel.
        memory: check first that the runs may fit into memory.

    Returns:
        Notes on the samples of the first node; those on all nodes need the data of all, which a run reads.

    Raises:
        ConfigurationError: a run is invalid; the error names it.
    """
    prepare_process(file.path)
    if memory:
        check_runs(file.runs, len(file.seeds), processes)
    pools: dict[str, list[str]] = {}
    notes = []
    for scenario in file.runs:
        with within(free_memory() if memory else None, READING):
            task = check(scenario, file.graph)
        notes += few_tested("the first node", [task])
        if memory:
            check_model(scenario, task)
        goals = list(task.goals)
        if scenario.pool is not None and pools.setdefault(scenario.row, goals) != goals:
            raise ConfigurationError(
                f"run {scenario.name!r}: all runs of the pool {scenario.row!r} must have the same objectives"
            )
    return list(dict.fromkeys(notes))


def processes_of(engine: Engine, workers: int | None, cluster: ClusterOptions = ON_THIS_MACHINE) -> int:
    """Return the number of parallel processes of an engine on this machine, given enough runs."""
    return 1 if engine == "local" or (engine == "ray" and cluster.address) else workers or usable_cores()


def run_all(
    file: ScenarioFile,
    engine: Engine = "local",
    workers: int | None = None,
    *,
    done: Mapping[int, Result] = MappingProxyType({}),
    listener: Listener = QUIET,
    models: bool = False,
    cluster: ClusterOptions = ON_THIS_MACHINE,
    finish_others: bool = False,
    inputs: RunInputs | None = None,
) -> list[Result]:
    """Run every run of a checked scenario with each of its seeds; the engine does not affect results.

    The scenario must have passed `check_all`. If there are fewer runs than workers, spare workers train some of a run's
    nodes (see p2pfl.sim.simulation.sharding).

    Args:
        workers: number of parallel processes; by default one for each core that this process may use.
        done: existing results, by the number of their job.
        models: whether results hold the models of the nodes.
        cluster: options of the engine `ray`.
        finish_others: finish the other runs if one diverges; for a `listener` that keeps the results.
        inputs: of the runs, as they were before anything read them; by default as they are now.

    Returns:
        One result for each run and seed, in the order of the file.

    Raises:
        DivergenceError: a run has diverged; with `finish_others`, it is raised at the end.
        RunError: a run cannot continue for another reason, such as a change of its data; the other runs are ended.
    """
    watch = listener.watched is not None
    prepare_process(file.path)
    jobs, inputs = jobs_of(file), inputs or RunInputs(file)
    orders = {
        number: RunOrder(job, file.graph, models=models, watch=watch, files=inputs.files(job))
        for number, job in enumerate(jobs)
        if number not in done
    }
    listener = together(_confirming(jobs, inputs), listener)
    results = dict(done)
    if engine == "local":
        results |= _run_in_turn(orders, listener, finish_others)
    elif orders and engine == "ray":
        results |= run_in_cluster(orders, file.path, workers, listener, cluster, finish_others=finish_others)
    elif orders:
        results |= _run_in_workers(orders, file.path, workers, listener, finish_others)
    return [results[number] for number in sorted(results)]


def _confirming(jobs: Sequence[Scenario], inputs: RunInputs) -> Listener:
    """Return a listener that refuses a result if the inputs of its run have changed, and notes them in its summary."""

    def finished(number: int, result: Result) -> None:
        inputs.confirm(jobs[number])
        if files := inputs.files(jobs[number]):
            result.summary["inputs"] = files

    return Listener(finished=finished)


def _run_in_workers(
    orders: Mapping[int, RunOrder], path: Sequence[str], most: int | None, listener: Listener, finish_others: bool
) -> dict[int, Result]:
    """Run jobs in at most `most` processes."""
    processes = processes_of("process", most)
    divided = divide_processes(orders, processes, explain=most is not None)
    outcomes = Outcomes(listener, finish_others)

    def queue() -> Iterator[Assignment[int]]:
        for number, order in divided.items():
            listener.begun(number)
            yield Assignment(number, order.job, order)

    def received(number: int, message: int | Snapshot | Result | DivergenceError) -> bool:
        if isinstance(message, Result | DivergenceError):
            outcomes.add(number, message)
            return True
        listener.tell(number, message)
        return False

    compute_side_by_side(queue(), processes, lambda: Worker(_work, path), received, answers=(DivergenceError,))
    return outcomes.all()


def _run_in_turn(orders: Mapping[int, RunOrder], listener: Listener, finish_others: bool) -> dict[int, Result]:
    """Run jobs in this process."""
    outcomes = Outcomes(listener, finish_others)
    for number, order in orders.items():
        listener.begun(number)
        found: Result | DivergenceError
        try:
            found = run_order(order, partial(listener.tell, number))
        except DivergenceError as error:
            error.__traceback__ = error.__context__ = error.__cause__ = None  # they keep the whole simulation
            found = error
        outcomes.add(number, found)
    return outcomes.all()


def _work(pipe: Pipe, path: Sequence[str]) -> None:
    """Run jobs that come through a pipe."""
    prepare_process(path)
    answer(pipe, lambda order: run_order(order, pipe.send))
