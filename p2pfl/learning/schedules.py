"""Learning-rate schedules: the factor of a learning rate in each round.

A schedule is a function of the round alone. A node that was restarted, or that is ahead of its peers, therefore uses the
same rate as without the interruption. The rate is constant within a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, inf, pi
from typing import Any

import msgspec

from p2pfl._util.binding import build, choose

Schedule = Callable[[int], float]
"""Round, from 1 -> factor of the learning rate, 0 or more."""


class _WithWarmup(msgspec.Struct, frozen=True, kw_only=True):
    """Base of schedules.

    Attributes:
        warmup: number of rounds before the schedule begins. In round r of them the factor is r / (warmup + 1).

    Raises:
        ValueError: a value is out of range.
    """

    warmup: int = 0

    def __post_init__(self) -> None:
        self.check()
        if self.warmup < 0:
            raise ValueError(f"warmup must be 0 or more, got {self.warmup}")

    def check(self) -> None:
        """Raise ValueError if a value is out of range."""

    def __call__(self, round: int) -> float:
        """Return the factor in a round. The preparation of a policy, round 0, has the factor of round 1."""
        past = max(round, 1) - 1
        return (past + 1) / (self.warmup + 1) if past < self.warmup else self.factor_after(past - self.warmup)

    def factor_after(self, past: int) -> float:
        """Return the factor after `past` rounds of the schedule, from 0."""
        raise NotImplementedError


class Step(_WithWarmup, frozen=True, kw_only=True):
    """Multiply the rate by `factor` every `every` rounds, like torch's StepLR."""

    every: int
    factor: float = 0.1

    def check(self) -> None:
        _check_rounds("every", self.every)
        _check_factor("factor", self.factor)

    def factor_after(self, past: int) -> float:
        return _power(self.factor, past // self.every)


class Exponential(_WithWarmup, frozen=True, kw_only=True):
    """Multiply the rate by `factor` in every round, like torch's ExponentialLR."""

    factor: float

    def check(self) -> None:
        _check_factor("factor", self.factor)

    def factor_after(self, past: int) -> float:
        return _power(self.factor, past)


class Inverse(_WithWarmup, frozen=True, kw_only=True):
    """Divide the rate by 1 + r / `half` after r rounds: it has halved after `half` rounds."""

    half: int

    def check(self) -> None:
        _check_rounds("half", self.half)

    def factor_after(self, past: int) -> float:
        return self.half / (self.half + past)


class _Falling(_WithWarmup, frozen=True, kw_only=True):
    """Base of schedules that reach the factor `least` after `rounds` rounds, and keep it."""

    rounds: int
    least: float = 0.0

    def check(self) -> None:
        _check_rounds("rounds", self.rounds)
        _check_factor("least", self.least)


class Linear(_Falling, frozen=True, kw_only=True):
    """Change the rate linearly to `least` of it within `rounds` rounds, like torch's LinearLR; then keep it."""

    def factor_after(self, past: int) -> float:
        return 1 + (self.least - 1) * min(past / self.rounds, 1)


class Cosine(_Falling, frozen=True, kw_only=True):
    """Reduce the rate along half a cosine to `least` of it within `rounds` rounds, like torch's CosineAnnealingLR.

    Afterwards the rate stays there.
    """

    def factor_after(self, past: int) -> float:
        return self.least + (1 - self.least) * (1 + cos(pi * min(past / self.rounds, 1))) / 2


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "step": Step,
    "exponential": Exponential,
    "inverse": Inverse,
    "linear": Linear,
    "cosine": Cosine,
}


def schedule(name: str, **options: Any) -> Schedule:
    """Return a learning-rate schedule: a function from the round, counted from 1, to the factor of the learning rate.

    Args:
        name: `step` (every, factor), `exponential` (factor), `inverse` (half), `linear` (rounds, least), or `cosine`
            (rounds, least).
        options: options of the schedule; all have `warmup`, a number of rounds with a linearly rising rate before it.

    Raises:
        ConfigurationError: the name or an option is unknown, or a value is out of range.
    """
    return schedule_of("schedule", {"name": name, **options})


def schedule_of(where: str, table: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a table with a `name` and options; `where` is its key, for errors."""
    kind, options = choose(where, table, SCHEDULES)
    found: Schedule = build(where, kind, options)
    return found


def _power(factor: float, exponent: int) -> float:
    """Return a power of a factor; inf if it is too large for a number."""
    try:
        return float(factor) ** exponent
    except OverflowError:
        return inf


def _check_rounds(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")


def _check_factor(name: str, value: float) -> None:
    if not 0 <= value < inf:
        raise ValueError(f"{name} must be 0 or more, and finite, got {value}")
