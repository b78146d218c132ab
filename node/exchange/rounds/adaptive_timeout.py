"""How long to wait for peers' answers, learned from how long they took."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

import msgspec

FLOOR = 1 / 6  # of the ceiling: what is waited for at least
GAIN_MEAN, GAIN_DEVIATION = 1 / 8, 1 / 4
DEVIATIONS = 4


class _Pace(msgspec.Struct):
    mean: float
    deviation: float
    estimate: float


class AdaptiveTimeout:
    """Twice the time by which a peer ought to have answered: a smoothed mean plus four smoothed deviations, as TCP times its
    retransmissions (RFC 6298, section 2).

    With one fixed deadline, a peer that falls silent costs all of it, and one that is always barely late costs it in every
    round. Here a silent peer costs no more than a few of its own usual times. A deadline that follows what was measured has
    a trap of its own: the peer that is always barely late is never measured again, and stays too late. So each miss doubles
    what that peer is granted (RFC 6298, section 5.5) until it answers in time, and is measured as it is now.

    All is in memory only: after a restart the network may be another one, and everybody is granted the ceiling at first.

    Args:
        ceiling: seconds that are waited at most; inf for no limit.
        adaptive: False waits for the ceiling always.
    """

    def __init__(self, ceiling: float, adaptive: bool) -> None:
        self._ceiling = ceiling
        self._adaptive = adaptive and ceiling < inf
        self._paces: dict[str, _Pace] = {}

    def record_answer(self, name: str, seconds: float) -> None:
        """A peer answered, so many seconds after it was asked."""
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = _Pace(seconds, seconds / 2, 0.0)
        else:
            pace.deviation += GAIN_DEVIATION * (abs(pace.mean - seconds) - pace.deviation)
            pace.mean += GAIN_MEAN * (seconds - pace.mean)
        pace.estimate = pace.mean + DEVIATIONS * pace.deviation

    def record_timeout(self, name: str) -> None:
        """A peer did not answer in time: grant it twice as much, up to the ceiling, until it answers."""
        pace = self._paces.get(name)
        if pace is not None:
            pace.estimate *= 2

    def wait(self, names: Collection[str]) -> float:
        """Return how many seconds to wait for the answers of these peers.

        As long as for the slowest of them, and the ceiling while one of them has never answered.
        """
        if not self._adaptive or any(name not in self._paces for name in names):
            return self._ceiling
        slowest = max((self._paces[name].estimate for name in names), default=0.0)
        return min(self._ceiling, max(FLOOR * self._ceiling, 2 * slowest))
