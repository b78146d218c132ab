"""Ways to train that are not steps along the gradient at the own model, for policies that need one (`Me.train`).

Where a part of the parameters is private (p2pfl.parameters.Layout), models that a rule names are of the shared part, float32
[S], and act on that alone. A learner gets them completed to [P].
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
        """What rules must have in common for their trainings to be computed together."""
        return type(self)

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        """Return the rule with the models that it names completed from [S] to [P] by `whole`."""
        return self


class Lookahead(Rule, frozen=True, gc=False):
    """Each step goes along the gradient at the model that one step of plain gradient descent would make.

    A batch is cut in two halves: the first makes that step, the gradient there is that of the second. (Of an odd number,
    the sample in the middle is in both.)

    Attributes:
        lr: of the step ahead.
    """

    lr: float


class Mixture(Rule, frozen=True, gc=False):
    """Trains v, so that `alpha * v + (1 - alpha) * shared` becomes better.

    The shared model is trained along, on the same batches, with ordinary steps: as `Me.train` trains it with the same
    `epochs` and `purpose`.

    Attributes:
        alpha: how much v counts.
        shared: the other model, as it is before; float32, shape [P]. Of a private part v's own values count alone.
    """

    alpha: float
    shared: Parameters

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, shared=whole(self.shared))


class Aligned(Rule, frozen=True, gc=False):
    """Adds `weight * (1 - cos(w, anchor))` to the loss: it holds the direction of a model, and not its length.

    Attributes:
        weight: of that term.
        anchor: float32, shape [P]; where it or the model is 0, there is no such term.
    """

    weight: float
    anchor: Parameters

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, anchor=whole(self.anchor))


class Descent(Rule, frozen=True, gc=False):
    """One step of plain gradient descent, on all training samples at once, in place of all epochs.

    Attributes:
        lr: of the step.
    """

    lr: float

    @property
    def batch_key(self) -> Any:
        return Descent, self.lr


class TrainSubset(Rule, frozen=True, gc=False):
    """Trains one part of the parameters, the shared or the private one; the other stays as it is.

    Attributes:
        part: which one is trained. (Float buffers, such as batch norm's running mean, follow the forward pass in any case.)
    """

    part: Literal["shared", "private"]

    @property
    def batch_key(self) -> Any:
        return TrainSubset, self.part


class Weighted(Rule, frozen=True, gc=False):
    """Each sample's loss counts by its label and group. The task must be one whose samples have groups
    (p2pfl.fairness.fair_task).

    Attributes:
        weights: float64, [2, A]: of label 0 and 1 in each of A groups.
    """

    weights: np.ndarray


class Scalarised(Rule, frozen=True, gc=False):
    """Trains the weighted objectives with these weights in place of the node's preference.

    Attributes:
        weights: float64, [m].
    """

    weights: np.ndarray
