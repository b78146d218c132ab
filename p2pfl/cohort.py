"""Values of all nodes of a simulation at once, so that a policy's procedure runs once for all of them.

Theory of operation
-------------------

A policy is written for one node: `ids` are its peers, `trained` is its model, `weights` are the weights of its merge. Where
nothing tells the nodes of a simulation apart but their data and their draws, the same procedure can compute with the
values of all nodes: models are [N, P] instead of [P], and what has one entry for each peer is ragged, because nodes may
have different numbers of peers:

    one node                            all nodes of a cohort
    me.id                               EACH
    me.params, float32 [P]              float32 [N, P]
    me.rng(purpose)                     GeneratorsOfEach
    peers.ids, list of names            IdsOfEach: the numbers of peers, rows of one array
    list of Update                      UpdatesOfEach
    weights by id                       WeightsOfEach: the weights of the peers, and the own weights

Helpers such as `uniform`, `fedavg` and `merge` take either form: `of_each` marks them. A policy that uses only these
helpers, and branches on nothing that differs between nodes, sets the attribute `cohort = True`; the simulator then runs it
once a round (p2pfl.sim.simulation.cohort). What must never be: a result that depends on the form. Each node has its own
generators, and every sum is taken in the order in which a single node takes it; tests compare both forms bit for bit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.random_streams import RandomStreams, StreamsOfEach, digests, generators, uniform_draws

EACH = "each node"
"""The own id of every node in a cohort."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
A = ParamSpec("A")
R = TypeVar("R")


