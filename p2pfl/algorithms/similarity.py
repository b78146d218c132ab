"""Similarity of two models (Listo Zec et al., "On the effects of similarity metrics in decentralized deep learning
under distributional shift", section 3). Each function compares one node's model with K other models; greater is more
similar. The result is always finite; an undefined value is 0, which counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.parameters import Parameters

Scores = NDArray[np.float64]
EPSILON = 1e-6  # keeps the inverses finite
RANGES = {
    "cosine-weights": (-1.0, 1.0),
    "cosine-gradients": (-1.0, 1.0),
    "l2": (0.0, 1 / EPSILON),
    "inverse-loss": (0.0, 1 / EPSILON),
}
"""The lowest and the highest value of each measure."""


def inverse_loss(losses: ArrayLike) -> Scores:
    """Return 1 / (L + 1e-6), with the mean loss L of each model; 0 if L is negative or not finite; shape [K].

    The paper writes the sum of the losses; the mean reproduces its table.
    """
    return _inverse(np.asarray(losses, np.float64))


def inverse_l2(own: Parameters, others: Sequence[Parameters]) -> Scores:
    """Return 1 / (||w_i - w_j|| + 1e-6); shape [K]."""
    return _inverse(np.array([np.linalg.norm(other.astype(np.float64) - own) for other in others], np.float64))


def cosine_weights(own: Parameters, others: Sequence[Parameters]) -> Scores:
    """Return w_i . w_j / (||w_i|| ||w_j||), 0 if a norm is 0; shape [K]."""
    return _cosine(own.astype(np.float64), [other.astype(np.float64) for other in others])


def cosine_gradients(own: Parameters, others: Sequence[Parameters], initial: Parameters) -> Scores:
    """Return the cosine of the differences from the common initial model, w - w_0 (eq. 5); shape [K]."""
    return _cosine(own.astype(np.float64) - initial, [other.astype(np.float64) - initial for other in others])


def _inverse(values: NDArray[np.float64]) -> Scores:
    usable = np.isfinite(values) & (values >= 0)
    return np.where(usable, 1.0 / (np.where(usable, values, 0.0) + EPSILON), 0.0)


def _cosine(own: NDArray[np.float64], others: Iterable[NDArray[np.float64]]) -> Scores:
    # float64, so that the sum of squares cannot overflow for any float32 model.
    length = sqrt(own @ own)
    pairs = [(float(other @ own), length * sqrt(other @ other)) for other in others]
    return np.array([product / norms if 0 < norms < inf else 0.0 for product, norms in pairs])
