"""Merges and clippings of many nodes under robust rules, computed together with the formulas of single merges.

Nodes of one instant share models. A distance of two models is therefore computed once, for all nodes that need it, from
inner products: ||x - y||^2 = <x, x> + <y, y> - 2 <x, y>. The models are taken relative to a central one of the nodes' own
models. A distance that is small against its distances from this model is computed from the difference.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.robust import candidates
from p2pfl.robust.clipping import Clipped, clip_models

MOST_VALUES = 2**26  # of the different models and the distances that are held together, 256 MiB
PAIRS = 2  # more pairs per inner product of all models make a matrix product faster than single inner products
BLOCK = 2**19  # values of models relative to a central one at once, 2 MiB
NARROWEST = 2**8  # coordinates at once
SAMPLE = 16  # coordinates by which a central model is chosen
FEWER = 3  # fewer models per model of a merge make one matrix product of all merges faster
STRIP = 34  # fewest models whose inner products with the others are computed at once
FEWEST = 4  # clippings whose distances are faster together
TABLE = 2**22  # entries of a table of all pairs of models, 16 MiB; larger ones are sorted

Select = Callable[[Sequence[Parameters]], tuple[np.ndarray, list[int]]]
"""Return an array [M, P] that contains all given models as rows, and the row of each."""


class WithModels(Protocol):
    """Computation with several models of equal size."""

    @property
    def models(self) -> Sequence[Parameters]: ...


Models = TypeVar("Models", bound=WithModels)


class Clipping(WithModels, Protocol):
    """Clipping of the models that one node has received; see `p2pfl.queries.Clip`."""

    @property
    def initial(self) -> Parameters: ...
    @property
    def known(self) -> Sequence[float]: ...
    @property
    def samples(self) -> Sequence[int]: ...


class RobustMerge(WithModels, Protocol):
    """Merge of one node; see `p2pfl.queries.Combine`."""

    @property
    def weights(self) -> Sequence[float]: ...
    @property
    def rule(self) -> candidates.MergeRule: ...
    @property
    def own(self) -> int: ...
    @property
    def losses(self) -> Sequence[float] | None: ...


class Rows(NamedTuple):
    """Models of B merges as rows of an array.

    Attributes:
        array: the different models, float32 [M, P].
        rows: the row of each model, the merges one after another, int [T].
        weights: of each model, float64 [T].
        starts: the first model of each merge, int [B].
        counts: number of models of each merge, int [B].
        own: the own model of each merge among the T models, int [B].
    """

    array: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    own: np.ndarray


def rows_of(models: Sequence[Parameters]) -> tuple[np.ndarray, list[int]]:
    """Return the different models as rows of an array [M, P], and the row of each; see `Select`."""
    different = {id(model): model for model in models}
    places = {key: row for row, key in enumerate(different)}
    return np.array(list(different.values())), [places[id(model)] for model in models]


def means_of(rows: Rows) -> Sequence[Parameters]:
    """Return the weighted mean of each merge, float32 [P]."""
    ends = (rows.starts + rows.counts).tolist()
    parts = [slice(start, end) for start, end in zip(rows.starts.tolist(), ends, strict=True)]
    return [weighted_mean(rows.array[rows.rows[part]], rows.weights[part].tolist()) for part in parts]


def combine_together(
    merges: Sequence[RobustMerge], select: Select = rows_of, means: Callable[[Rows], Sequence[Parameters]] = means_of
) -> list[candidates.Combined]:
    """Return the result of each merge.

    A rule that changes weights gives the weights that it gives alone within about 1e-5 relative, a rule with its own
    merge the same bits.

    Args:
        select: see `Select`.
        means: computes the means of merges with new weights.
    """
    places, different = _without_repetitions(merges)
    results: list[candidates.Combined] = []
    for part in _parts(different):
        results += _combine_part(part, select, means)
    return [results[place] for place in places]


def clip_together(clippings: Sequence[Clipping], select: Select = rows_of) -> list[Clipped]:
    """Return the result of each clipping, within about 1e-6 relative of single ones.

    Args:
        select: see `Select`.
    """
    if len(clippings) < FEWEST:
        return [clip_models(each.models, each.initial, each.known, each.samples) for each in clippings]
    results: list[Clipped] = []
    for part in _parts(clippings):
        array, rows = _without_others(*select([model for each in part for model in each.models]))
        counts = np.array([len(each.models) for each in part])
        starts = np.cumsum(counts) - counts
        geometry = Geometry(Rows(array, rows, np.ones(len(rows)), starts, counts, starts), False)
        distances = geometry.distances.tolist()
        for each, start in zip(part, starts.tolist(), strict=True):
            far = distances[start + 1 : start + len(each.models)]
            results.append(clip_models(each.models, each.initial, each.known, each.samples, far))
    return results


def _without_repetitions(merges: Sequence[RobustMerge]) -> tuple[list[int], Sequence[RobustMerge]]:
    """Return the place of each merge among the different ones, and these. Under some rules, nodes with the same models
    and weights have the same result.
    """
    if all(merge.rule.prefers_own for merge in merges):
        return list(range(len(merges))), merges
    models = [tuple(map(id, merge.models)) for merge in merges]
    if len(set(models)) == len(merges):
        return list(range(len(merges))), merges
    first: dict[object, int] = {}
    different: list[RobustMerge] = []
    places: list[int] = []
    for node, merge in enumerate(merges):
        key = node if merge.rule.prefers_own else (id(merge.rule), models[node], *merge.weights)
        place = first.setdefault(key, len(different))
        if place == len(different):
            different.append(merge)
        places.append(place)
    return places, different


def _parts(merges: Sequence[Models]) -> Iterator[Sequence[Models]]:
    """Yield computations whose models and distances fit into memory together."""
    if sum(len(merge.models) * (len(merge.models[0]) + 2 * len(merge.models)) for merge in merges) <= MOST_VALUES:
        yield merges
        return
    begin = values = 0
    held: set[int] = set()
    for place, merge in enumerate(merges):
        own = {id(model) for model in merge.models}
        distances = 2 * len(merge.models) ** 2  # float64
        size = len(merge.models[0])
        if place > begin and values + len(own - held) * size + distances > MOST_VALUES:
            yield merges[begin:place]
            begin, values, held = place, 0, set()
        values += len(own - held) * size + distances
        held |= own
    yield merges[begin:]


def _combine_part(
    merges: Sequence[RobustMerge], select: Select, means: Callable[[Rows], Sequence[Parameters]]
) -> list[candidates.Combined]:
    array, found = _without_others(*select([model for merge in merges for model in merge.models]))
    counts = np.array([len(merge.models) for merge in merges])
    starts = np.cumsum(counts) - counts
    given = np.array([weight for merge in merges for weight in merge.weights], np.float64)
    own = starts + [merge.own for merge in merges]
    rows = Rows(array, found, given, starts, counts, own)
    geometry = Geometry(
        rows, any(isinstance(merge.rule, candidates.Reweighting) and merge.rule.needs_pairs for merge in merges)
    )
    after = np.empty_like(given)
    merged: dict[int, Parameters] = {}
    for rule, places in _alike(merges):
        if isinstance(rule, candidates.Reweighting):
            order = _own_first(rows, places)
            after[order] = rule.reweight(Together(geometry, order, [merges[place] for place in places]))
        else:
            order = starts[places, None] + np.arange(counts[places[0]])
            for place, at, one in zip(places, order, rule.combine_rows(array, rows.rows[order], given[order]), strict=True):
                merged[place], after[at] = one
    if len(merged) < len(merges):
        others = means(_with_weight(rows._replace(weights=after)))
        merged = dict(enumerate(others)) | merged
    shares = after.tolist()
    ends = (starts + counts).tolist()
    return [
        candidates.Combined(merged[place], shares[ends[place] - len(merge.models) : ends[place]])
        for place, merge in enumerate(merges)
    ]


def _with_weight(rows: Rows) -> Rows:
    """Return the merges without models whose weight is 0, which need not be read; `own` is then the first one."""
    kept = rows.weights != 0
    if kept.all():
        return rows
    counts = np.add.reduceat(kept, rows.starts, dtype=np.intp)
    starts = np.cumsum(counts) - counts
    return Rows(rows.array, rows.rows[kept], rows.weights[kept], starts, counts, starts)


def _without_others(array: np.ndarray, found: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return an array without models of other nodes if these are most of its rows, and the rows in this array."""
    rows = np.array(found)
    used = np.flatnonzero(np.bincount(rows, minlength=len(array)))
    if 2 * len(used) > len(array):
        return array, rows
    return array[used], np.searchsorted(used, rows)


