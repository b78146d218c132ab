"""Rules that merge each coordinate for itself (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2pfl.robust.candidates import Candidates, Combined, Counting, OwnMerge


@dataclass(frozen=True)
class Median(OwnMerge):
    """Coordinate-wise median, of all models with equal weight; for an even number the mean of the two middle values.

    The reported weight of a model is its mean weight over the coordinates.
    """

    def combine(self, candidates: Candidates) -> Combined:
        k = len(candidates.models)
        return trimmed_mean(np.array(candidates.models), np.ones(k), (k - 1) // 2)

    def bounds(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        middle = np.median(models, axis=0)
        return middle, middle


@dataclass(frozen=True)
class Trimmed(Counting, OwnMerge):
    """Coordinate-wise trimmed mean: per coordinate the mean of all but the f lowest and the f highest values, by the
    policy's weights.

    The reported weight of a model is its mean weight over the coordinates.
    """

    def combine(self, candidates: Candidates) -> Combined:
        cut = self.attackers_among(candidates.peers)
        return trimmed_mean(np.array(candidates.models), candidates.weights, cut)

    def bounds(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut = self.attackers_among(len(models) - 1)
        ordered = np.sort(models, axis=0)
        return ordered[cut], ordered[len(models) - 1 - cut]


def trimmed_mean(models: np.ndarray, weights: np.ndarray, cut: int) -> Combined:
    """Return the mean of each coordinate without its `cut` lowest and highest values, and the models' mean weights.

    Args:
        models: float32 [K, P].
        weights: float64 [K]; equal weights are used for a coordinate whose kept values have none.
        cut: less than K / 2.
    """
    k, size = models.shape
    values = np.ascontiguousarray(models.T)  # sorting is faster along contiguous values
    kept = np.argsort(values, axis=1)[:, cut : k - cut]
    shares = weights[kept]
    totals = shares.sum(axis=1, keepdims=True)
    shares = np.where(totals == 0, 1 / kept.shape[1], shares / np.where(totals == 0, 1.0, totals))
    params = np.einsum("pk,pk->p", np.take_along_axis(values, kept, axis=1), shares)
    used = np.bincount(kept.ravel(), shares.ravel(), minlength=k) / max(size, 1)
    return Combined(params.astype(np.float32), used.tolist())
