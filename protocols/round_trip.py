"""Estimate of the time until an answer, which decides how long to wait before something counts as lost."""

from __future__ import annotations


class RoundTrip:
    """Estimate of a round-trip time from the times that answers have taken (RFC 6298).

    Args:
        first: `wait` before the first measurement, in seconds.
        shortest, longest: limits of `wait` after it, in seconds.

    Attributes:
        wait: seconds to wait for an answer.
    """

    def __init__(self, first: float, shortest: float, longest: float) -> None:
        self.wait = first
        self._first, self._shortest, self._longest = first, shortest, longest
        self._mean: float | None = None
        self._deviation = 0.0

    def measured(self, seconds: float) -> None:
        """Record the time that the answer to a question took which was sent once."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(self._mean - seconds) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8
        self.wait = min(max(self._mean + 4 * self._deviation, self._shortest), self._longest)

    def expired(self) -> None:
        """Record that an answer did not come in time; wait twice as long, until the next measurement."""
        self.wait = min(2 * self.wait, self._longest)

    def reset(self) -> None:
        """Wait as at first, after an interruption."""
        self.wait = self._first
