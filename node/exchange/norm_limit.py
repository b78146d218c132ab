"""Refusal of peers' models that are so large that averaging with them would make this node's model useless."""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.protocols.errors import ProtocolError

LARGEST_RATIO = 1000.0  # maximum ratio of the norm of a peer's model to that of this node's models


class NormLimit:
    """Limit of the norm of peers' models.

    Attributes:
        own: greatest norm of this node's models.
    """

    def __init__(self) -> None:
        self.own = 0.0

    def note(self, params: Parameters) -> None:
        """Record the norm of one of this node's models."""
        self.own = max(self.own, norm(params))

    def check(self, params: Parameters) -> None:
        """Raise ProtocolError for a peer's model that is too large."""
        if norm(params) > LARGEST_RATIO * (1.0 + self.own):
            raise ProtocolError("too large", f"a model with the norm {norm(params):.3g}; this node's has {self.own:.3g}")


def norm(params: Parameters) -> float:
    """Return the Euclidean norm."""
    with np.errstate(over="ignore"):
        square = float(np.dot(params, params))
    return sqrt(square) if isfinite(square) else float(np.linalg.norm(params.astype(np.float64)))
