"""PraFFL (Ye, Kou and Tang 2025): one training gives a model for every preference between performance and fairness.

A model consists of a communicated part psi, which nodes share and average, and a hypernetwork beta, which never leaves
its node. beta turns a preference into the head that completes psi. The policy decides how psi is averaged: in the paper
all clients have equal weight (eq. 14), with `coordinated-fedavg` they are weighted by samples.
p2pfl.fairness.praffl_model contains the parts, p2pfl.fairness.praffl_learner trains and evaluates them,
p2pfl.tasks.praffl provides the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from p2pfl.fairness.praffl_learner import PrafflLearner
from p2pfl.fairness.praffl_model import PrafflProblem, answer, spread
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import Solutions, non_dominated
from p2pfl.random_streams import RandomStreams


@dataclass
class PrafflTask(PrafflProblem):
    """One node of PraFFL; for its attributes see PrafflProblem."""

    def learner(self, draws: RandomStreams, device: str = "cpu") -> PrafflLearner:
        return PrafflLearner(self, draws, device)

    def model_for(self, params: Parameters, preference: Sequence[float]) -> nn.Sequential:
        """Return the model for a preference; see `answer`."""
        return answer(self.layout, params, preference)

    def solutions(self, params: Parameters) -> Solutions | None:
        """Return error and disparity on the test data for the preferences whose models are not dominated."""
        if "test" not in self.data or not len(self.data["test"].x):
            return None
        points = self.learner(RandomStreams(0, "")).points(params, "test")
        best, first = np.unique(points, axis=0, return_index=True)
        front = {tuple(point) for point in -non_dominated(-best)}
        chosen = [k for k in first if tuple(points[k]) in front]
        preferences = spread(self.training.measured).double().numpy()
        return Solutions({"error": False, "disparity": False}, preferences[chosen], points[chosen])
