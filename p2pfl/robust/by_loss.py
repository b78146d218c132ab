"""Rules that compare the losses of models on the node's own data.

The losses are those on validation data. Without such data, `ubar` and `loss` take the training data, and `clip-loss` leaves
the weights unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite
from typing import ClassVar

import numpy as np

from p2pfl.robust.candidates import Candidates, Reweighting

WORST = 1e30  # loss in place of one that is not finite


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
    training steps (p2pfl.robust.assignments). A node refuses an assigned model that is worse than its own, if its loss
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
