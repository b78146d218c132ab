"""An asyncio event loop on virtual time: when nothing can run, time jumps to the next timer instead of passing.

It is an independent loop, not asyncio's with another selector. It polls no sockets, and runs timers of equal time in
the order in which they were set. Its time has no minimum resolution, and it detects an endless wait at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import Future, Task, _set_running_loop  # asyncio documents this function for implementers of loops
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec

from p2pfl.errors import RunError

T = TypeVar("T")


class DeadlockError(RunError):
    """Nothing can run, no timer is set, and a task still waits."""


class Deferred(Protocol):
    """Work that may wait until its result is due, so that more work can be done together."""

    due: float  # inf: no work; -inf is not allowed

    def run(self) -> None:
        """Do the due work, and more if that is efficient."""


class Handle(msgspec.Struct):
    """A callback to be run; it has the interface of asyncio's handles, which cost more to create than to run."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: contextvars.Context
    time: float
    stopped: bool = False

    def cancel(self) -> None:
        self.stopped = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.stopped

    def when(self) -> float:
        return self.time


class VirtualLoop(asyncio.AbstractEventLoop):
    """Scheduler of tasks and timers on virtual time, which jumps to the next timer when no task can run.

    Attributes:
        now: the virtual time in seconds, which `time` returns.
    """

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._running = self._stopping = self._closed = False
        self._error: dict[str, Any] | None = None
        self._deferred: Deferred | None = None

    # Time

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, self.now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, when)
        self._count += 1
        if when < inf:
            heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def defer(self, work: Deferred) -> None:
        """Run work when nothing else can happen before it is due. A loop has at most one deferred work.

        Raises:
            RuntimeError: the loop already has one.
        """
        if self._deferred is not None:
            raise RuntimeError("this loop has deferred work already")
        self._deferred = work

    # Running

    def run_forever(self) -> None:
        self._running = True
        _set_running_loop(self)
        try:
            while not self._stopping:
                self._step()
        finally:
            self._running = self._stopping = False
            _set_running_loop(None)

    def _step(self) -> None:
        if self._ready or self._advance():
            self.run_ready(self._ready)

    def _advance(self) -> bool:
        """Go to the next timer, or do the deferred work if it is due earlier; return whether a callback is ready."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].stopped:
            heapq.heappop(timers)
        next_timer = timers[0][0] if timers else inf
        work = self._deferred
        # at equal times the timers come first, because they may request more work
        if work is not None and work.due < next_timer:
            self.now = max(self.now, work.due)
            work.run()
            return False
        if not timers:
            raise DeadlockError(_who_waits(self))
        self.now = max(self.now, next_timer)
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        return True

    def run_ready(self, ready: deque[Handle]) -> None:
        """Run the callbacks that are ready, in their order, and remove them; not those that become ready in the process.

        Raises:
            Exception: a callback has failed.
        """
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.stopped:
                handle.context.run(handle.callback, *handle.args)
        if self._error is not None:
            error, self._error = self._error, None
            raise error.get("exception") or RuntimeError(error["message"])

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)

        def stop(_: Any) -> None:
            self.stop()

        task.add_done_callback(stop)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(stop)
        return task.result()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: the garbage collector finalises generators."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""

    # Tasks and futures

    def create_future(self) -> Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Future[T]:  # type: ignore[override]
        """Call `func` immediately in this thread, because another thread would not run on virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    # Errors and debugging

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore the setting."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Stop the run: a simulation has no external faults, so every error is a bug."""
        self._error = self._error or context


def _who_waits(loop: VirtualLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    shown = ", ".join(task.get_name() for task in tasks[:5]) + (", ..." if len(tasks) > 5 else "")
    waiting = f"{len(tasks)} task{'s wait' if len(tasks) != 1 else ' waits'}"
    return f"deadlock at {loop.now:g} s of virtual time: {waiting} and no event is left: {shown}"


def virtual_loop() -> VirtualLoop:
    """Return a new loop at time 0."""
    return VirtualLoop()  # type: ignore[abstract]  # sockets, signals and subprocesses have no place in it


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run a coroutine on virtual time and return its result.

    Raises:
        DeadlockError: it waits for an event that cannot happen.
    """
    with asyncio.Runner(loop_factory=lambda: loop or virtual_loop()) as runner:
        return runner.run(main)
