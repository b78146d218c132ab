"""Pareto front of two criteria: a figure, and its cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.pareto_metrics import non_dominated


def on_front(costs: Sequence[float], values: Sequence[float], higher_is_better: bool) -> list[bool]:
    """Return for each point whether no other is better in one criterion and at least as good in the other.

    A point without a figure (NaN) is not on the front, and dominates no other.
    """
    points = np.column_stack([-np.array(costs, float), np.array(values, float) * (1 if higher_is_better else -1)]) + 0.0
    complete = ~np.isnan(points).any(axis=1)
    front = {tuple(point) for point in non_dominated(points[complete]).tolist()}
    return [tuple(point) in front for point in points.tolist()]
