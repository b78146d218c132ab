"""Contributions of several simulated nodes, awaited as one event."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Generator
from types import coroutine
from typing import Any

from p2pfl.sim.simulation.clock import VirtualLoop


class Gather:
    """Contributions that are complete at their latest arrival time, or at a deadline.

    Args:
        count: number of contributions.
        seconds: time until the deadline.

    Attributes:
        future: True once all contributions have arrived, False if the deadline passed first.
        latest: time of the latest arrival so far.
        expires: time of the deadline.
        items: contributions by sender.
        left: number of outstanding contributions.
    """

    __slots__ = ("expires", "future", "items", "latest", "left", "loop")

    def __init__(self, loop: VirtualLoop, count: int, seconds: float) -> None:
        self.loop = loop
        self.future: Future[bool] = Future(loop=loop)
        self.left = count
        self.latest = loop.now
        self.expires = self.latest + seconds
        self.items: dict[str, Any] = {}

    def add(self, name: str, item: Any, when: float | None) -> bool:
        """Add a contribution that arrives at `when` (None: never). Return False if that is too late."""
        if when is None or when > self.expires or self.future.done():
            return False
        self.items[name] = item
        if when > self.latest:
            self.latest = when
        self.left -= 1
        if not self.left:
            if self.latest <= self.loop.now:
                self.future.set_result(True)
            else:
                self.loop.call_at(self.latest, self.expire, True)
        return True

    def expire(self, complete: bool = False) -> None:
        """End the waiting, if it has not ended."""
        if not self.future.done():
            self.future.set_result(complete)

    def close(self) -> None:
        """End the waiting at the deadline."""
        self.expire()


@coroutine
def yield_once() -> Generator[None, None, None]:
    """Let everything else run first that can run at this time."""
    yield
