"""Similarity of models, and a node's table of similarities to its peers.

The measures are those of Listo Zec et al., "On the effects of similarity metrics in decentralized deep learning under
distributional shift", section 3. Each compares one node's model with K other models; greater is more similar. The result is
always finite; an undefined value is 0, which counts as unknown.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf, sqrt
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.cohort import Counts, ExtrasOfEach, IdsOfEach, UpdatesOfEach, WeightsOfEach, of_each
from p2pfl.parameters import Parameters
from p2pfl.queries import Answering, AnsweringTogether, Query

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

Keys = NDArray[np.uint64]


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
        measure: a key of RANGES other than `inverse-loss`, which needs data.
        initial: the common initial model, for `cosine-gradients`.
    """

    name: ClassVar[str] = "similarity"
    needs_data: ClassVar[bool] = False

    measure: Literal["cosine-weights", "cosine-gradients", "l2"]
    own: Parameters
    others: Sequence[Parameters]
    initial: Parameters | None = None

    def answer(self, learner: Answering) -> Scores:
        return compare(self)

    @classmethod
    def answer_together(cls, queries: Sequence[Self], nodes: AnsweringTogether) -> list[Scores]:
        return compare_together(queries, nodes.select)


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


class CompareEach:
    """Comparison of the models of a cohort's nodes with those of their peers, with the bits of `compare`.

    It keeps its memory from round to round: new memory of this size would cost as much as the products.

    Args:
        initial: the common initial model.
    """

    def __init__(self, initial: Parameters) -> None:
        self._initial = initial
        self._memory = np.empty((0, len(initial)))

    def scores(self, own: NDArray[np.float32], published: NDArray[np.float32], ids: IdsOfEach, measure: str) -> Scores:
        """Return the similarities of each node to its peers; float64 [E].

        Args:
            own, published: the own models, and those that peers receive; [N, P].
        """
        if own.size <= MOST_VALUES:
            if own.shape != self._memory.shape:
                self._memory = np.empty(own.shape)
            theirs = self._vectors(published, measure, self._memory)
            mine = theirs if own is published else self._vectors(own, measure)
            return _scores_of_pairs(mine, theirs, ids.rows, ids.peers, measure)
        found = np.empty(len(ids.peers))
        size = max(1, PART // (own.shape[1] * (1 + int(ids.counts.max(initial=0)))))
        for first in range(0, len(own), size):
            nodes = slice(first, min(first + size, len(own)))
            part = slice(ids.starts[nodes.start], ids.starts[nodes.stop])
            used, places = np.unique(ids.peers[part], return_inverse=True)
            mine, theirs = self._vectors(own[nodes], measure), self._vectors(published[used], measure)
            found[part] = _scores_of_pairs(mine, theirs, ids.rows[part] - first, places, measure)
        return found

    def _vectors(
        self, models: NDArray[np.float32], measure: str, memory: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        vectors = np.empty(models.shape) if memory is None else memory
        np.copyto(vectors, models)
        if measure == "cosine-gradients":
            vectors -= self._initial
        return vectors


def _scores_of_pairs(
    mine: NDArray[np.float64], theirs: NDArray[np.float64], rows: Counts, others: Counts, measure: str
) -> Scores:
    """Return the similarity of each pair of a row of `mine` and one of `theirs`."""
    if measure == "l2":
        pairs = zip(rows.tolist(), others.tolist(), strict=True)
        return _inverse(np.array([np.linalg.norm(theirs[j] - mine[i]) for i, j in pairs], np.float64))
    theirs_long = np.sqrt(_dots(theirs, theirs))
    mine_long = theirs_long if mine is theirs else np.sqrt(_dots(mine, mine))
    if len(rows) * mine.shape[1] <= PART:
        products = _dots(theirs[others], mine[rows])
    else:  # copies of the rows would cost more than the products
        one, other = list(mine), list(theirs)
        pairs = zip(rows.tolist(), others.tolist(), strict=True)
        products = np.array([other[j].dot(one[i]) for i, j in pairs], np.float64)
    norms = mine_long[rows] * theirs_long[others]
    usable = (norms > 0) & (norms < inf)
    return np.where(usable, products / np.where(usable, norms, 1.0), 0.0)


def _dots(one: NDArray[np.float64], other: NDArray[np.float64]) -> Scores:
    """Return the product of each row of one array, [K, P], with that of the other, with the bits of `dot`; [K]."""
    products: Scores = np.matmul(one[:, None], other[..., None])[:, 0, 0]
    return products


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


@lru_cache(maxsize=100_000)
def short_id(name: str) -> int:
    """Return an 8-byte integer that represents a name in an update."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def short_ids(names: Sequence[str]) -> Keys:
    """Return the short id of each name; shape [K]."""
    return np.array([short_id(name) for name in names], np.uint64)


class SimilaritiesOfEach:
    """The tables of all nodes of a cohort; see PeerSimilarities.

    Args:
        ids: the neighbours of each node.
    """

    def __init__(self, ids: IdsOfEach) -> None:
        self._ids = ids
        self._values = np.zeros(len(ids.peers))  # 0 is unknown
        self._unmet = np.append(np.ones(len(ids.peers), bool), False)  # not measured; the last one, -1, is no peer

    def of(self, ids: IdsOfEach) -> WeightsOfEach:
        """Return the similarities to `ids`; 0 is unknown. Those to the nodes themselves are 0."""
        places = slice(None) if ids is self._ids else ids_in(self._ids, ids)
        return WeightsOfEach(ids, self._values[places], np.zeros(len(ids.counts)))

    def lent(self) -> ExtrasOfEach:
        """Return the measured similarities, and the numbers of the peers to which they are."""
        places = np.flatnonzero(~self._unmet[:-1])
        met = self._ids.at(places)
        values = self._values[places].astype(np.float32)
        return ExtrasOfEach(met.starts, {"peers": met.peers.view(np.uint64), "similarities": values})

    def measure(self, similarities: WeightsOfEach) -> None:
        """Store measured similarities."""
        places = ids_in(self._ids, similarities.ids)
        self._values[places], self._unmet[places] = similarities.others, False

    def borrow(self, present: IdsOfEach, updates: UpdatesOfEach, measure: str, most: bool) -> None:
        """Store similarities that the senders of models have measured, to peers that a node has not measured itself.

        Args:
            present: the peers of this round.
            most: of several senders that have measured a peer, the most similar one counts; otherwise the least similar.
        """
        ids, extras = updates.ids, updates.extras
        if extras is None or not self._unmet.any():
            return
        own = self._values[ids_in(self._ids, ids)]
        order = np.lexsort((own if most else -own, ids.rows))  # stable: of equal ones, the last id counts
        nodes, lenders = ids.rows[order], ids.peers[order]
        counts = np.diff(extras.starts)[lenders]
        ends = np.cumsum(counts)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(extras.starts[lenders] - (ends - counts), counts)
        peers = extras.arrays["peers"][entries].view(np.int64)
        borrowers = np.repeat(nodes, counts)
        places = self._ids.find(borrowers, peers)
        usable = np.flatnonzero(self._unmet[places])
        if present is not self._ids:
            usable = usable[present.find(borrowers[usable], peers[usable]) >= 0]
        values = extras.arrays["similarities"][entries[usable]].astype(np.float64)
        lowest, highest = RANGES[measure]
        self._values[places[usable]] = np.minimum(np.maximum(values, lowest), highest)  # NumPy keeps the last


def ids_in(ids: IdsOfEach, others: IdsOfEach) -> NDArray[np.int64]:
    """Return the place in `ids` of each entry of `others`, which are among them."""
    return ids.find(others.rows, others.peers)


@of_each(SimilaritiesOfEach)
def unknown(ids: Sequence[str]) -> PeerSimilarities:
    """Return a table without similarities to any of `ids`."""
    return PeerSimilarities({}, {})


class PeerSimilarities:
    """A node's similarities to its peers: measured by the node itself, or borrowed from a peer that has measured them.

    A borrowed similarity never replaces a measured one. Absent peers keep theirs.

    Attributes:
        measured: the measured similarities by name, in the order of the first measurement.
    """

    def __init__(self, measured: Mapping[str, float], borrowed: Mapping[str, float]) -> None:
        self.measured = dict(measured)
        self._borrowed = dict(borrowed)  # when `_ids` were set
        self._ids: tuple[str, ...] = ()
        self._values = np.empty(0)  # by place in `_ids`; 0 is unknown
        self._unmet = np.empty(0, bool)
        self._keys = np.empty(0, np.uint64)  # sorted short ids
        self._places = np.empty(0, np.intp)  # the place of each key
        self._measured_keys = np.empty(0, np.uint64)  # of the first measured ones

    def of(self, ids: tuple[str, ...]) -> Scores:
        """Return the similarities to `ids`, which are sorted; 0 is unknown. Shape [K]; never write into it."""
        if ids is not self._ids and ids != self._ids:
            self._borrowed = self.borrowed
            known = self._borrowed | self.measured
            self._ids = ids
            self._values = np.array([known.get(id, 0.0) for id in ids], np.float64)
            self._unmet = np.array([id not in self.measured for id in ids], bool)
            keys = short_ids(ids)
            self._places = keys.argsort()
            self._keys = keys[self._places]
        return self._values

    @property
    def borrowed(self) -> dict[str, float]:
        """The borrowed similarities to peers without a measured one, by name."""
        known = self._borrowed | dict(zip(self._ids, self._values.tolist(), strict=True))
        return {id: value for id, value in known.items() if value and id not in self.measured}

    def lent(self) -> dict[str, np.ndarray]:
        """Return the measured similarities as extras of an update. Never write into them.

        peers: short ids, uint64 [K]. similarities: to each of them, float32 [K].
        """
        measured = self.measured
        if len(self._measured_keys) < len(measured):  # no peer is ever removed
            others = short_ids(list(measured)[len(self._measured_keys) :])
            self._measured_keys = np.concatenate([self._measured_keys, others])
        return {"peers": self._measured_keys, "similarities": np.fromiter(measured.values(), np.float32, len(measured))}

    def measure(self, similarities: Mapping[str, float]) -> None:
        """Store measured similarities."""
        self.measured |= similarities
        for id, value in similarities.items():
            place = bisect_left(self._ids, id)
            if place < len(self._ids) and self._ids[place] == id:
                self._values[place], self._unmet[place] = value, False

    def borrow(self, ids: tuple[str, ...], keys: Keys, similarities: Scores) -> None:
        """Store borrowed similarities to those of `ids` that have no measured one.

        Args:
            keys, similarities: short ids and the similarities to them, [M]; a later one overrides. Other names and
                values that are not finite are left out.
        """
        values = self.of(ids)
        if not len(keys) or not self._unmet.any():
            return
        found = self._keys.searchsorted(keys)
        found[found == len(ids)] = 0
        places = self._places[found]
        usable = (self._keys[found] == keys) & self._unmet[places] & np.isfinite(similarities)
        values[places[usable]] = similarities[usable]  # of several values for a place, NumPy keeps the last
