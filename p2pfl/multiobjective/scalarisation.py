"""Several objectives of one model: how a preference makes one loss of them, and the query for their gradients.

A task with objectives trains `scalarise(losses, preference)`. A policy that combines gradients itself, such as FedCMOO,
asks for all of them by `DifferentiateObjectives`. The functions work on torch tensors, but the module needs no torch: a
learner without it refuses the query by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from p2pfl._util.binding import build, choose
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters, PrivateParameters
from p2pfl.queries import Query

if TYPE_CHECKING:
    from torch import Tensor

LEAST_WEIGHT = 1e-6  # lower bound of a weight in a division
Scalarise = Callable[["Tensor", "Tensor"], "Tensor"]
"""Function (losses [..., m], weights [..., m]) -> [...]."""


def linear(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of weight times loss."""
    return (losses * weights).sum(-1)


@dataclass(frozen=True)
class SmoothTchebycheff:
    """Smooth maximum (1/gamma) log sum_i exp(gamma a_i); a_i is weight * loss, or with `divide` loss / weight.

    The product is that of Lin et al. 2024 ("Smooth Tchebycheff scalarization for multi-objective optimization", with mu
    = 1/gamma and the ideal point 0): a higher weight makes an objective count more. The quotient is PraFFL's (section
    5.2): a higher weight makes it count less. The result exceeds max a_i by at most (log m) / gamma.

    Attributes:
        gamma: more than 0; a higher value is nearer to the maximum.
        divide: divide by the weight; a weight below 1e-6 then counts as 1e-6.
    """

    gamma: float = 1.0
    divide: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.gamma < inf:
            raise ConfigurationError(f"task.scalarisation.gamma must be more than 0, and finite, got {self.gamma}")

    def __call__(self, losses: Tensor, weights: Tensor) -> Tensor:
        scaled = losses / weights.clamp_min(LEAST_WEIGHT) if self.divide else losses * weights
        return (self.gamma * scaled).logsumexp(-1) / self.gamma


def _linear() -> Scalarise:
    return linear


SCALARISATIONS: Mapping[str, Callable[..., Scalarise]] = {"linear": _linear, "tchebycheff": SmoothTchebycheff}


def scalarisation(table: Mapping[str, Any]) -> Scalarise:
    """Return the scalarisation of a table, for example { name = "tchebycheff", gamma = 10.0 }."""
    factory, options = choose("task.scalarisation", table, SCALARISATIONS)
    made: Scalarise = build("task.scalarisation", factory, options)
    return made


@dataclass(frozen=True)
class Objectives:
    """Objectives of a model, instead of a single loss. Nodes can only be stacked if their objectives are equal.

    Attributes:
        names: names of the m objectives in reports.
        losses: function (outputs [n, ...], targets [n, ...]) of a batch -> [m], lower is better. torch.func must be
            able to differentiate it. It may couple the samples, for example by differences between groups.
        scalarise: combines the losses to the one that is trained.
    """

    names: tuple[str, ...]
    losses: Callable[[Tensor, Tensor], Tensor]
    scalarise: Scalarise = linear


class ObjectiveGradients(NamedTuple):
    """Losses and gradients of a model on its node's data, with the node's preference.

    Attributes:
        preference: the node's own preference, [m]; it must not be sent.
        losses: of each objective on the training data, [m].
        gradients: of the losses, float32 [m, P]; 0 for values that are not trained.
    """

    preference: NDArray[np.float64]
    losses: NDArray[np.float64]
    gradients: NDArray[np.float32]


class DifferentiateObjectives(Query[ObjectiveGradients], frozen=True, gc=False):
    """Return losses and gradients of each objective on the node's training samples, with the node's preference."""

    name: ClassVar[str] = "slopes"
    hint: ClassVar[str] = "a task of several objectives that is trained along gradients"

    params: Parameters

    def complete(self, private: PrivateParameters) -> Self:
        return replace(self, params=private.whole(self.params))

    def restrict(self, result: ObjectiveGradients, private: PrivateParameters) -> ObjectiveGradients:
        return result._replace(gradients=np.array([private.layout.shared_of(gradient) for gradient in result.gradients]))
