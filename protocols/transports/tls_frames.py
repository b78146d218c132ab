"""Assembly of frames from a stream of bytes: four bytes of length, then the frame."""

from __future__ import annotations

PREFIX = 4  # bytes of a length, big-endian


class FrameReader:
    """Reader of the incoming frames of one side. A frame is received directly into its memory.

    The caller provides this memory (`begin`) once the length is complete and allowed.

    Attributes:
        in_frame: whether the length is known, and the frame is incomplete or has not been taken yet.
    """

    def __init__(self) -> None:
        self._prefix = bytearray(PREFIX)
        self.clear()

    def clear(self) -> None:
        """Wait for a length, and release the memory of an incomplete frame."""
        self.in_frame = False
        self._view = memoryview(self._prefix)
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._view[self._filled :]

    def advance(self, count: int) -> bool:
        """Record that `count` bytes were received; return whether the length, or the frame, is complete."""
        self._filled += count
        return self._filled == len(self._view)

    def size(self) -> int:
        """Return the received length in bytes."""
        return int.from_bytes(self._prefix, "big")

    def begin(self, memory: memoryview) -> None:
        """Receive the frame into `memory`, which must have its size."""
        self.in_frame = True
        self._view, self._filled = memory, 0

    def take(self) -> memoryview:
        """Return the complete frame, and wait for the next length."""
        frame = self._view
        self.clear()
        return frame
