"""Limits on how far a coordinator's assignments move a node.

A peer's model is clipped to the median distance of many peers' models (p2pfl.robust.median_clip). All assignments come
from one sender, which would also set their median. Their radius therefore contains no distance of an assignment, neither
before nor after clipping. It is the length of the node's own training steps.

In the same way, the loss of an assignment is compared with the lowest loss with which the node has begun a round. The
node's own model is no measure: a coordinator can make it worse step by step, and an honest mean may be much worse for a
node than what it has trained itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from p2pfl.robust.median_clip import lower_median

STEPS = 9  # training steps of which the longest is the radius


class AssignmentLimits:
    """Limits on assignments, which follow from a node's own training and validation data.

    The radius is the length of the longest of the node's last training steps, from the model with which a round began to
    the trained one. The mean of models that have trained as long is about that far from the trained model, or nearer. A
    node that is moved by the radius in each round makes longer steps on its way back. As long as training does not
    overshoot, the radius grows by at most one undisturbed step in a round, and not with the distance of assignments.

    Attributes:
        steps: lengths of the last training steps, by their round modulo `STEPS`.
        best: the lowest loss of a model with which the node has begun a round.
    """

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self.best = inf

    def record_step(self, round: int, length: float) -> None:
        """Record a training step of the node."""
        self.steps[str(round % STEPS)] = length

    def record_start(self, loss: float) -> None:
        """Record the loss of the model with which a round began; NaN without validation data."""
        if loss < self.best:
            self.best = loss

    @property
    def radius(self) -> float:
        """The radius for a node with as many samples as most of its peers; 0 before the first step."""
        return max(self.steps.values(), default=0.0)


def ratio_of(own: int, peers: Sequence[int]) -> float:
    """Return by how much longer the steps of most peers are than the own ones, at least 1.

    A node with fewer samples takes shorter steps than its peers, and would not keep up with their mean.

    Args:
        own: the node's number of samples.
        peers: those that its peers claim; a minority of them cannot raise the median.
    """
    return max(1.0, lower_median(peers) / own) if own and peers else 1.0
