"""Rules that clip models to a distance from the node's own model."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from p2pfl.robust.candidates import Candidates, Reweighting, check_share


@dataclass(frozen=True)
class ScClip(Reweighting):
    """Self-centred clipping (He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip",
    2022, eq. 5): x_i + sum_j w_j clip(x_j - x_i, tau), with clip(z, tau) = min(1, tau / ||z||) z.

    As weights: w'_j = w_j min(1, tau / d_j), and the rest belongs to the own model.

    Attributes:
        tau: the radius; 0 takes the `rank`-th largest distance, as the paper's program does.
        rank: rank of the distance that becomes the radius, from 1; with fewer peers the smallest distance.
    """

    tau: float = 0.0
    rank: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.tau < inf:
            raise ValueError(f"tau must be 0 or more, and finite, got {self.tau}")
        if self.rank < 1:
            raise ValueError(f"rank must be 1 or more, got {self.rank}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        if self.tau:
            return _clip_weights(candidates, np.array(self.tau))
        nearest_first = np.sort(candidates.distances[..., 1:])
        return _clip_weights(candidates, nearest_first[..., max(candidates.peers - self.rank, 0), None])


@dataclass(frozen=True)
class _Farthest(Reweighting):
    """Options of rules that assume that the farthest share of the peers' weight belongs to attackers.

    Attributes:
        share: assumed share of attackers in the weight of the peers; b = share * sum_j w_j.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_share(self.share)

    def nearer_weights(self, candidates: Candidates) -> np.ndarray:
        """Return the peers' weights without the farthest b of weight, float64 [..., K - 1]; one may lose a part."""
        weights = candidates.weights[..., 1:]
        order = np.argsort(-candidates.distances[..., 1:], kind="stable")
        ordered = np.take_along_axis(weights, order, axis=-1)
        farther = np.cumsum(ordered, axis=-1) - ordered
        cut = np.clip(self.share * weights.sum(-1, keepdims=True) - farther, 0.0, ordered)
        nearer = np.empty_like(weights)
        np.put_along_axis(nearer, order, ordered - cut, axis=-1)
        return nearer


@dataclass(frozen=True)
class CsPlus(_Farthest):
    """CS+ (Gaucher, Dieuleveut and Hendrikx, "Unified Breakdown Analysis for Byzantine Robust Gossip", ICML 2025).

    The models are clipped as by `scclip`. The radius is such that the farthest 2 b of weight are clipped:
    tau = max {t : sum of w_j over d_j >= t is at least 2 b}.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        far, weights = candidates.distances[..., 1:], candidates.weights[..., 1:]
        farthest_first = np.argsort(-far, kind="stable")
        total = np.cumsum(np.take_along_axis(weights, farthest_first, axis=-1), axis=-1)
        last = np.sum(total < (2 * self.share - 1e-9) * total[..., -1:], axis=-1, keepdims=True)
        return _clip_weights(candidates, np.take_along_axis(far, np.take_along_axis(farthest_first, last, -1), -1))


@dataclass(frozen=True)
class CsHe(_Farthest):
    """Self-centred clipping with the practical radius of He, Karimireddy and Jaggi (2022).

    In the form of Gaucher, Dieuleveut and Hendrikx (ICML 2025), tau^2 = (1 / b) sum of w_j d_j^2 over the peers without
    the farthest b of weight.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        if not self.share:
            return candidates.weights.copy()
        assumed = self.share * candidates.weights[..., 1:].sum(-1, keepdims=True)
        squares = self.nearer_weights(candidates) * candidates.distances[..., 1:] ** 2
        return _clip_weights(candidates, np.sqrt(squares.sum(-1, keepdims=True) / assumed))


@dataclass(frozen=True)
class Gts(_Farthest):
    """Geometric trimming (Gaucher, Dieuleveut and Hendrikx, "Unified Breakdown Analysis for Byzantine Robust Gossip", ICML
    2025): the farthest b of weight belongs to the own model instead. `nna` scales the other weights instead.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        nearer = self.nearer_weights(candidates)
        own = candidates.weights.sum(-1, keepdims=True) - nearer.sum(-1, keepdims=True)
        return np.concatenate([own, nearer], axis=-1)


def _clip_weights(candidates: Candidates, tau: np.ndarray) -> np.ndarray:
    """Return the weights w_j min(1, tau / d_j); the own model gets the rest."""
    far = candidates.distances
    factors = np.divide(tau, far, out=np.ones_like(far), where=far > tau)
    weights: np.ndarray = candidates.weights * factors
    weights[..., 0] = candidates.weights.sum(-1) - weights[..., 1:].sum(-1)
    return weights
