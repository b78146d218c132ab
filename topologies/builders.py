"""Named graphs, each drawn from its own seed. From Python, any other NetworkX graph can be used."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from math import isqrt
from random import Random
from typing import Any

import networkx as nx

from p2pfl.topologies.rings import DEGREE, numbered, ring_links, ring_orders


def complete(n: int, seed: int) -> nx.Graph:
    """Return a graph in which every node is a neighbour of every other."""
    return nx.complete_graph(n)


def ring(n: int, seed: int) -> nx.Graph:
    """Return a ring: every node has two neighbours."""
    return nx.cycle_graph(n) if n > 2 else nx.path_graph(n)


def k_regular(n: int, seed: int, *, degree: int = 4) -> nx.Graph:
    """Return a random graph in which every node has the same number of neighbours.

    Args:
        degree: the number of neighbours; nodes * degree must be even.
    """
    check_degree(n, degree)
    return nx.random_regular_graph(degree, n, seed=seed)


def check_degree(n: int, degree: int) -> None:
    """Raise ValueError if there is no regular graph of this degree."""
    if degree < 0 or degree >= n or n * degree % 2:
        raise ValueError(
            f"degree must be at least 0 and below {n} for {n} nodes, and nodes * degree must be even, got {degree}"
        )


def rings(n: int, seed: int, *, degree: int = DEGREE) -> nx.Graph:
    """Return a connected random graph: each node is a neighbour of the nodes before and after it on several random rings.

    A federation has it as a rule, whoever comes or goes; see p2pfl.topologies.rings.

    Args:
        degree: maximum number of neighbours of a node, two for each ring; even, from 2 to 64.
    """
    low, high = ring_links(ring_orders(seed, degree, numbered(n)))
    graph = nx.empty_graph(n)
    graph.add_edges_from(zip(low.tolist(), high.tolist(), strict=True))
    return graph


def watts_strogatz(n: int, seed: int, *, degree: int = 4, rewire: float = 0.1) -> nx.Graph:
    """Return a connected small world: a ring in which some edges lead to random nodes.

    Args:
        degree: nearest neighbours of each node on the ring; an even number.
        rewire: probability of rewiring each edge.
    """
    _probability("rewire", rewire)
    if n < 3:
        raise ValueError(f"a small world needs 3 nodes or more, got {n}")
    if not 2 <= degree < n or degree % 2:
        raise ValueError(f"degree must be even, from 2 to {n - 1} for {n} nodes, got {degree}")
    try:
        return nx.connected_watts_strogatz_graph(n, degree, rewire, tries=100, seed=seed)
    except nx.NetworkXError as error:
        raise ValueError(f"no connected small world found in 100 attempts; increase degree, which is {degree}") from error


def erdos_renyi(n: int, seed: int, *, p: float = 0.1) -> nx.Graph:
    """Return a random graph of independent edges, which may be disconnected.

    Args:
        p: probability of an edge between each pair of nodes.
    """
    _probability("p", p)
    return nx.gnp_random_graph(n, p, seed=seed)


def torus(n: int, seed: int) -> nx.Graph:
    """Return a grid, as square as possible, with opposite sides joined: every node has four neighbours.

    Node k is in row k // columns. The number of nodes must be a product of two numbers of at least 3.
    """
    rows = torus_rows(n)
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, n // rows, periodic=True))


def torus_rows(n: int) -> int:
    """Return the number of rows of a torus of n nodes. Raise ValueError if there is none."""
    rows = _rows(n)
    if rows < 3:
        following = next(k for k in range(max(9, n), 2 * n + 10) if _rows(k) >= 3)
        raise ValueError(
            f"a torus needs rows * columns nodes, both 3 or more; {n} is not such a product, the next is {following}"
        )
    return rows


def star(n: int, seed: int) -> nx.Graph:
    """Return a star: node 0 is a neighbour of every other node, and there are no other edges."""
    return nx.star_graph(n - 1)


def barabasi_albert(n: int, seed: int, *, edges: int = 2) -> nx.Graph:
    """Return a connected, scale-free graph.

    It follows Barabasi and Albert, Emergence of scaling in random networks, Science, 1999. It starts from a star of
    edges + 1 nodes. Further nodes are added one by one, and prefer nodes with many edges.

    Args:
        edges: number of edges of each added node.
    """
    if not 1 <= edges < n:
        raise ValueError(f"edges must be from 1 to {n - 1} for {n} nodes, got {edges}")
    return nx.barabasi_albert_graph(n, edges, seed=seed)


def clusters(n: int, seed: int, *, groups: int = 3, within: float = 1.0, links: int = 1) -> nx.Graph:
    """Return a connected graph of dense groups with few edges between them.

    The groups have consecutive nodes, and their sizes differ by at most one: node k is in group k * groups // n. Each
    group is joined to the next one, and the last to the first. If the graph is not connected, it is drawn again.

    Args:
        groups: number of groups.
        within: probability of an edge between two nodes of a group.
        links: number of edges between two consecutive groups, between random nodes.
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
        raise ValueError(f"links must be from 1 to {most}, the number of pairs between two neighbouring groups, got {links}")
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
    raise ValueError(f"no connected graph found in 100 attempts; increase within, which is {within}")


