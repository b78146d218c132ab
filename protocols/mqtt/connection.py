"""Connection of a node with its broker, which is opened again whenever it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from math import inf
from typing import Any

from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.mqtt.broker_client import Bus, Listener, Message
from p2pfl.protocols.mqtt.delivery import ProblemReport

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between attempts to connect
STOOD = 5.0  # seconds after which a connection counts as stable, and the next attempt follows soon
CLOSING = 6.0  # seconds to wait for a connection, or an attempt to connect, to end
UNKNOWN = "see its log: each node may need its own account (use_username_as_clientid), or a higher limit of connections"

Keep = Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]


class BrokerConnection:
    """Connection with a broker.

    Args:
        will, subscriptions: see p2pfl.protocols.mqtt.broker_client.Bus.run.
        uniform: draws a number between two others, for the pauses between attempts to connect.

    Attributes:
        failure: why there is no connection; "" if there is one, or no attempt has been made yet.
    """

    def __init__(
        self,
        bus: Bus,
        will: Message,
        subscriptions: Sequence[str],
        problem: ProblemReport,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.failure = ""
        self._bus = bus
        self._will = will
        self._subscriptions = subscriptions
        self._problem = problem
        self._uniform = uniform
        self._task: asyncio.Task[None] | None = None
        self._using = False  # the bus is connecting or connected
        self._up = asyncio.Event()
        self._since = inf  # time at which the connection was opened
        self._brief = 0  # short connections in a row

    def start(self, listener: Listener, on_end: Callable[[], str | None], keep: Keep) -> None:
        """Start to connect.

        Args:
            listener: its `connected` must call `opened`.
            on_end: called when a connection has ended or could not be opened; returns why the broker closes connections,
                "" if that is unknown, and None if it may be known after further connections.
            keep: runs the work, and may run it again after an error.
        """

        async def work() -> None:
            await self._stay_connected(listener, on_end)

        self._task = asyncio.ensure_future(keep(work))
        self._task.add_done_callback(_raise)

    async def close(self) -> None:
        await self._bus.close()
        if self._task is not None:
            if self._using:
                await asyncio.wait([self._task], timeout=CLOSING)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Wait for a connection.

        Raises:
            TransportError: the last attempt has failed.
        """
        if self.failure:
            raise TransportError(self.failure)
        await self._up.wait()

    def opened(self) -> None:
        """Record that the connection is open."""
        self._since, self.failure = asyncio.get_running_loop().time(), ""
        self._up.set()

    def confirm(self) -> bool:
        """Record that the broker delivers messages; return whether its connections are stable."""
        if asyncio.get_running_loop().time() - self._since >= STOOD:
            self._brief = 0
        return self._brief < 2

    async def _stay_connected(self, listener: Listener, on_end: Callable[[], str | None]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self._using = True
                await self._bus.run(self._will, self._subscriptions, listener)
                return
            except TransportError as error:
                self._using = False
                if await self._record_end(str(error), on_end):
                    pause = FIRST_PAUSE
            except Exception as error:
                self._using = False
                failure = f"the connection to the broker at {self._bus.name} failed: {type(error).__name__}"
                await self._record_end(failure, on_end)
                raise
            await asyncio.sleep(pause * self._uniform(0.75, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _record_end(self, reason: str, on_end: Callable[[], str | None]) -> bool:
        """Record why there is no connection; return whether the last one was stable."""
        stood = asyncio.get_running_loop().time() - self._since >= STOOD
        made = self._since < inf
        self._since, self.failure = inf, reason
        self._up.clear()
        known = on_end()
        self._brief = self._brief + 1 if made and not stood else 0
        if self._brief > 1:
            if known is not None:
                self._problem.set(known or await self._bus.explain() or f"{reason}, repeatedly; {UNKNOWN}")
        elif not made:
            self._problem.set(reason)
        return stood


def _raise(task: asyncio.Task[None]) -> None:
    """Pass an error of an unawaited task to the event loop, which ends the program or reports the error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the links through the broker ended", "exception": error})
