"""Limits on a node's work for openings and presences that are not verified yet."""

from __future__ import annotations

import asyncio

from p2pfl.protocols.rate_limit import Shares, TokenBucket
from p2pfl.protocols.transport import AccessControl

VERIFICATIONS = 100  # verified signatures of openings and presences per second
REMEMBERED = 1024  # openings that are remembered


class OpeningLimits:
    """Rate limits of verified signatures, accepted openings and refusals."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._verifications = Shares(VERIFICATIONS)
        self._openings, self._strangers, self._refusals = TokenBucket(2, 10), TokenBucket(5, 20), TokenBucket(5, 20)
        self._paid: dict[bytes, None] = {}  # openings that were charged to their dialler, the oldest first

    def may_verify(self, sender: bytes) -> bool:
        """Return whether the rate limit permits the verification of a signature of `sender`."""
        now = asyncio.get_running_loop().time()
        if self._access.refusal(sender):  # all strangers share one limit, so many of them cost no more than one
            return self._strangers.take(b"", now) and self._verifications.take(b"", now)
        return self._verifications.take(sender, now)

    def may_refuse(self) -> bool:
        """Return whether the rate limit permits the signature of a refusal."""
        return self._refusals.take(b"", asyncio.get_running_loop().time())

    def charge(self, sender: bytes, id: bytes) -> bool:
        """Charge a dialler once for a signed opening, because others may repeat a recorded one.

        Returns:
            False if the dialler exceeds its rate limit.
        """
        if id not in self._paid and not self._access.refusal(sender):
            if not self._openings.take(sender, asyncio.get_running_loop().time()):
                return False
            self._paid[id] = None
            if len(self._paid) > REMEMBERED:
                del self._paid[next(iter(self._paid))]
        return True