def _alike(merges: Sequence[RobustMerge]) -> list[tuple[candidates.MergeRule, list[int]]]:
    """Return the rules of merges, and the places of those with one rule and number of models."""
    groups = defaultdict(list)
    for place, merge in enumerate(merges):
        groups[id(merge.rule), len(merge.models)].append(place)
    return [(merges[places[0]].rule, places) for places in groups.values()]


def _own_first(rows: Rows, places: Sequence[int]) -> np.ndarray:
    """Return which of the T models are those of some merges with K models each, the own one first; int [B, K]."""
    starts, own = rows.starts[places, None], rows.own[places, None]
    order: np.ndarray = starts + np.arange(rows.counts[places[0]])
    return np.concatenate([own, np.where(order[:, 1:] > own, order[:, 1:], order[:, :-1])], axis=1)


class Geometry:
    """Distances of the models of many merges.

    Args:
        rows: the models.
        pairs: whether to compute the distances of all models of a merge, and not only those from the own one.

    Attributes:
        dense: whether the distances of all M models are computed, because merges need most of them.
    """

    def __init__(self, rows: Rows, pairs: bool) -> None:
        self.rows = rows
        self._all_pairs = pairs
        needed = (rows.counts * (rows.counts - 1) // 2 if pairs else rows.counts).sum()
        self.dense = len(rows.array) ** 2 <= PAIRS * int(needed)

    @cached_property
    def distances(self) -> np.ndarray:
        """Return the distance of each model from the own model of its merge, float64 [T]."""
        rows = self.rows
        return np.asarray(np.sqrt(self.squares(np.repeat(rows.rows[rows.own], rows.counts), rows.rows)))

    def squares(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the squared distances of pairs of models, float64 of the common shape of both.

        Args:
            one, other: rows of the models; pairs of different models must belong to one merge.
        """
        count = len(self.rows.array)
        if self.dense:
            return np.asarray(self.table.take(one * count + other))
        codes = np.minimum(one, other) * count + np.maximum(one, other)
        return np.asarray(self._found[self._places[codes] if len(self._places) else np.searchsorted(self._pairs, codes)])

    @cached_property
    def table(self) -> np.ndarray:
        """Return the squared distances of all models, float64 [M, M]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return candidates.squares_of(self.rows.array, sum((gram_of(block) for block in self._blocks()), np.zeros(())))

    @cached_property
    def finite(self) -> torch.Tensor:
        """Return the squared distances of all models, float64 [M, M]; 0 for those that are not finite."""
        return torch.from_numpy(np.where(np.isfinite(self.table), self.table, 0.0))

    @cached_property
    def _pairs(self) -> np.ndarray:
        """Return the needed pairs of models, each once, and each model with itself: one * M + other, in order."""
        rows, count = self.rows, len(self.rows.array)
        codes = [np.arange(count) * (count + 1)]
        if self._all_pairs:
            for k in np.unique(rows.counts).tolist():
                index = rows.rows[rows.starts[rows.counts == k, None] + np.arange(k)]
                one, other = index[:, np.triu_indices(k, 1)].transpose(1, 0, 2)
                codes.append((np.minimum(one, other) * count + np.maximum(one, other)).ravel())
        else:
            own = np.repeat(rows.rows[rows.own], rows.counts)
            codes.append(np.minimum(own, rows.rows) * count + np.maximum(own, rows.rows))
        if count * count > TABLE:
            return np.unique(np.concatenate(codes))
        used = np.zeros(count * count, bool)
        for some in codes:
            used[some] = True
        return np.flatnonzero(used)

    @cached_property
    def _places(self) -> np.ndarray:
        """Return the place of each pair among the needed ones, [M^2]; empty if this would be too long."""
        count = len(self.rows.array)
        places = np.zeros(count * count if count * count <= TABLE else 0, np.intp)
        if len(places):
            places[self._pairs] = np.arange(len(self._pairs))
        return places

    @cached_property
    def _found(self) -> np.ndarray:
        """Return the squared distances of the needed pairs, float64 [E]."""
        count = len(self.rows.array)
        one, other = self._pairs // count, self._pairs % count
        products_of = PairProducts(one, other, count)
        with np.errstate(over="ignore", invalid="ignore"):
            products = sum((products_of(block) for block in self._blocks()), np.zeros(()))
            norms = products[one == other]
            both = norms[one] + norms[other]
            squares = both - 2 * products
            inexact = ~((squares >= candidates.SMALLEST * both) & (both < candidates.LARGEST)) & (one != other)
        squares[one == other] = 0.0
        squares[inexact] = candidates.direct_squares(self.rows.array, one[inexact], other[inexact])
        return np.asarray(squares)

    def _blocks(self) -> Iterator[torch.Tensor]:
        """Yield the models minus a central one, some coordinates of all models at once; float32 [M, n]."""
        stack, centre = torch.from_numpy(self.rows.array), torch.from_numpy(self._centre())
        step = min(max(NARROWEST, BLOCK // len(stack)), max(stack.shape[1], 1))
        buffer = torch.empty(len(stack), step)
        for start in range(0, max(stack.shape[1], 1), step):
            part = slice(start, start + step)
            yield torch.sub(stack[:, part], centre[part], out=buffer[:, : len(centre[part])])

    def _centre(self) -> Parameters:
        """Return the own model that is nearest to the median of the own models in a sample of coordinates.

        The mean would be far from most models if some of them are very far away.
        """
        own = np.unique(self.rows.rows[self.rows.own])
        step = max(1, self.rows.array.shape[1] // SAMPLE)
        sample = self.rows.array[own, ::step][:, :SAMPLE]
        with np.errstate(over="ignore", invalid="ignore"):
            far = np.abs(sample - np.partition(sample, len(own) // 2, axis=0)[len(own) // 2]).sum(axis=1)
        centre: Parameters = self.rows.array[own[np.argmin(np.where(np.isfinite(far), far, np.inf))]]
        return centre


class Together(candidates.Candidates):
    """B merges of K models each; see `Candidates`.

    Args:
        order: which of the models of the geometry they have, the own one first, [B, K].
        merges: the same merges.
    """

    def __init__(self, geometry: Geometry, order: np.ndarray, merges: Sequence[RobustMerge]) -> None:
        self.weights = geometry.rows.weights[order]
        self.losses = None
        if merges[0].rule.needs_losses:
            start = geometry.rows.starts[np.searchsorted(geometry.rows.starts, order[:, :1], side="right") - 1]
            losses = np.array([merge.losses for merge in merges], np.float64)
            self.losses = np.take_along_axis(losses, order - start, 1)
        self._geometry = geometry
        self._order = order

    @cached_property
    def distances(self) -> np.ndarray:
        found: np.ndarray = self._geometry.distances[self._order]
        return found

    @cached_property
    def squares(self) -> np.ndarray:
        return self._geometry.squares(self._rows[:, :, None], self._rows[:, None, :])

    def squares_from(self, shares: np.ndarray) -> np.ndarray:
        geometry, (count, k) = self._geometry, shares.shape
        if not geometry.dense or len(geometry.table) > FEWER * k:
            return super().squares_from(shares)
        rows = torch.from_numpy(self._rows)
        spread = torch.zeros(count, len(geometry.table), dtype=torch.float64).scatter_add_(1, rows, torch.from_numpy(shares))
        mixed = (spread @ geometry.finite).gather(1, rows).numpy()
        found: np.ndarray = np.maximum(mixed - (shares * mixed).sum(-1, keepdims=True) / 2, 0.0)
        for place, one in self._infinite.items():
            found[place] = one.squares_from(shares[place])
        return found

    def nearest(self, count: int) -> np.ndarray:
        places = np.argsort(self._rows, axis=1)
        ordered = np.take_along_axis(self._rows, places, 1)
        first: dict[bytes, int] = {}
        same = [first.setdefault(rows.tobytes(), len(first)) for rows in ordered]
        if len(first) == len(same):
            return super().nearest(count)
        different = np.unique(same, return_index=True)[1]
        index = ordered[different]
        sums = np.sort(self._geometry.squares(index[:, :, None], index[:, None, :]))[..., 1 : count + 1].sum(-1)
        found = np.empty(ordered.shape)
        np.put_along_axis(found, places, sums[same], 1)
        return found

    @cached_property
    def _rows(self) -> np.ndarray:
        rows: np.ndarray = self._geometry.rows.rows[self._order]
        return rows

    @cached_property
    def _infinite(self) -> dict[int, candidates.Candidates]:
        """Return the merges with values that are not finite, which are computed by themselves."""
        rows = self._geometry.rows
        infinite = np.flatnonzero(~np.isfinite(self._geometry.distances[self._order]).all(axis=1)).tolist()
        return {k: candidates.Candidates(rows.array[rows.rows[self._order[k]]], self.weights[k].tolist()) for k in infinite}


def gram_of(models: torch.Tensor) -> np.ndarray:
    """Return the inner products of models, float64 [M, M]; `models` is float32 [M, n]."""
    found = torch.empty(len(models), len(models), dtype=torch.float64)
    step = max(STRIP, -(-len(models) // 8))
    for start in range(0, len(models), step):
        strip = models[start : start + step] @ models[start:].T
        found[start : start + step, start:] = strip
        found[start:, start : start + step] = strip.T
    gram: np.ndarray = found.numpy()
    return gram


class PairProducts:
    """Sparse multiplication that computes only those inner products of models that some node needs.

    Args:
        one, other: rows of the models of each pair, int [E]; sorted by `one`.
        count: number of models.
    """

    def __init__(self, one: np.ndarray, other: np.ndarray, count: int) -> None:
        ends = np.cumsum(np.bincount(one, minlength=count))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls its sparse tensors a beta version
            self._pairs = torch.sparse_csr_tensor(
                torch.from_numpy(np.concatenate(([0], ends))),
                torch.from_numpy(other),
                torch.zeros(len(one)),
                (count, count),
                check_invariants=False,
            )

    def __call__(self, models: torch.Tensor) -> np.ndarray:
        """Return the inner products, float64 [E]; `models` is float32 [M, n]."""
        found = torch.sparse.sampled_addmm(self._pairs, models, models.T, beta=0.0).values().numpy()
        wide: np.ndarray = found.astype(np.float64)
        return wide
