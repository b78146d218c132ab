"""Rules with a centre of all models: median and trimmed mean of each coordinate (Yin et al., "Byzantine-Robust Distributed
Learning", ICML 2018), and the geometric median of whole models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np

from p2pfl.robust.candidates import Candidates, Combined, Counting, OwnMerge, Reweighting

BLOCK = 2**17  # bytes of the values of one place in all merges that are ordered at once
WIDEST = 2**13  # coordinates at once
RANKS = 2**8  # models whose ranks fit into one byte
SHARED = 12  # merges of a model that make ranks faster than values
LOW = np.int32(2**31 - 1)  # all bits but the sign


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
    weights of its models.

    Args:
        array: models as rows, float32 [M, P].
        index: rows of each merge, [B, K].
        weights: float64 [B, K]; equal weights are used for a coordinate whose kept values have none.
        cut: less than K / 2.
    """
    count, k = index.shape
    size = array.shape[1]
    merged = np.empty((count, size), np.float32)
    used = np.zeros(index.shape)
    equal = bool((weights == weights[:, :1]).all())
    rankable = equal and k - 2 * cut <= 2 and len(array) <= RANKS and index.size >= SHARED * len(array)
    for start in range(0, size, WIDEST):
        part = array[:, start : start + WIDEST]
        ranked = rank_columns(part) if rankable else None
        given = part if ranked is None else ranked.ranks
        at_once = max(1, BLOCK // (given.itemsize * given.shape[1]))
        for begin in range(0, count, at_once):
            some = slice(begin, begin + at_once)
            values = given[index[some].T]  # [K, merges, coordinates]
            kept = _keep(values, cut)
            if equal:
                ordered = kept.ordered if ranked is None else [ranked.values_of(ranks) for ranks in kept.ordered]
                merged[some, start : start + WIDEST] = _sum(ordered) * np.float32(1 / len(ordered))
                used[some] += (kept.counts / (k - 2 * cut)).T
            else:
                merged[some, start : start + WIDEST], counts = _by_weight(values, kept, weights[some].T)
                used[some] += counts.T
    return [Combined(params, own) for params, own in zip(merged, (used / max(size, 1)).tolist(), strict=True)]


class Ranked(NamedTuple):
    """Models whose values are replaced by their ranks. Small integers are compared faster, and give the same order.

    Attributes:
        ranks: place of each value among those of its coordinate, the same for equal values; uint8 [M, n].
        ordered: the values of each coordinate in ascending order, float32 [n, M].
    """

    ranks: np.ndarray
    ordered: np.ndarray

    def values_of(self, ranks: np.ndarray) -> np.ndarray:
        """Return the values that have some ranks, float32; both [merges, n]."""
        places = ranks + np.arange(0, self.ordered.size, self.ordered.shape[1])
        return np.asarray(self.ordered.take(places))


def rank_columns(models: np.ndarray) -> Ranked | None:
    """Return the ranks of the values of each coordinate; None if a value is not a number.

    Args:
        models: float32 [M, n], at most 256 models.
    """
    bits = models.view(np.int32)
    keys = (bits ^ (bits >> 31 & LOW)).astype(np.int64)  # in the order of the values
    keys <<= 32
    keys |= np.arange(len(models))[:, None]
    keys = np.ascontiguousarray(keys.T)
    keys.sort(axis=1)
    bits = (keys >> 32).astype(np.int32)
    ordered = (bits ^ (bits >> 31 & LOW)).view(np.float32)
    if np.isnan(ordered[:, [0, -1]]).any():
        return None
    places = np.broadcast_to(np.arange(len(models), dtype=np.uint8), ordered.shape)
    if (same := ordered[:, 1:] == ordered[:, :-1]).any():
        places = places.copy()
        places[:, 1:][same] = 0
        places = np.maximum.accumulate(places, axis=1)
    keys &= 0xFFFFFFFF  # the model of each value
    import torch  # reports import the names of rules, and need no torch

    ranks = torch.empty(ordered.shape, dtype=torch.uint8)
    ranks.scatter_(1, torch.from_numpy(keys), torch.from_numpy(np.ascontiguousarray(places)))
    return Ranked(ranks.T.contiguous().numpy(), ordered)


class Kept(NamedTuple):
    """Values of n coordinates of some merges that remain after the lowest and highest ones.

    Attributes:
        ordered: the values that remain, in ascending order, [merges, n] each.
        mask: whether the value of a model is within the limits, bool [K, merges, n].
        tied: coordinates in which more values than can remain are within the limits, among merges * n.
        shares: the part of each value that remains in these coordinates, float32 [K, number of them].
        counts: number of coordinates in which a model's value remains, float64 [K, merges].
    """

    ordered: Sequence[np.ndarray]
    mask: np.ndarray
    tied: np.ndarray
    shares: np.ndarray
    counts: np.ndarray


def _keep(values: np.ndarray, cut: int) -> Kept:
    """Return the values that remain; `values` is [K, merges, n]."""
    k, merges, size = values.shape
    flat = values.reshape(k, -1)
    ordered = _sort_middle(flat, cut)
    lowest, highest = ordered[0], ordered[-1]
    mask = np.empty(flat.shape, bool)
    for value, inside in zip(flat, mask, strict=True):
        if lowest is highest:
            np.equal(value, lowest, out=inside)
        else:
            np.greater_equal(value, lowest, out=inside)
            inside &= value <= highest
    shaped = mask.reshape(values.shape)
    counts = np.array([[np.count_nonzero(one) for one in inside] for inside in shaped], np.float64)
    tied, shares = np.empty(0, np.intp), np.empty((k, 0), np.float32)
    if counts.sum() != (k - 2 * cut) * flat.shape[1]:
        within = mask.view(np.uint8).sum(axis=0, dtype=np.uint8 if k < 2**8 else np.uint16)
        tied = np.flatnonzero(within != k - 2 * cut)
        shares = _tied_shares(flat[:, tied], lowest[tied], highest[tied], cut)
        change, owner = shares - mask[:, tied], tied // size
        counts += np.array([np.bincount(owner, one, minlength=merges) for one in change])
    return Kept([one.reshape(merges, size) for one in ordered], shaped, tied, shares, counts)


def _tied_shares(values: np.ndarray, lowest: np.ndarray, highest: np.ndarray, cut: int) -> np.ndarray:
    """Return the part of each value that remains, float32 [K, n]; values equal to a limit share the places left."""
    low, high = values == lowest, values == highest
    shares = ((values > lowest) & (values < highest)).astype(np.float32)
    places_low = (values <= lowest).sum(axis=0) - cut
    places_high = (values >= highest).sum(axis=0) - cut
    with np.errstate(divide="ignore", invalid="ignore"):  # a value is not a number
        shares += low * (places_low / low.sum(axis=0)).astype(np.float32)
        shares += high * (places_high / high.sum(axis=0)).astype(np.float32)
    same = lowest == highest
    shares[:, same] = low[:, same] * ((len(values) - 2 * cut) / low[:, same].sum(axis=0)).astype(np.float32)
    return shares


def _by_weight(values: np.ndarray, kept: Kept, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted means, float32 [merges, n], and the sum over coordinates of the models' weights.

    Args:
        values: float32 [K, merges, n].
        weights: [K, merges].
    """
    shares = kept.mask.astype(np.float32)
    shares.reshape(len(values), -1)[:, kept.tied] = kept.shares
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


@dataclass(frozen=True)
class Rfa(Reweighting):
    """Robust federated averaging (Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", 2022,
    algorithm 2): the smoothed Weiszfeld method for the weighted geometric median.

    From z = sum_j w_j x_j, repeat: beta_j = w_j / max(nu, ||z - x_j||); z = (sum of beta_j x_j) / (sum of beta_j). The new
    weights are beta_j / (sum of beta_j).

    Attributes:
        steps: number of repetitions; the paper takes 3, which very distant models slow down.
        nu: smallest distance that counts; it avoids a division by zero.
    """

    needs_pairs: ClassVar[bool] = True
    prefers_own: ClassVar[bool] = False

    steps: int = 8
    nu: float = 1e-6

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}")
        if not 0 < self.nu < inf:
            raise ValueError(f"nu must be more than 0, and finite, got {self.nu}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        shares = candidates.weights
        for _ in range(self.steps):
            betas = candidates.weights / np.maximum(np.sqrt(candidates.squares_from(shares)), self.nu)
            shares = betas / betas.sum(-1, keepdims=True)
        return shares
