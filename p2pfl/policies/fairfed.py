"""FairFed: nodes whose groups are treated as those of all count more in the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from p2pfl.algorithms.group_statistics import GroupCounts, disparity, from_extras, to_extras, total
from p2pfl.parameters import Layout
from p2pfl.policies.coordinated import sender, together
from p2pfl.policies.lft import LftFedAvg, check_step
from p2pfl.policy import Assignment, Extras, Submission

MOST = 1e9  # of a node's weight: far from where sums overflow


@dataclass
class FairFed(LftFedAvg):
    """FairFed (Ezzeldin et al., "FairFed: Enabling group fairness in federated learning", AAAI 2023), with FairBatch as the
    local debiasing, as PraFFL has it; the step is made by the elected coordinator.

    Each round a node's weight w falls by `beta` times the difference of its gap and the mean gap. The weights, divided by
    their sum, are those of the mean. They begin as the shares of the samples. The gap is that between the disparity (PraFFL,
    eq. 2) of the model that the round began with on the node's training samples, and on all nodes'. Of a node with samples
    of one group only it is that of the accuracies.

    A node submits how many training samples it has of each label in each group, and how many of them that model decides to
    be of label 1: the coordinator learns these. (The paper's server learns sums only, by secure aggregation.)

    Simplified: the paper's disparity is that between two groups; a weight is never below 0, nor above 1e9 (of which the
    paper says nothing). For the local debiasing see `LocalFair` in p2pfl/policies/lft.py.

    Attributes:
        epochs, ft: as of `fedavg`; fine tuning is not balanced.
        alpha: how far the weights of samples move in the local debiasing; 0 trains as usual.
        updates: how often in a round they move; the epochs must be divisible by it.
        beta: the fairness budget: how fast the weights of nodes move; 0 is LFT+FedAvg.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("beta", self.beta)

    def _extras(self) -> Extras:
        assert self.began is not None
        return to_extras(self.began, "positive")

    def _credible(self, extras: Extras, round: int) -> bool:
        try:
            previous_weight(extras)
        except ValueError:
            return False
        return True

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Give all the same mean. The state is each node's weight, which its next submission says again.

        Raises:
            ValueError: what a submission says of its groups or its weight cannot be.
        """
        there = sorted(submissions, key=sender)
        gaps = gaps_of([from_extras(s.extras, s.n_samples) for s in there])
        known: dict[str, float] = dict(state)
        everyone = sum(s.n_samples for s in there)
        for s in there:
            if s.sender not in known:
                known[s.sender] = previous_weight(s.previous) if s.previous else s.n_samples / everyone
        moved = np.array([known[s.sender] for s in there]) - self.beta * (gaps - gaps.mean())
        moved = moved.clip(0, MOST)
        if not moved.sum():
            moved = np.array([s.n_samples / everyone for s in there])
        own = dict(zip([s.sender for s in there], moved.tolist(), strict=True))
        weights = dict(zip(own, (moved / moved.sum()).tolist(), strict=True))
        assignments = {
            id: replace(assignment, extras={"weight": np.array([own[id]])})
            for id, assignment in together(there, weights=weights).items()
        }
        return assignments, known | own


def gaps_of(tallies: Sequence[GroupCounts]) -> np.ndarray:
    """Return how far each node's disparity is from that of all, or, where it has one group, its accuracy; float64 [n]."""
    everyone = total(tallies)
    fair, right = disparity(everyone), everyone.right / everyone.counts.sum()
    return np.array(
        [
            abs(disparity(each) - fair)
            if np.count_nonzero(each.counts.sum(0)) > 1
            else abs(each.right / each.counts.sum() - right)
            for each in tallies
        ]
    )


def previous_weight(previous: Extras) -> float:
    """Return the weight that a participant was assigned last, as it says.

    Raises:
        ValueError: it is none.
    """
    weight = previous.get("weight")
    if weight is None or weight.shape != (1,) or weight.dtype != np.float64 or not 0 <= weight[0] <= MOST:
        raise ValueError(f"a submission says no weight from 0 to {MOST:.0e}")
    return float(weight[0])
