"""Refuses what was said before, without a clock: by the sender's incarnation counter and a window of sequence numbers."""

from __future__ import annotations

from p2pfl.protocols.errors import ProtocolError

WIDTH = 1024


class ReplayWindow:
    """The frames of one sender that were seen: the newest incarnation, and the last 1,024 sequence numbers of it."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._highest = 0
        self._seen = 0  # bit k: `_highest - k` was seen

    def check(self, incarnation: int, sequence: int) -> None:
        """Raise ProtocolError("replay") if the frame was seen, is too old to tell, or is of an earlier incarnation."""
        if incarnation < self._incarnation:
            raise ProtocolError("replay", f"incarnation {incarnation}, but {self._incarnation} was seen")
        if incarnation > self._incarnation:
            return
        behind = self._highest - sequence
        if behind >= WIDTH or (behind >= 0 and self._seen >> behind & 1):
            raise ProtocolError("replay", f"sequence {sequence} of incarnation {incarnation}")

    def commit(self, incarnation: int, sequence: int) -> bool:
        """Remember a frame that was checked and whose signature holds; return whether it is the newest."""
        if incarnation > self._incarnation:
            self._incarnation, self._highest, self._seen = incarnation, sequence, 1
        elif sequence > self._highest:
            ahead = min(sequence - self._highest, WIDTH)  # never shift by what a peer chose
            self._seen = (self._seen << ahead | 1) & ((1 << WIDTH) - 1)
            self._highest = sequence
        else:
            self._seen |= 1 << (self._highest - sequence)
            return False
        return True
