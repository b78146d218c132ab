"""Simulations from Python: `p2pfl.simulate` and `p2pfl.load`.

A caller whose thread runs an event loop, such as a cell of a notebook, has the runs computed in a thread of their own,
because a thread has room for one loop. Everything that the caller sees still happens in its thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from operator import index
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import networkx as nx
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.inputs import RunInputs
from p2pfl.sim.execution.run_order import Listener, together
from p2pfl.sim.execution.runner import Engine, check_all, run_all
from p2pfl.sim.monitor.monitor import line_of, progress_bar
from p2pfl.sim.monitor.run_monitor import tracking
from p2pfl.sim.report.folder import MORE, TABLES, Folder
from p2pfl.sim.report.write import try_write_report
from p2pfl.sim.results.results import Result, Results, new_folder
from p2pfl.sim.results.tables import SCENARIO, read_models
from p2pfl.sim.scenario.scenario import ScenarioFile, check_seeds, jobs_of, resolve, restore
from p2pfl.sim.scenario.scenario import load as load_scenario
from p2pfl.sim.scenario.topology import FILE
from p2pfl.sim.simulation.workers import prepared_process
from p2pfl.tracking.tracker import Factory

T = TypeVar("T")
Call = Callable[[], object]


def simulate(
    scenario: str | PathLike[str] | Mapping[str, Any],
    *,
    changes: Sequence[str] = (),
    seeds: int | Iterable[int] | None = None,
    graph: nx.Graph | None = None,
    workers: int | None = None,
    progress: bool | Callable[[int, int], object] = True,
    out: str | PathLike[str] | None = None,
    report: bool = False,
    models: bool = False,
    track: str | Factory | Sequence[str | Factory] = (),
    trust: bool = False,
    ignore_memory: bool = False,
) -> Results:
    """Run a scenario. In a notebook, or where an event loop runs for another reason, the runs use a thread of their own.

    During the run, torch uses one thread and the garbage collector runs less often. Modules that the scenario names are
    also looked up in its folder (for a dict, in the current folder). Afterwards these settings are restored. One effect
    remains on Linux with glibc: the process keeps freed memory for the next run.

    Args:
        scenario: the name of a shipped scenario, the path of a TOML file, or the contents of a TOML file as a dict. In
            a dict, the task and the policy may also be a function or a class. The policy may be an object; each node
            gets a copy. The task may be a list with a task for each node.
        changes: "key=value" strings, applied to all runs.
        seeds: seeds that replace those of the scenario, or their number: 3 is 0, 1, 2.
        graph: any NetworkX graph to use as the topology; it sets the number of nodes.
        workers: number of worker processes, which run in parallel; by default all runs are done in this process.
        progress: whether to show a bar on a terminal or in a notebook; or a function that is called from time to time
            with the number of node-rounds done and their total.
        out: folder to write, as `p2pfl-sim run` does; it must not hold a run.
        report: also write report.html into the folder `out`.
        models: keep the model of each node's result in `Result.models`.
        track: trackers that receive the figures of each run: "tensorboard", "mlflow", "wandb", "trackio",
            "package.module:factory", or factories of p2pfl.tracking.tracker.Tracker. Their files are in the folder
            `track` of `out`, or of the current folder. A tracker that fails gives a warning, and ends no run.
        trust: import any module that a file names, wherever it is. The modules of a dict are always trusted.
        ignore_memory: begin even if the estimate says that memory does not suffice.

    Returns:
        A list with one result for each run and seed; `result.summary["test"]["mean"]` is the figure of the table. If the
        folder or the report cannot be written after the runs, a warning says why.

    Raises:
        ConfigurationError: the scenario asks for something that does not exist or does not fit into memory, a seed is
            given twice, or the folder cannot be made.
        RunError: a run cannot continue (p2pfl.errors).
    """
    file = _scenario_file(scenario, changes, seeds, graph, trust)
    if workers is not None and workers < 1:
        raise ConfigurationError(f"workers must be 1 or more, got {workers}")
    if report and out is None:
        raise ConfigurationError("report=True needs a folder: add out, such as out='runs/first'")
    folder = None if out is None else new_folder(out)
    compute = partial(_compute, file, workers, models=models, memory=not ignore_memory)
    problems: list[str] = []
    with (
        tracking(file, track, folder or Path(), problems.append) as tracked,
        _listening(file, progress) as listening,
    ):
        listener = listening if tracked is None else together(Listener.of(tracked), listening)
        if workers is None and loop_runs():
            found = compute_in_thread(lambda post: compute(_posting(listener, post)))
        else:
            found = compute(listener)
    results = Results(found, file)
    if folder is not None:
        problems += _write(results, folder, report)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return results


def _write(results: Results, folder: Path, report: bool) -> list[str]:
    """Write the folder of a run, and return the problems: after the runs, no error may cost their results."""
    try:
        results.to_dir(folder)
    except Exception as error:  # also of the libraries that write the files
        return [f"{error or type(error).__name__}; write the returned results with to_dir"]
    _, problem = try_write_report(folder) if report else (None, "")
    return [problem] if problem else []


def load(folder: str | PathLike[str]) -> Results:
    """Read the results of a run from its folder, which `p2pfl-sim run`, `p2pfl.simulate` or `to_dir` has written.

    Raises:
        ConfigurationError: the folder holds no finished run, or one of its files cannot be read.
    """
    with Folder(Path(folder)) as read:
        if read.summary.search:
            raise ConfigurationError(f"{folder} holds a search by p2pfl-sim pareto; p2pfl.load reads runs only")
        if not read.scenario:
            raise ConfigurationError(f"{folder} holds no complete run: {SCENARIO} is missing or damaged")
        file = restore(read.scenario, Path(folder))
        return Results([_result(read, run) for run in read.raw["runs"]], file, read.raw)


def _result(folder: Folder, run: dict[str, Any]) -> Result:
    def columns(table: str) -> dict[str, Any]:
        names = [name for name in folder.columns(table) if name not in ("run", "seed")]
        return folder.read(table, names, run["name"], run["seed"])

    tables = {table: columns(table) for table in (*TABLES, *MORE) if table in TABLES or folder.has(table)}
    more = {name: table for name, table in tables.items() if name in MORE and len(next(iter(table.values())))}
    return Result(run, tables["rounds"], tables["edges"], [], more, read_models(folder.path, run))


def _scenario_file(
    scenario: str | PathLike[str] | Mapping[str, Any],
    changes: Sequence[str],
    seeds: int | Iterable[int] | None,
    graph: nx.Graph | None,
    trust: bool,
) -> ScenarioFile:
    changes = [*changes, *([f"nodes={len(graph)}"] if graph is not None else [])]
    if isinstance(scenario, Mapping):
        file = resolve(scenario, changes, name="scenario", folder=".")
    else:
        file = load_scenario(str(scenario), changes, trust)
    if graph is not None:
        file = replace(file, graph=graph, runs=tuple(replace(run, topology={"name": FILE}) for run in file.runs))
    if seeds is not None:
        file = replace(file, seeds=_chosen_seeds(seeds))
    return file


def _chosen_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    try:
        chosen = list(map(index, seeds)) if isinstance(seeds, Iterable) else list(range(index(seeds)))
    except TypeError:
        chosen = []
    if not chosen:
        raise ConfigurationError(f"seeds must be a number of 1 or more, or a list of whole numbers, got {seeds!r}")
    check_seeds("seeds", chosen)
    return tuple(chosen)


def _compute(file: ScenarioFile, workers: int | None, listener: Listener, *, models: bool, memory: bool) -> list[Result]:
    with prepared_process(file.path):
        inputs = RunInputs(file)
        check_all(file, workers or 1, memory)
        inputs.settle()
        engine: Engine = "local" if workers is None else "process"
        results = run_all(file, engine, workers, listener=listener, models=models, inputs=inputs)
        if results:
            results[0].notes.extend(inputs.notes)
        return results


@contextmanager
def _listening(file: ScenarioFile, progress: bool | Callable[[int, int], object]) -> Iterator[Listener]:
    total = sum(job.nodes * job.rounds for job in jobs_of(file))
    if not callable(progress):
        with progress_bar(total, not progress, line_of(file), lines=False) as (advance, show):
            yield Listener(advance, lambda number, result: show(result))
        return
    done = 0

    def count(node_rounds: int) -> None:
        nonlocal done
        done += node_rounds
        progress(done, total)

    yield Listener(count)


def _posting(listener: Listener, post: Callable[[Call], None]) -> Listener:
    """Return a listener that has the calls made in another thread."""
    watched = listener.watched
    return Listener(
        lambda node_rounds: post(partial(listener.progress, node_rounds)),
        lambda number, result: post(partial(listener.finished, number, result)),
        None if watched is None else lambda number, snapshot: post(partial(watched, number, snapshot)),
    )


def loop_runs() -> bool:
    """Return whether an event loop runs in this thread; a second one, such as the simulator's, cannot."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def compute_in_thread(work: Callable[[Callable[[Call], None]], T]) -> T:
    """Return `work(post)`, computed in another thread.

    Calls that the work posts are made in this thread. Ctrl-C and an error of such a call interrupt the work.
    """
    calls: SimpleQueue[Call | None] = SimpleQueue()
    future: Future[T] = Future()

    def compute() -> None:
        try:
            future.set_result(work(calls.put))
        except BaseException as error:
            future.set_exception(error)
        finally:
            calls.put(None)

    thread = Thread(target=compute, name="simulation", daemon=True)
    thread.start()
    try:
        while (call := calls.get()) is not None:
            call()
    except BaseException:
        assert thread.ident is not None
        # at the next step of that thread, as Ctrl-C does in the main thread
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        thread.join()
        raise
    return future.result()
