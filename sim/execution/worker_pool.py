"""Parallel computation of scenario jobs by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar, cast

from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.workers import Pipe, Worker, end_all

K = TypeVar("K")


@dataclass(frozen=True)
class Assignment(Generic[K]):
    """A job for a worker.

    Attributes:
        key: identifies the job.
        scenario: the run that errors name.
        message: sent to the worker.
    """

    key: K
    scenario: Scenario
    message: Any


def compute_side_by_side(
    jobs: Iterator[Assignment[K] | None],
    most: int,
    start: Callable[[], Worker],
    received: Callable[[K, Any], bool],
    answers: tuple[type[Exception], ...] = (),
) -> None:
    """Compute jobs in at most `most` processes, and always end the processes.

    Args:
        jobs: yields the next job whenever a process is free. None, or the end, means that there is no next job until
            one of the current jobs is done.
        start: returns a new worker, which answers messages and may send others before its answer.
        received: called with each message from the worker of a job, except exceptions; returns whether the job is done.
        answers: exceptions that `received` is called with, too.

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
        while busy:
            for pipe in wait(list(busy)):
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


@contextmanager
def name_errors(job: Scenario) -> Iterator[None]:
    """Add the name of the run to every error that is raised in this block."""
    try:
        yield
    except Exception as error:
        run = f"run {job.name!r}, seed {job.seed}"
        if isinstance(error, ConfigurationError):
            raise ConfigurationError(f"{run}: {error}") from error
        if isinstance(error, RunError):
            error.run = run
        else:
            error.add_note(f"in {run}")
        raise
