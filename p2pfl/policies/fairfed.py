"""FairFed: nodes whose disparity is close to the global disparity have a higher weight in the mean."""

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
from p2pfl.policy import Assignment, Extras, Submission, built_in, refused_under_privacy

MOST = 1e9  # of a node's weight: low enough that sums do not overflow


@built_in("fairfed")
@dataclass
class FairFed(LftFedAvg):
    """FairFed (Ezzeldin et al., "FairFed: Enabling group fairness in federated learning", AAAI 2023). As in PraFFL, the
    local debiasing is FairBatch. The elected coordinator makes the step.

    Each round a node's weight w decreases by `beta` times the difference between its gap and the mean gap. The mean
    uses the weights divided by their sum. They begin as the shares of the samples. The gap is the difference between
    two disparities (PraFFL, eq. 2) of the model at the start of the round: on the node's training samples, and on those
    of all nodes. If a node has samples of one group only, the gap is the difference of the accuracies.

    A node submits the number of its training samples by label and group, and the number of them that the model assigns
    label 1. The coordinator learns these numbers. (The paper's server learns only sums, by secure aggregation.)

    Simplified: the paper's disparity compares two groups. A weight is limited to the range from 0 to 1e9 (the paper
    states no limits). For the local debiasing see `LocalFair` in p2pfl/policies/lft.py.

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not balanced.
        alpha: step size of the sample weights in the local debiasing; 0 disables it.
        updates: number of updates of the sample weights in a round; the epochs must be divisible by it.
        beta: the fairness budget: step size of the weights of nodes; 0 is LFT+FedAvg.
    """

    beta: float = 1.0

    under_privacy = refused_under_privacy("it submits counts of labels and groups on training data")

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
        return len(extras) == 1

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign the same mean to all. The state contains each node's weight, which its next submission repeats.

        Raises:
            ValueError: the groups or the weight in a submission are invalid.
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
    """Return each node's distance from the global disparity, or with one group from the accuracy; float64 [n]."""
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
    """Return the weight that a participant was assigned last, according to its submission.

    Raises:
        ValueError: the submission contains no valid weight.
    """
    weight = previous.get("weight")
    if weight is None or weight.shape != (1,) or weight.dtype != np.float64 or not 0 <= weight[0] <= MOST:
        raise ValueError(f"a submission has no weight from 0 to {MOST:.0e}")
    return float(weight[0])
