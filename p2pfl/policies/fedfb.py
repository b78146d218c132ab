"""FedFB and AgnosticFair: the coordinator weights samples by label and group, from statistics of all nodes' samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from p2pfl.algorithms import group_statistics
from p2pfl.algorithms.selection import fedavg
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.coordinated import CoordinatedFedAvg, sender, together
from p2pfl.policies.lft import check_step
from p2pfl.policy import Assignment, Extras, Me, Submission, built_in, refused_under_privacy
from p2pfl.update_rules import Weighted

MOST = 1e9  # of a sample's weight: balancing weights are below 2; those with mean 1 do not exceed the number of samples


@dataclass
class Weighing(CoordinatedFedAvg):
    """Federated averaging in which the coordinator sets the weights of samples by label and group in each round.

    A node submits the number of its training samples by label and group, and the sum of their losses under the model
    with which the round began. An assignment contains the weights for the next round, [2, A], and the next submission
    repeats them. In the mean, a node's model is weighted by the total weight of its samples. The result is the mean for
    the weighted loss of all samples.
    """

    began: group_statistics.GroupCounts | None = field(default=None, init=False, repr=False)

    async def _train(self, me: Me) -> Parameters:
        self.began = await me.compute(group_statistics.CountGroups(me.params))
        self._forget_later_extras(me.round)
        _, weights = previous_weights(self.previous, self.began, me.round)
        return await me.train(epochs=self.epochs, rule=Weighted(weights))

    def _extras(self) -> Extras:
        assert self.began is not None
        return group_statistics.to_extras(self.began, "losses")

    def _credible(self, extras: Extras, round: int) -> bool:
        assert self.began is not None
        try:
            previous_weights(extras, self.began, round + 1)
        except ValueError:
            return False
        return not extras or len(extras) == 2

    @abstractmethod
    def next_weights(self, weights: np.ndarray, everyone: group_statistics.GroupCounts, number: int) -> np.ndarray:
        """Return the weights for the next round.

        Args:
            weights: the weights of this round.
            everyone: the counts of all nodes' samples.
            number: number of updates of the weights, including this one.
        """

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign to all the mean, and the weights for the next round. The state is the weights and their update count.

        Raises:
            ValueError: the groups or the weights in a submission are invalid.
        """
        there = sorted(submissions, key=sender)
        tallies = [group_statistics.from_extras(s.extras, s.n_samples) for s in there]
        used = [previous_weights(s.previous, each, s.round) for s, each in zip(there, tallies, strict=True)]
        number, weights = (state["number"], state["weights"]) if state else max(used, key=_number)
        moved = self.next_weights(weights, group_statistics.total(tallies), number + 1)
        sizes = {s.sender: float((own * t.counts).sum()) for s, t, (_, own) in zip(there, tallies, used, strict=True)}
        shares = fedavg(sizes) if sum(sizes.values()) else None
        extras = {"weights": moved, "number": np.array([number + 1])}
        return together(there, extras, shares), {"number": number + 1, "weights": moved}


@built_in("fedfb")
@dataclass
class FedFB(Weighing):
    """FedFB for demographic parity (Zeng, Chen and Lee 2021, "Improving fairness via federated learning"). The elected
    coordinator makes the step.

    In each round, p2pfl.algorithms.group_statistics.fedfb_step updates the weights of samples by label and group, with
    step size `alpha` / sqrt(t) and the losses of all nodes' samples. This approximates FairBatch on the union of all
    data.

    A node submits the number of its training samples by label and group, and the sum of their losses. The coordinator
    learns these numbers. (The paper's server learns only sums, by secure aggregation.)

    Simplified: the losses are those of the model with which a round began, because they are sent with the model that
    was trained from it. The weights are therefore one round behind those of the paper.

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not weighted.
        alpha: the fairness hyperparameter: step size of the weights; 0 is FedAvg.
    """

    alpha: float = 0.1

    under_privacy = refused_under_privacy("it submits counts of labels and groups on training data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("alpha", self.alpha)

    def next_weights(self, weights: np.ndarray, everyone: group_statistics.GroupCounts, number: int) -> np.ndarray:
        return group_statistics.fedfb_step(weights, everyone, self.alpha / sqrt(number))


@built_in("agnostic-fair")
@dataclass
class AgnosticFair(Weighing):
    """AgnosticFair (Du et al., "Fairness-aware agnostic federated learning", SDM 2021). The elected coordinator makes
    the step.

    The model is trained for the worst-case weighting of the samples. In each round the weights are multiplied by
    exp(`rate` * mean loss), which favours the greatest loss; their mean stays 1. The fairness constraint is a penalty
    of the task: the covariance loss (`kind = "covariance"`). Its share of the task's preference is the fairness
    hyperparameter.

    A node submits the number of its training samples by label and group, and the sum of their losses. The coordinator
    learns these numbers.

    Simplified: samples are reweighted by their label and group; the paper uses Gaussian kernels around points of the
    input space, and these cells are the coarsest kind. Weights take multiplicative steps; the paper solves a linear
    programme. Nodes average models each round, not gradients each step. The constraint is not reweighted, and is
    squared, as in PraFFL's eq. 3. (The program of PraFFL's authors does not reweight anything.)

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not weighted.
        rate: step size of the weights; with 0 only the penalty remains.
    """

    rate: float = 0.1

    under_privacy = refused_under_privacy("it submits counts of labels and groups on training data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("rate", self.rate)

    def next_weights(self, weights: np.ndarray, everyone: group_statistics.GroupCounts, number: int) -> np.ndarray:
        return group_statistics.agnostic_step(weights, everyone, self.rate)


def previous_weights(previous: Extras, tally: group_statistics.GroupCounts, round: int) -> tuple[int, np.ndarray]:
    """Return how often a participant's weights have been updated, and the weights with which it trains, [2, A].

    Args:
        previous: the extras of its last assignment.
        tally: the counts of its samples.
        round: the round in which it trains.

    Raises:
        ValueError: the extras are neither empty nor valid weights.
    """
    if not previous:
        return 0, group_statistics.even(tally.counts.shape[1])
    weights, number = previous.get("weights"), previous.get("number")
    if weights is None or weights.dtype != np.float64 or weights.shape != tally.counts.shape:
        raise ValueError("a submission has no weights of its samples")
    if not ((weights >= 0) & (weights <= MOST)).all():
        raise ValueError(f"weights of samples must be from 0 to {MOST:.0e}")
    if number is None or number.dtype != np.int64 or number.shape != (1,) or not 0 < number[0] < round:
        raise ValueError("a submission has no valid number of updates of its weights")
    return int(number[0]), weights


def _number(used: tuple[int, np.ndarray]) -> int:
    return used[0]
