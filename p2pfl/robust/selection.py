"""Rules that leave out models, by their distances or by their losses on the node's own data.

The losses are those on validation data. Without such data, `ubar` and `loss` take the training data, and `clip-loss` leaves
the weights unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite
from typing import ClassVar

import numpy as np

from p2pfl.robust.candidates import Candidates, Counting, Reweighting

WORST = 1e30  # loss in place of one that is not finite


@dataclass(frozen=True)
class Nna(Counting, Reweighting):
    """Nearest neighbour averaging (Farhadkhani et al., "Robust Collaborative Learning with Linear Gradient Overhead",
    ICML 2023, MoNNA): the mean of the own model and of all but the f peers that are farthest from it.

    w'_j = w_j / (sum of the kept weights) for kept models, and 0 for the f largest d_j.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        nearest_first = np.argsort(candidates.distances[..., 1:], kind="stable") + 1
        kept = marked(candidates, nearest_first[..., : candidates.peers - self.attackers_among(candidates.peers)])
        kept[..., 0] = True
        return only(candidates, kept)


@dataclass(frozen=True)
class Ios(Counting, Reweighting):
    """Iterative outlier scissor (Wu, Chen and Ling, "Byzantine-Resilient Decentralized Stochastic Optimization With
    Robust Aggregation Rules", 2023).

    f times: m = (sum of w_j x_j) / (sum of w_j) over the models left, the own one included; the peer with the largest
    ||x_j - m|| is left out. The result is the last such mean. The paper's weights are doubly stochastic.

    Attackers may agree on one model that is z standard deviations from the mean of the h honest ones. With a share b of
    the weights they are nearer to m than the honest models if z^2 (1 - 2 b) < 1 - 1/h. IOS then leaves out honest models.
    """

    needs_pairs: ClassVar[bool] = True

    def reweight(self, candidates: Candidates) -> np.ndarray:
        left = np.ones(candidates.weights.shape, bool)
        for _ in range(self.attackers_among(candidates.peers)):
            squares = np.where(left, candidates.squares_from(only(candidates, left)), -1.0)
            farthest = np.argmax(squares[..., 1:], axis=-1, keepdims=True) + 1
            np.put_along_axis(left, farthest, False, axis=-1)
        return only(candidates, left)


