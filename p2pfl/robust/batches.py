"""Merges of many nodes under robust rules, computed together with the formulas of single merges.

Nodes of one instant share models. A distance of two models is therefore computed once, for all merges that need it, from
inner products: ||x - y||^2 = <x, x> + <y, y> - 2 <x, y>. The models are taken relative to the mean of the nodes' own
models. A merge in which a difference of large numbers remains is computed by itself.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch

from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.robust.candidates import Candidates, Combined, MergeRule, Reweighting

MOST_VALUES = 2**26  # of the models that are taken together: 256 MiB if all are different
SMALLEST = 1 / 64  # of a squared distance relative to the squared norms, which lose as many digits
PAIRS = 2  # more pairs per inner product of all models make a matrix product faster than single inner products
STRIP = 25  # fewest models whose inner products with the others are computed at once
TABLE = 2**22  # entries of a table of all pairs of models, 16 MiB; larger ones are sorted

Select = Callable[[Sequence[Parameters]], tuple[np.ndarray, list[int]]]
"""Return an array [M, P] that contains all given models as rows, and the row of each."""


class RobustMerge(Protocol):
    """Merge of one node; see `p2pfl.queries.Combine`."""

    @property
    def models(self) -> Sequence[Parameters]: ...
    @property
    def weights(self) -> Sequence[float]: ...
    @property
    def rule(self) -> MergeRule: ...
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
) -> list[Combined]:
    """Return the result of each merge.

    A rule that changes weights gives the weights that it gives alone within about 1e-5 relative, a rule with its own
    merge the same bits.

    Args:
        select: see `Select`.
        means: computes the means of merges with new weights.
    """
    results: list[Combined] = []
    for part in _parts(merges):
        results += _combine_part(part, select, means)
    return results


def _parts(merges: Sequence[RobustMerge]) -> Iterator[Sequence[RobustMerge]]:
    """Yield merges whose models fit into memory together."""
    begin = values = 0
    for place, merge in enumerate(merges):
        size = len(merge.models) * len(merge.models[0])
        if values and values + size > MOST_VALUES:
            yield merges[begin:place]
            begin, values = place, 0
        values += size
    yield merges[begin:]


def _combine_part(
    merges: Sequence[RobustMerge], select: Select, means: Callable[[Rows], Sequence[Parameters]]
) -> list[Combined]:
    array, found = _without_others(*select([model for merge in merges for model in merge.models]))
    counts = np.array([len(merge.models) for merge in merges])
    starts = np.cumsum(counts) - counts
    given = np.array([weight for merge in merges for weight in merge.weights], np.float64)
    own = starts + [merge.own for merge in merges]
    rows = Rows(array, found, given, starts, counts, own)
    geometry = Geometry(rows)
    after = np.empty_like(given)
    merged: dict[int, Parameters] = {}
    for rule, places in _alike(merges):
        if isinstance(rule, Reweighting):
            order = _own_first(rows, places)
            after[order] = rule.reweight(Together(geometry, order, [merges[place] for place in places]))
        else:
            order = starts[places, None] + np.arange(counts[places[0]])
            for place, at, one in zip(places, order, rule.combine_rows(array, rows.rows[order], given[order]), strict=True):
                merged[place], after[at] = one
    if len(merged) < len(merges):
        others = means(rows._replace(weights=after))
        merged = dict(enumerate(others)) | merged
    shares = after.tolist()
    ends = (starts + counts).tolist()
    return [
        Combined(merged[place], shares[ends[place] - len(merge.models) : ends[place]]) for place, merge in enumerate(merges)
    ]


def _without_others(array: np.ndarray, found: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return an array without models of other nodes if these are most of its rows, and the rows in this array."""
    rows = np.array(found)
    used = np.flatnonzero(np.bincount(rows, minlength=len(array)))
    if 2 * len(used) > len(array):
        return array, rows
    return array[used], np.searchsorted(used, rows)


