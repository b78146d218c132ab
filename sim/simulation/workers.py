"""Processes that work for this one, and what makes a process fit to simulate."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from p2pfl.errors import RunError


class WorkerLostError(RunError):
    """A worker process has ended in the middle of its work."""


class Worker:
    """A process that answers what it is given, as seen from the one that started it.

    Each has a pipe of its own, so that one that is killed leaves no lock and no half message to others. (Those of a
    ProcessPoolExecutor share queues, and its end can hang when a worker was killed while it sent a result.)

    Args:
        work: runs in the process, with the far end of the pipe and `args`; a function at the top of a module.
    """

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_begin, args=(work, far, *args))
        with _interrupts_held_back():
            self.process.start()
        far.close()  # then the pipe ends when the worker does

    def give(self, message: Any) -> None:
        """Send something.

        Raises:
            WorkerLostError: the process has ended.
        """
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._lost_error() from error

    def take(self) -> Any:
        """Wait for what the worker has to say, and return it.

        Raises:
            WorkerLostError: the process has ended.
        """
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost_error() from error

    def _lost_error(self) -> WorkerLostError:
        self.process.join()
        return WorkerLostError(
            f"a worker process has ended with code {self.process.exitcode} (if it was killed for want of memory,"
            " fewer --workers need less)"
        )


def end_all(workers: list[Worker]) -> None:
    """End processes, whatever they are doing."""
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()


def answer(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Answer what comes through a pipe, errors included, until it is closed or nobody is left to hear."""
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            message = work(task)
        except Exception as error:
            error.add_note(traceback.format_exc())  # where it was raised does not travel
            message = _fit_to_travel(error)
        try:
            pipe.send(message)
        except OSError:
            return


def _fit_to_travel(error: Exception) -> Exception:
    """Return an error that can be made again at the other end of a pipe: itself, or else one that says the same."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))  # what a pipe does
    except Exception:
        told = RunError(str(error)) if isinstance(error, RunError) else RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            told.add_note(note)
        return told
    return error


def _begin(work: Callable[..., None], pipe: Connection, *args: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(pipe, *args)


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


def prepare_process(path: Sequence[str] = ()) -> None:
    """Make this process fit to simulate: one torch thread, and memory that is kept.

    Args:
        path: folders that modules are looked for in as well. They come last, so that they hide none of others.
    """
    import torch

    torch.set_num_threads(1)
    sys.path += [folder for folder in path if folder not in sys.path]
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # a round makes many small objects and few cycles


@contextmanager
def prepared_process(path: Sequence[str] = ()) -> Iterator[None]:
    """Make this process fit to simulate, and then as it was; but glibc goes on keeping what is freed."""
    import torch

    threads, thresholds, frozen, before = torch.get_num_threads(), gc.get_threshold(), gc.get_freeze_count(), list(sys.path)
    prepare_process(path)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()
        sys.path[:] = before


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
