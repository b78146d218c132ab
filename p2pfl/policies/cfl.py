"""CFL: clusters with one model each. A cluster splits when its model has converged and its members have not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.clustering import Layer, Matrix, similarity, single_linkage
from p2pfl.algorithms.selection import fedavg
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.clusters import Cluster, credible, extras_of, gather, remember
from p2pfl.policies.coordinated import CoordinatedFedAvg, together
from p2pfl.policies.fedavg import planned_averages
from p2pfl.policy import Assignment, Extras, PlannedTraining, Submission, built_in


@built_in("cfl")
@dataclass
class Cfl(CoordinatedFedAvg):
    """Clustered federated learning (Sattler et al., "Clustered Federated Learning: Model-Agnostic Distributed Multitask
    Optimization under Privacy Constraints", 2019), run by the elected coordinator.

    The model of a cluster is the mean of its members, weighted by samples. A cluster is split if the norm of its mean
    update is below `epsilon_1` and the greatest norm of a member's update is above `epsilon_2` (the paper's two
    criteria). The split is the one with the smallest maximum cosine between updates of different parts (the paper's
    optimal bipartition).

    Simplified: there is no check of the gap between similarities before a split (the paper's gamma_max), and no tree of
    past models for newcomers. A newcomer joins the cluster whose updates are most similar to its own. An update is the
    difference from the model with which its sender began.

    Attributes:
        epochs, ft: see `fedavg`.
        epsilon_1, epsilon_2: see above.
        relative: whether both are fractions of the greatest norm seen: of a mean update, and of a member's update.
        warm_up: rounds before the first split.
        patience: number of consecutive rounds in which a cluster must meet the first criterion before it is split; 1 is
            the value of Sattler et al., FedPref's comparison (its table 10) has 1 or 2.
    """

    needs_start: ClassVar[bool] = True
    epsilon_1: float = 0.4
    epsilon_2: float = 0.6
    relative: bool = False
    warm_up: int = 0
    patience: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epsilon_1", "epsilon_2", "warm_up"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.patience < 1:
            raise ValueError(f"patience must be 1 or more, got {self.patience}")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return planned_averages(self, rounds)

    def _credible(self, extras: Extras, round: int) -> bool:
        return credible(extras, round)

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Split each cluster that meets the criteria, at most once, and average each part.

        Raises:
            ValueError: a submission has no `start`, and the state does not contain it.
        """
        parts = layout_as_one(layout)
        clusters = [c for cluster in gather(submissions, state, parts, 1.0) for c in self._divide(cluster, parts)]
        assignments: dict[str, Assignment] = {}
        for cluster in clusters:
            assignments |= together(cluster.submissions, extras_of(cluster))
        assignments = dict(sorted(assignments.items()))
        return assignments, remember(state, clusters, {id: a.params for id, a in assignments.items()})

    def similarities(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> list[tuple[list[str], Matrix]]:
        """Return the members of each cluster before the step, and the cosines of their updates, for reports."""
        parts = layout_as_one(layout)
        return [
            ([s.sender for s in cluster.submissions], _cosines(_updates(cluster), parts))
            for cluster in gather(submissions, state, parts, 1.0)
        ]

    def _divide(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> list[Cluster]:
        updates = _updates(cluster)
        shares = fedavg({s.sender: s.n_samples for s in cluster.submissions}).values()
        total = np.zeros(updates[0].shape)
        for share, update in zip(shares, updates, strict=True):
            total += share * update
        change = float(np.linalg.norm(total))
        most = max(float(np.linalg.norm(update.astype(np.float64))) for update in updates)
        seen = cluster.figures
        round = max(s.round for s in cluster.submissions)
        cluster.figures = seen._replace(round=round, change=max(seen.change, change), update=max(seen.update, most))
        settled = change < self.epsilon_1 * (cluster.figures.change if self.relative else 1.0)
        streak = seen.streak + 1 if settled else 0
        cluster.figures = cluster.figures._replace(streak=streak)
        torn = most > self.epsilon_2 * (cluster.figures.update if self.relative else 1.0)
        if not (streak >= self.patience and torn and cluster.divisible) or round <= self.warm_up:
            return [cluster]
        first, second = single_linkage(_cosines(updates, parts))
        return [cluster.part(first, cluster.name + "0"), cluster.part(second, cluster.name + "1")]


def _updates(cluster: Cluster) -> list[Parameters]:
    return [s.params - start for s, start in zip(cluster.submissions, cluster.starts, strict=True)]


def _cosines(updates: Sequence[Parameters], parts: Sequence[slice | Layer]) -> Matrix:
    return similarity(updates, np.zeros(updates[0].shape), parts)


def layout_as_one(layout: Layout) -> list[slice | Layer]:
    """Return the places of a model's trained values as one layer: CFL compares whole updates."""
    return [slice(0, sum(stop - start for _, start, stop, _ in layout.places if stop <= layout.n_trained))]
