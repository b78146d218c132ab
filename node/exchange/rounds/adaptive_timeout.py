"""Timeout for peers' answers, estimated from their earlier response times."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

import msgspec

FLOOR = 1 / 6  # minimum timeout, as a share of the ceiling
GAIN_MEAN, GAIN_DEVIATION = 1 / 8, 1 / 4
DEVIATIONS = 4


class _Pace(msgspec.Struct):
    mean: float
    deviation: float
    estimate: float


class AdaptiveTimeout:
    """Timeout of twice the expected response time of a peer.

    The expected time is a smoothed mean plus four smoothed deviations, like TCP's retransmission timeout (RFC 6298,
    section 2).

    With a fixed deadline, a silent peer costs the whole deadline, and a peer that is always slightly late costs it in
    every round. Here a silent peer costs no more than a few of its usual response times. An adaptive deadline alone
    would never measure a peer that is always slightly late. Each miss therefore doubles that peer's timeout (RFC 6298,
    section 5.5) until it answers in time and is measured again.

    The estimates are kept in memory only: the network may differ after a restart, so every peer starts with the
    ceiling.

    Args:
        ceiling: maximum timeout in seconds; inf for no limit.
        adaptive: False to use the ceiling always.
    """

    def __init__(self, ceiling: float, adaptive: bool) -> None:
        self._ceiling = ceiling
        self._adaptive = adaptive and ceiling < inf
        self._paces: dict[str, _Pace] = {}

    def record_answer(self, name: str, seconds: float) -> None:
        """Record that a peer answered `seconds` after the request."""
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = _Pace(seconds, seconds / 2, 0.0)
        else:
            pace.deviation += GAIN_DEVIATION * (abs(pace.mean - seconds) - pace.deviation)
            pace.mean += GAIN_MEAN * (seconds - pace.mean)
        pace.estimate = pace.mean + DEVIATIONS * pace.deviation

    def record_timeout(self, name: str) -> None:
        """Record that a peer missed its timeout. Double its timeout, up to the ceiling, until it answers."""
        pace = self._paces.get(name)
        if pace is not None:
            pace.estimate *= 2

    def wait(self, names: Collection[str]) -> float:
        """Return the time in seconds to wait for the answers of these peers.

        It is the timeout of the slowest of them, or the ceiling if one of them has never answered.
        """
        if not self._adaptive or any(name not in self._paces for name in names):
            return self._ceiling
        slowest = max((self._paces[name].estimate for name in names), default=0.0)
        return min(self._ceiling, max(FLOOR * self._ceiling, 2 * slowest))
