"""Sanctions against members that break the rules of the wire: they are kept out for a growing time."""

from __future__ import annotations

from collections.abc import Callable

from protocols.transport import Gate

GRAVE = frozenset(
    {
        "malformed",
        "wrong length",
        "wrong signature",
        "other recipient",
        "other sender",
        "other federation",
        "other session",
    }
)
"""Causes of refusal that no member brings about that keeps to the rules, whatever the network does."""

TOLERATED = 10.0  # offences at once
FORGIVEN = 1 / 60  # offences a second
FIRST, LONGEST = 60.0, 3600.0  # seconds for which an offender is kept out; each time twice as long
CAUSE = "kept out"


class _Record:
    __slots__ = ("at", "left", "sentence", "until")

    def __init__(self, now: float) -> None:
        self.at = now
        self.left = TOLERATED
        self.sentence = FIRST
        self.until = 0.0


class Guard:
    """The gate of a federation (see protocols.transport.Gate) that keeps offenders out, too.

    Args:
        gate: decides who is a member.
        clock: returns seconds that never go back.

    """

    def __init__(self, gate: Gate, clock: Callable[[], float]) -> None:
        self._gate = gate
        self._clock = clock
        self._records: dict[bytes, _Record] = {}

    def offend(self, key: bytes, cause: str) -> bool:
        """Note that a frame was refused that a member has sent itself; return whether it is kept out from now on."""
        if cause not in GRAVE:
            return False
        now = self._clock()
        record = self._records.setdefault(key, _Record(now))
        record.left = min(TOLERATED, record.left + FORGIVEN * (now - record.at)) - 1
        record.at = now
        if record.left > 0:
            return False
        record.until, record.left = now + record.sentence, TOLERATED
        record.sentence = min(2 * record.sentence, LONGEST)
        return True

    def seconds_left(self, key: bytes) -> float:
        """Return for how many seconds a member is still kept out; 0 if it is not."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.until - self._clock())

    # The gate

    @property
    def federation(self) -> bytes:
        return self._gate.federation

    @property
    def invites(self) -> bool:
        return self._gate.invites

    @property
    def epoch(self) -> int:
        return self._gate.epoch

    def refusal(self, key: bytes) -> str:
        return self._gate.refusal(key) or (CAUSE if self.seconds_left(key) else "")

    def after(self, epoch: int, limit: int) -> bytes:
        return self._gate.after(epoch, limit)

    def extend(self, entries: bytes) -> int:
        return self._gate.extend(entries)
