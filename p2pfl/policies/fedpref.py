"""FedPref: nodes that weigh objectives differently learn together, in clusters that split where they no longer agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from p2pfl.algorithms.clustering import Layer, Matrix, layers, similarity, spectral
from p2pfl.parameters import Layout
from p2pfl.policies.clusters import Cluster, credible, extras_of, gather, mean, remember
from p2pfl.policies.coordinated import CoordinatedFedAvg, apart
from p2pfl.policy import Assignment, Extras, Submission


@dataclass
class FedPref(CoordinatedFedAvg):
    """FedPref (Hartmann et al. 2024; Hartmann's dissertation, chapter 4), run by the elected coordinator.

    Participants submit their trained models and get personal ones back; preferences never leave a node. The equations and
    algorithms that are named here are those of the dissertation. Its algorithm 5 leaves out what is said in brackets.

    - Similarity (eq. 4.2 to 4.5): the mean over layers of the cosines of the `ratio` largest entries of the updates, which
      are taken from the cluster's mean after the aggregation before. (A layer is a module, weight and bias joined.)
    - Weights (algorithm 3): similarities below `min_similarity` are raised to it, and the rest is stretched to reach from 0
      to 1; rows are normalised to sum to 1. (The text clips; the pseudo-code does not.)
    - Split (algorithms 4 and 5): where the mean of a cluster has moved by at most `epsilon`, it is cut in two by spectral
      clustering, and each part aggregates from its own mean. (Two members split, one never does.)
    - Those who miss a step are left out of it, of both means too. (The paper has all participants in every round.)

    The step knows of each participant its cluster and the model it was assigned. Submissions say the cluster; after a
    change of coordinator they bring the model as well, from which the successor has the same state, bit for bit.

    Attributes:
        epochs, ft: as of `fedavg`; `replace-last` is FedPref+FT (line 23 of algorithm 5), without it FedPref-FT.
        ratio: R, the share of each layer's entries that the similarity compares; above 0, at most 1.
        min_similarity: s_min, from -1 to below 1.
        epsilon: the norm of the change of a cluster's mean, below which it has converged.
        relative: `epsilon` is a share of the greatest such change that the cluster has seen.
        patience: how many rounds in a row it must have converged before it is split; 1 is the paper.
        affinity: of two members in the clustering: `clipped` is max(s, 0), `shifted` is (s + 1) / 2.
        min_progress: split only while the greatest update of a member, from the cluster's mean (eq. 4.2), is at least this
            share of the greatest that the cluster has seen (after the second criterion of CFL). 0 is the paper, which goes
            on until every node is alone, as clusters whose members agree converge too.
        clustering: off: nothing is split ("weighted aggregation only" of the ablation, section 4.3.3).
        weighting: off: clusters take their plain mean ("clustering only").
    """

    needs_start: ClassVar[bool] = True
    ratio: float = 0.5
    min_similarity: float = 0.0
    epsilon: float = 1.0
    relative: bool = False
    patience: int = 2
    affinity: Literal["clipped", "shifted"] = "clipped"
    min_progress: float = 0.0
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
        if not 0 <= self.min_progress <= 1:
            raise ValueError(f"min_progress must be from 0 to 1, got {self.min_progress}")

    def _credible(self, extras: Extras, round: int) -> bool:
        return credible(extras, round)

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Lines 5 to 21 of algorithm 5. Work and memory are n^2 and n vectors of P for n submissions.

        Raises:
            ValueError: a submission lacks its `start`, and the state does not know it.
        """
        parts = layers(layout)
        clusters = [
            part
            for cluster in gather(submissions, state, parts, self.ratio)
            for part in self._divide(cluster, parts)  # line 6 to 20: no cluster is split twice in a step
        ]
        assignments: dict[str, Assignment] = {}
        for cluster in clusters:
            assignments |= apart(cluster.submissions, self._weights(cluster, parts), extras_of(cluster))
        assignments = dict(sorted(assignments.items()))
        return assignments, remember(state, clusters, {id: a.params for id, a in assignments.items()})

    def similarities(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> list[tuple[list[str], Matrix]]:
        """Return the members of each cluster before the step, and how alike they are: what it is split by; for reports."""
        parts = layers(layout)
        return [self._similarity(cluster, parts) for cluster in gather(submissions, state, parts, self.ratio)]

    def _similarity(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> tuple[list[str], Matrix]:
        models = [s.params for s in cluster.submissions]
        ids = [s.sender for s in cluster.submissions]
        return ids, similarity(models, cluster.reference, parts, self.ratio)

    def _divide(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> list[Cluster]:
        """Note how far the mean has moved (lines 7 and 8), and split the cluster where it has converged (line 9 to 11)."""
        trained = [s.params for s in cluster.submissions]
        reference = cluster.reference
        change = float(np.linalg.norm(reference - mean(trained)))
        update = max(float(np.linalg.norm(model - reference)) for model in trained)
        seen = cluster.figures
        greatest, most = max(seen.change, change), max(seen.update, update)
        converged = change <= (self.epsilon * greatest if self.relative else self.epsilon)
        streak = seen.streak + 1 if converged else 0
        round = max(s.round for s in cluster.submissions)
        cluster.figures = seen._replace(round=round, streak=streak, change=greatest, update=most)
        ready = self.clustering and streak >= self.patience and update >= self.min_progress * most
        if not (ready and cluster.divisible):
            return [cluster]
        first, second = spectral(self._similarity(cluster, parts)[1], self.affinity)
        return [cluster.part(first, cluster.name + "0"), cluster.part(second, cluster.name + "1")]

    def _weights(self, cluster: Cluster, parts: Sequence[slice | Layer]) -> Matrix:
        """Return the weights of a cluster's members in each one's model (lines 3 to 9 of algorithm 3); shape [n, n]."""
        count = len(cluster.submissions)
        if not self.weighting:
            return np.full((count, count), 1 / count)
        return weights(self._similarity(cluster, parts)[1], self.min_similarity)


def weights(similarities: Matrix, least: float) -> Matrix:
    """Return (max(s, s_min) - s_min) / (1 - s_min), its rows normalised to sum to 1 (lines 5 and 9 of algorithm 3).

    The own similarity being 1, no row is 0: who is like nobody keeps its own model.

    Args:
        similarities: shape [n, n], with ones on the diagonal.
        least: s_min, below 1.
    """
    raw = (np.maximum(similarities, least) - least) / (1.0 - least)
    normalised: Matrix = raw / raw.sum(axis=1, keepdims=True)
    return normalised
