"""Bounds on what one member may send, over all its links together: incomplete frames and their memory, and frames a second.

No I/O: who calls it ends links and pauses their reading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

RATE, BURST = 400.0, 1000.0  # frames a second of one member, and after a pause; the fastest honest ones sent a quarter
INCOMPLETE = 2  # frames of the greatest size that may be incomplete, in bytes
SLOWEST, GRACE = 16_000.0, 30.0  # bytes a second, and seconds more, in which a frame must be complete
REUSED = 256 << 10  # bytes of a frame from which on its memory is used again
SPARE = 4  # of such memory, kept

L = TypeVar("L")  # a link


def patience(size: int) -> float:
    """Return in how many seconds a frame of `size` bytes must be complete."""
    return GRACE + size / SLOWEST


class Reception(Generic[L]):
    """Limits on what one member sends.

    Args:
        most: bytes of a frame of the greatest size.
        clock: returns seconds that never go back.
        rate, burst: frames a second, and at once after a pause.
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
        """Note that a frame of `size` bytes has begun; return the links that must be ended for it, the oldest first."""
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
        """Note that the frame of a link is complete; return for how many seconds nothing more shall be read from it."""
        self._begun.pop(link, None)
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._left / self._rate)

    def forget(self, link: L) -> None:
        """Note that a link has ended."""
        self._begun.pop(link, None)

    @property
    def idle(self) -> bool:
        """Return whether no frame is incomplete."""
        return not self._begun

    def overdue(self) -> list[L]:
        """Return the links whose frame should be complete by now."""
        now = self._clock()
        return [link for link, (_, deadline) in self._begun.items() if deadline <= now]


class Buffers:
    """Memory for large frames, used again once nobody looks at it: fresh memory costs more than what is written into it."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        if size < REUSED:
            return memoryview(bytearray(size))
        for buffer in self._spare:
            # Held by the list, this variable and the call: no view of it, nor an array made of one, is left.
            if len(buffer) >= size and sys.getrefcount(buffer) == 3:
                return memoryview(buffer)[:size]
        buffer = bytearray(size)
        self._spare = [*self._spare, buffer][-SPARE:]
        return memoryview(buffer)
