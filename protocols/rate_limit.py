"""Limits on requests that cause work: their rate for each sender and for all together, and how many are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from math import floor

MOST = 1024  # maximum number of remembered senders; the one that was inactive for the longest time is removed first


class TokenBucket:
    """Token bucket for each of many senders.

    Args:
        rate: permitted requests of each sender per second.
        burst: permitted requests at once after a pause.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[bytes, tuple[float, float]] = {}  # number of remaining requests, and the time of that number

    def remaining(self, who: bytes, now: float) -> float:
        """Return the number of requests that `who` may still make at `now`, in seconds."""
        left, before = self._left.get(who, (float(self._burst), now))
        return min(left + (now - before) * self._rate, float(self._burst))

    def take(self, who: bytes, now: float) -> bool:
        """Return whether `who` may make one more request at `now`, in seconds."""
        left, before = self._left.pop(who, (float(self._burst), now))
        left = min(left + (now - before) * self._rate, float(self._burst))
        allowed = left >= 1
        self._left[who] = (left - allowed, now)
        if len(self._left) > MOST:
            del self._left[next(iter(self._left))]
        return allowed

    def reset(self, who: bytes) -> None:
        """Give `who` the full burst again."""
        self._left.pop(who, None)


class Shares:
    """Common budget in equal shares for all senders of the current and the previous second.

    It limits work that comes before authentication: no sender is charged for claims that others make in its name.

    Args:
        rate: permitted requests per second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._second = 0
        self._used: dict[bytes, int] = {}
        self._before: set[bytes] = set()  # senders of the previous second
        self._claimants = 0

    def take(self, who: bytes, now: float) -> bool:
        """Return whether a request in the name of `who` is permitted at `now`, in seconds."""
        if (second := floor(now)) != self._second:
            self._before = set(self._used) if second == self._second + 1 else set()
            self._second, self._used, self._claimants = second, {}, len(self._before)
        if who not in self._used:
            self._used[who] = 0
            self._claimants += who not in self._before
        share = max(1, self._rate // self._claimants)
        if self._used[who] >= share or sum(self._used.values()) >= self._rate:
            return False
        self._used[who] += 1
        return True


class Slots:
    """Limit on the pieces of work in progress, in which a piece that stands still holds up no other.

    A piece keeps its slot for at most `hold` seconds. After that it continues without one, and the next piece begins: what
    waits for another machine costs nothing here, and ending it would waste the work that both sides have done.

    Args:
        most: number of slots.
        hold: seconds.
    """

    def __init__(self, most: int, hold: float) -> None:
        self._free = most
        self._hold = hold
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap
        self._numbers = count()

    @asynccontextmanager
    async def slot(self, rank: float = 0.0) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the end of the block, or for `hold` seconds.

        Args:
            rank: pieces of a low rank come first, those of one rank in the order of their arrival.
        """
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (rank, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn came in the same moment
                    self._pass_on()
                raise
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._pass_on()

        end = asyncio.get_running_loop().call_later(self._hold, leave)
        try:
            yield
        finally:
            end.cancel()
            leave()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = heappop(self._waiting)[-1]
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(None)
                return
        self._free += 1
