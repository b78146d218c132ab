"""Temporary exclusion of members that violate the wire protocol, for longer at each repetition."""

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
"""Causes of refusal that only a violation of the protocol can produce, never a network fault."""

TOLERATED = 9  # number of offences in a burst; the next one excludes a member
FORGIVEN = 1 / 60  # offences forgiven per second
FIRST, LONGEST = 60.0, 3600.0  # seconds of the first and the longest exclusion; each one is twice as long as the last
CAUSE = "kept out"


class _Record:
    """Exclusions of one member.

    Attributes:
        until: end of the current or the last exclusion, by the guard's clock; 0 before the first one.
        pause: length of the next exclusion in seconds.
    """

    __slots__ = ("pause", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.pause = FIRST


class Guard:
    """Access control (see p2pfl.protocols.transport.AccessControl) that also excludes offenders for a time.

    Args:
        access: decides which nodes are members.
        clock: returns seconds and never goes back.
    """

    def __init__(self, access: AccessControl, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._offences = TokenBucket(FORGIVEN, TOLERATED)
        self._records: dict[bytes, _Record] = {}

    def offend(self, key: bytes, cause: str) -> bool:
        """Record a refused frame of a member; return whether the member is excluded from now on."""
        now = self._clock()
        if cause not in GRAVE or self._offences.take(key, now):
            return False
        self._offences.reset(key)
        record = self._records.setdefault(key, _Record())
        record.until = now + record.pause
        record.pause = min(2 * record.pause, LONGEST)
        return True

    def seconds_left(self, key: bytes) -> float:
        """Return the seconds until the exclusion of a member ends; 0 if it is not excluded."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.until - self._clock())

    # Access control

    @property
    def federation(self) -> bytes:
        return self._access.federation

    @property
    def invites(self) -> bool:
        return self._access.invites

    @property
    def membership_version(self) -> int:
        return self._access.membership_version

    def refusal(self, key: bytes) -> str:
        return self._access.refusal(key) or (CAUSE if self.seconds_left(key) else "")

    def after(self, membership_version: int, limit: int) -> bytes:
        return self._access.after(membership_version, limit)

    def extend(self, entries: bytes) -> int:
        return self._access.extend(entries)

    def revocation(self, key: bytes) -> bytes:
        return self._access.revocation(key)

    def accept_revocation(self, key: bytes, proof: bytes) -> bool:
        return self._access.accept_revocation(key, proof)
