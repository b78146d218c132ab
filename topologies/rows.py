"""Named graphs of many nodes as arrays: the neighbours of each node, one row after another.

A graph of NetworkX takes 200 bytes and more for an edge, and seconds for a million of them; a simulation needs only the
neighbours of each node. `ROWS` has the builders of some graphs of p2pfl.topologies.builders in this form: they give the same
graphs from the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache
from itertools import repeat
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pfl.topologies.builders import check_degree, torus_rows
from p2pfl.topologies.rings import DEGREE, numbered, ring_links, ring_orders

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Neighbours of each node, ascending.

    Attributes:
        starts: place of each node's first neighbour, and the number of all; [n + 1].
        peers: their numbers, [starts[-1]].
    """

    starts: Ints
    peers: Ints


def ring(n: int, seed: int) -> Rows:
    """Return a ring; see p2pfl.topologies.builders.ring."""
    nodes = np.arange(n)
    return _of_table(np.stack([(nodes - 1) % n, (nodes + 1) % n], 1))


def torus(n: int, seed: int) -> Rows:
    """Return a grid with opposite sides joined; see p2pfl.topologies.builders.torus."""
    rows = torus_rows(n)
    columns = n // rows
    row, column = np.divmod(np.arange(n), columns)
    up, down = ((row + step) % rows * columns + column for step in (-1, 1))
    left, right = (row * columns + (column + step) % columns for step in (-1, 1))
    return _of_table(np.stack([up, down, left, right], 1))


@lru_cache(maxsize=1)
def k_regular(n: int, seed: int, *, degree: int = 4) -> Rows:
    """Return a random regular graph; see p2pfl.topologies.builders.k_regular.

    The draws are those of networkx.random_regular_graph (Steger and Wormald, Generating random regular graphs quickly,
    1999): ends of edges are paired at random, those of loops and of parallel edges again, until none is left.
    """
    check_degree(n, degree)
    random = Random(seed)
    while (keys := _paired(n, degree, random)) is None:
        pass
    low, high = np.divmod(keys, n)
    order = np.argsort(np.concatenate([low, high]) * n + np.concatenate([high, low]))
    return Rows(np.arange(n + 1) * degree, np.concatenate([high, low])[order])


def rings(n: int, seed: int, *, degree: int = DEGREE) -> Rows:
    """Return the neighbours on several random rings; see p2pfl.topologies.builders.rings."""
    low, high = ring_links(ring_orders(seed, degree, numbered(n)))
    to, source = np.concatenate([low, high]), np.concatenate([high, low])
    order = (to * n + source).argsort()
    return Rows(np.concatenate([[0], np.cumsum(np.bincount(to, minlength=n))]), source[order])


ROWS: dict[str, Callable[..., Rows]] = {"ring": ring, "torus": torus, "k-regular": k_regular, "rings": rings}


def _of_table(table: Ints) -> Rows:
    n, degree = table.shape
    return Rows(np.arange(n + 1) * degree, np.sort(table, axis=1).ravel())


def _paired(n: int, degree: int, random: Random) -> Ints | None:
    """Return the edges (low, high) of a regular graph as low * n + high, ascending; None if the attempt has failed."""
    edges = np.empty(0, np.int64)
    ends = list(range(n)) * degree
    while ends:
        random.shuffle(ends)
        pairs = np.sort(np.array(ends).reshape(-1, 2), axis=1)
        keys = pairs[:, 0] * n + pairs[:, 1]
        good = np.zeros(len(keys), bool)
        good[np.unique(keys, return_index=True)[1]] = True  # of parallel edges the first one
        good &= (pairs[:, 0] != pairs[:, 1]) & ~np.isin(keys, edges)
        edges = np.union1d(edges, keys[good])
        left: dict[int, int] = {}
        for node in pairs[~good].ravel().tolist():
            left[node] = left.get(node, 0) + 1
        if left and not _can_continue(left, _Edges(edges, n)):
            return None
        ends = [node for node, count in left.items() for _ in repeat(None, count)]
    return edges


class _Edges(Container[tuple[int, int]]):
    """Set of the edges whose keys are given, ascending."""

    def __init__(self, keys: Ints, n: int) -> None:
        self._keys, self._n = keys, n

    def __contains__(self, edge: Any) -> bool:
        key = edge[0] * self._n + edge[1]
        place = int(np.searchsorted(self._keys, key))
        return place < len(self._keys) and int(self._keys[place]) == key


def _can_continue(left: dict[int, int], edges: Container[tuple[int, int]]) -> bool:
    """Return whether NetworkX finds two nodes with ends left that can be joined."""
    for one in left:
        for other in left:
            if one == other:
                break
            if one > other:
                one, other = other, one
            if (one, other) not in edges:
                return True
    return False


def components(rows: Rows) -> Ints:
    """Return the lowest node of the component of each node, [n]. Every node has a neighbour."""
    lowest: Ints = np.arange(len(rows.starts) - 1)
    while True:
        found = np.minimum(lowest, np.minimum.reduceat(lowest[rows.peers], rows.starts[:-1]))
        while ((further := found[found]) != found).any():
            found = further
        if (found == lowest).all():
            return lowest
        lowest = found


def properties(rows: Rows) -> dict[str, Any] | None:
    """Return the properties of a graph of over 2,000 nodes, as p2pfl.topologies.properties does.

    None if that needs a graph of NetworkX, because some component is small.
    """
    degrees = np.diff(rows.starts)
    n, ends = len(degrees), int(rows.starts[-1])
    if not degrees.all():
        return None
    sizes = np.unique(components(rows), return_counts=True)[1]
    largest = int(sizes.max())
    if largest <= LIMIT:
        return None
    return {
        "nodes": n,
        "edges": ends // 2,
        "directed": False,
        "weighted": False,
        "degree": {"min": int(degrees.min()), "mean": ends / n, "max": int(degrees.max())},
        "components": len(sizes),
        "diameter": None,
        "spectral_gap": None if len(sizes) == 1 else 0.0,
        "clustering": None,
        "largest_component": {"nodes": largest, "diameter": None, "spectral_gap": None},
        "coordinates": 0,
    }


LIMIT = 2_000
"""Nodes up to which p2pfl.topologies.properties computes distances and eigenvalues."""
