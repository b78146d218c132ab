"""Rules that merge each coordinate for itself (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from p2pfl.robust.candidates import Candidates, Combined, Counting, OwnMerge

BLOCK = 2**14  # coordinates that are sorted at once; their values fit into the cache


@dataclass(frozen=True)
class CoordinateWise(OwnMerge):
    """Base of the rules of this module."""

    def combine(self, candidates: Candidates) -> Combined:
        array, weights = np.array(candidates.models), candidates.weights
        (combined,) = self.combine_rows(array, np.arange(len(array))[None], weights[None])
        return combined


@dataclass(frozen=True)
class Median(CoordinateWise):
    """Coordinate-wise median, of all models with equal weight; for an even number the mean of the two middle values.

    The reported weight of a model is its mean weight over the coordinates.
    """

    def combine_rows(self, array: np.ndarray, index: np.ndarray, weights: np.ndarray) -> list[Combined]:
        return trimmed_means(array, index, np.ones_like(weights), (index.shape[1] - 1) // 2)

    def bounds(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        middle = np.median(models, axis=0)
        return middle, middle


@dataclass(frozen=True)
class Trimmed(Counting, CoordinateWise):
    """Coordinate-wise trimmed mean: per coordinate the mean of all but the f lowest and the f highest values, by the
    policy's weights.

    Models with equal values at a limit share its place. The reported weight of a model is its mean weight over the
    coordinates.
    """

    def combine_rows(self, array: np.ndarray, index: np.ndarray, weights: np.ndarray) -> list[Combined]:
        return trimmed_means(array, index, weights, self.attackers_among(index.shape[1] - 1))

    def bounds(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut = self.attackers_among(len(models) - 1)
        ordered = np.sort(models, axis=0)
        return ordered[cut], ordered[len(models) - 1 - cut]


def trimmed_means(array: np.ndarray, index: np.ndarray, weights: np.ndarray, cut: int) -> list[Combined]:
    """Return for each merge the mean of each coordinate without its `cut` lowest and highest values, and the mean
    weights of its models. Merges of the same models with the same weights are computed once.

    Args:
        array: models as rows, float32 [M, P].
        index: rows of each merge, [B, K].
        weights: float64 [B, K]; equal weights are used for a coordinate whose kept values have none.
        cut: less than K / 2.
    """
    keys = [rows.tobytes() + own.tobytes() for rows, own in zip(index, weights, strict=True)]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    places = sorted(first.values())
    merged = _merge(array, index[places], weights[places], cut)
    found = {keys[place]: combined for place, combined in zip(places, merged, strict=True)}
    return [found[key] for key in keys]


def _merge(array: np.ndarray, index: np.ndarray, weights: np.ndarray, cut: int) -> list[Combined]:
    """Return the merges; see `trimmed_means`."""
    size = array.shape[1]
    merged = np.empty((len(index), size), np.float32)
    used = np.zeros(index.shape)
    equal = (weights == weights[:, :1]).all()
    at_once = max(1, BLOCK // max(size, 1))
    for begin in range(0, len(index), at_once):
        rows = index[begin : begin + at_once].T
        for start in range(0, size, BLOCK):
            values = array[:, start : start + BLOCK][rows]  # [K, merges, coordinates]
            kept = _keep(values.reshape(len(rows), -1), cut)
            part = slice(begin, begin + at_once), slice(start, start + BLOCK)
            if equal:
                merged[part], counted = kept.mean.reshape(values.shape[1:]), _counts(kept, values.shape)
            else:
                merged[part], counted = _by_weight(values, kept, weights[begin : begin + at_once].T)
            used[begin : begin + at_once] += counted.T
    return [Combined(params, own) for params, own in zip(merged, (used / max(size, 1)).tolist(), strict=True)]


class Kept(NamedTuple):
    """Values of n coordinates that remain after the lowest and highest ones.

    Attributes:
        mean: their mean with equal weights, float32 [n].
        mask: whether the value of a model is within the limits, bool [K, n].
        tied: coordinates in which more values than can remain are within the limits.
        shares: the part of each value that remains in these coordinates, float32 [K, number of them].
        places: number of values that remain in a coordinate.
    """

    mean: np.ndarray
    mask: np.ndarray
    tied: np.ndarray
    shares: np.ndarray
    places: int


def _keep(values: np.ndarray, cut: int) -> Kept:
    """Return the values that remain; `values` is float32 [K, n]."""
    k = len(values)
    ordered = _sort_middle(values, cut)
    lowest, highest = ordered[0], ordered[-1]
    mask = np.empty(values.shape, bool)
    within = np.zeros(values.shape[1], np.uint16)
    for value, inside in zip(values, mask, strict=True):
        if lowest is highest:
            np.equal(value, lowest, out=inside)
        else:
            np.greater_equal(value, lowest, out=inside)
            inside &= value <= highest
        within += inside
    tied = np.flatnonzero(within != k - 2 * cut)
    shares = _tied_shares(values[:, tied], lowest[tied], highest[tied], cut) if len(tied) else np.empty((k, 0), np.float32)
    return Kept(_sum(ordered) * np.float32(1 / len(ordered)), mask, tied, shares, k - 2 * cut)


def _tied_shares(values: np.ndarray, lowest: np.ndarray, highest: np.ndarray, cut: int) -> np.ndarray:
    """Return the part of each value that remains, float32 [K, n]; values equal to a limit share the places left."""
    low, high = values == lowest, values == highest
    shares = ((values > lowest) & (values < highest)).astype(np.float32)
    places_low = (values <= lowest).sum(axis=0) - cut
    places_high = (values >= highest).sum(axis=0) - cut
    shares += low * (places_low / low.sum(axis=0)).astype(np.float32)
    shares += high * (places_high / high.sum(axis=0)).astype(np.float32)
    same = lowest == highest
    shares[:, same] = low[:, same] * ((len(values) - 2 * cut) / low[:, same].sum(axis=0)).astype(np.float32)
    return shares


def _counts(kept: Kept, shape: tuple[int, ...]) -> np.ndarray:
    """Return the sum over coordinates of the models' weights, equal in each coordinate; float64 [K, merges]."""
    _, merges, size = shape
    counts = np.array([[np.count_nonzero(one) for one in mask] for mask in kept.mask.reshape(shape)], np.float64)
    if len(kept.tied):
        change = kept.shares - kept.mask[:, kept.tied]
        owner = kept.tied // size
        counts += np.array([np.bincount(owner, one, minlength=merges) for one in change])
    return counts / kept.places


