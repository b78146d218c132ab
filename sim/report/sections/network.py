"""Drawing of a topology: the places of its nodes, its edges, and each node's most frequent sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import networkx as nx
import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import some
from p2pfl.sim.report.factors import label_words
from p2pfl.sim.report.folder import Columns
from p2pfl.sim.report.series import Figure, Series, by_key
from p2pfl.sim.report.summary import Entry
from p2pfl.sim.scenario.network import Network
from p2pfl.sim.scenario.topology import placement_graph, topology
from p2pfl.topologies import neighbours, places
from p2pfl.topologies.geography import Point

MOST_DRAWINGS = 12
MOST_EDGES = 4000  # edges drawn of a topology
MOST_LINKS, MOST_EACH = 400, 5  # links drawn of a run, and of a node
MOST_COMPLETE = 12  # nodes of a complete graph with drawn edges
MOST_NODES = 2000  # nodes of a topology that is drawn
MOST_FORCES = 300  # nodes in a force-directed layout, whose time is quadratic in the number of nodes
ROUND = ("ring", "complete", "small-world", "watts-strogatz")  # topologies based on a ring, drawn as a circle


def drawings(series: Sequence[Series], links: dict[str, Columns]) -> list[Figure]:
    """Return a drawing for each topology of at most MOST_NODES nodes, with the links of the runs that have it."""
    series = [one for one in series if one.shown.nodes <= MOST_NODES]
    linked = [one for one in series if len(links[one.name]["round"])]
    alike = list(by_key(linked or series, _topology).values())
    figures = []
    for number, runs in enumerate(alike[:MOST_DRAWINGS]):
        figures.append(_drawing(f"topology{f'-{number}' if number else ''}", runs, links, len(alike) > 1))
    return figures


def _topology(series: Series) -> tuple[Any, ...]:
    entry = series.shown
    table = series.settings.get("topology")
    return json.dumps(table, sort_keys=True, default=str), entry.topology, entry.nodes, entry.seed, tuple(entry.labels)


def _drawing(id: str, series: Sequence[Series], links: dict[str, Columns], several: bool) -> Figure:
    entry = series[0].shown
    note = []
    complete = entry.topology == "complete" and entry.nodes > MOST_COMPLETE
    if complete:
        note.append("All nodes are neighbours; the edges are not drawn.")
    graph = _graph(series[0], edges=not complete)
    if graph is None and complete:
        graph = nx.empty_graph(entry.nodes)
    if graph is None:
        note.append("The folder does not suffice to rebuild the topology; the figure shows the links that were used.")
        graph = _used_links(entry, [links[one.name] for one in series])
    x, y = place_nodes(graph, entry.topology)
    edges = _edges(graph)
    if len(edges) > MOST_EDGES:
        note.append(f"The {len(edges):,} edges are not drawn, because there are too many.")
        edges = edges[:0]
    strongest = {one.name: strongest_links(links[one.name], one.shown.nodes, one.done(links[one.name])) for one in series}
    if any(len(each) for each in strongest.values()):
        each = _most_each(entry.nodes)
        few = f"at most {each} per node" if each > 1 else f"one per node, at most {MOST_LINKS}"
        note.append(f"Links: the most frequent sources of models, {few}; seed {entry.seed}.")
    names = entry.labels if len(entry.labels) == entry.nodes else [str(k) for k in range(entry.nodes)]
    nodes: dict[str, Any] = {"x": x, "y": y, "label": names}
    if len(entry.groups) == entry.nodes and len(set(entry.groups)) > 1:
        nodes["group"] = [str(group) for group in entry.groups]
    title = f"Topology: {entry.topology or 'without a name'}, {entry.nodes} node{'s' * (entry.nodes > 1)}"
    if several:
        title = f"Topology of {some(dict.fromkeys(map(_label, series)))}"
    return {
        "id": id,
        "kind": "network",
        "title": title,
        "note": " ".join(note),
        "nodes": nodes,
        "edges": edges.tolist(),
        "value_label": f"test {entry.metric}",
        "runs": {one.name: {"value": _values(one.shown), "links": strongest[one.name]} for one in series},
    }


def _label(series: Series) -> str:
    """Return the name of a run without the varied keys that do not affect its topology."""
    others = [key for key in series.shown.varied if key.partition(".")[0] not in ("topology", "nodes")]
    return series.name.removesuffix(series.row) + ", ".join(label_words(series, others)) or series.shown.topology


def _values(entry: Entry) -> np.ndarray:
    values = entry.test.nodes if len(entry.test.nodes) == entry.nodes else [None] * entry.nodes
    return np.array([np.nan if value is None else value for value in values], float)


def _graph(series: Series, edges: bool) -> nx.Graph | None:
    """Return the rebuilt topology of a run on the nodes 0, 1, ..., with or without edges; None if it cannot be rebuilt."""
    entry, table = series.shown, series.settings.get("topology")
    if not isinstance(table, dict):
        return None
    try:
        made = topology(table, entry.nodes, entry.seed) if edges else nx.empty_graph(entry.nodes)
        where = placement_graph(_network(series.settings), made)
    except ConfigurationError:
        return None
    graph = nx.empty_graph(entry.nodes)
    graph.add_edges_from((j, i) for i, near in enumerate(neighbours(made)) for j in near)
    with suppress(ValueError):  # it has no coordinates
        graph.graph["points"] = places(where).points
    return graph


def _network(settings: Mapping[str, Any]) -> Network:
    table = settings.get("network")
    named = table.get("places") if isinstance(table, Mapping) else None
    return Network(places=named) if isinstance(named, str) else Network()


def _used_links(entry: Entry, links: Sequence[Columns]) -> nx.Graph:
    graph = nx.empty_graph(entry.nodes)
    pairs = np.concatenate([np.column_stack([each["src"], each["dst"]]) for each in links])
    graph.add_edges_from(np.unique(pairs, axis=0).tolist())
    return graph


def _edges(graph: nx.Graph) -> np.ndarray:
    return np.array([(i, j) for i, j in graph.edges if i != j], int).reshape(-1, 2)


def place_nodes(graph: nx.Graph, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of nodes: x from 0 to 1 to the right, y from 0 to 1 downwards, in the same unit.

    Nodes with known coordinates are on a map. Others are on a circle, on a grid, or in a force-directed layout with a
    fixed start.
    """
    n = len(graph)
    if "points" in graph.graph:
        return _scale(_map(graph.graph["points"]))
    if name == "torus":
        return _scale(_grid(n))
    if name == "star" and n > 1:
        return _scale(np.vstack([[0.0, 0.0], _circle(n - 1)]))
    edges = graph.number_of_edges()
    if n < 3 or name in ROUND or n > MOST_FORCES or edges in (0, n * (n - 1) // 2):
        return _scale(_circle(n))
    found = nx.spring_layout(graph, seed=0, iterations=80)
    return _scale(np.array([found[k] for k in range(n)]))


def _circle(n: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(n) / max(n, 1)
    return np.column_stack([np.sin(angle), -np.cos(angle)])  # the first at the top, then clockwise


def _grid(n: int) -> np.ndarray:
    rows = next(rows for rows in range(int(n**0.5), 0, -1) if n % rows == 0)  # as in p2pfl.topologies.builders.torus
    return np.column_stack([np.arange(n) % (n // rows), np.arange(n) // (n // rows)]).astype(float)


def _map(points: Sequence[Point | None]) -> np.ndarray:
    """Return places on a map with the right scale in the middle; nodes without coordinates are drawn in the middle."""
    known = np.array([point for point in points if point is not None])
    middle = tuple(known.mean(axis=0))
    found = np.array([middle if point is None else point for point in points], float)
    return np.column_stack([found[:, 1] * np.cos(np.radians(middle[0])), -found[:, 0]])


def _scale(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = points.min(axis=0)
    extent = float((points.max(axis=0) - low).max()) or 1.0
    x, y = ((points - low) / extent).T.round(4)
    return x, y


def _most_each(nodes: int) -> int:
    return min(MOST_EACH, max(1, MOST_LINKS // nodes))


def strongest_links(links: Columns, n: int, rounds: int) -> list[list[float]]:
    """Return [source, target, share of the rounds] of the most frequent links, the same number for each of n nodes."""
    pairs, counts = np.unique(links["dst"].astype(np.int64) * n + links["src"], return_counts=True)
    dst, src = np.divmod(pairs, n)
    order = np.lexsort((_hash(pairs), -counts, dst))
    dst, src, counts = dst[order], src[order], counts[order]
    rank = np.arange(len(dst)) - np.searchsorted(dst, dst)  # 0 for the most frequent of each node
    kept = np.flatnonzero(rank < _most_each(n))
    kept = kept[np.argsort(-counts[kept], kind="stable")][:MOST_LINKS]
    return [[int(src[k]), int(dst[k]), round(float(counts[k]) / rounds, 3)] for k in kept]


def _hash(values: np.ndarray) -> np.ndarray:
    """Return a hash of integers, by which equal links are ordered (the finalizer of splitmix64).

    In the order of the nodes, all nodes of a complete graph would have the same few sources.
    """
    found = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))
