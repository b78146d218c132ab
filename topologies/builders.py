"""Named graphs, each with its own seed. Any other NetworkX graph can be used from Python."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from math import isqrt
from random import Random
from typing import Any

import networkx as nx


def complete(n: int, seed: int) -> nx.Graph:
    """Every node is a neighbour of every other."""
    return nx.complete_graph(n)


def ring(n: int, seed: int) -> nx.Graph:
    """Every node has two neighbours."""
    return nx.cycle_graph(n) if n > 2 else nx.path_graph(n)


def k_regular(n: int, seed: int, *, degree: int = 4) -> nx.Graph:
    """A random graph in which every node has the same number of neighbours.

    Args:
        degree: the number of neighbours; nodes * degree must be even.
    """
    if degree < 0 or degree >= n or n * degree % 2:
        raise ValueError(f"no graph of {n} nodes has degree {degree} everywhere: 0 <= degree < nodes, nodes * degree even")
    return nx.random_regular_graph(degree, n, seed=seed)


def watts_strogatz(n: int, seed: int, *, degree: int = 4, rewire: float = 0.1) -> nx.Graph:
    """A connected small world: a ring in which some edges lead to random nodes.

    Args:
        degree: nearest neighbours of each node on the ring; an even number.
        rewire: the probability with which each edge is rewired.
    """
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
    """A random graph of independent edges, which may be disconnected.

    Args:
        p: the probability with which each pair of nodes is joined.
    """
    _probability("p", p)
    return nx.gnp_random_graph(n, p, seed=seed)


def torus(n: int, seed: int) -> nx.Graph:
    """A grid, as square as it can be, whose opposite sides are joined: every node has four neighbours.

    Node k is in row k // columns. There is one where n is a product of two numbers from 3.
    """
    rows = _rows(n)
    if rows < 3:
        following = next(k for k in range(max(9, n), 2 * n + 10) if _rows(k) >= 3)
        raise ValueError(
            f"a torus has rows * columns nodes, both 3 or more; {n} is no such product, the next is {following}"
        )
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, n // rows, periodic=True))


def star(n: int, seed: int) -> nx.Graph:
    """Node 0 is a neighbour of every other, and there are no more edges."""
    return nx.star_graph(n - 1)


def barabasi_albert(n: int, seed: int, *, edges: int = 2) -> nx.Graph:
    """A connected, scale-free graph (Barabasi and Albert, Emergence of scaling in random networks, Science, 1999).

    It starts from a star of edges + 1 nodes. Further nodes are added one by one, and prefer nodes with many edges.

    Args:
        edges: edges of each added node.
    """
    if not 1 <= edges < n:
        raise ValueError(f"edges must be from 1 to {n - 1} for {n} nodes, got {edges}")
    return nx.barabasi_albert_graph(n, edges, seed=seed)


def clusters(n: int, seed: int, *, groups: int = 3, within: float = 1.0, links: int = 1) -> nx.Graph:
    """Dense groups with few edges between them; connected.

    The groups have consecutive nodes and sizes that differ by one at most: node k is in group k * groups // n. Each group is
    joined to the next one, and the last to the first. A graph that is not connected is drawn again.

    Args:
        groups: the number of groups.
        within: the probability with which two nodes of a group are joined.
        links: edges between two groups that follow each other, between nodes drawn at random.
    """
    _probability("within", within)
    if not 1 <= groups <= n:
        raise ValueError(f"groups must be from 1 to {n} for {n} nodes, got {groups}")
    members: list[list[int]] = [[] for _ in range(groups)]
    for k in range(n):
        members[k * groups // n].append(k)
    around = list(pairwise([*members, members[0]] if groups > 2 else members))
    most = min((len(one) * len(other) for one, other in around), default=max(1, links))
    if not 1 <= links <= most:
        raise ValueError(f"links must be from 1 to {most}, the pairs of nodes in two neighbouring groups, got {links}")
    random = Random(seed)
    for _ in range(100):
        graph = nx.empty_graph(n)
        for group in members:
            graph.add_edges_from(pair for pair in combinations(group, 2) if random.random() < within)
        for one, other in around:
            drawn = random.sample(range(len(one) * len(other)), links)
            graph.add_edges_from((one[k // len(other)], other[k % len(other)]) for k in drawn)
        if nx.is_connected(graph):
            return graph
    raise ValueError(f"no connected graph found in 100 tries; raise within (now {within})")


BUILDERS: dict[str, Callable[..., nx.Graph]] = {
    "complete": complete,
    "ring": ring,
    "k-regular": k_regular,
    "small-world": watts_strogatz,
    "watts-strogatz": watts_strogatz,
    "erdos-renyi": erdos_renyi,
    "torus": torus,
    "star": star,
    "barabasi-albert": barabasi_albert,
    "scale-free": barabasi_albert,
    "clusters": clusters,
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


def labels(graph: nx.Graph) -> list[str]:
    """Return what each node is called, by its place in the graph: its attribute `label`, otherwise the node itself."""
    return [str(attributes.get("label", node)) for node, attributes in graph.nodes(data=True)]


def _rows(n: int) -> int:
    """The largest divisor of n that is not above its square root."""
    return next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
