"""Training of a dense network with NumPy: the same batches and steps as TorchLearner, equal except for rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import NoReturn

import numpy as np

from p2pfl.algorithms.group_statistics import CountGroups
from p2pfl.errors import ConfigurationError, DivergenceError, MissingRequirementError
from p2pfl.learner import Learner, answers
from p2pfl.learning.dense.batch_order import occasion, orders
from p2pfl.learning.dense.dense_problem import DenseProblem
from p2pfl.learning.optimizers import SGD, at_round
from p2pfl.multiobjective.objective_gradients import DifferentiateObjectives
from p2pfl.parameters import Parameters
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.queries import Evaluate, Loss, Query, Split, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Descent, Rule, Steps, TrainSubset

KNOWN_RULES = (Descent, Steps, TrainSubset)


class DenseLearner(Learner):
    """Learner of a DenseTask. It supports the update rules Descent, Steps and TrainSubset.

    Raises:
        MissingRequirementError: the device is not the CPU.
    """

    def __init__(self, task: DenseProblem, draws: RandomStreams, device: str = "cpu") -> None:
        if device not in ("cpu", "auto"):
            raise MissingRequirementError(f"device {device!r} needs PyTorch: pip install 'p2pfl-node[torch]'")
        self.task = task
        self.draws = draws
        self._velocities: dict[str, np.ndarray] = {}  # of a lasting optimiser, by the occasion of the training

    @answers(Train, Rule)
    def _train(self, query: Train) -> Parameters:
        rule = query.rule
        if rule is not None and not isinstance(rule, KNOWN_RULES):
            _refuse(f"the policy's update rule {type(rule).__name__}")
        x, y = self.task.data["train"]
        optimizer, batch_size, epochs = at_round(self.task.optimizer, query.round), self.task.batch_size, query.epochs
        assert isinstance(optimizer, SGD)
        if isinstance(rule, Descent):
            optimizer, batch_size, epochs = SGD(rule.lr), len(x), 1
        elif isinstance(rule, Steps):
            epochs = 1
        params = query.params.copy()
        moves = self._moved_by(rule)
        velocity = self._first_velocity(optimizer, occasion(query))
        order = orders(self.draws, query.round, query.purpose, n=len(x), batch_size=batch_size, epochs=epochs)
        for index in islice(_batches(order, batch_size), rule.steps if isinstance(rule, Steps) else None):
            step = self.task.network.gradient(params, x[index], y[index], self.task.loss)
            if query.proximal is not None:
                mu, anchor = query.proximal
                step += np.float32(mu) * ((params - anchor) * self._shared)
            if optimizer.weight_decay:
                step += np.float32(optimizer.weight_decay) * params
            if velocity is not None:
                velocity *= np.float32(optimizer.momentum)
                velocity += step
                step = velocity
            params -= np.float32(optimizer.lr) * step * moves
        if not np.isfinite(params.sum()):
            raise DivergenceError(self.draws.name, query.round)
        if optimizer.lasting and velocity is not None and np.isfinite(velocity.sum()):
            self._velocities[occasion(query)] = velocity
        return params

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of what lasts from one training to the next: the velocity of SGD with `lasting`."""
        return {f"{purpose}/velocity": velocity.copy() for purpose, velocity in self._velocities.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state that `state` returned; see p2pfl.task.StatefulLearner."""
        for key, array in state.items():
            purpose, _, name = key.rpartition("/")
            if name != "velocity" or array.shape != (self.task.layout.size,):
                raise ConfigurationError(f"the optimiser's state {key!r} in the checkpoint belongs to another model")
            self._velocities[purpose] = array.astype(np.float32)

    @answers(Loss)
    def _losses(self, query: Loss) -> np.ndarray:
        split = query.split
        return np.array([self._figures_of(params, split).get(f"{split}_loss", np.nan) for params in query.stack])

    @answers(Evaluate)
    def _figures(self, query: Evaluate) -> list[dict[str, float]]:
        results: list[dict[str, float]] = []
        for params in query.stack:
            result: dict[str, float] = {}
            for split in query.splits:
                result |= self._figures_of(params, split)
            results.append(result)
        return results

    @answers(PredictionMixer, CountGroups, DifferentiateObjectives)
    def _unsupported(self, query: Query[object]) -> NoReturn:
        _refuse(f"the policy's query {type(query).__name__}")

    def _figures_of(self, params: Parameters, split: Split) -> dict[str, float]:
        if split not in self.task.data or not len(self.task.data[split][0]):
            return {}
        x, y = self.task.data[split]
        outputs = self.task.network.outputs(params, x)
        losses, _ = self.task.loss(outputs, y)
        found = {name: measure(outputs, y) for name, measure in self.task.measures.items()}
        return {f"{split}_{name}": value for name, value in {"loss": float(losses.mean()), **found}.items()}

    @cached_property
    def _shared(self) -> np.ndarray:
        """1 for each shared value and 0 for each private one; float32 [P]."""
        values = np.zeros(self.task.layout.size, np.float32)
        for part in self.task.layout.shared_slices:
            values[part] = 1
        return values

    def _moved_by(self, rule: Rule | None) -> np.ndarray | np.float32:
        """Return 1 for each value that a rule changes, and 0 for the others.

        Raises:
            ConfigurationError: the rule trains one part alone, but the model does not have both parts.
        """
        if not isinstance(rule, TrainSubset):
            return np.float32(1)
        if not self.task.layout.private:
            raise ConfigurationError(
                'the policy needs a model with a private and a shared part; for the task digits, set task.private = "head"'
                " to keep the last layer private"
            )
        return self._shared if rule.part == "shared" else 1 - self._shared

    def _first_velocity(self, optimizer: SGD, purpose: str) -> np.ndarray | None:
        if not optimizer.momentum:
            return None
        kept = self._velocities.get(purpose) if optimizer.lasting else None
        return np.zeros(self.task.layout.size, np.float32) if kept is None else kept.copy()


def _batches(order: list[np.ndarray] | list[None], batch_size: int) -> Iterator[slice | np.ndarray]:
    """Yield the indices of each step's samples from an order for each epoch; see `orders`."""
    for permutation in order:
        if permutation is None:
            yield slice(None)
        else:
            yield from (permutation[start : start + batch_size] for start in range(0, len(permutation), batch_size))


def _refuse(what: str) -> NoReturn:
    raise MissingRequirementError(f"{what} needs PyTorch: pip install 'p2pfl-node[torch]'")
