"""Bounds on the work that openings and presences cost a node before it knows whether they are genuine."""

from __future__ import annotations

import asyncio

from p2pfl.protocols.rate_limit import Shares, TokenBucket
from p2pfl.protocols.transport import AccessControl

VERIFICATIONS = 100  # signatures of openings and presences that are looked at, a second
REMEMBERED = 1024  # openings


class OpeningLimits:
    """Rates of verified signatures, accepted openings and refusals."""

    def __init__(self, gate: AccessControl) -> None:
        self._gate = gate
        self._verifications = Shares(VERIFICATIONS)
        self._openings, self._strangers, self._refusals = TokenBucket(2, 10), TokenBucket(5, 20), TokenBucket(5, 20)
        self._paid: dict[bytes, None] = {}  # openings that their dialler was charged for, the oldest first

    def may_verify(self, sender: bytes) -> bool:
        """Return whether there is time to verify a signature in the name of `sender`."""
        now = asyncio.get_running_loop().time()
        if self._gate.refusal(sender):  # all of them together: they cost no more if they are many
            return self._strangers.take(b"", now) and self._verifications.take(b"", now)
        return self._verifications.take(sender, now)

    def may_refuse(self) -> bool:
        """Return whether there is time to sign a refusal."""
        return self._refusals.take(b"", asyncio.get_running_loop().time())

    def charge(self, sender: bytes, id: bytes) -> bool:
        """Charge a dialler for an opening that it has signed, once: a recorded one may be repeated by others.

        Returns:
            False if it dials too often.
        """
        if id not in self._paid and not self._gate.refusal(sender):
            if not self._openings.take(sender, asyncio.get_running_loop().time()):
                return False
            self._paid[id] = None
            if len(self._paid) > REMEMBERED:
                del self._paid[next(iter(self._paid))]
        return True
