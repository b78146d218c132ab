"""Worker processes of this process, and the setup of a process for simulation."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from p2pfl._util.registry import PREFIX, ObjectName
from p2pfl.errors import ConfigurationError, MissingRequirementError, RunError

if sys.platform == "linux":
    from multiprocessing.context import ForkServerContext as Context
else:
    from multiprocessing.context import SpawnContext as Context

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection

    Pipe: TypeAlias = PipeConnection
else:
    from multiprocessing.connection import Connection

    Pipe: TypeAlias = Connection


class WorkerLostError(RunError):
    """A worker process has ended in the middle of its work."""


class Worker:
    """Worker process that answers messages, as seen from its parent.

    Each worker has its own pipe, so that a killed worker leaves no lock and no partial message to others. (Workers of a
    ProcessPoolExecutor share queues, and its shutdown can hang if a worker was killed while it sent a result.)

    Args:
        work: function that runs in the process, with the far end of the pipe and `args`; it must be at the top of a
            module.
    """

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        context = _context()
        self.pipe, far = context.Pipe()
        with _interrupts_held_back(), _without_current_folder(), _without_main_module():
            self.process = context.Process(target=_begin, args=(dict(os.environ), work, far, *args))
            self.process.start()
        far.close()  # closes the pipe when the worker ends

    def give(self, message: Any) -> None:
        """Send a message.

        Raises:
            WorkerLostError: the process has ended.
        """
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._lost_error() from error

    def take(self) -> Any:
        """Wait for the worker's next message, and return it.

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
            f"a worker process ended with code {self.process.exitcode}; if it ran out of memory, use fewer --workers"
        )


def _context() -> Context:
    """Return the way to start workers.

    On Linux, workers are copies of one process that has imported torch. They start in milliseconds instead of seconds,
    and share the memory of its modules. Elsewhere, a copy of a process with these libraries may not work.
    """
    context = Context()
    if sys.platform == "linux":
        context.set_forkserver_preload(["torch", "p2pfl.sim.execution.runner"])
    return context


_ended_seconds = 0.0  # processor time of ended workers, which on Linux are no children of this process


def processor_seconds() -> float:
    """Return the processor seconds of this process and of its workers that have ended."""
    return sum(os.times()[:4]) + _ended_seconds


def _seconds_of(process: int) -> float:
    """Return the processor seconds of a process on Linux, 0 elsewhere and for a process that is gone."""
    if sys.platform != "linux":
        return 0.0
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def end_all(workers: list[Worker]) -> None:
    """End processes, even if they are busy."""
    global _ended_seconds
    _ended_seconds += sum(_seconds_of(worker.process.pid) for worker in workers if worker.process.pid)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()


def answer(pipe: Pipe, work: Callable[[Any], Any]) -> None:
    """Answer messages from a pipe, including with errors, until the pipe is closed."""
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        try:
            message = work(ForkingPickler.loads(task))
        except Exception as error:
            error.add_note(traceback.format_exc())  # a traceback is not pickled
            message = _fit_to_travel(error)
        try:
            pipe.send(message)
        except OSError:
            return
        del message  # an error refers to the whole job; the next job needs that memory


def _fit_to_travel(error: Exception) -> Exception:
    """Return an error that can be pickled: the original, or else one with the same message."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))  # as a pipe does
    except Exception:
        reported = RunError(str(error)) if isinstance(error, RunError) else RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            reported.add_note(note)
        return reported
    return error


def _copy_object(name: ObjectName) -> tuple[Callable[[str, bytes], ObjectName], tuple[str, bytes]]:
    """Reduce a factory that this program has given as an object, for its worker processes.

    They cannot import what is defined in a notebook or in a script, so cloudpickle copies it by value.

    Raises:
        ConfigurationError: it cannot be copied, or cloudpickle is not installed.
    """
    text = name.removeprefix(PREFIX)
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingRequirementError(
            f"worker processes need cloudpickle for {text}: pip install 'p2pfl-node[notebook]', or leave out workers"
        ) from error
    try:
        return _paste_object, (text, cloudpickle.dumps(name.factory))
    except Exception as error:  # of the object's own parts
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{text} cannot be copied to worker processes ({reason}); leave out workers") from error


def _paste_object(text: str, factory: bytes) -> ObjectName:
    return ObjectName(text, ForkingPickler.loads(factory))


ForkingPickler.register(ObjectName, _copy_object)


def _begin(environment: Mapping[str, str], work: Callable[..., None], pipe: Pipe, *args: Any) -> None:
    """Begin the work of a process, in the environment of its parent.

    On Linux it is a copy of a process with the environment of the first start: without this, a program that has changed
    P2PFL_DATA since would get data from the folder of before.
    """
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(pipe, *args)


def _end_with_parent() -> None:
    """End this process when its parent has died, even in the middle of its work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold back Ctrl-C, permanently in processes started in this block, because their parent ends them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # an implicit start with the first process would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Keep processes started in this block from importing modules of the current folder, such as a user's queue.py.

    They get the search path of this process before they do any work.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep processes started in this block from running the program's main module again.

    A script without `if __name__ == "__main__":` would otherwise start itself in each worker.
    """
    before = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def prepare_process(path: Sequence[str] = ()) -> None:
    """Prepare this process for simulation: one torch thread, and freed memory is kept.

    Args:
        path: additional folders to search for modules. They come last, so that they hide no other modules.
    """
    import torch

    torch.set_num_threads(1)
    sys.path += [folder for folder in path if folder not in sys.path]
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # a round makes many small objects and few cycles


@contextmanager
def prepared_process(path: Sequence[str] = ()) -> Iterator[None]:
    """Prepare this process for simulation, and restore it afterwards; glibc continues to keep freed memory."""
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
    """Make glibc keep freed memory.

    Every round allocates and frees the same arrays. Getting their pages from the system again each time costs more than
    computing them.
    """
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            m_trim_threshold, m_mmap_threshold = -1, -3
            libc.mallopt(m_mmap_threshold, 2**25)  # the maximum that glibc accepts
            libc.mallopt(m_trim_threshold, 2**31 - 1)
        except (OSError, AttributeError):  # another libc is only slower
            return
