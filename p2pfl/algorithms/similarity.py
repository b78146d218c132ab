"""Similarity of two models (Listo Zec et al., "On the effects of similarity metrics in decentralized deep learning
under distributional shift", section 3). Each function compares one node's model with K other models; greater is more
similar. The result is always finite; an undefined value is 0, which counts as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.parameters import Parameters
from p2pfl.queries import Query

Scores = NDArray[np.float64]
RowsOf = Callable[[Sequence[Parameters]], tuple[NDArray[np.float32], Sequence[int]]]
EPSILON = 1e-6  # keeps the inverses finite
MOST_VALUES = 2**22  # of different models that are all compared together: 32 MiB
PART = 2**19  # values of models that are compared together if there are more: 4 MiB, which fit into the cache
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
    return compare(CompareModels("l2", own, others))


def cosine_weights(own: Parameters, others: Sequence[Parameters]) -> Scores:
    """Return w_i . w_j / (||w_i|| ||w_j||), 0 if a norm is 0; shape [K]."""
    return compare(CompareModels("cosine-weights", own, others))


def cosine_gradients(own: Parameters, others: Sequence[Parameters], initial: Parameters) -> Scores:
    """Return the cosine of the differences from the common initial model, w - w_0 (eq. 5); shape [K]."""
    return compare(CompareModels("cosine-gradients", own, others, initial))


class CompareModels(Query[Scores], frozen=True, gc=False):
    """Return the similarity of one node's model to K others; float64 [K].

    Attributes:
        measure: the function of this module: `inverse_l2`, `cosine_weights` or `cosine_gradients`.
        initial: the common initial model, for `cosine-gradients`.
    """

    name: ClassVar[str] = "similarity"
    needs_data: ClassVar[bool] = False

    measure: Literal["cosine-weights", "cosine-gradients", "l2"]
    own: Parameters
    others: Sequence[Parameters]
    initial: Parameters | None = None


def compare(query: CompareModels) -> Scores:
    """Return the similarities of one node's model; float64 [K]."""
    vectors = [_vectors(model, query) for model in (query.own, *query.others)]
    (scores,) = _scores([query], vectors, range(len(vectors)))
    return scores


def compare_together(queries: Sequence[CompareModels], rows_of: RowsOf) -> list[Scores]:
    """Return the similarities of many nodes' models, with the bits of `compare`. Few models are converted once each.

    Args:
        rows_of: returns an array that contains all given models as rows, and the row of each.
    """
    first = queries[0]
    if any(query.measure != first.measure or query.initial is not first.initial for query in queries):
        return [compare(query) for query in queries]
    results: list[Scores] = []
    different = len({id(model) for query in queries for model in (query.own, *query.others)})
    size = len(queries)
    if different * len(first.own) > MOST_VALUES:
        size = max(1, PART // (len(first.own) * (1 + max(len(query.others) for query in queries))))
    for part in (queries[start : start + size] for start in range(0, len(queries), size)):
        array, places = rows_of([model for query in part for model in (query.own, *query.others)])
        used, found = np.unique(places, return_inverse=True)
        vectors = _vectors(array if len(used) == len(array) else array[used], first)
        results += _scores(part, list(vectors), found.tolist())
    return results


def _vectors(models: NDArray[np.float32], query: CompareModels) -> NDArray[np.float64]:
    """Return the vectors that a measure compares, [..., P] as the models."""
    vectors = models.astype(np.float64)  # so that the sum of squares cannot overflow for any float32 model
    if query.measure == "cosine-gradients" and query.initial is not None:
        vectors -= query.initial
    return vectors


def _scores(queries: Sequence[CompareModels], vectors: Sequence[NDArray[np.float64]], places: Sequence[int]) -> list[Scores]:
    """Return similarities; `places` has the vector of each query's own and other models, one query after another."""
    results, start = [], 0
    norms = [] if queries[0].measure == "l2" else [sqrt(vector @ vector) for vector in vectors]
    for query in queries:
        place, *others = places[start : start + 1 + len(query.others)]
        start += 1 + len(others)
        own = vectors[place]
        if query.measure == "l2":
            results.append(_inverse(np.array([np.linalg.norm(vectors[k] - own) for k in others], np.float64)))
        else:
            pairs = [(float(vectors[k] @ own), norms[place] * norms[k]) for k in others]
            results.append(np.array([product / length if 0 < length < inf else 0.0 for product, length in pairs]))
    return results


def _inverse(values: NDArray[np.float64]) -> Scores:
    usable = np.isfinite(values) & (values >= 0)
    return np.where(usable, 1.0 / (np.where(usable, values, 0.0) + EPSILON), 0.0)
