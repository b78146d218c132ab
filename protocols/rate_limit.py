"""Rate limits on requests that cause work, and limits on what one member may send over all its links.

The latter are the number and the memory of incomplete frames, and frames per second. No I/O: the caller closes links
and pauses their reading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import floor
from typing import Generic, TypeVar

MOST = 1024  # maximum number of remembered senders; the one that was inactive for the longest time is removed first
RATE, BURST = 400.0, 1000.0  # frames per second of one member, and at once; the fastest honest ones sent a quarter
INCOMPLETE = 2  # maximum size of all incomplete frames, in frames of maximum size
SLOWEST, GRACE = 16_000.0, 30.0  # minimum bytes per second, and additional seconds, for a frame to be complete
REUSED = 256 << 10  # minimum bytes of a frame whose memory is reused
SPARE = 4  # number of buffers to keep
L = TypeVar("L")  # type of a link


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


def patience(size: int) -> float:
    """Return the seconds within which a frame of `size` bytes must be complete."""
    return GRACE + size / SLOWEST


class Reception(Generic[L]):
    """Limits on what one member sends.

    Args:
        most: maximum bytes of a frame.
        clock: returns seconds and never goes back.
        rate, burst: frames per second, and frames at once after a pause.
    """

    def __init__(self, most: int, clock: Callable[[], float], rate: float = RATE, burst: float = BURST) -> None:
        self._most = most
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = clock()
        self._begun: dict[L, tuple[int, float]] = {}  # size and deadline of the frame of each link, the oldest first

    def begin(self, link: L, size: int) -> list[L]:
        """Record that a frame of `size` bytes has begun; return the links to close for its memory, the oldest first."""
        self._begun[link] = size, self._clock() + patience(size)
        held = sum(size for size, _ in self._begun.values())
        ended = []
        for other, (size, _) in self._begun.items():
            if held <= INCOMPLETE * self._most:
                break
            if other is not link:
                ended.append(other)
                held -= size
        return ended

    def complete(self, link: L) -> float:
        """Record that the frame of a link is complete; return the seconds for which to pause reading from the link."""
        self._begun.pop(link, None)
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._left / self._rate)

    def forget(self, link: L) -> None:
        """Record that a link has ended."""
        self._begun.pop(link, None)

    @property
    def idle(self) -> bool:
        """Return whether no frame is incomplete."""
        return not self._begun

    def overdue(self) -> list[L]:
        """Return the links whose frame has missed its deadline."""
        now = self._clock()
        return [link for link, (_, deadline) in self._begun.items() if deadline <= now]


class Buffers:
    """Reusable memory for large frames. Fresh memory costs more than the data that is written into it."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        if size < REUSED:
            return memoryview(bytearray(size))
        for buffer in self._spare:
            # The list, this variable and the call hold three references, so no view or array of the buffer exists.
            if len(buffer) >= size and sys.getrefcount(buffer) == 3:
                return memoryview(buffer)[:size]
        buffer = bytearray(size)
        self._spare = [*self._spare, buffer][-SPARE:]
        return memoryview(buffer)
