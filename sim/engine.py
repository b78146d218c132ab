"""Runs all runs of a scenario, one after another in this process or side by side in worker processes."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from p2pfl.errors import Failed
from sim.results import Result, result_of
from sim.run import check, run
from sim.scenario import Scenario, ScenarioFile, jobs_of

Engine = Literal["local", "process"]
Progress = Callable[[int], None]
Finished = Callable[[int, Result], None]


class WorkerLost(Failed):
    """A worker process has ended in the middle of its work."""


def check_all(file: ScenarioFile) -> None:
    """Make one of each thing that the runs of a scenario name, so that what is wrong is said before anything runs.

    Raises:
        ConfigurationError: naming the run.
    """
    prepare_process(file.folder)
    for scenario in file.runs:
        check(scenario)


def run_all(
    file: ScenarioFile,
    engine: Engine = "local",
    workers: int | None = None,
    progress: Progress = lambda node_rounds: None,
    finished: Finished = lambda number, result: None,
    done: Mapping[int, Result] = MappingProxyType({}),
) -> list[Result]:
    """Run every run of a scenario that `check_all` has passed with each of its seeds; the engine changes no result.

    Args:
        workers: processes side by side; by default one for each core.
        progress: called with the number of node-rounds that were done since the last call.
        finished: called with each result as it comes, and the number of its job (see sim.scenario.jobs_of).
        done: results that are there already, by the number of their job.

    Returns:
        One result for each run and seed, in the order of the file.

    Raises:
        Failed: a run cannot go on; the others are ended.
    """
    jobs = {number: job for number, job in enumerate(jobs_of(file)) if number not in done}
    prepare_process(file.folder)
    results = dict(done)
    if engine == "local":
        for number, job in jobs.items():
            results[number] = _run_one(job, progress)
            finished(number, results[number])
    elif jobs:
        results |= _run_in_workers(jobs, file.folder, min(workers or os.cpu_count() or 1, len(jobs)), progress, finished)
    return [results[number] for number in sorted(results)]


def _run_in_workers(
    jobs: Mapping[int, Scenario], folder: str, count: int, progress: Progress, finished: Finished
) -> dict[int, Result]:
    """Run jobs in so many processes, and end these whatever happens.

    Each has a pipe of its own, so that one that is killed leaves no lock and no half message to others. (Those of a
    ProcessPoolExecutor share queues, and its end can hang when a worker was killed while it sent a result.)
    """
    todo = iter(jobs.items())
    results: dict[int, Result] = {}
    workers: list[_Worker] = []
    busy: dict[Connection, _Worker] = {}
    try:
        for k, job in islice(todo, count):
            workers.append(_Worker(folder))
            workers[-1].give(k, job)
            busy[workers[-1].pipe] = workers[-1]
        while busy:
            for pipe in wait(list(busy)):
                worker = busy[cast(Connection, pipe)]
                message = worker.take()
                if isinstance(message, int):
                    progress(message)
                    continue
                if isinstance(message, Exception):
                    raise message
                results[worker.job] = message
                finished(worker.job, message)
                if (following := next(todo, None)) is not None:
                    worker.give(*following)
                else:
                    del busy[worker.pipe]
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
    return results


class _Worker:
    """A process that runs jobs, as seen from the one that started it.

    Attributes:
        job: the number of the job that it has.
    """

    def __init__(self, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_work, args=(folder, far))
        self.job = -1
        with _interrupts_held_back():
            self.process.start()
        far.close()  # then the pipe ends when the worker does

    def give(self, number: int, job: Scenario) -> None:
        self.job = number
        try:
            self.pipe.send(job)
        except OSError as error:
            raise self._lost() from error

    def take(self) -> int | Result | Exception:
        """Return what the worker has to say: node-rounds done, a result, or the error that has ended its job."""
        try:
            message: int | Result | Exception = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return message

    def _lost(self) -> WorkerLost:
        self.process.join()
        return WorkerLost(
            f"a worker process has ended with code {self.process.exitcode} (if it was killed for want of memory,"
            " fewer --workers need less)"
        )


def _work(folder: str, pipe: Connection) -> None:
    """Run the jobs that come through a pipe, until it is closed or the process at its other end has died."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(folder)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            message: Result | Exception = _run_one(job, pipe.send)
        except Exception as error:
            error.add_note(traceback.format_exc())  # where it was raised does not travel
            message = error
        try:
            pipe.send(message)
        except OSError:  # nobody is left to hear it
            return


def _end_with_parent() -> None:
    """End this process when the one that started it has died, in the middle of its work too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold back Ctrl-C, for good in processes that are started meanwhile: the one that starts them is to end them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # to start it, as the first process would, lets interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_process(folder: str) -> None:
    """Make this process fit to simulate: one torch thread, modules beside the scenario, and memory that is kept."""
    import torch

    torch.set_num_threads(1)
    for path in (folder, str(Path.cwd())):
        if path not in sys.path:
            sys.path.insert(0, path)
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # a round makes many small objects and few cycles


@contextmanager
def prepared_process(folder: str) -> Iterator[None]:
    """Make this process fit to simulate, and then as it was; but glibc goes on keeping what is freed."""
    import torch

    threads, thresholds, frozen, path = torch.get_num_threads(), gc.get_threshold(), gc.get_freeze_count(), list(sys.path)
    prepare_process(folder)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()
        sys.path[:] = path


def keep_freed_memory() -> None:
    """Have glibc keep what is freed: every round takes and frees the same arrays, and to get their pages anew from the
    system each time costs more than to compute them."""
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            m_trim_threshold, m_mmap_threshold = -1, -3
            libc.mallopt(m_mmap_threshold, 2**25)  # the most that glibc takes
            libc.mallopt(m_trim_threshold, 2**31 - 1)
        except (OSError, AttributeError):  # another libc: only slower
            return


def _run_one(job: Scenario, progress: Progress) -> Result:
    done = 0

    def report(total: int) -> None:
        nonlocal done
        progress(total - done)
        done = total

    return result_of(run(job, progress=report))
