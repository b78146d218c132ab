"""Base class of learners: one node's computations on its own data.

A learner answers queries (p2pfl.queries): a method marked with `answers` computes one kind of them. A query that knows
its own computation answers itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.queries import Evaluate, Loss, Query, R, Split, Train
from p2pfl.update_rules import Rule

Answer = TypeVar("Answer", bound=Callable[..., Any])


def answers(*operations: type) -> Callable[[Answer], Answer]:
    """Mark a method of a learner as the one that answers queries with these operations.

    Args:
        operations: types of queries, `p2pfl.update_rules.Rule` for `Train` with a rule, `p2pfl.update_rules.Mechanism` for
            a private one, and `p2pfl.prediction_mixing.PredictionMixer` for `Evaluate` with a memory; see
            `p2pfl.queries.Query.operation`.
    """

    def mark(method: Answer) -> Answer:
        method.operations = operations  # type: ignore[attr-defined]
        return method

    return mark


class Learner:
    """Base of learners, which answer queries. Pure: equal queries give equal results, regardless of earlier queries.

    A TorchLearner is not pure if its module changes state that a vector cannot carry; see
    p2pfl.learning.module_probe.Conduct.

    A subclass marks its methods with `answers` and answers at least `Train`, `Loss` and `Evaluate`. A query for which it has
    no method answers itself, if it can; see `p2pfl.queries.Query.answer`. The optimiser's
    state is discarded after each training, unless it is `lasting`. A learner that keeps state between trainings is not
    pure, and also implements `p2pfl.task.StatefulLearner`.
    """

    _methods: ClassVar[Mapping[type, str]] = {}  # names of the marked methods, by operation

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._methods = {
            operation: name
            for base in reversed(cls.__mro__)
            for name, method in vars(base).items()
            for operation in getattr(method, "operations", ())
        }

    def compute(self, query: Query[R]) -> R:
        """Return the answer to a query.

        Raises:
            ConfigurationError: the learner does not answer this query.
        """
        name = self._methods.get(query.operation)
        result: R = query.answer(self) if name is None else getattr(self, name)(query)
        return result

    def train(
        self,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
        rule: Rule | None = None,
    ) -> Parameters:
        """Return `params` after training; see `p2pfl.queries.Train`."""
        return self.compute(Train(params, round, epochs, proximal, purpose, rule))

    def loss(self, stack: Sequence[Parameters], *, split: Split = "validation") -> np.ndarray:
        """Return the mean loss of K models, [K]; see `p2pfl.queries.Loss`."""
        return self.compute(Loss(stack, split))

    def evaluate(
        self, stack: Sequence[Parameters], splits: Sequence[Split], memory: PredictionMixer | None = None
    ) -> list[dict[str, float]]:
        """Return the figures of K models by name; see `p2pfl.queries.Evaluate`."""
        return self.compute(Evaluate(stack, splits, memory))