def _by_weight(values: np.ndarray, kept: Kept, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted means, float32 [merges, n], and the sum over coordinates of the models' weights.

    Args:
        values: float32 [K, merges, n].
        weights: [K, merges].
    """
    shares = kept.mask.astype(np.float32)
    shares[:, kept.tied] = kept.shares
    shares = shares.reshape(values.shape)
    given = shares * weights[..., None].astype(np.float32)
    total = _in_turn(given)
    given = np.where(total == 0, shares, given)
    given /= np.where(total == 0, _in_turn(shares), total)
    return _in_turn(given * values), given.sum(axis=2, dtype=np.float64)


def _in_turn(vectors: np.ndarray) -> Any:
    """Return the sum over the first axis, in the same order for one merge and for many."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def _sort_middle(values: np.ndarray, cut: int) -> list[np.ndarray]:
    """Return the order statistics cut..K-1-cut of each column of float32 [K, n], as K - 2 cut vectors [n]."""
    given = list(values)
    free = [np.empty_like(values[0]) for _ in range(2)]
    own: set[int] = set()  # places in `given` that are no longer rows of `values`
    for low, high, keeps_low, keeps_high in comparators(len(values), cut):
        a, b = given[low], given[high]
        returned = [given[place] for place in (low, high) if place in own]
        if keeps_low:
            given[low] = np.minimum(a, b, out=free.pop())
        if keeps_high:
            given[high] = np.maximum(a, b, out=free.pop())
        own |= {low, high}
        free += returned
        while len(free) < 2:
            free.append(np.empty_like(a))
    return given[cut : len(values) - cut]


@lru_cache(maxsize=64)
def comparators(k: int, cut: int) -> list[tuple[int, int, bool, bool]]:
    """Return the comparators of a network that sorts k values, without those that only the outer `cut` on each side need.

    Batcher's merge exchange (Knuth, "The Art of Computer Programming", volume 3, algorithm 5.2.2M).

    Returns:
        The two places of each comparator, and whether the lower and the higher value are used later.
    """
    network = []
    p = top = 1 << max((k - 1).bit_length() - 1, 0)
    while p:
        q, r, d = top, 0, p
        while True:
            network += [(i, i + d) for i in range(k - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    used = set(range(cut, k - cut))
    kept = []
    for low, high in reversed(network):
        if low in used or high in used:
            kept.append((low, high, low in used, high in used))
            used |= {low, high}
    return kept[::-1]


def _sum(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of vectors, by halves, which loses the fewest digits."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    total: np.ndarray = _sum(vectors[:half]) + _sum(vectors[half:])
    return total
