"""pFedGraph: weights of the mean follow from the similarity of models and the numbers of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.clustering import Matrix, similarity
from p2pfl.algorithms.selection import fedavg
from p2pfl.multiobjective.preferences import nearest
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.cfl import layout_as_one
from p2pfl.policies.coordinated import CoordinatedFedAvg, apart, sender
from p2pfl.policy import Assignment, Extras, Me, ReportedStage, Submission, built_in, refused_under_privacy
from p2pfl.update_rules import Aligned, Rule

SAME = 0.9  # higher similarities count as 1, as in the authors' program


@built_in("pfedgraph")
@dataclass
class PFedGraph(CoordinatedFedAvg):
    """pFedGraph (Ye, Ni, Wu, Chen and Wang, "Personalized Federated Learning With Inferred Collaboration Graphs", ICML
    2023), run by the elected coordinator.

    Node i receives the mean of all models with the weights a that minimise `alpha ||a - p||^2 - sum_j a_j s_ij`. The
    weights are non-negative and sum to 1. p are the shares of the samples. s_ij is the cosine of the differences of
    models i and j from the common initial model. The solution is the point of the simplex nearest to `p + s_i / (2
    alpha)`. From the second round on, `weight (1 - cos(w, u))` is added to the local loss; u is the assigned mean.

    Simplified: u is the assigned mean; the paper adds a cosine for each other model. All values of a model are
    compared, as in the authors' program with the measure "all". Models that did not change have the similarity 0.

    Attributes:
        epochs, ft: see `fedavg`.
        reported_stage: the model that is reported; by default the one that the node trained from its mean.
        alpha: strength of the term that keeps the weights near the shares of samples.
        weight: lambda, the weight of the cosine in the local loss.
    """

    reported_stage: ReportedStage = "trained"
    alpha: float = 0.8
    weight: float = 0.01
    needs_start: ClassVar[bool] = True

    under_privacy = refused_under_privacy("its steps have a second term, which is not private yet")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < inf:
            raise ValueError(f"alpha must be above 0, and finite, got {self.alpha}")
        if not 0 <= self.weight < inf:
            raise ValueError(f"weight must be 0 or more, and finite, got {self.weight}")

    def _credible(self, extras: Extras, round: int) -> bool:
        return not extras

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign each node its own mean. The state is the common initial model, the `start` of first submissions.

        Raises:
            ValueError: neither the state nor any submission contains the initial model.
        """
        there = sorted(submissions, key=sender)
        initial = state.get("initial", next((s.start for s in there if s.start is not None), None))
        if initial is None:
            raise ValueError("no submission has the common initial model")
        alike = similarity([s.params for s in there], initial.astype(np.float64), layout_as_one(layout))
        shares = np.array(list(fedavg({s.sender: s.n_samples for s in there}).values()))
        return apart(there, graph(alike, shares, self.alpha)), {"initial": initial}

    def _start(self, me: Me) -> Parameters:
        return me.initial

    def _rule(self, me: Me) -> Rule | None:
        return Aligned(self.weight, me.params) if self.weight and me.round > 1 else None


def graph(alike: Matrix, shares: Matrix, alpha: float) -> Matrix:
    """Solve the quadratic programmes: return the weights of the models in each node's mean; [n, n], rows sum to 1.

    Args:
        alike: the cosines, [n, n].
        shares: p, [n].
        alpha: strength of the term that keeps the weights near `shares`.
    """
    counted = np.where(alike > SAME, 1.0, alike)
    return np.array([nearest(shares + row / (2 * alpha)) for row in counted])
