"""Runs all runs of a scenario, one after another in this process or side by side in worker processes."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Literal

import msgspec

from sim.results import Result, result_of
from sim.run import check, run
from sim.scenario import Scenario, ScenarioFile

Engine = Literal["local", "process"]
Progress = Callable[[int], None]
Finished = Callable[[Result], None]


def run_all(
    file: ScenarioFile,
    engine: Engine = "local",
    workers: int | None = None,
    progress: Progress = lambda node_rounds: None,
    finished: Finished = lambda result: None,
) -> list[Result]:
    """Run every run of a scenario with each of its seeds; the result does not depend on the engine.

    Args:
        workers: processes side by side; by default one for each core.
        progress: called with the number of node-rounds that were done since the last call.
        finished: called with each result as it comes.

    Returns:
        One result for each run and seed, in the order of the file.
    """
    jobs = [msgspec.structs.replace(scenario, seed=seed) for scenario in file.runs for seed in file.seeds]
    prepare_process(file.folder)
    for scenario in file.runs:
        check(scenario)
    results = []
    if engine == "local":
        for job in jobs:
            results.append(_run_one(job, progress))
            finished(results[-1])
        return results
    count = min(workers or os.cpu_count() or 1, len(jobs))
    context = multiprocessing.get_context("spawn")
    queue: SimpleQueue[int | None] = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(queue, progress), daemon=True)
    listener.start()
    with ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(file.folder, queue)) as pool:
        try:
            for result in pool.map(_run_in_worker, jobs):
                results.append(result)
                finished(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    queue.put(None)
    listener.join()
    return results


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


_queue: SimpleQueue[int | None] | None = None


def _start_worker(folder: str, queue: SimpleQueue[int | None]) -> None:
    global _queue
    _queue = queue
    prepare_process(folder)


def _run_in_worker(job: Scenario) -> Result:
    assert _queue is not None
    return _run_one(job, _queue.put)


def _run_one(job: Scenario, progress: Progress) -> Result:
    done = 0

    def report(total: int) -> None:
        nonlocal done
        progress(total - done)
        done = total

    return result_of(run(job, progress=report))


def _listen(queue: SimpleQueue[int | None], progress: Progress) -> None:
    while (node_rounds := queue.get()) is not None:
        progress(node_rounds)
