"""Update rules other than a step along the gradient at the node's own model, for policies that need one (`Me.train`).

If a part of the parameters is private (p2pfl.parameters.Layout), the models in a rule contain the shared part only,
float32 [S], and the rule affects that part only. A learner receives them completed to [P].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl.parameters import Parameters


class Rule(msgspec.Struct, frozen=True, gc=False):
    """Base of all rules."""

    @property
    def batch_key(self) -> Any:
        """Key of rules whose trainings can be computed together: it must be equal."""
        return type(self)

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        """Return the rule with its models completed from [S] to [P] by `whole`."""
        return self

    def samples(self, epochs: int, n_samples: Any, batch_size: int) -> Any:
        """Return how many samples a training with this rule takes, repeated ones included.

        Args:
            n_samples: training samples of a node, or of each of several nodes, int64 [N].
            batch_size: samples of a step; 0 if the task has no batches.
        """
        return epochs * n_samples


class EdgeNoise(msgspec.Struct, frozen=True, gc=False):
    """Noise that a simulated node and its neighbours add with opposite signs; see p2pfl.correlated_noise.

    Attributes:
        others: names of the neighbours, sorted.
        scale: standard deviation of the noise of an edge, divided by that of the node's own noise.
    """

    others: tuple[str, ...]
    scale: float


class SecretEdge(msgspec.Struct, frozen=True, gc=False):
    """Noise that a node on a machine and one neighbour add with opposite signs; see p2pfl.node.edge_noise.

    Attributes:
        key: secret of both from which it is drawn in one training, 32 bytes.
        scale: its standard deviation, divided by that of the node's own noise.
        adds: whether this node adds it; the neighbour then subtracts it.
    """

    key: bytes
    scale: float
    adds: bool

    def __repr__(self) -> str:  # without the key
        return f"SecretEdge(scale={self.scale!r}, adds={self.adds!r})"


class Mechanism(msgspec.Struct, frozen=True, gc=False):
    """Steps along clipped gradients with noise, instead of the gradient of a batch; see p2pfl.privacy.

    Attributes:
        clip: greatest norm of the gradient of a sample.
        noise: standard deviation of the node's own noise in each value of the sum of these gradients, divided by `clip`.
        key: secret from which the samples and the noise of this training are drawn, 32 bytes; b"" in a simulation, which
            draws them from its seed.
        edges: the noise that it shares with neighbours: of all of them in a simulation, of each on a machine; None for
            none.
    """

    clip: float
    noise: float
    key: bytes = b""
    edges: EdgeNoise | tuple[SecretEdge, ...] | None = None

    def __repr__(self) -> str:  # without the key
        return f"Mechanism(clip={self.clip!r}, noise={self.noise!r})"


class Lookahead(Rule, frozen=True, gc=False):
    """Step along the gradient at the model that one step of plain gradient descent would give.

    A batch is split into two halves: the first half makes that step, the second half gives the gradient there. If the
    number of samples is odd, the middle sample is in both halves.

    Attributes:
        lr: learning rate of the step ahead.
    """

    lr: float


class Mixture(Rule, frozen=True, gc=False):
    """Train v so that `alpha * v + (1 - alpha) * shared` improves.

    The shared model is trained on the same batches with ordinary steps, as `Me.train` trains it with the same `epochs`
    and `purpose`.

    Attributes:
        alpha: the weight of v.
        shared: the other model before the training; float32, shape [P]. For private parts only v's own values count.
    """

    alpha: float
    shared: Parameters

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, shared=whole(self.shared))


class Envelope(Rule, frozen=True, gc=False):
    """Step along the gradient of the Moreau envelope of a batch's loss f: min over v of f(v) + weight/2 ||v - w||^2.

    The gradient is `weight * (w - v)` at the minimum v, which `steps` steps of plain gradient descent from w approach.

    Attributes:
        weight: lambda.
        lr: learning rate of these steps.
        steps: their number, on the same batch.
    """

    weight: float
    lr: float
    steps: int

    @property
    def batch_key(self) -> Any:
        return Envelope, self.steps

    def samples(self, epochs: int, n_samples: Any, batch_size: int) -> Any:
        return epochs * self.steps * n_samples


class Between(Rule, frozen=True, gc=False):
    """Train v = low + w * (high - low), with one weight w from 0 to 1 for each value: steps along the gradient at w.

    In terms of v it is a plain step along the gradient at v times (high - low)^2, after which v is put back between the
    two models.

    Attributes:
        low: float32, shape [P]; likewise `high`. Values in which they agree do not change.
        lr: learning rate of the weights.
    """

    low: Parameters
    high: Parameters
    lr: float

    @property
    def batch_key(self) -> Any:
        return Between, self.lr

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, low=whole(self.low), high=whole(self.high))


class Aligned(Rule, frozen=True, gc=False):
    """Add `weight * (1 - cos(w, anchor))` to the loss: the term constrains a model's direction, not its length.

    Attributes:
        weight: the weight of the term.
        anchor: float32, shape [P]; if it or the model is 0, the term is omitted.
    """

    weight: float
    anchor: Parameters

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, anchor=whole(self.anchor))


class Descent(Rule, frozen=True, gc=False):
    """Make one step of plain gradient descent on all training samples at once, instead of all epochs.

    Attributes:
        lr: learning rate of the step.
    """

    lr: float

    @property
    def batch_key(self) -> Any:
        return Descent, self.lr

    def samples(self, epochs: int, n_samples: Any, batch_size: int) -> Any:
        return n_samples


class Steps(Rule, frozen=True, gc=False):
    """Make at most this number of steps, instead of all epochs: on the first batches of a random order of the samples.

    A node with fewer batches than steps trains on each of them once.

    Attributes:
        steps: number of steps.
    """

    steps: int

    @property
    def batch_key(self) -> Any:
        return Steps, self.steps

    def samples(self, epochs: int, n_samples: Any, batch_size: int) -> Any:
        least = np.minimum(self.steps * batch_size, n_samples) if batch_size else n_samples
        return int(least) if isinstance(n_samples, int) else least


class TrainSubset(Rule, frozen=True, gc=False):
    """Train one part of the parameters, the shared or the private one; the other part does not change.

    Attributes:
        part: the part to train. (Float buffers, for example batch norm's running mean, always follow the forward pass.)
    """

    part: Literal["shared", "private"]

    @property
    def batch_key(self) -> Any:
        return TrainSubset, self.part


class Weighted(Rule, frozen=True, gc=False):
    """Weight each sample's loss by its label and group. The task's samples must have groups (p2pfl.fairness.fair_task).

    Attributes:
        weights: float64, [2, A]: for labels 0 and 1 in each of A groups.
    """

    weights: np.ndarray


class Scalarised(Rule, frozen=True, gc=False):
    """Train the objectives with these weights instead of the node's preference.

    Attributes:
        weights: float64, [m].
    """

    weights: np.ndarray
