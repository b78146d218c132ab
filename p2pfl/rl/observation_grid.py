"""Environments with few observations, for which networks can compute the values of all observations at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

MOST_OBSERVATIONS = 1024  # above it, observations are not enumerated

Indices = NDArray[np.intp]


class ObservationGrid:
    """All observations of d whole numbers.

    Args:
        low, high: the lowest and the highest value of each number; int64 [d].

    Attributes:
        all: the observations in the order of their indices, float32 [count, d].
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        extent = high - low + 1
        self._low = low
        self._strides = np.append(np.cumprod(extent[:0:-1])[::-1], 1)
        self.all = (np.indices(extent).reshape(len(low), -1).T + low).astype(np.float32)

    def indices(self, seen: np.ndarray) -> Indices:
        """Return the index of each observation [..., d], [...]."""
        found: Indices = (seen - self._low) @ self._strides
        return found


def grid_of(space: spaces.Space[Any]) -> ObservationGrid | None:
    """Return all observations of a space; None if they are not whole numbers, or too many."""
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind not in "iu" or len(space.shape) != 1:
        return None
    low, high = space.low.astype(np.int64), space.high.astype(np.int64)
    few = np.prod((high - low + 1).astype(np.float64)) <= MOST_OBSERVATIONS
    return ObservationGrid(low, high) if few else None