def _alike(merges: Sequence[RobustMerge]) -> list[tuple[MergeRule, list[int]]]:
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
    """Inner products and distances of the models of many merges.

    Attributes:
        rows: the models.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @cached_property
    def _centred(self) -> torch.Tensor:
        """Return the models minus the mean of the own models, float32 [M, P]."""
        stack = torch.from_numpy(self.rows.array)
        own = np.bincount(self.rows.rows[self.rows.own], minlength=len(stack)).astype(np.float32)
        return stack - torch.from_numpy(own / own.sum()) @ stack

    @cached_property
    def _norms(self) -> np.ndarray:
        """Return the squared norms of the centred models, float64 [M]."""
        norms = torch.linalg.vector_norm(self._centred, dim=1).numpy().astype(np.float64)
        squares: np.ndarray = norms * norms
        return squares

    @cached_property
    def _gram(self) -> np.ndarray:
        """Return the inner products of all models, float32 [M, M]."""
        stack, found = self._centred, torch.empty(len(self._centred), len(self._centred))
        step = max(STRIP, len(stack) // 8)
        for start in range(0, len(stack), step):
            strip = stack[start : start + step] @ stack[start:].T
            found[start : start + step, start:] = strip
            found[start:, start : start + step] = strip.T
        gram: np.ndarray = found.numpy()
        return gram

    def inner(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the inner products of pairs of centred models, float64 of the shape of `one` and `other`."""
        count = len(self.rows.array)
        pairs = np.minimum(one, other) * count + np.maximum(one, other)  # each pair once
        found: np.ndarray
        if "_gram" in self.__dict__ or count * count <= PAIRS * one.size:
            found = self._gram[one, other]
        elif count * count <= TABLE:
            table = np.zeros(count * count, np.float32)
            table[pairs] = 1.0
            different = np.flatnonzero(table)
            table[different] = products_of(self._centred, different // count, different % count)
            found = table[pairs]
        else:
            different, places = np.unique(pairs, return_inverse=True)
            found = products_of(self._centred, different // count, different % count)[places].reshape(pairs.shape)
        return found.astype(np.float64)

    @cached_property
    def distances(self) -> np.ndarray:
        """Return the distance of each model from the own model of its merge, float64 [T]; NaN if it is small against its
        rounding error, or not finite.
        """
        rows = self.rows
        own = np.repeat(rows.rows[rows.own], rows.counts)
        apart = np.flatnonzero(rows.rows != own)
        one, other = own[apart], rows.rows[apart]
        found = np.zeros(len(own))
        with np.errstate(over="ignore", invalid="ignore"):
            norms = self._norms[one] + self._norms[other]
            squares = norms - 2 * self.inner(one, other)
            found[apart] = np.sqrt(np.where((squares >= SMALLEST * norms) & (squares < np.inf), squares, np.nan))
        return found

    def products(self, index: np.ndarray) -> np.ndarray:
        """Return the inner products of the differences from the own models, float64 [B, K, K].

        Args:
            index: rows of the models of each merge, [B, K].
        """
        k = index.shape[1]
        one, other = np.triu_indices(k, 1)
        found = np.empty((len(index), k, k))
        with np.errstate(over="ignore", invalid="ignore"):
            found[:, one, other] = found[:, other, one] = self.inner(index[:, one], index[:, other])
            found[:, np.arange(k), np.arange(k)] = self._norms[index]
            found += found[:, :1, :1] - found[:, :1, :] - found[:, :, :1]
        return found


class Together(Candidates):
    """B merges of K models each; see `Candidates`.

    Args:
        order: which of the models of the geometry they have, the own one first, [B, K].
        merges: the same merges.
    """

    def __init__(self, geometry: Geometry, order: np.ndarray, merges: Sequence[RobustMerge]) -> None:
        self.weights = geometry.rows.weights[order]
        self.losses = None
        if merges[0].losses is not None:
            start = geometry.rows.starts[np.searchsorted(geometry.rows.starts, order[:, :1], side="right") - 1]
            losses = np.array([merge.losses for merge in merges], np.float64)
            self.losses = np.take_along_axis(losses, order - start, 1)
        self._geometry = geometry
        self._order = order

    @cached_property
    def distances(self) -> np.ndarray:
        found: np.ndarray = self._geometry.distances[self._order]
        for k in np.flatnonzero(np.isnan(found).any(axis=1)).tolist():
            found[k] = self._alone(k).distances
        return found

    @cached_property
    def products(self) -> np.ndarray:
        rows = self._geometry.rows.rows[self._order]
        found = self._geometry.products(rows)
        inexact = np.isnan(self._geometry.distances[self._order]).any(axis=1) | ~np.isfinite(found).all(axis=(1, 2))
        for k in np.flatnonzero(inexact).tolist():
            found[k] = self._alone(k).products
        return found

    def _alone(self, k: int) -> Candidates:
        rows = self._geometry.rows
        return Candidates(rows.array[rows.rows[self._order[k]]], self.weights[k].tolist())


def products_of(models: torch.Tensor, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the inner products of pairs of models, float32 [E].

    Args:
        models: float32 [M, P].
        one, other: rows of the models of each pair, int [E]; sorted by `one`.
    """
    count = len(models)
    ends = np.cumsum(np.bincount(one, minlength=count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its sparse tensors a beta version
        pairs = torch.sparse_csr_tensor(
            torch.from_numpy(np.concatenate(([0], ends))),
            torch.from_numpy(other),
            torch.zeros(len(one)),
            (count, count),
            check_invariants=False,
        )
    found: np.ndarray = torch.sparse.sampled_addmm(pairs, models, models.T, beta=0.0).values().numpy()
    return found
