"""Losses and gradients of a model by objective."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from p2pfl.parameters import Parameters
from p2pfl.private_parameters import PrivateParameters
from p2pfl.queries import Query


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
        return result._replace(gradients=np.array([private.shared_of(gradient) for gradient in result.gradients]))
