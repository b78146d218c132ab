"""Peers that did not answer in time, and what they have to do to be waited for again."""

from __future__ import annotations

LEVELS = 6  # most times that what a peer owes is doubled
GOOD = 64  # answers in time after which it owes half as much the next time


class _Record:
    __slots__ = ("good", "level", "owed")

    def __init__(self) -> None:
        self.level = 0
        self.good = 0
        self.owed = 0


class Probation:
    """Record of the deadlines that peers have missed.

    A peer that missed a deadline is asked in the background, once a round, and waited for again when it has answered as
    often as it owes: once after its first miss, then 3 times, 7 times, up to 63. In large federations it owes more, as all
    others wait for each node that waits for it. So a peer that answers pings but no requests costs one deadline, and one
    that answers now and then costs little, as many rounds pay for each deadline.

    Args:
        strict: False puts no peer on probation.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self._records: dict[str, _Record] = {}

    def record_timeout(self, name: str, peers: int) -> None:
        """Note that one of so many peers was waited for in vain."""
        if not self.strict:
            return
        record = self._records.setdefault(name, _Record())
        record.level = min(record.level + 1, LEVELS)
        record.good = 0
        record.owed = (2**record.level - 1) * max(1, peers // 4)

    def record_answer(self, name: str) -> None:
        """Note that a peer has answered, in time or in the background."""
        record = self._records.get(name)
        if record is None:
            return
        if record.owed:
            record.owed -= 1
            return
        record.good += 1
        if record.good == GOOD:
            record.level, record.good = record.level - 1, 0
            if not record.level:
                del self._records[name]

    def owes(self, name: str) -> bool:
        """Return whether a peer is not to be waited for yet."""
        record = self._records.get(name)
        return record is not None and record.owed > 0

    def forget(self, name: str) -> None:
        """Forget a peer that is no member any more."""
        self._records.pop(name, None)
