"""Named graphs, each with its own seed. Any other NetworkX graph can be used from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx


def complete(n: int, seed: int) -> nx.Graph:
    """Every node is a neighbour of every other."""
    return nx.complete_graph(n)


def ring(n: int, seed: int) -> nx.Graph:
    """Every node has two neighbours."""
    return nx.cycle_graph(n) if n > 2 else nx.path_graph(n)


def k_regular(n: int, seed: int, *, degree: int = 4) -> nx.Graph:
    """A random graph in which every node has `degree` neighbours."""
    if degree < 0 or degree >= n or n * degree % 2:
        raise ValueError(f"no graph of {n} nodes has degree {degree} everywhere: 0 <= degree < nodes, nodes * degree even")
    return nx.random_regular_graph(degree, n, seed=seed)


def watts_strogatz(n: int, seed: int, *, degree: int = 4, rewire: float = 0.1) -> nx.Graph:
    """A small world: a ring with `degree` nearest neighbours, each edge rewired with probability `rewire`; connected."""
    _probability("rewire", rewire)
    if n < 3:
        raise ValueError(f"a small world has 3 nodes or more, got {n}")
    if not 2 <= degree < n or degree % 2:
        raise ValueError(f"degree must be even, from 2 to {n - 1} for {n} nodes, got {degree}")
    try:
        return nx.connected_watts_strogatz_graph(n, degree, rewire, tries=100, seed=seed)
    except nx.NetworkXError as error:
        raise ValueError(f"no connected small world found in 100 tries; raise degree (now {degree})") from error


def erdos_renyi(n: int, seed: int, *, p: float = 0.1) -> nx.Graph:
    """Every pair of nodes is joined with probability `p`; the graph may be disconnected."""
    _probability("p", p)
    return nx.gnp_random_graph(n, p, seed=seed)


BUILDERS: dict[str, Callable[..., nx.Graph]] = {
    "complete": complete,
    "ring": ring,
    "k-regular": k_regular,
    "small-world": watts_strogatz,
    "watts-strogatz": watts_strogatz,
    "erdos-renyi": erdos_renyi,
}


def build(name: str, n: int, seed: int, **options: Any) -> nx.Graph:
    """Return the graph called `name` on the nodes 0..n-1.

    Raises:
        KeyError: no builder has that name.
        ValueError: there is no such graph.
    """
    graph = BUILDERS[name](n, seed, **options)
    graph.graph["name"] = name
    return graph


def neighbours(graph: nx.Graph) -> list[tuple[int, ...]]:
    """Return the sorted neighbours of every node, by the node's place in the graph's own order.

    A node is never its own neighbour; parallel edges count once; in a directed graph j is a neighbour of i where there is
    an edge from j to i, as a model would travel.
    """
    place = {node: k for k, node in enumerate(graph.nodes)}
    around = graph.predecessors if graph.is_directed() else graph.neighbors
    return [tuple(sorted({place[other] for other in around(node)} - {place[node]})) for node in graph.nodes]


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
