"""Limits on a node's work for handshakes and presences that are not verified yet."""

from __future__ import annotations

import asyncio

from p2pfl.protocols.rate_limit import Shares, TokenBucket
from p2pfl.protocols.transport import AccessControl

VERIFICATIONS = 100  # handshakes that are begun, and verified signatures of presences, per second


class HandshakeLimits:
    """Rate limits of handshakes, presences and accepted links."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._verifications = Shares(VERIFICATIONS)
        self._links, self._strangers = TokenBucket(2, 10), TokenBucket(5, 20)

    def may_verify(self, sender: bytes) -> bool:
        """Return whether the rate limit permits work for a packet that claims to be from `sender`."""
        now = asyncio.get_running_loop().time()
        if self._access.refusal(sender):  # all strangers share one limit, so many of them cost no more than one
            return self._strangers.take(b"", now) and self._verifications.take(b"", now)
        return self._verifications.take(sender, now)

    def may_link(self, key: bytes) -> bool:
        """Return whether the rate limit permits another link of a proven member."""
        return self._links.take(key, asyncio.get_running_loop().time())
