"""Group fairness of a classifier: differences between groups, exact and as differentiable losses.

Values are a classifier's outputs for n samples, float [n]: its probabilities of the positive class, or the result of
`relax` or `decide`. Groups are numbers from 0 to count - 1, int64 [n]. A group without samples (of the label that
counts) is ignored; with fewer than two groups left the difference is 0. All functions work under torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from p2pfl.algorithms.group_statistics import GroupCounts

Against = Literal["groups", "mean"]
"""Reference of a group: the other groups, or the mean of all samples."""

CONVERGED = 1e-3  # minimum distance of a fairness from 1


def relax(probabilities: Tensor, sharpness: float = 3.0) -> Tensor:
    """Return tanh(c max(0, 2f - 1)) / 2 + 0.5: near 1 for a positive decision, 0.5 for a negative one.

    Equation 5.5 of Hartmann, Multi-objective learning in federation (chapter 5), after Padh et al. 2021, where a
    decision is the sign of f in [-1, 1]. If decisions differ by 1, the relaxed values differ by at most 0.5.
    """
    return torch.tanh(sharpness * (2 * probabilities - 1).clamp_min(0)) / 2 + 0.5


def decide(probabilities: Tensor) -> Tensor:
    """Return 1 where the probability is above 0.5, else 0."""
    return (probabilities > 0.5).to(probabilities.dtype)


def demographic_parity(values: Tensor, labels: Tensor, groups: Tensor, count: int, against: Against = "groups") -> Tensor:
    """Return the difference of the groups' mean values (DDP; chapter 5, eqs. 5.4 and 5.6), a scalar.

    Against "groups" it is the greatest mean minus the lowest. Against the "mean" it is the greatest distance of a
    group's mean from that of all samples, the disparity of PraFFL's eq. 2.
    """
    return _difference(values, torch.ones_like(values), groups, count, against)


def equal_opportunity(values: Tensor, labels: Tensor, groups: Tensor, count: int, against: Against = "groups") -> Tensor:
    """Return the difference among the samples with label 1 (DEO; chapter 5, eq. 5.2)."""
    return _difference(values, (labels == 1).to(values.dtype), groups, count, against)


def equalised_odds(values: Tensor, labels: Tensor, groups: Tensor, count: int, against: Against = "groups") -> Tensor:
    """Return the greater of the differences among the samples of label 1 and of label 0 (chapter 5, eq. 5.3)."""
    positive = equal_opportunity(values, labels, groups, count, against)
    return torch.maximum(positive, _difference(values, (labels == 0).to(values.dtype), groups, count, against))


MEASURES: dict[str, Callable[[Tensor, Tensor, Tensor, int, Against], Tensor]] = {
    "demographic-parity": demographic_parity,
    "equal-opportunity": equal_opportunity,
    "equalised-odds": equalised_odds,
}


def covariance_loss(probabilities: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the mean over the samples of [(a - mean a)(f - mean f)]^2: PraFFL, eq. 3; a scalar.

    With two groups, `a` is the number of the group. (With more groups, the result is the mean over the groups of the
    same expression, with a = 1 for the group and 0 for the others. The paper's text would use group numbers as
    quantities.)
    """
    members = _members(groups, count, probabilities)
    apart = (members - members.mean(0)) * (probabilities - probabilities.mean()).unsqueeze(1)
    return apart.square().mean()


def tally_of(logits: Tensor, labels: Tensor, groups: Tensor, count: int) -> GroupCounts:
    """Return the statistics of a classifier by label and group; losses are cross-entropies, in nats.

    Args:
        logits, labels, groups: [n] each; labels are 0 and 1, groups from 0 to count - 1.
    """
    cells = (labels * count + groups).long().cpu().numpy()
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def by_cell(values: Tensor | None) -> NDArray[np.float64]:
        own = None if values is None else values.double().cpu().numpy()
        return np.bincount(cells, own, 2 * count).reshape(2, count).astype(np.float64)

    positive = by_cell(decide(torch.sigmoid(logits)))
    return GroupCounts(by_cell(None).astype(np.int64), positive.astype(np.int64), by_cell(losses))


def mix_logits(outputs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """Return the logits of the mean probability of several classifiers.

    Args:
        outputs: logits of each classifier, all of one shape.
        shares: the weight of each classifier; they sum to 1.
    """
    mean = torch.stack([share * torch.sigmoid(each) for each, share in zip(outputs, shares, strict=True)]).sum(0)
    return torch.logit(mean, 1e-7)


def has_converged(fairness: NDArray[np.float64], tolerance: float = CONVERGED) -> NDArray[np.bool_]:
    """Return whether each solution counts: a model with a fairness above 1 - tolerance has learned nothing.

    (Hartmann, appendix A.3.5: "excluding all solutions with a fairness value greater than 1 - epsilon".)

    Args:
        fairness: 1 minus the differences, [n] or [n, attributes]; one attribute at or below the limit is sufficient.
        tolerance: minimum distance of a fairness from 1.
    """
    table = fairness.reshape(len(fairness), -1)
    kept: NDArray[np.bool_] = table.min(1) <= 1 - tolerance
    return kept


def _members(groups: Tensor, count: int, like: Tensor) -> Tensor:
    """Return 1 if a sample belongs to a group, else 0; [n, count]. (torch's one_hot does not work under vmap.)"""
    return (groups.unsqueeze(1) == torch.arange(count, device=groups.device)).to(like.dtype)


def _difference(values: Tensor, among: Tensor, groups: Tensor, count: int, against: Against) -> Tensor:
    """Return the difference of the groups' means over the samples where `among` is 1."""
    members = _members(groups, count, values) * among.unsqueeze(1)
    sizes = members.sum(0)
    means = (members * values.unsqueeze(1)).sum(0) / sizes.clamp_min(1)
    there = sizes > 0
    if against == "mean":
        mean = (among * values).sum() / among.sum().clamp_min(1)
        return torch.where(there, (means - mean).abs(), 0.0).amax()
    if count == 2:
        return torch.where(there.all(), (means[0] - means[1]).abs(), 0.0)
    most, least = torch.where(there, means, -inf).amax(), torch.where(there, means, inf).amin()
    return torch.where(there.any(), most - least, 0.0)
