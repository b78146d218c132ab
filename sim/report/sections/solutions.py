"""Reference point and best front, for the measures of the fronts of runs with the same objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p2pfl.pareto_metrics import Points, measures, non_dominated
from p2pfl.sim.report.summary import Objectives

BEYOND = 0.1  # distance of the default reference point beyond an objective's worst value, as a share of its range


@dataclass(frozen=True)
class Space:
    """Reference point and best front of some runs; signs are such that more is better.

    Attributes:
        signs: 1 for an objective if more of it is better, else -1; [m].
        reference: of the hypervolume, [m].
        given: the task sets the reference; else it is a tenth of the range beyond the worst value of each objective.
        known: the front of attainable solutions, [k, m]; None if the task does not provide it.
        found: if `known` is None, the front of all models of a seed; [k, m].
    """

    signs: np.ndarray
    reference: Points
    given: bool
    known: Points | None
    found: Mapping[int, Points]

    def measures(self, seed: int, objectives: Objectives) -> dict[str, float]:
        """Return hypervolume, sparsity, cardinality and igd of a run's models."""
        front = self.found[seed] if self.known is None else self.known
        return measures(points_of(objectives), self.reference.tolist(), front)

    def with_reported_signs(self, points: Points) -> list[list[float]]:
        """Return points with the signs that nodes report."""
        rows: list[list[float]] = (points * self.signs + 0.0).tolist()  # no -0.0
        return rows


def space_of(runs: Sequence[tuple[int, Objectives]]) -> Space:
    """Return the space in which the fronts of runs are measured.

    An unknown front is replaced by that of all models of the same seed, because problems may differ between seeds.

    Args:
        runs: one or more with the same objectives, each with its seed.
    """
    first = runs[0][1]
    signs = signs_of(first)
    by_seed: dict[int, list[Points]] = {}
    for seed, objectives in runs:
        by_seed.setdefault(seed, []).append(non_dominated(points_of(objectives)))  # all at once would need too much memory
    models = np.concatenate([points_of(objectives) for _, objectives in runs])
    return Space(
        signs,
        np.array(first.reference) * signs if first.reference else beyond(models),
        bool(first.reference),
        np.array(first.front, np.float64) * signs if first.front else None,
        {seed: non_dominated(np.concatenate(points)) for seed, points in by_seed.items()},
    )


def beyond(points: Points) -> Points:
    """Return the point a tenth of each column's range below its least value; 0 for no points."""
    if not len(points):
        return np.zeros(points.shape[1])
    least = points.min(0)
    found: Points = least - BEYOND * (points.max(0) - least)
    return found


def points_of(objectives: Objectives) -> Points:
    """Return the objectives of a run's valid models, [n, m], so that more is better.

    Models with NaN values, and models that the task has left out, are omitted.
    """
    signs = signs_of(objectives)
    rows = np.array(objectives.nodes, np.float64).reshape(len(objectives.nodes), len(signs))
    rows[objectives.left_out] = np.nan
    kept: Points = rows[np.isfinite(rows).all(1)] * signs
    return kept


def signs_of(objectives: Objectives) -> np.ndarray:
    return np.array([1.0 if higher else -1.0 for higher in objectives.higher_is_better.values()])
