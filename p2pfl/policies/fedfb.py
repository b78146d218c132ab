"""FedFB and AgnosticFair: the coordinator weighs samples by label and group, from how the model treats all nodes'."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from p2pfl.algorithms.aggregation import fedavg
from p2pfl.algorithms.group_statistics import (
    CountGroups,
    GroupCounts,
    agnostic_step,
    even,
    fedfb_step,
    from_extras,
    to_extras,
    total,
)
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.coordinated import CoordinatedFedAvg, sender, together
from p2pfl.policies.lft import check_step
from p2pfl.policy import Assignment, Extras, Me, Submission
from p2pfl.update_rules import Weighted

MOST = 1e9  # of a sample's weight: those that balance are below 2, and those of a mean of 1 not above the samples of all


@dataclass
class Weighing(CoordinatedFedAvg):
    """Federated averaging in which the coordinator sets, each round, how much samples count by label and group.

    A node submits how many training samples it has of each label in each group, and the sum of their losses by the model
    that the round began with. An assignment has the weights for the next round, [2, A], which the next submission says
    again. In the mean a node's model counts by the weights of all its samples, so that it is that of the weighted loss of
    all.
    """

    began: GroupCounts | None = field(default=None, init=False, repr=False)

    async def _train(self, me: Me) -> Parameters:
        self.began = await me.compute(CountGroups(me.params))
        _, weights = previous_weights(self.previous, self.began, me.round)
        return await me.train(epochs=self.epochs, rule=Weighted(weights))

    def _extras(self) -> Extras:
        assert self.began is not None
        return to_extras(self.began, "losses")

    def _credible(self, extras: Extras, round: int) -> bool:
        assert self.began is not None
        try:
            previous_weights(extras, self.began, round + 1)
        except ValueError:
            return False
        return True

    @abstractmethod
    def next_weights(self, weights: np.ndarray, everyone: GroupCounts, number: int) -> np.ndarray:
        """Return the weights for the next round.

        Args:
            weights: of this one.
            everyone: the tally of all nodes' samples.
            number: how many times they have moved, this one included.
        """

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Give all the mean, and the weights for the next round. The state is these, and how often they have moved.

        Raises:
            ValueError: what a submission says of its groups or the weights cannot be.
        """
        there = sorted(submissions, key=sender)
        tallies = [from_extras(s.extras, s.n_samples) for s in there]
        used = [previous_weights(s.previous, each, s.round) for s, each in zip(there, tallies, strict=True)]
        number, weights = (state["number"], state["weights"]) if state else max(used, key=_number)
        moved = self.next_weights(weights, total(tallies), number + 1)
        sizes = {s.sender: float((own * t.counts).sum()) for s, t, (_, own) in zip(there, tallies, used, strict=True)}
        shares = fedavg(sizes) if sum(sizes.values()) else None
        extras = {"weights": moved, "number": np.array([number + 1])}
        return together(there, extras, shares), {"number": number + 1, "weights": moved}


@dataclass
class FedFB(Weighing):
    """FedFB for demographic parity (Zeng, Chen and Lee 2021, "Improving fairness via federated learning"), its step made by
    the elected coordinator.

    The weights of samples by label and group move each round by p2pfl.algorithms.group_statistics.fedfb_step with a step of
    `alpha` / sqrt(t), from the losses of all nodes' samples. Averaging then comes near to FairBatch on all data at once.

    A node submits how many training samples it has of each label in each group, and the sum of their losses: the
    coordinator learns these. (The paper's server learns sums only, by secure aggregation.)

    Simplified: losses are those of the model that a round began with, as they travel with what was trained from it; so the
    weights are a round behind those of the paper.

    Attributes:
        epochs, ft: as of `fedavg`; fine tuning is not weighted.
        alpha: the fairness hyperparameter: how far the weights move; 0 is FedAvg.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("alpha", self.alpha)

    def next_weights(self, weights: np.ndarray, everyone: GroupCounts, number: int) -> np.ndarray:
        return fedfb_step(weights, everyone, self.alpha / sqrt(number))


@dataclass
class AgnosticFair(Weighing):
    """AgnosticFair (Du et al., "Fairness-aware agnostic federated learning", SDM 2021), its step made by the elected
    coordinator.

    The model is trained for the worst weighting of the samples: each round the weights move towards the greatest loss, times
    exp(`rate` * mean loss), their mean staying 1. The fairness constraint is a penalty, and is the task's: the covariance
    loss by its share of the task's preference, which is the fairness hyperparameter (`kind = "covariance"`).

    A node submits how many training samples it has of each label in each group, and the sum of their losses: the
    coordinator learns these.

    Simplified: samples are reweighted by their label and group; the paper has Gaussian kernels around points of the input
    space, and these cells are the coarsest kind. Weights take multiplicative steps; the paper solves a linear programme.
    Nodes average models each round, not gradients each step. The constraint is not reweighted, and is squared, as in
    PraFFL's eq. 3. (In the program of PraFFL's authors nothing is reweighted.)

    Attributes:
        epochs, ft: as of `fedavg`; fine tuning is not weighted.
        rate: how fast the weights move; 0 leaves the penalty alone.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("rate", self.rate)

    def next_weights(self, weights: np.ndarray, everyone: GroupCounts, number: int) -> np.ndarray:
        return agnostic_step(weights, everyone, self.rate)


def previous_weights(previous: Extras, tally: GroupCounts, round: int) -> tuple[int, np.ndarray]:
    """Return how often the weights had moved that a participant trains with in a round, and these, [2, A].

    Args:
        previous: what it was assigned last.

    Raises:
        ValueError: that is neither weights nor nothing.
    """
    if not previous:
        return 0, even(tally.counts.shape[1])
    weights, number = previous.get("weights"), previous.get("number")
    if weights is None or weights.dtype != np.float64 or weights.shape != tally.counts.shape:
        raise ValueError("a submission says no weights of its samples")
    if not ((weights >= 0) & (weights <= MOST)).all():
        raise ValueError(f"weights of samples are from 0 to {MOST:.0e}")
    if number is None or number.dtype != np.int64 or number.shape != (1,) or not 0 < number[0] < round:
        raise ValueError("a submission does not say how often its weights have moved")
    return int(number[0]), weights


def _number(used: tuple[int, np.ndarray]) -> int:
    return used[0]
