"""Statistics of attacks: areas under curves, intervals, and the bounds on epsilon that guesses prove."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, sqrt

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the curve of scores: the probability that a member's is above another one's; ties are half."""
    ranks = stats.rankdata(np.concatenate([members, others]))
    n, m = len(members), len(others)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def mean_with_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return the mean of independent values, and its interval at 95 % confidence by Student's t; inf for one value."""
    there = np.asarray(values, np.float64)
    middle = float(there.mean())
    if len(there) < 2:
        return middle, -inf, inf
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(there) - 1) * there.std(ddof=1) / sqrt(len(there)))
    return middle, middle - half, middle + half


def p_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the probability of so many right guesses, at most, of a mechanism with (epsilon, delta)-differential privacy.

    Each canary is in the data with probability 1/2, independently (Steinke, Nasr, Jagielski 2023, corollary 5.4).

    Args:
        canaries: their number, m.
        guesses: the number of canaries of which the attacker says whether they are in the data.
        right: the number of guesses that are right.
    """
    luck = stats.binom(guesses, 1 / (1 + exp(-epsilon)))
    tail = float(luck.sf(right - 1))
    if not right or not delta:
        return min(1.0, tail)
    below = np.cumsum(luck.pmf(np.arange(right - 1, -1, -1)))  # P[right > W >= right - i] for i = 1, 2, ...
    return float(min(1.0, tail + 2 * canaries * delta * (below / np.arange(1, right + 1)).max()))


class Curve:
    """Trade-off of a mechanism: the errors that nobody can stay below who tells two neighbouring data sets apart.

    Args:
        epsilons, deltas: the mechanism has (epsilon, delta)-differential privacy for each pair; [k].
    """

    def __init__(self, epsilons: np.ndarray, deltas: np.ndarray) -> None:
        self._deltas, self._up, self._down = deltas, np.exp(epsilons), np.exp(-epsilons)

    def least(self, share: float) -> float:
        """Return the least probability, with one data set, of something with the probability `share` with the other."""
        bounds = (1 - self._deltas - self._up * (1 - share), self._down * (share - self._deltas))
        return max(0.0, float(bounds[0].max()), float(bounds[1].max()))


def refutes_curve(curve: Curve, canaries: int, guesses: int, right: int, error: float) -> bool:
    """Return whether guesses refute a trade-off with an error of at most `error`.

    The method is that of Mahloujifar, Melis and Chaudhuri (2025): if so many right guesses had a probability
    above the error, the shares of the outcomes with one right guess less, and so on, would be bounded from below by the
    trade-off, and together exceed what there is.
    """
    whole = guesses / canaries
    above, wrong = error * right / canaries, error * (guesses - right) / canaries
    for count in range(right - 1, -1, -1):
        more = max(wrong, curve.least(above))
        above += count / (guesses - count) * (more - wrong)
        wrong = more
        if above + wrong > whole:
            return True
    return above + wrong > whole


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the greatest epsilon that guesses refute with an error of at most `error`; 0 if they refute none."""
    low, high = 0.0, 1.0
    if p_of_guesses(canaries, guesses, right, low, delta) > error:
        return 0.0
    while p_of_guesses(canaries, guesses, right, high, delta) <= error and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_of_guesses(canaries, guesses, right, middle, delta) <= error else (low, middle)
    return low
