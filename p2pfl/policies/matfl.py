"""MaTFL: each node averages with the peers that most layers of its model rank as most similar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.algorithms.clustering import Matrix, layers, similarity
from p2pfl.parameters import Layout
from p2pfl.policies.clusters import mean
from p2pfl.policies.coordinated import CoordinatedFedAvg, apart, sender
from p2pfl.policies.fedavg import planned_averages
from p2pfl.policy import Assignment, Extras, PlannedTraining, Submission, built_in


@built_in("matfl")
@dataclass
class MaTfl(CoordinatedFedAvg):
    """Many-task federated learning (Cai et al., "Many-Task Federated Learning: A New Problem Setting and A Simple
    Baseline", CVPR workshops 2023), in the form that FedPref compares with. The elected coordinator makes the step.

    Models are compared layer by layer, by the cosine of their differences from the mean of all. Each layer of a node's
    model votes for the `neighbours` other models most similar to it. The node averages with the `neighbours` that
    receive most votes. Ties go to the model with the higher mean similarity, then to the first by id. Weights are the
    mean similarities over layers, clipped at 0; the own weight is 1.

    Simplified: there is one model for all; the paper averages only a common backbone. A layer is a module: its weight
    and its bias together.

    Attributes:
        epochs, ft: see `fedavg`.
        neighbours: k, the maximum number of other nodes to average with.
    """

    neighbours: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be 1 or more, got {self.neighbours}")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return planned_averages(self, rounds)

    def _credible(self, extras: Extras, round: int) -> bool:
        return not extras

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign to each participant the mean with the models most similar to its own. It has no state."""
        there = sorted(submissions, key=sender)
        return apart(there, votes(_by_layer(there, layout), self.neighbours)), {}

    def similarities(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> list[tuple[list[str], Matrix]]:
        """Return all participants, and their mean similarities over the layers, for reports."""
        there = sorted(submissions, key=sender)
        average: Matrix = np.mean(_by_layer(there, layout), axis=0)
        return [([s.sender for s in there], average)]


def _by_layer(submissions: Sequence[Submission], layout: Layout) -> list[Matrix]:
    models = [s.params for s in submissions]
    reference = mean(models)
    return [similarity(models, reference, [part]) for part in layers(layout)]


def votes(by_layer: Sequence[Matrix], neighbours: int) -> Matrix:
    """Return the weights of the models in each node's mean; shape [n, n], rows sum to 1.

    Args:
        by_layer: the similarities in each layer, shape [n, n].
        neighbours: k, the maximum number of other models in a mean.
    """
    count = len(by_layer[0])
    average = np.mean(by_layer, axis=0)
    weights = np.eye(count)
    for i in range(count):
        others = np.array([j for j in range(count) if j != i], np.intp)
        ballot = np.zeros(count)
        for similarities in by_layer:
            ballot[others[np.argsort(-similarities[i, others], kind="stable")[:neighbours]]] += 1
        elected = sorted(others.tolist(), key=lambda j: (-ballot[j], -average[i, j], j))[:neighbours]
        weights[i, elected] = np.maximum(average[i, elected], 0.0)
    normalised: Matrix = weights / weights.sum(axis=1, keepdims=True)
    return normalised
