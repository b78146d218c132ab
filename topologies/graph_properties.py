"""Properties of a graph: degrees, components, distances, and the speed at which averages spread."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import networkx as nx
import numpy as np

from p2pfl.topologies.builders import neighbours
from p2pfl.topologies.geography import coordinates

LIMIT = 2_000  # nodes; the eigenvalues of more take too long


def properties(graph: nx.Graph, gap: Callable[[nx.Graph], float] | None = None) -> dict[str, Any]:
    """Return the properties of a graph as JSON values.

    In a directed graph the degree of a node counts the neighbours from which it may fetch. Components are strongly
    connected: a model can get from each node to each other one.

    Args:
        gap: returns the spectral gap of a component, in place of `spectral_gap`.

    Returns:
        Values by these keys. Diameters, gaps and clustering are None for graphs of over 2,000 nodes that are not
        complete.

        - nodes, edges: their numbers; parallel edges count once, edges from a node to itself do not count.
        - directed, weighted: whether the graph is directed or weighted.
        - degree: {"min", "mean", "max"} of the numbers of neighbours.
        - components: number of components.
        - diameter: edges of the longest shortest path; None if there is more than one component.
        - spectral_gap: see `spectral_gap`; 0 if there is more than one component.
        - clustering: the mean fraction of a node's pairs of neighbours that are neighbours, 0 for a node with fewer
          than two; directions do not count.
        - largest_component: {"nodes", "diameter", "spectral_gap"} of the largest component (on a tie the first).
        - coordinates: number of nodes with coordinates of their own.

    Raises:
        ValueError: a weight is not a positive number, or a latitude or longitude is not a valid number of degrees.
    """
    weighted = _is_weighted(graph)
    around = neighbours(graph)
    n = len(around)
    degrees = [len(near) for near in around]
    ends = sum(degrees)
    complete = min(degrees) == n - 1  # avoids looking at each of its many edges
    if complete and not graph.is_directed() and not weighted:
        return complete_properties(n) | {"coordinates": _count_coordinates(graph)}
    parts = [set(graph.nodes)] if complete else _components(graph)
    if complete and not weighted:
        whole = {"nodes": n, "diameter": min(1, n - 1), "spectral_gap": 1.0}
    else:
        whole = _inner(graph, around, max(parts, key=len), gap or spectral_gap)
    connected = len(parts) == 1
    return {
        "nodes": n,
        "edges": ends if graph.is_directed() else ends // 2,
        "directed": graph.is_directed(),
        "weighted": weighted,
        "degree": {"min": min(degrees), "mean": ends / n, "max": max(degrees)},
        "components": len(parts),
        "diameter": whole["diameter"] if connected else None,
        "spectral_gap": whole["spectral_gap"] if connected else 0.0,
        "clustering": float(n > 2) if complete else _clustering(around),
        "largest_component": whole,
        "coordinates": _count_coordinates(graph),
    }


def complete_properties(n: int) -> dict[str, Any]:
    """Return the properties of a complete graph of n nodes without weights, directions and coordinates."""
    diameter = min(1, n - 1)
    return {
        "nodes": n,
        "edges": n * (n - 1) // 2,
        "directed": False,
        "weighted": False,
        "degree": {"min": n - 1, "mean": float(n - 1), "max": n - 1},
        "components": 1,
        "diameter": diameter,
        "spectral_gap": 1.0,
        "clustering": float(n > 2),
        "largest_component": {"nodes": n, "diameter": diameter, "spectral_gap": 1.0},
        "coordinates": 0,
    }


def mixing_matrix(graph: nx.Graph) -> np.ndarray:
    """Return the weights [n, n], float64, with which nodes average each other's values; row i is node i's.

    Neighbours i and j have the Metropolis-Hastings weights w_ij / (w + max(s_i, s_j)). w_ij is the edge's weight, s_i
    the sum of the weights at node i, and w the largest weight of the graph; each node keeps the rest. Without weights
    this is 1 / (1 + max(d_i, d_j)) with the degrees d (Xiao, Boyd and Kim, Distributed average consensus with
    least-mean-square deviation, 2007). The result does not depend on the unit of the weights. The matrix is symmetric,
    so averaging preserves the mean. In a directed graph a node does not know the others' degrees. The weights are then
    w_ji / (w + s_i), with the weights of incoming edges, and the mean is not preserved.
    """
    strengths = _strengths(graph)
    largest = float(strengths.max(initial=0.0)) or 1.0
    sums = strengths.sum(axis=1)
    others = sums[:, None] if graph.is_directed() else np.maximum(sums[:, None], sums[None, :])
    matrix: np.ndarray = strengths / (largest + others)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix


def spectral_gap(graph: nx.Graph) -> float:
    """Return 1 minus the second largest modulus of the eigenvalues of `mixing_matrix`.

    In the long run, the difference from the average shrinks by a factor of one minus this value in each step. It is 1
    for a complete graph and 0 for a graph of several components.
    """
    if len(graph) == 1:
        return 1.0
    matrix = mixing_matrix(graph)
    values = np.linalg.eigvals(matrix) if graph.is_directed() else np.linalg.eigvalsh(matrix)
    return max(0.0, 1.0 - float(np.sort(np.abs(values))[-2]))


def _count_coordinates(graph: nx.Graph) -> int:
    """Return the number of nodes with coordinates of their own."""
    return sum(point is not None for point in coordinates(graph))


def _is_weighted(graph: nx.Graph) -> bool:
    """Return whether any edge has a weight. Raise ValueError for an invalid weight."""
    given = [(source, target, weight) for source, target, weight in graph.edges(data="weight") if weight is not None]
    for source, target, weight in given:
        if not isinstance(weight, int | float | np.number) or not 0 < weight < inf:
            raise ValueError(f"the weight of the edge {source}-{target} must be a positive number, got {weight!r}")
    return bool(given)


def _strengths(graph: nx.Graph) -> np.ndarray:
    """Return the weights of edges [n, n]: row i has the edges into node i, the largest of parallel ones."""
    place = {node: k for k, node in enumerate(graph.nodes)}
    strengths = np.zeros((len(place), len(place)))
    for source, target, weight in graph.edges(data="weight", default=1.0):
        i, j = place[source], place[target]
        if i != j:
            strengths[j, i] = max(strengths[j, i], weight)
            if not graph.is_directed():
                strengths[i, j] = strengths[j, i]
    return strengths


def _components(graph: nx.Graph) -> list[set[Any]]:
    return list(nx.strongly_connected_components(graph) if graph.is_directed() else nx.connected_components(graph))


def _inner(
    graph: nx.Graph, around: list[tuple[int, ...]], part: set[Any], gap: Callable[[nx.Graph], float]
) -> dict[str, Any]:
    """Return the measures of one component."""
    n = len(part)
    if n > LIMIT:
        return {"nodes": n, "diameter": None, "spectral_gap": None}
    if n < len(around):
        graph = graph.subgraph([node for node in graph.nodes if node in part])
        around = neighbours(graph)
    return {"nodes": n, "diameter": _diameter(around), "spectral_gap": gap(graph)}


def _diameter(around: list[tuple[int, ...]]) -> int:
    """Return the longest shortest path of a connected graph.

    The balls around all nodes grow by one step at a time. Each is stored as the bits of an integer, which is many times
    faster than a search from every node.
    """
    n = len(around)
    full = (1 << n) - 1
    balls = [1 << k for k in range(n)]
    steps = 0
    while any(ball != full for ball in balls):
        grown = []
        for k, near in enumerate(around):
            ball = balls[k]
            for j in near:
                ball |= balls[j]
            grown.append(ball)
        balls = grown
        steps += 1
    return steps


def _clustering(around: list[tuple[int, ...]]) -> float | None:
    n = len(around)
    if n > LIMIT:
        return None
    joined = np.zeros((n, n), np.float32)  # exact: its counts are at most 2,000 squared
    for k, near in enumerate(around):
        joined[k, near] = joined[near, k] = 1.0
    degrees = joined.sum(axis=1)
    triangles = ((joined @ joined) * joined).sum(axis=1)
    pairs = degrees * (degrees - 1)
    return float(np.divide(triangles, pairs, out=np.zeros(n), where=pairs > 0, dtype=np.float64).mean())
