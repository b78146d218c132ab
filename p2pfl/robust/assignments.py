"""Limit on how far a coordinator's assignment moves a node.

A peer's model is clipped to the median distance of many peers' models (p2pfl.robust.median_clip). All assignments come
from one sender, which would also set their median. Their radius therefore contains nothing that the coordinator sends:
it is the length of the node's own training steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.robust.median_clip import lower_median

STEPS = 9  # training steps whose median is the radius


class AssignmentLimit:
    """Radius to which assignments are clipped, around the node's trained model.

    The radius is the lower median of the lengths of the node's last training steps, from the model with which a round
    began to the trained one. The mean of models that have trained equally long is about that far away. A node with
    fewer samples than most takes shorter steps than they do. Its radius grows by the ratio of the numbers of samples.
    A training that has changed nothing does not count.

    Attributes:
        steps: lengths of the last training steps, by their round modulo `STEPS`.
    """

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}

    def record(self, round: int, step: float) -> None:
        """Record the length of a training step of the node."""
        if step > 0:
            self.steps[str(round % STEPS)] = step

    @property
    def radius(self) -> float:
        """The radius for a node with as many samples as the median of its peers; 0 before the first step."""
        return lower_median(list(self.steps.values())) if self.steps else 0.0


def ratio_of(own: int, peers: Sequence[int]) -> float:
    """Return by how much longer the steps of most peers are than the own ones, at least 1.

    Args:
        own: the node's number of samples.
        peers: those that its peers claim; a minority of them cannot raise the median.
    """
    return max(1.0, lower_median(peers) / own) if own and peers else 1.0

