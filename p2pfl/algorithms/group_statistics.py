"""Statistics of a model's decisions by label and group, and sample weights that treat groups equally.

Arrays have one row for each label, 0 and 1, and one column for each of A groups, [2, A]. Empty cells are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np
from msgspec.structs import replace

from p2pfl.parameters import Parameters, PrivateParameters
from p2pfl.queries import Query

MOST_GROUPS = 2**10
MOST_WEIGHT = 2.0  # of a balanced sample; samples of the other label in its group then have weight 0
MOST_LOSS = float(np.finfo(np.float32).max)  # of a sample: losses are computed in float32 and are finite


class GroupCounts(NamedTuple):
    """Statistics of a model's decisions on a node's training samples.

    Attributes:
        counts: number of samples, int64 [2, A].
        positive: number of samples that the model assigns label 1, int64 [2, A].
        losses: the sum of their losses, float64 [2, A].
    """

    counts: np.ndarray
    positive: np.ndarray
    losses: np.ndarray

    @property
    def right(self) -> int:
        """Number of correctly classified samples."""
        return int((self.counts[0] - self.positive[0]).sum() + self.positive[1].sum())


class CountGroups(Query[GroupCounts], frozen=True, gc=False):
    """Return the statistics of a model's decisions by label and group on the node's training samples."""

    name: ClassVar[str] = "tally"
    hint: ClassVar[str] = "a task whose samples have labels and groups, such as `fairness`"

    params: Parameters

    def complete(self, private: PrivateParameters) -> Self:
        return replace(self, params=private.whole(self.params))


def total(tallies: Sequence[GroupCounts]) -> GroupCounts:
    """Return the statistics of all samples together.

    Raises:
        ValueError: the groups differ.
    """
    if len({each.counts.shape for each in tallies}) > 1:
        raise ValueError("submissions have different groups")
    counts, positive, losses = (np.sum(parts, axis=0) for parts in zip(*tallies, strict=True))
    return GroupCounts(counts, positive, losses)


def disparity(tally: GroupCounts) -> float:
    """Return the greatest difference between a group's and the overall share of positive decisions; PraFFL, eq. 2."""
    sizes = tally.counts.sum(0)
    there = sizes > 0
    rates = tally.positive.sum(0)[there] / sizes[there]
    return float(np.abs(rates - tally.positive.sum() / sizes.sum()).max())


def even(groups: int) -> np.ndarray:
    """Return uniform weights of samples, [2, A]."""
    return np.ones((2, groups))


def fedfb_step(weights: np.ndarray, tally: GroupCounts, step: float) -> np.ndarray:
    """Return the weights of samples after a step towards equal shares of positive decisions (demographic parity).

    FedFB's step for demographic parity (Zeng, Chen and Lee 2021, "Improving fairness via federated learning"), after
    FairBatch (Roh et al. 2021). Let l_{ya} be the sum of the losses of the samples of label y in group a, divided by
    the number of samples of group a. The estimate of how many more positive decisions group a has is f_a: the value
    (l_{0a} - l_{1a} + P(y=1 | a)) of group a minus that of the first group.

    Samples of label 0 have the weight lambda_a, and those of label 1 have 2 p_a - lambda_a; p_a is the group's share of
    the samples. A step adds `step` * f_a to lambda_a, and subtracts `step` times the sum of all f_a from the lambda of
    the first group. Each lambda_a stays between 0 and 2 p_a. The returned weights are these divided by p_a.
    """
    sizes = tally.counts.sum(0)
    there = np.flatnonzero(sizes)
    rates = (tally.losses[0] - tally.losses[1] + tally.counts[1])[there] / sizes[there]
    change = rates - rates[0]
    change[0] = -change.sum()
    negative = weights[0].copy()
    negative[there] += step * change * sizes.sum() / sizes[there]
    negative = negative.clip(0, MOST_WEIGHT)
    return np.stack([negative, MOST_WEIGHT - negative])


def agnostic_step(weights: np.ndarray, tally: GroupCounts, rate: float) -> np.ndarray:
    """Return the weights after a step towards the greatest loss: times exp(rate * mean loss of the cell).

    The result is normalised so that the mean weight of all samples is 1.
    """
    there = tally.counts > 0
    means = np.where(there, tally.losses / np.maximum(tally.counts, 1), 0.0)
    raised = weights * np.exp(rate * (means - means.max()))
    mean = float((raised * tally.counts).sum() / tally.counts.sum())
    return np.where(there, raised / mean, weights) if mean > 0 else weights


def to_extras(tally: GroupCounts, *names: str) -> dict[str, np.ndarray]:
    """Return the counts and the named fields of the statistics as extras."""
    return {"counts": tally.counts} | {name: getattr(tally, name) for name in names}


def from_extras(extras: Mapping[str, np.ndarray], n_samples: int) -> GroupCounts:
    """Parse statistics from a participant's extras; missing fields are 0.

    Raises:
        ValueError: they are not valid statistics of `n_samples` samples.
    """
    counts = extras.get("counts")
    if counts is None or counts.dtype != np.int64 or counts.ndim != 2 or not 1 <= counts.shape[1] <= MOST_GROUPS:
        raise ValueError("a submission has no tally of samples by label and group")
    positive, losses = extras.get("positive", np.zeros_like(counts)), extras.get("losses", np.zeros(counts.shape))
    if len(counts) != 2 or counts.min() < 0 or counts.max() > n_samples or counts.sum() != n_samples:
        raise ValueError(f"a tally does not have the sum of {n_samples} samples")
    if positive.dtype != np.int64 or positive.shape != counts.shape or ((positive < 0) | (positive > counts)).any():
        raise ValueError("a tally has more positive decisions than samples, or fewer than 0")
    if (
        losses.dtype != np.float64
        or losses.shape != counts.shape
        or not ((losses >= 0) & (losses <= counts * MOST_LOSS)).all()
    ):
        raise ValueError("the losses of a tally must be finite, 0 or more, and 0 where there are no samples")
    return GroupCounts(counts, positive, losses)
