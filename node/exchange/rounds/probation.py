"""Probation of peers that did not answer in time."""

from __future__ import annotations

LEVELS = 6  # maximum number of times that the required answers of a peer are doubled
GOOD = 64  # answers in time after which the number of required answers is halved for the next miss


class _Record:
    __slots__ = ("good", "level", "owed")

    def __init__(self) -> None:
        self.level = 0
        self.good = 0
        self.owed = 0


class Probation:
    """Record of the deadlines that peers have missed.

    The node does not wait for a peer that missed a deadline. It asks the peer in the background, once per round, until
    the peer has given the required number of answers: 1 after its first miss, then 3, 7, and up to 63. In large
    federations the number is higher, because all other nodes wait for each node that waits. A peer that answers pings
    but no requests therefore costs one deadline. A peer that answers only sometimes costs little, because many rounds
    share each deadline. A node without any other peer forgives the first one that answers.

    Args:
        strict: False to put no peer on probation.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self._records: dict[str, _Record] = {}

    def record_timeout(self, name: str, peers: int) -> None:
        """Record that a peer missed a deadline; `peers` is the number of peers of this node."""
        if not self.strict:
            return
        record = self._records.setdefault(name, _Record())
        record.level = min(record.level + 1, LEVELS)
        record.good = 0
        record.owed = (2**record.level - 1) * max(1, peers // 4)

    def record_answer(self, name: str) -> None:
        """Record an answer of a peer, in time or in the background."""
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
        """Return whether a peer is on probation, so that this node does not wait for it yet."""
        record = self._records.get(name)
        return record is not None and record.owed > 0

    def forgive(self, name: str) -> None:
        """End the probation of a peer; its next miss has the same length as if it had given all answers."""
        if name in self._records:
            self._records[name].owed = 0

    def forget(self, name: str) -> None:
        """Remove a peer that is no longer a member."""
        self._records.pop(name, None)