def of_each(form: Callable[..., Any]) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Mark a helper of policies that has a form for cohorts, which is called with the values of a cohort."""

    def mark(helper: Callable[A, R]) -> Callable[A, R]:
        @wraps(helper)
        def call(*args: A.args, **options: A.kwargs) -> R:
            for arg in args:
                if isinstance(arg, OF_EACH):
                    found: R = form(*args, **options)
                    return found
            return helper(*args, **options)

        return call

    return mark


class GeneratorsOfEach:
    """Generators of (federation seed, node, round, purpose) for each node of a cohort.

    Args:
        streams: random streams of each node.
    """

    def __init__(self, streams: Sequence[RandomStreams], round: int, purpose: str) -> None:
        self._streams, self._round, self._purpose = streams, round, purpose
        self._draws = np.empty((len(streams), 0))
        self._seeds: NDArray[np.uint64] | None = None

    def of(self, node: int) -> np.random.Generator:
        """Return the generator of one node; every call returns an equal one."""
        return self._streams[node].generator(self._round, self._purpose)

    def each(self, nodes: Sequence[int]) -> Iterator[np.random.Generator]:
        """Yield the generator of each of some nodes."""
        streams = self._streams.of(nodes) if isinstance(self._streams, StreamsOfEach) else [self._streams[k] for k in nodes]
        return generators(streams, self._round, self._purpose)

    def random(self, counts: Counts) -> Floats:
        """Return the first uniform draws of each node, [N, m] with at least the greatest count."""
        most = int(counts.max(initial=0))
        if most > self._draws.shape[1]:
            if self._seeds is None:
                self._seeds = digests(self._streams, self._round, self._purpose)
            else:  # who asks for more does so again
                most *= 2
            self._draws = uniform_draws(self._seeds, most)
        return self._draws


class IdsOfEach:
    """Peers of each node of a cohort, by their numbers, in rows of different lengths.

    Args:
        starts: place of each node's first peer, and the number of all peers; int64 [N + 1].
        peers: numbers of the peers, ascending within a row; int64 [E].
    """

    __slots__ = ("_rows", "counts", "peers", "starts")

    def __init__(self, starts: Counts, peers: Counts) -> None:
        self.starts, self.peers = starts, peers
        self.counts: Counts = np.diff(starts)
        self._rows: Counts | None = None

    @classmethod
    def of_counts(cls, counts: Counts, peers: Counts) -> IdsOfEach:
        """Return ids in rows of the given lengths."""
        return cls(np.concatenate([[0], np.cumsum(counts)]), peers)

    @property
    def rows(self) -> Counts:
        """The node to which each entry belongs; int64 [E]."""
        if self._rows is None:
            self._rows = np.repeat(np.arange(len(self.counts)), self.counts)
        return self._rows

    def keys(self) -> Counts:
        """Return a number of each pair of a node and a peer, ascending; int64 [E]."""
        return self.rows * len(self.counts) + self.peers

    def find(self, nodes: Counts, peers: Counts) -> Counts:
        """Return the place of each pair of a node and a peer among all entries, -1 for one that is not there; [K]."""
        wanted = nodes * len(self.counts) + peers
        if len(self.peers) == len(self.counts) * (len(self.counts) - 1):  # a complete graph
            places = wanted - nodes - (peers > nodes)
            places[nodes == peers] = -1
            return places
        keys = self.keys()
        if not len(keys):
            return np.full(len(wanted), -1)
        places = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, places, -1)

    def where(self, kept: NDArray[np.bool_]) -> IdsOfEach:
        """Return the entries where `kept`, [E], is true."""
        return self.at(np.flatnonzero(kept))

    def at(self, places: Counts) -> IdsOfEach:
        """Return the entries at some places, ascending."""
        return IdsOfEach.of_counts(np.bincount(self.rows[places], minlength=len(self.counts)), self.peers[places])

    def of(self, node: int) -> Counts:
        """Return the peers of one node."""
        return self.peers[self.starts[node] : self.starts[node + 1]]

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]]) -> IdsOfEach:
        """Return ids from a list of numbers for each node, ascending."""
        counts = np.array([len(each) for each in lists], np.int64)
        return cls.of_counts(counts, np.fromiter(chain.from_iterable(lists), np.int64, counts.sum()))

    def sums(self, values: NDArray[Any]) -> Floats:
        """Return the sum of the values, [E], of each row, [N], added one after another as Python adds them."""
        sums: Floats = np.bincount(self.rows, weights=values.astype(np.float64), minlength=len(self.counts))  # type: ignore[assignment]
        return sums

    def maxima(self, values: Floats, default: float) -> Floats:
        """Return the greatest of the values, [E], and of `default` in each row, [N]."""
        found = np.full(len(self.counts), default)
        np.maximum.at(found, self.rows, values)
        return found


@dataclass(frozen=True)
class WeightsOfEach:
    """Numbers by id for each node of a cohort: weights of a merge, or samples.

    Attributes:
        ids: the peers.
        others: the number of each peer, [E].
        own: that of the own id, [N].
    """

    ids: IdsOfEach
    others: NDArray[Any]
    own: NDArray[Any]


@dataclass(frozen=True)
class ExtrasOfEach:
    """Small arrays by name that each node of a cohort publishes with its model: rows of the same lengths in all of them.

    Attributes:
        starts: place of each node's first value, and the number of all values; int64 [N + 1].
        arrays: by name, [V].
    """

    starts: Counts
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class MergeOfEach:
    """Merge of each node of a cohort: the new parameters, float32 [N, P], and the weights."""

    params: NDArray[np.float32]
    weights: WeightsOfEach | Mapping[str, float]


@dataclass(frozen=True)
class QueriesOfEach:
    """Queries of some nodes of a cohort; `Me.compute` answers them together, in their order.

    Attributes:
        nodes: the number of the node that asks each query, ascending.
        queries: of one name.
    """

    nodes: Sequence[int]
    queries: Sequence[Any]


Mix = Callable[[NDArray[np.float32], NDArray[np.float32], WeightsOfEach], Awaitable[MergeOfEach]]
"""(own, published, weights) -> the merge of the own models, [N, P], and the peers' models, which are rows of `published`."""


@dataclass(frozen=True)
class UpdatesOfEach:
    """Models that each node of a cohort has received.

    Attributes:
        ids: their senders.
        published: the models of all nodes, float32 [N, P].
        n_samples: number of training samples of each node, int64 [N].
        extras: what each node has published with its model; None for nothing.
        mix: averages models.
    """

    ids: IdsOfEach
    published: NDArray[np.float32]
    n_samples: Counts
    extras: ExtrasOfEach | None
    mix: Mix = field(repr=False)

    def where(self, ids: IdsOfEach) -> UpdatesOfEach:
        """Return the updates of the given senders, which are among them."""
        return replace(self, ids=ids)


OF_EACH = IdsOfEach, UpdatesOfEach, WeightsOfEach
