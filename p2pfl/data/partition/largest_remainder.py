"""Integers in given proportions, by the largest remainder method (Hamilton)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FINE = 2**31  # resolution of fractions, so that rounding errors of a platform have no effect


def whole(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return weights as integers in the same proportions, int64 [k]; integers are returned unchanged."""
    values = np.asarray(weights, np.float64)
    if (values == np.floor(values)).all() and values.max(initial=0) < _FINE:
        return values.astype(np.int64)
    parts: np.ndarray = np.rint(values / values.sum() * _FINE).astype(np.int64)
    return parts


def quotas(total: int, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `weights`.

    Args:
        total: 0 to 2**31.
        weights: [k], 0 or more, not all 0.

    Returns:
        int64 [k] with the sum `total`. Each is its exact share rounded down, plus one for the largest remainders; on a
        tie the first.
    """
    shares = whole(weights)
    result, rest = np.divmod(total * shares, shares.sum())
    largest = np.argsort(-rest, kind="stable")[: total - int(result.sum())]
    result[largest] += 1
    return result