@dataclass(frozen=True)
class Krum(Counting, Reweighting):
    """Krum and Multi-Krum (Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017).

    The score of a model is the sum of ||x_j - x_k||^2 over its n - f - 1 nearest other models; n counts the own model.
    (The paper takes n - f - 2; ByzFL takes one more, and so does this.) The result is the mean of the models with the
    lowest scores, by the policy's weights. The own model has no privilege.

    Attributes:
        selected: number of models in the mean; 1 is Krum, 0 takes n - f (Multi-Krum).
    """

    needs_pairs: ClassVar[bool] = True

    selected: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selected < 0:
            raise ValueError(f"selected must be 1 or more, or 0 for all but the assumed attackers, got {self.selected}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        good = candidates.peers + 1 - self.attackers_among(candidates.peers)
        scores = candidates.nearest(good - 1)
        return only(candidates, marked(candidates, np.argsort(scores, kind="stable")[..., : self.selected or good]))


def marked(candidates: Candidates, places: np.ndarray) -> np.ndarray:
    """Return which models of a merge are at some places, bool [K].

    Args:
        places: of the models, [n].
    """
    kept = np.zeros(candidates.weights.shape, bool)
    np.put_along_axis(kept, places, True, axis=-1)
    return kept


def only(candidates: Candidates, kept: np.ndarray) -> np.ndarray:
    """Return the weights of the kept models, scaled to the sum 1; equal weights if theirs are all 0.

    Args:
        kept: bool [K].
    """
    weights = np.where(kept, candidates.weights, 0.0)
    total = weights.sum(-1, keepdims=True)
    if not total.all():
        weights = np.where(total == 0, kept.astype(np.float64), weights)
        total = weights.sum(-1, keepdims=True)
    shares: np.ndarray = weights / total
    return shares


@dataclass(frozen=True)
class Ubar(Reweighting):
    """UBAR (Guo et al., "Byzantine-Resilient Decentralized Stochastic Gradient Descent", 2022; also called MOZI).

    Stage 1 keeps the rho * (number of peers) models nearest to the own one. Stage 2 accepts those of them whose loss on
    the node's own data is at most that of the own model; if there are none, the one with the lowest loss. The own model
    has the weight alpha, and the accepted ones share 1 - alpha by the policy's weights.

    Attributes:
        rho: assumed share of honest peers; at least one model is kept.
        alpha: weight of the own model.
    """

    needs_losses: ClassVar[bool] = True

    rho: float = 0.4
    alpha: float = 0.5

    def __post_init__(self) -> None:
        for key in ("rho", "alpha"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key} must be from 0 to 1, got {getattr(self, key)}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        losses = _losses_of(candidates)
        nearest_first = np.argsort(candidates.distances[..., 1:], kind="stable") + 1
        near = nearest_first[..., : max(1, int(self.rho * candidates.peers))]
        found = np.take_along_axis(losses, near, -1)
        accepted = found <= losses[..., :1]
        accepted |= ~accepted.any(-1, keepdims=True) & (np.arange(near.shape[-1]) == found.argmin(-1, keepdims=True))
        given = np.where(accepted, np.take_along_axis(candidates.weights, near, -1), 0.0)
        weights = np.zeros_like(candidates.weights)
        np.put_along_axis(weights, near, (1 - self.alpha) * given / given.sum(-1, keepdims=True), -1)
        weights[..., 0] = self.alpha
        return weights


@dataclass(frozen=True)
class LossWeighted(Reweighting):
    """Weights by a softmax of losses, as in LPE-TSR and LIGHTYEAR (arXiv 2508.05224): w'_j proportional to
    w_j exp(-loss_j / T), the own model included.

    Attributes:
        temperature: T; a lower one trusts better models more.
    """

    needs_losses: ClassVar[bool] = True

    temperature: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise ValueError(f"temperature must be more than 0, and finite, got {self.temperature}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        losses = _losses_of(candidates)
        best = np.where(candidates.weights > 0, losses, inf).min(-1, keepdims=True)
        better = np.minimum(best - losses, 0.0)  # only a model without weight can be better
        scores = candidates.weights * np.exp(better / self.temperature)
        weights: np.ndarray = scores / scores.sum(-1, keepdims=True)
        return weights


@dataclass(frozen=True)
class ClipLoss(LossWeighted):
    """Weights by a softmax of losses, as by `loss`, after models have been clipped on reception, as by `median-clip`:
    w'_j proportional to w_j exp(-loss_j / T), the own model included.

    The losses are those on the node's validation data. They are divided by the loss of the common initial model there
    if that is above 1, so that T suits losses of any scale. Without validation data the weights stay the policy's.

    With a coordinator, submissions are clipped as by `median-clip`, and assigned models to the length of the node's own
    training steps (p2pfl.robust.clipping). A node refuses an assigned model that is worse than its own, if its loss
    exceeds by more than `margin` the lowest loss with which the node has begun a round. It then keeps its own model.
    Otherwise it keeps the part exp(-d / T) of the way from its own model to the assigned one; d is the amount by which
    its loss is higher, or 0. For a policy that submits the model from which a node has started, such as `fedpref` and
    `cfl`, the assigned model is not moved further, because the coordinator expects the nodes to start from it.

    The combination is p2pfl's own: a clipped model does bounded harm, and the loss shows which of the models do any.

    Attributes:
        temperature: T; a lower one trusts better models more.
        margin: see above; 1 is the loss of the common initial model.
    """

    temperature: float = 0.35
    margin: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.margin < inf:
            raise ValueError(f"margin must be more than 0, and finite, got {self.margin}")

    def refuses(self, assigned: float, own: float, best: float) -> bool:
        """Return whether an assigned model is worse than the own one, and far worse than those that it began with.

        Args:
            assigned, own: the losses of the two models. Without validation data, the own one is not finite.
            best: the lowest loss of a model with which the node has begun a round.
        """
        return isfinite(own) and not (assigned <= own or assigned - best <= self.margin)

    def part_kept(self, own: float, assigned: float) -> float:
        """Return the part of the way from the own model to the assigned one, from 0 to 1.

        Args:
            own, assigned: the losses of the two models. Without validation data, the own one is not finite.
        """
        if not isfinite(own):
            return 1.0
        return exp(-max(0.0, assigned - own) / self.temperature) if isfinite(assigned) else 0.0


def _losses_of(candidates: Candidates) -> np.ndarray:
    """Return the losses, [K]; one that is not finite counts as very large."""
    assert candidates.losses is not None
    return np.nan_to_num(candidates.losses, nan=WORST, posinf=WORST).clip(max=WORST)
