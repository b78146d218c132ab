"""Measures of a set of solutions of a problem with several objectives.

Points are float64 [n, m], and higher is better in every column. `to_maximisation` makes them from the reported figures;
it negates objectives that are losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError

Points = NDArray[np.float64]
"""float64, shape [n, m]; higher is better in every column."""


class Solutions(NamedTuple):
    """Solutions of one problem, none dominated by another.

    Attributes:
        higher_is_better: by the name of each objective, in their order.
        preferences: the preference of each solution, float64 [k, m]; [k, 0] for models without one.
        points: their objectives as reported, float64 [k, m].
    """

    higher_is_better: Mapping[str, bool]
    preferences: Points
    points: Points


def to_maximisation(figures: Sequence[Mapping[str, float]], goals: Mapping[str, bool], split: str = "test") -> Points:
    """Return the objectives of each node's model, [nodes, m], with signs so that higher is better.

    Args:
        figures: the result of `evaluate` for each model.
        goals: of a task, by name whether higher is better.
    """
    signs = [1 if higher else -1 for higher in goals.values()]
    rows = [[sign * row[f"{split}_{name}"] for sign, name in zip(signs, goals, strict=True)] for row in figures]
    return np.array(rows, np.float64).reshape(len(figures), len(goals))


def non_dominated(points: Points) -> Points:
    """Return the distinct points that no other point dominates, in lexicographic order."""
    different: Points = np.unique(points, axis=0)
    as_good = (different[None] >= different[:, None]).all(2)  # [i, j]: j is as good as i everywhere
    front: Points = different[as_good.sum(1) == 1]  # only the point itself is as good
    return front


def cardinality(points: Points) -> int:
    """Return the number of distinct points on the front (FedPref, Hartmann et al.)."""
    return len(non_dominated(points))


def hypervolume(points: Points, reference: Sequence[float]) -> float:
    """Return the volume that the points dominate above `reference`, [m] (Zitzler and Thiele 1999).

    Points that are not better than the reference in every objective add nothing. With more than two objectives, moocore
    (extra `sim`) computes it.

    Raises:
        ConfigurationError: moocore is needed and not installed.
    """
    worst = np.array(reference, np.float64)
    front = non_dominated(points[(points > worst).all(1)]) if len(points) else points
    if not len(front):
        return 0.0
    if len(worst) <= 2:
        sides = front - worst  # the first column ascends, so the last descends
        steps = np.diff(sides[:, 0], prepend=0.0)
        return float((steps * sides[:, -1]).sum()) if len(worst) == 2 else float(steps.sum())
    try:
        import moocore
    except ImportError as error:
        raise ConfigurationError(
            "the hypervolume of three or more objectives needs moocore: install p2pfl-node[sim]"
        ) from error
    return float(moocore.hypervolume(front, ref=worst, maximise=True))


def inverted_generational_distance(points: Points, true_front: Points) -> float:
    """Return the mean distance of the points of the true front to the nearest of `points`.

    The measure is that of Coello and Reyes Sierra 2004.

    If the true front is unknown, pass that of all solutions found in an experiment. The result is NaN without points.
    """
    if not len(points):
        return float("nan")
    distances = np.linalg.norm(true_front[:, None] - points[None], axis=2)
    return float(distances.min(1).mean())


def sparsity(points: Points) -> float:
    """Return the mean squared distance of neighbours on the front, summed over the objectives (Xu et al. 2020).

    Neighbours are taken along one objective at a time: sum_j sum_k (s_j(k) - s_j(k+1))^2 / (n - 1), with s_j the
    front's values of objective j in order. It is 0 for fewer than two points.
    """
    front = non_dominated(points)
    if len(front) < 2:
        return 0.0
    return float(np.square(np.diff(np.sort(front, axis=0), axis=0)).sum() / (len(front) - 1))


def measures(points: Points, reference: Sequence[float], true_front: Points | None = None) -> dict[str, float]:
    """Return all measures of a set of solutions by name; `igd` only if the true front is given."""
    found = {
        "hypervolume": hypervolume(points, reference),
        "sparsity": sparsity(points),
        "cardinality": float(cardinality(points)),
    }
    return found if true_front is None else found | {"igd": inverted_generational_distance(points, true_front)}


def mean_reward(points: Points, preferences: NDArray[np.float64]) -> float:
    """Return the mean over the nodes of each node's objectives, weighted by its own preference.

    Args:
        points, preferences: of the same nodes, [n, m] each.
    """
    return float((points * preferences).sum(1).mean())
