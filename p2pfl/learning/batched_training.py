"""Training steps of many models of one architecture, each along its own gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from p2pfl.learning.kernels.batched_gradient import BatchedGradient
from p2pfl.learning.optimizers import Optimizer, State
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.rule_gradients import Rows, follow, resting
from p2pfl.queries import Train


class StackedTraining:
    """Training of K models. A step trains the models that have a batch of one size left.

    Args:
        queries: one for each model. All or none have a `proximal`, and all rules have the same `batch_key`.
        start: the initial models, [K, P]; not modified.
        models: memory for the trained models, [K, P].
        n_trained: number of trained values of a model, from the start of the vector.
        kernel: computes the gradients.
        optimizer: the common optimiser, for at most `steps` steps.
        weights: weights of each model's objectives, [K, m]; None without objectives.
        shared: see p2pfl.learning.rule_gradients.shared_values.
        generators: those of the models, if the kernel draws random numbers.
        state: the state of the optimiser at the start, [K, n] or [K, 1]; changed in place. By default a new one.
        other_state: see p2pfl.learning.rule_gradients.follow.

    Attributes:
        state: the state of the optimiser after the steps so far.
        models: the models after the steps so far, [K, P]; undefined before the first step.
    """

    def __init__(
        self,
        queries: Sequence[Train],
        start: Tensor,
        models: Tensor,
        *,
        n_trained: int,
        kernel: BatchedGradient,
        optimizer: Optimizer,
        steps: int,
        weights: Tensor | None,
        shared: Tensor | None,
        generators: RowGenerators | None = None,
        state: State | None = None,
        other_state: State | None = None,
    ) -> None:
        rules, device = [query.rule for query in queries], start.device
        self.models = models
        self._start = start
        self._fresh = True  # `models` is still empty
        self._n = n_trained
        self._kernel = kernel
        self._generators = generators
        self._optimizer = optimizer
        self._weights = weights
        self.state = optimizer.start(start[:, :n_trained], steps) if state is None else state
        self._following = follow(rules, start[:, :n_trained], optimizer, steps, shared, other_state=other_state)
        self._still = resting(rules[0], shared)
        self._rest = None if self._still is None else start[:, self._still]
        self._anchors: Tensor | None = None
        if pairs := [query.proximal for query in queries if query.proximal is not None]:
            self._anchors = torch.from_numpy(np.array([anchor for _, anchor in pairs])).to(device)[:, :n_trained]
            mu = torch.tensor([mu for mu, _ in pairs], device=device).unsqueeze(1)
            self._mu = mu if shared is None else mu * shared

    def step(self, rows: Rows, x: Tensor, y: Tensor) -> None:
        """Train the models of k rows on one batch each: x and y of [k, b, ...]."""
        n, start = self._n, self._start
        whole = len(x) == len(start)
        if self._fresh and not (whole and n == start.shape[1]):
            self.models.copy_(start)
            self._fresh = False
        part = start if self._fresh else self.models[rows]
        if self._generators is None:
            gradient = self._gradient(part, rows, x, y)
        else:
            places = range(len(start))[rows] if isinstance(rows, slice) else rows.tolist()
            with self._generators.drawing(places):
                gradient = self._gradient(part, rows, x, y)
        states = {name: tensor[rows] for name, tensor in self.state.items()}
        if whole:
            self._optimizer.step(part[:, :n], gradient, states, self.models[:, :n])
            self._hold(self.models, rows)
            self._fresh = False
            return
        self._optimizer.step(part[:, :n], gradient, states, part[:, :n])
        self._hold(part, rows)
        if not isinstance(rows, slice):  # `part` and `states` are copies in this case
            self.models[rows] = part
            for name, tensor in states.items():
                self.state[name][rows] = tensor

    def _gradient(self, part: Tensor, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        n, own = self._n, None if self._weights is None else self._weights[rows]

        def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._kernel.gradient(torch.cat([point, part[:, n:]], 1) if n < part.shape[1] else point, x, y, own)

        if self._following is None:
            gradient = self._kernel.gradient(part, x, y, own)
        else:
            gradient = self._following(slope, part[:, :n], x, y, rows)
        if self._anchors is not None:
            gradient.add_(self._mu[rows] * (part[:, :n] - self._anchors[rows]))
        return gradient

    def _hold(self, models: Tensor, rows: Rows) -> None:
        """Restore the values of models [k, P] that the rule does not change."""
        if self._still is not None and self._rest is not None:
            models[:, self._still] = self._rest[rows]
