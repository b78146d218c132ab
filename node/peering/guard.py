"""Temporary exclusion of members that break the rules of the wire, for a time that grows with each repetition."""

from __future__ import annotations

from collections.abc import Callable

from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl

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
"""Causes of refusal that a member brings about only if it breaks the rules, whatever the network does."""

TOLERATED = 9  # offences at once; the next one excludes a member
FORGIVEN = 1 / 60  # offences a second
FIRST, LONGEST = 60.0, 3600.0  # seconds for which an offender is kept out; each time twice as long
CAUSE = "kept out"


class _Record:
    """Exclusions of one member.

    Attributes:
        until: the end of the current or the last one, by the guard's clock; 0 before the first.
        pause: seconds that the next one lasts.
    """

    __slots__ = ("pause", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.pause = FIRST


class Guard:
    """A gate (see p2pfl.protocols.transport.AccessControl) that also keeps offenders out for a while.

    Args:
        gate: decides who is a member.
        clock: returns seconds that never go back.
    """

    def __init__(self, gate: AccessControl, clock: Callable[[], float]) -> None:
        self._gate = gate
        self._clock = clock
        self._offences = TokenBucket(FORGIVEN, TOLERATED)
        self._records: dict[bytes, _Record] = {}

    def offend(self, key: bytes, cause: str) -> bool:
        """Note that a frame of a member was refused; return whether the member is kept out from now on."""
        now = self._clock()
        if cause not in GRAVE or self._offences.take(key, now):
            return False
        self._offences.reset(key)
        record = self._records.setdefault(key, _Record())
        record.until = now + record.pause
        record.pause = min(2 * record.pause, LONGEST)
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
    def membership_version(self) -> int:
        return self._gate.membership_version

    def refusal(self, key: bytes) -> str:
        return self._gate.refusal(key) or (CAUSE if self.seconds_left(key) else "")

    def after(self, membership_version: int, limit: int) -> bytes:
        return self._gate.after(membership_version, limit)

    def extend(self, entries: bytes) -> int:
        return self._gate.extend(entries)
