"""pFedGraph: everyone averages with weights that follow from the similarity of models and the numbers of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.aggregation import fedavg
from p2pfl.algorithms.clustering import Matrix, similarity
from p2pfl.multiobjective.preferences import nearest
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.cfl import layout_as_one
from p2pfl.policies.coordinated import CoordinatedFedAvg, apart, sender
from p2pfl.policy import Assignment, Me, Stage, Submission
from p2pfl.update_rules import Aligned, Rule

SAME = 0.9  # similarities above this count as 1, as in the authors' program


@dataclass
class PFedGraph(CoordinatedFedAvg):
    """pFedGraph (Ye, Ni, Wu, Chen and Wang, "Personalized Federated Learning With Inferred Collaboration Graphs", ICML
    2023), run by the elected coordinator.

    Node i is given the mean of all models with the weights a that minimise `alpha ||a - p||^2 - sum_j a_j s_ij` among those
    that are not negative and sum to 1. Here p are shares of the samples, and s_ij is the cosine of what i and j have learned
    since the common initial model. The solution is the point of the simplex that is nearest to `p + s_i / (2 alpha)`. From
    the second round on a node trains with `weight (1 - cos(w, u))` added to its loss, u being what it was given.

    Simplified: u is the mean that was assigned; the paper adds up a cosine for each other model. All values of a model are
    compared, as in the authors' program with the measure "all". The similarity of nodes that learned nothing is 0.

    Attributes:
        epochs, ft: as of `fedavg`.
        reported_stage: by default what a node has trained from its mean.
        alpha: how strongly weights are held near the shares of samples.
        weight: lambda, of the cosine in the local loss.
    """

    reported_stage: Stage = "trained"
    alpha: float = 0.8
    weight: float = 0.01
    needs_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < inf:
            raise ValueError(f"alpha must be above 0, and finite, got {self.alpha}")
        if not 0 <= self.weight < inf:
            raise ValueError(f"weight must be 0 or more, and finite, got {self.weight}")

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Give each a mean of its own. The state is the common initial model, which first submissions bring as `start`.

        Raises:
            ValueError: it is neither in the state nor in any submission.
        """
        there = sorted(submissions, key=sender)
        initial = state.get("initial", next((s.start for s in there if s.start is not None), None))
        if initial is None:
            raise ValueError("no submission brings the common initial model")
        alike = similarity([s.params for s in there], initial.astype(np.float64), layout_as_one(layout))
        shares = np.array(list(fedavg({s.sender: s.n_samples for s in there}).values()))
        return apart(there, graph(alike, shares, self.alpha)), {"initial": initial}

    def _start(self, me: Me) -> Parameters:
        return me.initial

    def _rule(self, me: Me) -> Rule | None:
        return Aligned(self.weight, me.params) if self.weight and me.round > 1 else None


def graph(alike: Matrix, shares: Matrix, alpha: float) -> Matrix:
    """Return the weights of the models in each one's mean, the solutions of the quadratic programmes; [n, n], rows sum to 1.

    Args:
        alike: the cosines, [n, n].
        shares: p, [n].
    """
    counted = np.where(alike > SAME, 1.0, alike)
    return np.array([nearest(shares + row / (2 * alpha)) for row in counted])
