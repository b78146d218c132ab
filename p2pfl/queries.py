"""Queries: computations on one node's model and data, as values. A policy asks, a learner answers.

The node's trainer, the simulator's batcher and its worker processes pass a query on without looking into it. A new
operation therefore needs a struct, typed by its result, and an answer. An answer that follows from those to other queries
belongs to the struct, as its method `answer`; every learner then gives it. An answer that needs the model and the data is
one method in each learner that gives it (see p2pfl.learner):

    class Count(Query[int], frozen=True, gc=False):
        name: ClassVar[str] = "count"
        params: Parameters

    class MyLearner(TorchLearner):
        @answers(Count)
        def count(self, query: Count) -> int: ...

    found = await me.compute(Count(me.params))  # in a policy
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters, PrivateParameters, weighted_mean
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.robust.candidates import Combined, MergeRule, combine
from p2pfl.robust.clipping import Clipped, clip_models
from p2pfl.update_rules import Mechanism, Rule

R = TypeVar("R")

Split = Literal["train", "validation", "test"]
"""Part of a node's data."""

PLAIN = Rule()  # the step along the gradient, which a training without a rule makes


class Query(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Base of all queries; R is the type of the result. A value: never write into it.

    A policy passes models as their shared values, [S]; a learner receives them completed to [P].

    Attributes:
        name: the name of the operation in reports. The simulator computes queries with the same name together.
        hint: the kind of task that this query needs, for the error of a learner that does not answer it.
        passes: passes over the training data, for which the simulator charges the node's time.
        urgent: whether the caller waits for the result. If not, the simulator computes it with the next trainings.
        needs_data: whether the answer depends on the node's data. If not, any process may answer.
    """

    name: ClassVar[str]
    hint: ClassVar[str] = ""
    urgent: ClassVar[bool] = True
    needs_data: ClassVar[bool] = True

    @property
    def operation(self) -> type:
        """Type that a learner passes to `p2pfl.learner.answers` to answer this query."""
        return type(self)

    @property
    def passes(self) -> int:
        return 0

    @property
    def reads(self) -> Split | Literal[""]:
        """The node's data that the answer tells about, besides a training; "" for none. See p2pfl.privacy."""
        return "train" if self.needs_data else ""

    def complete(self, private: PrivateParameters) -> Self:
        """Return the query with its models completed from [S] to [P]."""
        return self

    def restrict(self, result: R, private: PrivateParameters) -> R:
        """Return the result as a policy sees it: models and gradients reduced to the shared values, [S]."""
        return result

    def answer(self, learner: Answering) -> R:
        """Return the answer of a learner that has no method for this operation.

        Raises:
            ConfigurationError: the operation needs such a method.
        """
        asked, operation = type(self).__name__, self.operation.__name__
        variant = "" if operation == asked else f" with a {operation}"
        needed = f"; the policy needs {self.hint}" if self.hint else ""
        raise ConfigurationError(f"{type(learner).__name__} does not support {asked}{variant}{needed}")

    @classmethod
    def answer_together(cls, queries: Sequence[Self], nodes: AnsweringTogether) -> Sequence[R] | None:
        """Return the answers of several nodes with the bits of single answers; None to answer them one by one."""
        return None


class Answering(Protocol):
    """Learner as a query sees it that computes itself: it answers other queries."""

    def compute(self, query: Query[R]) -> R: ...


class AnsweringTogether(Protocol):
    """Learners as queries see them that are computed together: they answer one other query each."""

    def select(self, models: Sequence[Parameters]) -> tuple[np.ndarray, Sequence[int]]:
        """Return an array that contains all given models as rows, and the row of each."""

    def parts(self) -> Iterator[tuple[list[int], Losses | None]]:
        """Yield parts of the queries, by their numbers, that are to be answered one part after another.

        With each comes the function that computes validation losses on their nodes; None if the nodes have no such data.
        """


Losses = Callable[[Sequence[int], np.ndarray], Sequence[float]]
"""(queries, models) -> losses: validation losses of R models, float32 [R, P], each on the node of one of the queries."""


class Train(Query[Parameters], frozen=True, gc=False):
    """Return `params` after `epochs` passes over the training data.

    Attributes:
        round: the node's round; together with `purpose` it selects the random draws.
        proximal: (mu, anchor) adds mu/2 ||w - anchor||^2 to the loss. w are the shared values: the private values of
            `anchor` are ignored.
        rule: another update rule than the gradient at the model; see p2pfl.update_rules.
        mechanism: makes the steps private; the node sets it if it has a privacy budget.

    Raises:
        DivergenceError: the training produces values that are not finite.
    """

    name: ClassVar[str] = "train"
    hint: ClassVar[str] = "a task that is trained along gradients, such as a TorchTask"

    params: Parameters
    round: int
    epochs: int = 1
    proximal: tuple[float, Parameters] | None = None
    purpose: str = "train"
    rule: Rule | None = None
    mechanism: Mechanism | None = None

    @property
    def operation(self) -> type:
        if self.mechanism is not None:  # only of learners that know it: others would train without noise
            return Mechanism
        return Train if self.rule is None else Rule

    @property
    def passes(self) -> int:
        return self.epochs

    def samples(self, n_samples: Any, batch_size: int = 0) -> Any:
        """Return how many samples the training takes, repeated ones included; see `p2pfl.update_rules.Rule.samples`."""
        return (PLAIN if self.rule is None else self.rule).samples(self.epochs, n_samples, batch_size)

    def complete(self, private: PrivateParameters) -> Self:
        return replace(
            self,
            params=private.whole(self.params),
            proximal=None if self.proximal is None else (self.proximal[0], private.whole(self.proximal[1])),
            rule=None if self.rule is None else self.rule.complete(private.whole),
        )

    def restrict(self, result: Parameters, private: PrivateParameters) -> Parameters:
        return private.keep(result)


class Mean(Query[Parameters], frozen=True, gc=False):
    """Return the sum of weights[k] * models[k]; see `p2pfl.parameters.weighted_mean`."""

    name: ClassVar[str] = "mean"
    needs_data: ClassVar[bool] = False

    models: Sequence[Parameters]
    weights: Sequence[float]

    def answer(self, learner: Answering) -> Parameters:
        return weighted_mean(self.models, self.weights)


class Combine(Query[Combined], frozen=True, gc=False):
    """Return the merge of models under a robust rule; see `p2pfl.robust.candidates.combine`.

    Attributes:
        models: K vectors of shape [P], in an order that does not depend on their arrival.
        weights: the policy's weights.
        own: place of the node's own model.
        losses: of each model on the own data; None unless the rule needs them.
    """

    name: ClassVar[str] = "combine"
    needs_data: ClassVar[bool] = False

    models: Sequence[Parameters]
    weights: Sequence[float]
    rule: MergeRule
    own: int = 0
    losses: Sequence[float] | None = None

    def answer(self, learner: Answering) -> Combined:
        return combine(self.rule, self.models, self.weights, own=self.own, losses=self.losses)


class CombineParts(Query[list[Combined]], frozen=True, gc=False):
    """Return the merges of the parts of a model, each of the own part and of fragments of peers.

    Attributes:
        models: of each part, K vectors of shape [p], in an order that does not depend on their arrival.
        weights: of each part, K weights with the sum 1.
        own: of each part, the place of the own one.
        rule: the robust rule, which must be coordinate-wise; None for weighted means.
    """

    name: ClassVar[str] = "combine-parts"
    needs_data: ClassVar[bool] = False

    models: Sequence[Sequence[Parameters]]
    weights: Sequence[Sequence[float]]
    own: Sequence[int]
    rule: MergeRule | None = None

    def answer(self, learner: Answering) -> list[Combined]:
        parts = zip(self.models, self.weights, self.own, strict=True)
        if self.rule is None:
            return [Combined(weighted_mean(models, weights), weights) for models, weights, _ in parts]
        return [combine(self.rule, models, weights, own=own) for models, weights, own in parts]


class Clip(Query[Clipped], frozen=True, gc=False):
    """Return how received models are clipped to the median distance; see `p2pfl.robust.clipping.clip_models`.

    Attributes:
        models: the own model, then the received ones; float32, [P] each.
        initial: the common initial model, [P].
        known: the latest known distances of the peers that have sent none of these models.
        samples: the number of samples of each sender, if models are weighted by them.
    """

    name: ClassVar[str] = "clip"
    needs_data: ClassVar[bool] = False

    models: Sequence[Parameters]
    initial: Parameters
    known: Sequence[float] = ()
    samples: Sequence[int] = ()

    def answer(self, learner: Answering) -> Clipped:
        return clip_models(self.models, self.initial, self.known, self.samples)


class Loss(Query[np.ndarray], frozen=True, gc=False):
    """Return the mean loss of K models; float64, shape [K]; NaN if the node has no data in the split."""

    name: ClassVar[str] = "loss"

    stack: Sequence[Parameters]
    split: Split = "validation"

    @property
    def reads(self) -> Split:
        return self.split

    def complete(self, private: PrivateParameters) -> Self:
        return replace(self, stack=[private.whole(params) for params in self.stack])


class Evaluate(Query[list[dict[str, float]]], frozen=True, gc=False):
    """Return for each of K models {"<split>_loss": ..., "<split>_<metric>": ...}.

    Attributes:
        memory: the classifier or ensemble to mix the predictions with; see p2pfl.prediction_mixing.
    """

    name: ClassVar[str] = "evaluate"
    hint: ClassVar[str] = "a task whose models have features and logits, such as a TorchTask"
    urgent: ClassVar[bool] = False

    stack: Sequence[Parameters]
    splits: Sequence[Split]
    memory: PredictionMixer | None = None

    @property
    def operation(self) -> type:
        return Evaluate if self.memory is None else PredictionMixer

    def complete(self, private: PrivateParameters) -> Self:
        return replace(
            self,
            stack=[private.whole(params) for params in self.stack],
            memory=None if self.memory is None else self.memory.complete(private.whole),
        )


class NodeQuery(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A query to the learner of one of many nodes.

    Attributes:
        node: the node's index, from 0.
    """

    node: int
    query: Query[R]
