"""How often somebody may do something that costs this node work."""

from __future__ import annotations

MOST = 1024  # who are remembered; the one that did nothing for the longest time is forgotten first


class Allowance:
    """
    Args:
        rate: times a second, for each.
        burst: times at once, after a pause.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[bytes, tuple[float, float]] = {}  # how often still, and when that was so

    def left(self, who: bytes, now: float) -> float:
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
