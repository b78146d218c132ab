"""Speed at which nodes agree on a graph that changes in each round, and its properties as those of a static graph.

Every node begins with a random number, and in each round takes the average that the graph of the round gives it. The error
is the distance of the numbers from their mean. For a graph that brings nodes to agreement in a number of rounds it falls to
rounding errors; for others it falls by a factor in each round, one minus the effective spectral gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np

from p2pfl.random_streams import federation_streams
from p2pfl.topologies.graph_properties import LIMIT, complete_properties, properties
from p2pfl.topologies.schedules import Floats, GraphSchedule, Listed, RoundGraph, all_sources

EXACT = 1e-12  # a factor of the errors below which nodes agree up to rounding errors
COLUMNS = 8  # numbers of each node
CLOSE = 1e-6  # error of the gap, as a share of it


def consensus_errors(schedule: GraphSchedule, rounds: int) -> Floats:
    """Return the error before the first round and after each round, relative to that before; float64 [rounds + 1].

    The error is the root mean square distance of the nodes' numbers from their mean; they are drawn from seed 0.
    """
    values = federation_streams(0).generator(0, "consensus").standard_normal((schedule.n, COLUMNS))
    errors = [_distance(values)]
    for round in range(1, rounds + 1):
        values = schedule.graph(round).mix(values)
        errors.append(_distance(values))
    return np.array(errors) / (errors[0] or 1.0)


def _distance(values: Floats) -> float:
    return float(np.sqrt(np.mean((values - values.mean(axis=0)) ** 2)))


def effective_gap(schedule: GraphSchedule, rounds: int | None = None) -> float:
    """Return 1 - ||(I - J / n) W_T ... W_1 (I - J / n)||^(1 / T) with the spectral norm: 1 if all agree after T rounds.

    Args:
        rounds: T; by default the period, or for graphs drawn anew in each round 4 log2(n), less where nodes agree earlier.
    """
    if schedule.n == 1:
        return 1.0
    count = rounds or schedule.period or 4 * (schedule.n - 1).bit_length()
    norm = _norm(schedule, count)
    while norm < EXACT and not schedule.period and count > 1:
        count //= 2
        norm = _norm(schedule, count)
    return 1.0 if norm < EXACT else max(0.0, 1.0 - norm ** (1 / count))


def _norm(schedule: GraphSchedule, rounds: int) -> float:
    """Return the spectral norm of the product of all rounds' matrices between vectors of sum 0, by Lanczos' method.

    A power iteration would stop far from it on graphs that mix slowly, whose greatest singular values are close together.
    """
    graphs, n = [schedule.graph(round) for round in range(1, rounds + 1)], schedule.n
    x = _centred(federation_streams(0).generator(0, "power iteration").standard_normal(n))
    length, norm = float(np.linalg.norm(x)), 0.0
    basis = np.empty((0, n))
    diagonal: list[float] = []
    beside: list[float] = []
    while len(diagonal) < n - 1:
        x = x / length
        basis = np.append(basis, x[None], axis=0)
        x = _centred(_through(graphs, x))
        diagonal.append(float(x @ x))
        x = _centred(_through(graphs[::-1], x, transposed=True))
        for _ in range(2):  # once leaves rounding errors that grow
            x = x - basis.T @ (basis @ x)
        length = float(np.linalg.norm(x))
        ended = length <= EXACT * max(diagonal) or len(diagonal) == n - 1
        if len(diagonal) < 3 or len(diagonal) % 10 == 0 or ended:
            values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
            norm = float(np.sqrt(max(values[-1], 0.0)))
            # the residual bounds the error of the greatest value, which must be small beside it and its distance from 1
            least = min(values[-1], max(abs(1 - values[-1]), EXACT))
            if ended or norm < EXACT or length * abs(vectors[-1, -1]) <= CLOSE * least:
                break
        beside.append(length)
    return norm


def _through(graphs: Sequence[RoundGraph], x: Floats, transposed: bool = False) -> Floats:
    """Return the values of all nodes after rounds of averages."""
    for graph in graphs:
        x = graph.mix(x, transposed)
    return x


def _centred(x: Floats) -> Floats:
    centred: Floats = x - x.mean()
    return centred


def schedule_properties(schedule: GraphSchedule) -> dict[str, Any]:
    """Return the properties of a graph by round, by the keys of p2pfl.topologies.properties, and `period`.

    `degree` counts the sources of a node in one round, over all rounds of a period, and `spectral_gap` is `effective_gap`.
    The other values are those of all rounds of a period together; without a period, every node meets every other.
    """
    n = schedule.n
    rounds = schedule.period or 4 * max(1, (n - 1).bit_length())
    degrees = np.concatenate([np.diff(schedule.graph(round).starts) for round in range(1, rounds + 1)])
    found = properties(union(schedule), gap=lambda graph: 0.0) if schedule.period else complete_properties(n)
    gap = effective_gap(schedule) if n <= LIMIT else None
    found |= {
        "directed": schedule.directed,
        "weighted": True,
        "degree": {"min": int(degrees.min()), "mean": float(degrees.mean()), "max": int(degrees.max())},
        "spectral_gap": gap if found["components"] == 1 else 0.0,
        "period": schedule.period,
    }
    if found["components"] == 1:
        found["largest_component"] = {**found["largest_component"], "spectral_gap": gap}
    return found


def static_schedule(graph: nx.Graph) -> GraphSchedule:
    """Return a graph that never changes as a rule with a period of one round."""
    place = {node: k for k, node in enumerate(graph.nodes)}
    edges: dict[tuple[int, int], float] = {}
    for source, target, weight in graph.edges(data="weight", default=1.0):
        for i, j in ((source, target), *([] if graph.is_directed() else [(target, source)])):
            if i != j:
                edges[place[j], place[i]] = max(edges.get((place[j], place[i]), 0.0), weight)
    to, source = np.array([*edges], np.int64).reshape(-1, 2).T
    return Listed(len(place), [(to, source, np.array([*edges.values()], np.float64))], graph.is_directed())


def union(schedule: GraphSchedule) -> nx.Graph:
    """Return the graph of all edges of a period, or of the first round without one; an edge leads to who fetches."""
    starts, sources = all_sources(schedule, schedule.period or 1)
    graph = nx.DiGraph() if schedule.directed else nx.Graph()
    graph.add_nodes_from(range(schedule.n))
    graph.add_edges_from(zip(sources.tolist(), np.repeat(np.arange(schedule.n), np.diff(starts)).tolist(), strict=True))
    return graph
