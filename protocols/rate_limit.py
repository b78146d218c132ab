"""Rate limits on requests that cost this node work."""

from __future__ import annotations

from math import floor

MOST = 1024  # who are remembered; the one that did nothing for the longest time is forgotten first


class TokenBucket:
    """A token bucket for each of many senders.

    Args:
        rate: times a second, for each.
        burst: times at once, after a pause.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[bytes, tuple[float, float]] = {}  # how often still, and when that was so

    def remaining(self, who: bytes, now: float) -> float:
        """Return how often `who` may do it at `now`, in seconds."""
        left, before = self._left.get(who, (float(self._burst), now))
        return min(left + (now - before) * self._rate, float(self._burst))

    def take(self, who: bytes, now: float) -> bool:
        """Return whether `who` may do it once more at `now`, in seconds."""
        left, before = self._left.pop(who, (float(self._burst), now))
        left = min(left + (now - before) * self._rate, float(self._burst))
        allowed = left >= 1
        self._left[who] = (left - allowed, now)
        if len(self._left) > MOST:
            del self._left[next(iter(self._left))]
        return allowed

    def reset(self, who: bytes) -> None:
        """Give `who` the full burst again."""
        self._left.pop(who, None)


class Shares:
    """A budget of all together. Those who ask in a second, or have asked in the one before, have equal shares of it.

    It is for work that is done before it is known who asks: nobody is charged for what others claim in its name.

    Args:
        rate: times a second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._second = 0
        self._used: dict[bytes, int] = {}
        self._before: set[bytes] = set()  # who asked in the second before
        self._claimants = 0

    def take(self, who: bytes, now: float) -> bool:
        """Return whether something may be done in the name of `who` at `now`, in seconds."""
        if (second := floor(now)) != self._second:
            self._before = set(self._used) if second == self._second + 1 else set()
            self._second, self._used, self._claimants = second, {}, len(self._before)
        if who not in self._used:
            self._used[who] = 0
            self._claimants += who not in self._before
        share = max(1, self._rate // self._claimants)
        if self._used[who] >= share or sum(self._used.values()) >= self._rate:
            return False
        self._used[who] += 1
        return True
