"""FedPref: nodes with different preferences learn together, in clusters that split when their models diverge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from p2pfl.algorithms.clustering import Layer, Matrix, layers, similarity, spectral
from p2pfl.parameters import Layout
from p2pfl.policies.clusters import Cluster, credible, extras_of, gather, mean, remember
from p2pfl.policies.coordinated import CoordinatedFedAvg, apart
from p2pfl.policies.fedavg import planned_averages
from p2pfl.policy import Assignment, Extras, PlannedTraining, Submission, built_in


@built_in("fedpref")
@dataclass
class FedPref(CoordinatedFedAvg):
    """FedPref (Hartmann et al. 2024; Hartmann's dissertation, chapter 4), run by the elected coordinator.

    Participants submit their trained models and receive personal ones; preferences never leave a node. Equation and
    algorithm numbers refer to the dissertation. Its algorithm 5 does not contain the remarks in brackets.

    - Similarity (eq. 4.2 to 4.5): the mean over layers of the cosines of the `ratio` largest entries of the updates. An
      update is the difference from the cluster's mean after the previous aggregation. (A layer is a module: its weight
      and its bias together.)
    - Weights (algorithm 3): similarities below `min_similarity` are raised to it, and the result is rescaled to the
      range from 0 to 1; rows are normalised to sum to 1. (The text clips; the pseudo-code does not.)
    - Split (algorithms 4 and 5): if the mean of a cluster has moved by at most `epsilon`, spectral clustering cuts it
      in two, and each part aggregates from its own mean. (A cluster of two splits, a single node never does.)
    - Participants that miss a step are left out of it, and of both means. (In the paper all take part in every round.)

    The step's state contains each participant's cluster and assigned model. Submissions repeat the cluster. After a
    change of coordinator they also contain the model, from which the new coordinator rebuilds the same state, bit for
    bit.

    Attributes:
        epochs, ft: see `fedavg`; `replace-last` is FedPref+FT (line 23 of algorithm 5), without it FedPref-FT.
        ratio: R, the fraction of each layer's entries that the similarity compares; above 0, at most 1.
        min_similarity: s_min, from -1 to below 1.
        epsilon: a cluster has converged when the norm of the change of its mean is at most this value.
        relative: whether `epsilon` is a fraction of the greatest change that the cluster has seen.
        patience: number of consecutive rounds of convergence before a split; 1 is the value of the paper's pseudo-code.
        ramp_up: whether rounds count as convergence only after the cluster's mean has moved by more than `epsilon` in one
            round (with `relative`: has moved at all). Otherwise rounds before the learning starts count, too; a DQN that
            fills its buffer does not learn for two rounds. (The paper has `patience` for a slow start only.)
        affinity: affinity of two members in the clustering: `clipped` is max(s, 0), `shifted` is (s + 1) / 2.
        min_progress: split only while the greatest update of a member, from the cluster's mean (eq. 4.2), is at least
            this fraction of the greatest that the cluster has seen (after the second criterion of CFL). 0 is the
            paper's value; it splits until every node is alone, because clusters whose members agree also converge.
        min_members: a cluster with fewer members is not split; 2 is the paper's value.
        clustering: if off, no cluster is split ("weighted aggregation only" of the ablation, section 4.3.3).
        weighting: if off, clusters use their plain mean ("clustering only").
    """

    needs_start: ClassVar[bool] = True
    ratio: float = 0.5
    min_similarity: float = 0.0
    epsilon: float = 1.0
    relative: bool = False
    patience: int = 2
    ramp_up: bool = False
    affinity: Literal["clipped", "shifted"] = "clipped"
    min_progress: float = 0.0
    min_members: int = 2
    clustering: bool = True
    weighting: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {self.ratio}")
        if not -1 <= self.min_similarity < 1:
            raise ValueError(f"min_similarity must be from -1 to below 1, got {self.min_similarity}")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be 0 or more, got {self.epsilon}")
        if self.patience < 1:
            raise ValueError(f"patience must be 1 or more, got {self.patience}")
        if self.min_members < 2:
            raise ValueError(f"min_members must be 2 or more, got {self.min_members}")
        if not 0 <= self.min_progress <= 1:
            raise ValueError(f"min_progress must be from 0 to 1, got {self.min_progress}")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return planned_averages(self, rounds)

    def _credible(self, extras: Extras, round: int) -> bool:
        return credible(extras, round)

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Make the joint step (lines 5 to 21 of algorithm 5). For n submissions it takes n^2 work and n vectors of P.

        Raises:
            ValueError: a submission has no `start`, and the state does not contain it.
        """
        parts = layers(layout)
        clusters = [
            part
            for cluster in gather(submissions, state, parts, self.ratio)
            for part in self._divide(cluster, parts)  # lines 6 to 20: a cluster is split at most once per step
        ]
        assignments: dict[str, Assignment] = {}
        for cluster in clusters:
            assignments |= apart(cluster.submissions, self._weights(cluster, parts), extras_of(cluster))
        assignments = dict(sorted(assignments.items()))
        return assignments, remember(state, clusters, {id: a.params for id, a in assignments.items()})

    def similarities(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> list[tuple[list[str], Matrix]]:
        """Return the members of each cluster before the step, and the similarities used for splitting, for reports."""
        parts = layers(layout)
        return [self._similarity(cluster, parts) for cluster in gather(submissions, state, parts, self.ratio)]

    def _similarity(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> tuple[list[str], Matrix]:
        models = [s.params for s in cluster.submissions]
        ids = [s.sender for s in cluster.submissions]
        return ids, similarity(models, cluster.reference, parts, self.ratio)

    def _divide(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> list[Cluster]:
        """Record how far the mean has moved (lines 7 and 8), and split a converged cluster (lines 9 to 11)."""
        trained = [s.params for s in cluster.submissions]
        reference = cluster.reference
        change = float(np.linalg.norm(reference - mean(trained)))
        update = max(float(np.linalg.norm(model - reference)) for model in trained)
        seen = cluster.figures
        greatest, most = max(seen.change, change), max(seen.update, update)
        converged = change <= (self.epsilon * greatest if self.relative else self.epsilon)
        learning = greatest > (0.0 if self.relative else self.epsilon)
        streak = seen.streak + 1 if converged and (learning or not self.ramp_up) else 0
        round = max(s.round for s in cluster.submissions)
        cluster.figures = seen._replace(round=round, streak=streak, change=greatest, update=most)
        ready = self.clustering and streak >= self.patience and update >= self.min_progress * most
        if not (ready and cluster.divisible and len(trained) >= self.min_members):
            return [cluster]
        first, second = spectral(self._similarity(cluster, parts)[1], self.affinity)
        return [cluster.part(first, cluster.name + "0"), cluster.part(second, cluster.name + "1")]

    def _weights(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> Matrix:
        """Return the weights of members' models in each member's model (lines 3 to 9 of algorithm 3); shape [n, n]."""
        count = len(cluster.submissions)
        if not self.weighting:
            return np.full((count, count), 1 / count)
        return weights(self._similarity(cluster, parts)[1], self.min_similarity)


def weights(similarities: Matrix, least: float) -> Matrix:
    """Return (max(s, s_min) - s_min) / (1 - s_min), with rows normalised to sum to 1 (lines 5 and 9 of algorithm 3).

    The similarity of a node to itself is 1, so no row is 0: a node without similar peers keeps its own model.

    Args:
        similarities: shape [n, n], with ones on the diagonal.
        least: s_min, below 1.
    """
    raw = (np.maximum(similarities, least) - least) / (1.0 - least)
    normalised: Matrix = raw / raw.sum(axis=1, keepdims=True)
    return normalised
