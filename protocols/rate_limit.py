"""Rate limits on requests that cause work: of each sender, and of all of them together before they are authenticated."""

from __future__ import annotations

from math import floor

MOST = 1024  # maximum number of remembered senders; the one that was inactive for the longest time is removed first


class TokenBucket:
    """Token bucket for each of many senders.

    Args:
        rate: permitted requests of each sender per second.
        burst: permitted requests at once after a pause.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[bytes, tuple[float, float]] = {}  # number of remaining requests, and the time of that number

    def remaining(self, who: bytes, now: float) -> float:
        """Return the number of requests that `who` may still make at `now`, in seconds."""
        left, before = self._left.get(who, (float(self._burst), now))
        return min(left + (now - before) * self._rate, float(self._burst))

    def take(self, who: bytes, now: float) -> bool:
        """Return whether `who` may make one more request at `now`, in seconds."""
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
    """Common budget in equal shares for all senders of the current and the previous second.

    It limits work that comes before authentication: no sender is charged for claims that others make in its name.

    Args:
        rate: permitted requests per second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._second = 0
        self._used: dict[bytes, int] = {}
        self._before: set[bytes] = set()  # senders of the previous second
        self._claimants = 0

    def take(self, who: bytes, now: float) -> bool:
        """Return whether a request in the name of `who` is permitted at `now`, in seconds."""
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
