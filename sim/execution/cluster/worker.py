"""One run in a worker of a cluster, as a stream of messages."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any

from p2pfl.sim.execution.cluster.messages import decode, encode
from p2pfl.sim.execution.cluster.shards import RayShards
from p2pfl.sim.execution.cluster.worker_settings import WorkerSettings, prepare_worker
from p2pfl.sim.execution.probe import probe
from p2pfl.sim.execution.run_order import RunOrder, run_order
from p2pfl.sim.results.results import Result

EVERY = 0.2  # seconds between messages about progress


@dataclass(frozen=True)
class Job:
    """A run for a worker."""

    order: RunOrder
    settings: WorkerSettings


def run_job(message: bytes) -> Iterator[bytes]:
    """Run a job; the function of a task of Ray.

    Yields:
        The probe of this machine; then numbers of node-rounds done since the last message, and snapshots; at last the
        result, or an exception.
    """
    queue: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_compute, args=(message, queue), name="simulation", daemon=True).start()
    while True:
        found = queue.get()
        yield encode(found)
        if isinstance(found, Result | Exception):
            return


def _compute(message: bytes, queue: SimpleQueue[Any]) -> None:
    try:
        job = decode(message)
        assert isinstance(job, Job)
        queue.put(_run(job, queue))
    except BaseException as error:
        reported = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        reported.add_note(traceback.format_exc())  # a traceback does not travel
        queue.put(reported)


def _run(job: Job, queue: SimpleQueue[Any]) -> Result:
    order, settings = job.order, job.settings
    prepare_worker(settings)
    found = probe(order.job.device)
    queue.put(found)
    settings.check(found)
    settings.check_files(order.job, order.files)
    shards = RayShards(settings, order.job.device)
    progress = _Progress(queue)
    result = run_order(order, progress.tell, shards)
    progress.flush()
    result.notes.extend(shards.notes())
    return result


class _Progress:
    """Sum of the node-rounds done, sent from time to time."""

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self._queue = queue
        self._sum, self._last = 0, time.monotonic()

    def tell(self, message: Any) -> None:
        if not isinstance(message, int):
            self._queue.put(message)
            return
        self._sum += message
        if time.monotonic() - self._last >= EVERY:
            self.flush()

    def flush(self) -> None:
        if self._sum:
            self._queue.put(self._sum)
        self._sum, self._last = 0, time.monotonic()