def ring_with_leaves(n: int, seed: int, *, ring: int = 5) -> nx.Graph:
    """Return a ring whose nodes have further neighbours of their own, the leaves.

    The first nodes form the ring; leaf k is a neighbour of node k % ring only. With attackers as leaves it is the graph
    of He, Karimireddy and Jaggi ("Byzantine-robust decentralized learning via ClippedGossip", 2022, figure 6).

    Args:
        ring: number of nodes in the ring; at least 3.
    """
    if not 3 <= ring <= n:
        raise ValueError(f"ring must be from 3 to {n} for {n} nodes, got {ring}")
    graph = nx.cycle_graph(ring)
    graph.add_edges_from(((k - ring) % ring, k) for k in range(ring, n))
    return graph


def two_worlds(n: int, seed: int, *, core: int = 0, links: int = 1) -> nx.Graph:
    """Return two cliques with several edges between them, and further nodes that are neighbours of all nodes in them.

    The first `core` nodes form the cliques, half of them each. With attackers as the further nodes it is the graph of
    Gaucher, Dieuleveut and Hendrikx ("Unified Breakdown Analysis for Byzantine Robust Gossip", ICML 2025).

    Args:
        core: number of nodes in both cliques; 0 for all nodes.
        links: neighbours of each node of the first clique in the second one.
    """
    if core and not 2 <= core <= n:
        raise ValueError(f"core must be from 2 to {n} for {n} nodes, or 0 for all, got {core}")
    core = core or n
    half = core // 2
    if not 1 <= links <= max(half, 1):
        raise ValueError(f"links must be from 1 to {half}, the size of a clique, got {links}")
    graph = nx.disjoint_union(nx.complete_graph(half), nx.complete_graph(core - half))
    graph.add_edges_from((k, (k + step) % half + half) for k in range(half) for step in range(links))
    graph.add_edges_from((k, other) for other in range(core, n) for k in range(core))
    return graph


BUILDERS: dict[str, Callable[..., nx.Graph]] = {
    "complete": complete,
    "ring": ring,
    "k-regular": k_regular,
    "rings": rings,
    "small-world": watts_strogatz,
    "watts-strogatz": watts_strogatz,
    "erdos-renyi": erdos_renyi,
    "torus": torus,
    "star": star,
    "barabasi-albert": barabasi_albert,
    "scale-free": barabasi_albert,
    "clusters": clusters,
    "ring-with-leaves": ring_with_leaves,
    "two-worlds": two_worlds,
}


def build(name: str, n: int, seed: int, **options: Any) -> nx.Graph:
    """Return the graph called `name` on the nodes 0..n-1.

    Raises:
        KeyError: no builder has that name.
        ValueError: the graph does not exist for these options.
    """
    graph = BUILDERS[name](n, seed, **options)
    graph.graph["name"] = name
    return graph


def neighbours(graph: nx.Graph) -> list[tuple[int, ...]]:
    """Return the sorted neighbours of every node, by the index of the node in the graph's own order.

    A node is never its own neighbour, and parallel edges count once. In a directed graph, j is a neighbour of i if
    there is an edge from j to i, the direction in which a model is sent.
    """
    place = {node: k for k, node in enumerate(graph.nodes)}
    around = graph.predecessors if graph.is_directed() else graph.neighbors
    return [tuple(sorted({place[other] for other in around(node)} - {place[node]})) for node in graph.nodes]


def labels(graph: nx.Graph) -> list[str]:
    """Return the name of each node, by its index in the graph: its attribute `label`, otherwise the node itself."""
    return [str(attributes.get("label", node)) for node, attributes in graph.nodes(data=True)]


def _rows(n: int) -> int:
    """Return the largest divisor of n that does not exceed its square root."""
    return next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
