"""Frames that arrive over a connection: their reader, and the limits on what one member may send over all its links.

A frame is four bytes of length, then its content. It is received directly into memory that the caller provides once the
length is complete and allowed. The payload of a large frame is hashed while it arrives: its bytes are in the processor's
cache then, and the node waits for the network anyway.

The limits are the number and the memory of incomplete frames, the time to complete one, and frames per second. No I/O: the
caller closes links and pauses their reading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from blake3 import blake3

from p2pfl.protocols.wire.envelope import OVERHEAD

PREFIX = 4  # bytes of a length, big-endian
HASHED = 512 << 10  # minimum bytes of a frame that is hashed while it arrives
STEP = 256 << 10  # bytes that are hashed at once
RATE, BURST = 400.0, 1000.0  # frames per second of one member, and at once; the fastest honest ones sent a quarter
INCOMPLETE = 2  # maximum size of all incomplete frames, in frames of maximum size
SLOWEST, GRACE = 16_000.0, 30.0  # minimum bytes per second, and additional seconds, for a frame to be complete
REUSED = 256 << 10  # minimum bytes of a frame whose memory is reused
SPARE = 4  # number of buffers to keep
L = TypeVar("L")  # type of a link


class FrameReader:
    """Reader of the incoming frames of one side. A frame is received directly into its memory.

    The caller provides this memory (`begin`) once the length is complete and allowed.

    Attributes:
        in_frame: whether the length is known, and the frame is incomplete or has not been taken yet.
        digest: BLAKE3 of the payload of the frame that was taken last; b"" if it was not hashed.
    """

    def __init__(self) -> None:
        self.digest = b""
        self._prefix = bytearray(PREFIX)
        self.clear()

    def clear(self) -> None:
        """Wait for a length, and release the memory of an incomplete frame."""
        self.in_frame = False
        self._view = memoryview(self._prefix)
        self._filled = 0
        self._hash: blake3 | None = None
        self._hashed = 0

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._view[self._filled :]

    def advance(self, count: int) -> bool:
        """Record that `count` bytes were received; return whether the length, or the frame, is complete."""
        self._filled += count
        complete = self._filled == len(self._view)
        if self._hash is not None and (complete or self._filled - self._hashed >= STEP):
            self._hash.update(self._view[self._hashed : self._filled])
            self._hashed = self._filled
        return complete

    def size(self) -> int:
        """Return the received length in bytes."""
        return int.from_bytes(self._prefix, "big")

    def begin(self, memory: memoryview) -> None:
        """Receive the frame into `memory`, which must have its size."""
        self.in_frame = True
        self._view, self._filled = memory, 0
        if len(memory) >= HASHED:
            self._hash, self._hashed = blake3(), OVERHEAD

    def take(self) -> memoryview:
        """Return the complete frame, and wait for the next length."""
        frame = self._view
        self.digest = b"" if self._hash is None else self._hash.digest()
        self.clear()
        return frame


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
