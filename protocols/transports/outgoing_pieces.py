"""Outgoing data of a connection, cut into small pieces so that a large model does not block the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from p2pfl.protocols.transport import Part

PIECE = 256 << 10  # bytes that are encrypted at once


class Pieces:
    """Queue of outgoing data.

    Attributes:
        waiting: number of queued bytes.
    """

    def __init__(self) -> None:
        self._pending: deque[memoryview] = deque()
        self.waiting = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, parts: Iterable[Part]) -> None:
        """Add the joined parts. Small parts at the beginning become one piece, because each piece is a TLS record."""
        head: list[Part] = []
        rest: list[Part] = []
        for part in parts:
            (rest if rest or len(part) > PIECE else head).append(part)
        for piece in (b"".join(head), *rest):
            if len(piece):
                view = memoryview(piece).cast("B")
                self.waiting += len(view)
                self._pending.append(view)

    def next(self) -> memoryview:
        """Remove and return the next piece, of at most PIECE bytes."""
        piece = self._pending[0]
        if len(piece) > PIECE:
            self._pending[0], piece = piece[PIECE:], piece[:PIECE]
        else:
            self._pending.popleft()
        self.waiting -= len(piece)
        return piece

    def clear(self) -> None:
        self._pending.clear()
        self.waiting = 0
