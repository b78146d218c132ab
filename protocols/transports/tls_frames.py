"""Assembly of frames from a stream of bytes: four bytes of length, then the frame.

The payload of a large frame is hashed while it arrives: its bytes are in the processor's cache then, and the node waits
for the network anyway.
"""

from __future__ import annotations

from blake3 import blake3

from p2pfl.protocols.wire.envelope import OVERHEAD

PREFIX = 4  # bytes of a length, big-endian
HASHED = 512 << 10  # minimum bytes of a frame that is hashed while it arrives
STEP = 256 << 10  # bytes that are hashed at once


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
