"""Refusal of repeated frames without a clock, by the sender's incarnation and a window of sequence numbers."""

from __future__ import annotations

from p2pfl.protocols.errors import ProtocolError

WIDTH = 1024


class ReplayWindow:
    """Window of one sender's received frames: its newest incarnation and the last 1,024 sequence numbers in it."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._highest = 0
        self._seen = 0  # bit k: `_highest - k` was received

    def check(self, incarnation: int, sequence: int) -> None:
        """Raise ProtocolError("replay") if the frame is a repetition, too old, or of an earlier incarnation."""
        if incarnation < self._incarnation:
            raise ProtocolError("replay", f"incarnation {incarnation} after {self._incarnation}")
        if incarnation > self._incarnation:
            return
        behind = self._highest - sequence
        if behind >= WIDTH or (behind >= 0 and self._seen >> behind & 1):
            raise ProtocolError("replay", f"sequence {sequence} of incarnation {incarnation}")

    def commit(self, incarnation: int, sequence: int) -> bool:
        """Record a frame that was checked and has a valid signature; return whether it is the newest."""
        if incarnation > self._incarnation:
            self._incarnation, self._highest, self._seen = incarnation, sequence, 1
        elif sequence > self._highest:
            ahead = min(sequence - self._highest, WIDTH)  # limits the shift, because a peer chooses the number
            self._seen = (self._seen << ahead | 1) & ((1 << WIDTH) - 1)
            self._highest = sequence
        else:
            self._seen |= 1 << (self._highest - sequence)
            return False
        return True
