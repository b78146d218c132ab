"""Layer-wise similarity of model updates, and bisection of clusters. Pure, in float64, and deterministic.

Members are numbered in the order of their ids. Every tie goes to the first in that order. A result therefore depends
only on the models, not on the order of submission.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from p2pfl.parameters import Layout, Parameters

Matrix = NDArray[np.float64]
Layer = NDArray[np.intp]
Parts = tuple[list[int], list[int]]


def layers(layout: Layout) -> list[slice | Layer]:
    """Return the places of the values of each layer. A layer is a module: its weight and its bias together.

    Tensors belong to the same layer if their names are equal up to the last dot. (With separate biases, a bias of one
    value would have a cosine of 1 or -1 and count as much as its weights.) Values that are not trained, for example the
    running means of batch norm, are in no layer.
    """
    modules: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop, _ in layout.places:
        if start < stop <= layout.n_trained:
            modules.setdefault(name.rpartition(".")[0], []).append((start, stop))
    return [_places(spans) for spans in modules.values()]


def _places(spans: Sequence[tuple[int, int]]) -> slice | Layer:
    if all(one[1] == other[0] for one, other in pairwise(spans)):
        return slice(spans[0][0], spans[-1][1])  # a slice gives a view, an index array a copy
    return np.concatenate([np.arange(start, stop) for start, stop in spans])


def top_r(vector: Matrix, ratio: float) -> Matrix:
    """Keep the ceil(ratio * dim) largest magnitudes, on a tie the earlier one, and set the rest to 0 (eq. 4.4).

    Args:
        vector: shape [dim].
        ratio: R, above 0 and at most 1.
    """
    keep = min(len(vector), ceil(ratio * len(vector) - 1e-9))  # 0.1 * 30 is a little more than 3
    if keep == len(vector):
        return vector
    size = np.abs(vector)
    least = np.partition(size, len(size) - keep)[len(size) - keep]
    kept = size > least
    equals = np.flatnonzero(size == least)
    kept[equals[: keep - int(kept.sum())]] = True
    return np.where(kept, vector, 0.0)


def similarity(
    models: Sequence[Parameters], reference: Matrix, parts: Sequence[slice | Layer], ratio: float = 1.0
) -> Matrix:
    """Return the modified similarity of all pairs of members of a cluster (Hartmann et al., eq. 4.2 to 4.5).

    It is the mean over layers of cos(topR(d_i), topR(d_j)), with d = model - reference. If one of the two is 0 in a
    layer, the cosine of that layer is 0. The similarity of a member to itself is always 1.

    Args:
        models: n vectors of shape [P], in the order of their nodes' ids.
        reference: the mean of the cluster after the previous aggregation; shape [P].
        parts: the places of each layer; see `layers`.
        ratio: R of topR.

    Returns:
        Shape [n, n], symmetric, from -1 to 1.
    """
    total = np.zeros((len(models), len(models)))
    for part in parts:
        updates = np.array([top_r(model[part] - reference[part], ratio) for model in models])
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        updates /= np.where(lengths > 0, lengths, 1.0)
        total += updates @ updates.T
    result = np.clip((total + total.T) / (2 * max(len(parts), 1)), -1.0, 1.0)
    np.fill_diagonal(result, 1.0)
    return result


def spectral(similarities: Matrix, affinity: str = "clipped") -> Parts:
    """Cut n >= 2 members in two by spectral clustering (line 9 of algorithm 4; Damle et al. 2019 for the last step).

    The two eigenvectors with the lowest eigenvalues of the normalised Laplacian are divided by the roots of the
    degrees. A pivoted QR rotates them onto the axes, as scikit-learn does with `affinity="precomputed",
    assign_labels="cluster_qr"`. The signs of eigenvectors do not matter, because magnitudes are compared.

    If the graph of affinities is not connected, those two eigenvectors are not unique. Two components are the two
    parts. Of more components, the two with the lowest mean similarity are separated, and each other one joins the more
    similar of them.

    Args:
        similarities: shape [n, n].
        affinity: `clipped` is max(s, 0); `shifted` is (s + 1) / 2.

    Returns:
        The members of each part, in order; member 0 is in the first part. Neither part is empty.
    """
    count = len(similarities)
    if count == 2:
        return [0], [1]
    weights = np.maximum(similarities, 0.0) if affinity == "clipped" else (similarities + 1.0) / 2.0
    found = _pieces(weights)
    if len(found) > 1:
        return _in_order(_gather(found, similarities), count)
    weights = weights.copy()
    np.fill_diagonal(weights, 0.0)
    roots = np.sqrt(weights.sum(axis=1))
    _, vectors = np.linalg.eigh(np.eye(count) - weights / np.outer(roots, roots))
    first = _cluster_qr(vectors[:, :2] / roots[:, None])
    if not 0 < len(first) < count:  # all on one axis: separate the member that is least similar to the others
        first = [int(np.argmin(similarities.sum(axis=1)))]
    return _in_order(first, count)


def single_linkage(similarities: Matrix) -> Parts:
    """Cut n >= 2 members in two so that the greatest similarity across is minimal (Sattler et al.: optimal).

    Pairs are joined in order of decreasing similarity until two groups are left.
    """
    count = len(similarities)
    group = np.arange(count)
    rows, columns = np.triu_indices(count, 1)
    left = count
    for pair in np.argsort(-similarities[rows, columns], kind="stable"):
        one, other = group[rows[pair]], group[columns[pair]]
        if left == 2:
            break
        if one != other:
            group[group == max(one, other)] = min(one, other)
            left -= 1
    return _in_order(np.flatnonzero(group == group[0]).tolist(), count)


def _cluster_qr(embedding: Matrix) -> list[int]:
    """Return the points that lie on the first of two axes, of n points in the plane; shape [n, 2]."""
    lengths = np.linalg.norm(embedding, axis=1)
    first = int(np.argmax(lengths))
    direction = embedding[first] / lengths[first]
    second = int(np.argmax(np.linalg.norm(embedding - np.outer(embedding @ direction, direction), axis=1)))
    left, _, right = np.linalg.svd(embedding[[first, second]].T)
    axes = np.abs(embedding @ (left @ right)).argmax(axis=1)
    return np.flatnonzero(axes == 0).tolist()


def _pieces(weights: Matrix) -> list[list[int]]:
    """Return the connected components of a graph with these weights, in the order of their first members."""
    found: list[list[int]] = []
    unseen = np.ones(len(weights), bool)
    while unseen.any():
        reached = np.zeros(len(weights), bool)
        reached[np.argmax(unseen)] = True
        while (wider := reached | (weights[reached] > 0).any(axis=0)).sum() > reached.sum():
            reached = wider
        found.append(np.flatnonzero(reached).tolist())
        unseen &= ~reached
    return found


def _gather(pieces: Sequence[list[int]], similarities: Matrix) -> list[int]:
    """Return the members of one of two groups of components; see `spectral`."""
    between = np.array([[similarities[np.ix_(one, other)].mean() for other in pieces] for one in pieces])
    apart = between.copy()
    apart[np.tril_indices(len(pieces))] = inf
    one, other = np.unravel_index(np.argmin(apart), apart.shape)
    first = {int(one)} | {k for k in range(len(pieces)) if k != other and between[k, one] >= between[k, other]}
    return sorted(member for k in first for member in pieces[k])


def _in_order(part: Sequence[int], count: int) -> Parts:
    """Return a part and the rest; the one with member 0 comes first."""
    chosen = set(part)
    rest = [k for k in range(count) if k not in chosen]
    return (sorted(chosen), rest) if 0 in chosen else (rest, sorted(chosen))
