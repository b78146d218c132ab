"""Tasks of a dense network and arrays, for nodes without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.learning.dense.dense_learner import DenseLearner
from p2pfl.learning.dense.dense_problem import DenseProblem
from p2pfl.random_streams import RandomStreams


@dataclass
class DenseTask(DenseProblem):
    """A task of a linear model or MLP that NumPy trains; for its attributes see DenseProblem."""

    def learner(self, draws: RandomStreams, device: str = "cpu") -> DenseLearner:
        return DenseLearner(self, draws, device)
