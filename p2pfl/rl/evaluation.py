"""Evaluation of learners in an environment: the return of the greedy policy, weighted by the node's preference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.learner import Learner, answers
from p2pfl.multiobjective.preferences import Preference
from p2pfl.parameters import Parameters
from p2pfl.queries import Evaluate, Loss


class JudgedByReturns(Learner):
    """Base of learners that answer `Loss` and `Evaluate` with returns.

    Args:
        names: names of the m objectives.
        preference: their weights, shape [m].
        metric: name of the scalarised return.
    """

    def __init__(self, names: Sequence[str], preference: Preference, metric: str) -> None:
        self._names = names
        self._preference = preference
        self._metric = metric

    @abstractmethod
    def returns(self, params: Parameters) -> NDArray[np.float64]:
        """Return the undiscounted sums of the rewards of the greedy policy, float64, [m]."""

    @answers(Loss)
    def _losses(self, query: Loss) -> np.ndarray:
        """Return minus the scalarised return of K greedy policies, in training and test; NaN for validation.

        There is no held-out environment: selecting the best round by the return would be selection on the test.
        """
        if query.split == "validation":
            return np.full(len(query.stack), np.nan)
        return np.array([-float(self.returns(params) @ self._preference) for params in query.stack])

    @answers(Evaluate)
    def _figures(self, query: Evaluate) -> list[dict[str, float]]:
        """Return the scalarised return and that of each objective, except for validation."""
        results = []
        for params in query.stack:
            returns = self.returns(params)
            reward = float(returns @ self._preference)
            each = dict(zip(self._names, returns.tolist(), strict=True))
            figures: dict[str, float] = {"loss": -reward, self._metric: reward, **each}
            asked = [split for split in query.splits if split != "validation"]
            results.append({f"{split}_{name}": value for split in asked for name, value in figures.items()})
        return results
