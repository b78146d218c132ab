"""Work in a thread of its own, for callers whose thread runs an event loop, such as a cell of a notebook."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

Call = Callable[[], object]


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
        _interrupt(thread)
        thread.join()
        raise
    return future.result()


def _interrupt(thread: Thread) -> None:
    """Raise KeyboardInterrupt in a thread at its next step, as Ctrl-C does in the main thread."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
