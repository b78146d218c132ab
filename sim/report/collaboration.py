"""Section on collaboration: the links between nodes, over time and in total, and drawings of the topologies.

The matrices over time correspond to figures 2 and 12 of Kharrat et al. (DPFL, 2024). The matrix of a whole run
corresponds to figure 2 of Listo Zec et al. (DAC, 2024): it shows how often each node learned from each other node.
Nodes are in the order of their groups. A drawing has the places of the nodes, the edges, and each node's most frequent
sources. A topology with another graph in each round also has the matrices of its first rounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import count, setting, some
from p2pfl.sim.report.figures import clipped, lines
from p2pfl.sim.report.folder import Columns, Entry
from p2pfl.sim.report.series import Figure, Section, Series, by_key, flat, shown_seeds
from p2pfl.sim.scenario.network import Network
from p2pfl.sim.scenario.topology import FILE, placement_graph, schedule_of, topology
from p2pfl.topologies import SCHEDULES, GraphSchedule, neighbours, places
from p2pfl.topologies.consensus import union
from p2pfl.topologies.geography import Point

MOST_BINS = 128  # rows and columns of a matrix
MOST_FRAMES = 5
MOST_CELLS = 2_000_000  # of all matrices over time together: one byte each, before compression
MOST_FIGURES = 6
MOST_DRAWINGS = 12
MOST_LISTED = 8  # runs with the same topology
MOST_EDGES = 4000  # edges drawn of a topology
MOST_LINKS, MOST_EACH = 400, 5  # links drawn of a run, and of a node
MOST_COMPLETE = 12  # nodes of a complete graph with drawn edges
MOST_NODES = 2000  # nodes of a topology that is drawn
MOST_GRAPHS = 12  # rounds whose graphs are shown
MOST_FORCES = 300  # nodes in a force-directed layout, whose time is quadratic in the number of nodes
ROUND = ("ring", "complete", "small-world", "watts-strogatz")  # topologies based on a ring, drawn as a circle


@dataclass
class Order:
    """Order of nodes in the rows of a matrix, by groups.

    Attributes:
        place: the row of each node.
        sizes: the number of nodes in each row.
        groups: names and numbers of rows; empty without groups.
    """

    place: np.ndarray
    sizes: np.ndarray
    groups: list[tuple[str, int]]
    labels: list[str]

    @property
    def binned(self) -> bool:
        return len(self.sizes) < len(self.place)


def collaboration_section(series: Sequence[Series]) -> Section:
    """Return the section; runs with different nodes have separate figures."""
    links = {one.name: one.links(one.shown) for one in series}
    linked = [one for one in series if len(links[one.name]["round"])]
    alike = list(by_key(linked, _nodes).values())
    figures: list[Figure] = []
    for number, runs in enumerate(alike[:MOST_FIGURES]):
        suffix = f"-{number}" if number else ""
        more = f": {some((one.words for one in runs), sign='; ')}" if len(alike) > 1 else ""
        figures += matrices(suffix, more, runs, links)
    figures += drawings(series, links)
    figures += graphs_by_round(series)
    shares = lines(
        series,
        _within,
        by_round=True,
        id="within-group",
        title="Models from the same group",
        y_label="models from the same group",
        note="Share of the models aggregated in a round that came from a node of the same group, over all nodes.",
        y_unit="%",
    )
    text = []
    if alone := [one.name for one in series if one not in linked]:
        text.append(f"Runs in which no node received a model of another: {'; '.join(alone)}.")
    if len(alike) > MOST_FIGURES:
        text.append(f"The runs have {len(alike)} different sets of nodes; the first {MOST_FIGURES} have matrices.")
    if large := [one.name for one in series if one.shown.nodes > MOST_NODES]:
        text.append(f"The topologies of more than {MOST_NODES:,} nodes are not drawn: {some(large)}.")
    figures += [clipped(shares)] if shares["y"] else []
    return {"id": "collaboration", "title": "Collaboration", "text": text, "figures": figures}


def _nodes(series: Series) -> tuple[Any, ...]:
    return series.shown.nodes, tuple(series.shown.groups)


def order_nodes(entry: Entry, most: int = MOST_BINS, labelled: bool = True, groups: Sequence[str] | None = None) -> Order:
    """Return nodes in the order of their groups; if there are too many, adjacent nodes share a row.

    Args:
        groups: names of the groups, in order, in place of the true ones.
        labelled: label rows with the names in the topology; else, and without names, with numbers.
    """
    n = entry.nodes
    of = entry.groups if groups is None else groups
    names = [str(group) for group in of] if len(of) == n else [""] * n
    kinds = sorted(set(names), key=None if groups else lambda name: (len(name), name))  # 10 after 9
    if len(kinds) > most // 2:
        names, kinds = [""] * n, [""]
    members = [np.array([k for k in range(n) if names[k] == kind]) for kind in kinds]
    rows = [len(group) if n <= most else max(1, round(most * len(group) / n)) for group in members]
    while sum(rows) > max(n, most) or (n > most and sum(rows) > most):
        rows[rows.index(max(rows))] -= 1
    place, start = np.zeros(n, int), 0
    for group, height in zip(members, rows, strict=True):
        place[group] = start + np.arange(len(group)) * height // len(group)
        start += height
    called = entry.labels if labelled and len(entry.labels) == n else [str(k) for k in range(n)]
    sizes = np.bincount(place, minlength=start)
    first = np.full(start, n)
    np.minimum.at(first, place, np.arange(n))
    labels = [called[k] + (f" and {size - 1} more" if size > 1 else "") for k, size in zip(first, sizes, strict=True)]
    return Order(place, sizes, list(zip(kinds, rows, strict=True)) if len(kinds) > 1 else [], labels)


def windows(rounds: int, most: int = MOST_FRAMES) -> list[tuple[int, int]]:
    """Return the first and the last round of at most `most` parts of a run, equal in length within one round."""
    parts = max(1, min(rounds, most))
    ends = [rounds * (k + 1) // parts for k in range(parts)]
    return [(start + 1, end) for start, end in zip([0, *ends], ends, strict=False)]


def count_links(links: Columns, order: Order, parts: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the frequency of each link in each part of a run; shape [parts, rows, rows], row = dst.

    The unit is percent of the rounds. If a row stands for several nodes, it is percent of all pairs of nodes and
    rounds. A value above zero is at least 1.
    """
    rows = len(order.sizes)
    part = np.searchsorted([end for _, end in parts], links["round"])
    cells = (part * rows + order.place[links["dst"]]) * rows + order.place[links["src"]]
    counts = np.bincount(cells, minlength=len(parts) * rows * rows).reshape(len(parts), rows, rows)
    pairs = np.outer(order.sizes, order.sizes) - np.diag(order.sizes)  # no node learns from itself
    length = np.array([end - start + 1 for start, end in parts])[:, None, None]
    percent: np.ndarray = np.rint(100 * counts / (np.maximum(pairs, 1) * length)).astype(np.uint8)
    percent[(percent == 0) & (counts > 0)] = 1
    return percent


def preselected_links(entry: Entry) -> Columns | None:
    """Return each node's choice in the preparation as links of a round 1; None if no policy makes one."""
    numbers = {str(k): k for k in range(entry.nodes)}
    lines = enumerate(entry.chosen_before[: entry.nodes])
    pairs = [(numbers[word], dst) for dst, line in lines for word in line.split() if word in numbers]
    src, dst = np.array(pairs, int).reshape(-1, 2).T
    return {"round": np.ones(len(src), int), "src": src, "dst": dst} if len(src) else None


def matrices(suffix: str, more: str, series: Sequence[Series], links: dict[str, Columns]) -> list[Figure]:
    """Return the links over time and in total, for runs that have the same nodes."""
    entry = series[0].shown
    frames, bins = _sizes(len(series), entry.nodes)
    order = order_nodes(entry, bins, all(one.shown.labels == entry.labels for one in series))
    note = _note(series, order)
    figures = []
    for id, title, most in (
        ("over-time", "Sources of each node over time", frames),
        ("communication", "Sources of each node in the whole run", 1),
    ):
        runs: dict[str, list[dict[str, Any]]] = {}
        for one in series:
            parts = windows(one.done(links[one.name]), most)
            values = list(count_links(links[one.name], order, parts))
            names = [f"rounds {a} to {b}" if a < b else f"round {a}" for a, b in parts]
            if most > 1 and (chosen := preselected_links(one.shown)) is not None:
                values, names = [*count_links(chosen, order, [(1, 1)]), *values], ["selected before round 1", *names]
            top = int(max(each.max() for each in values))
            runs[one.name] = [{"label": name, "values": each, "max": top} for name, each in zip(names, values, strict=True)]
        figure: Figure = {"id": id + suffix, "kind": "matrix", "title": title + more, "note": note, "n": len(order.sizes)}
        figure |= {"labels": order.labels, "x_label": "learned from", "y_label": "node", "frames": runs}
        figure["unit"] = "%"
        if order.groups:
            figure["groups"] = [{"label": label, "count": size} for label, size in order.groups]
        figures.append(figure)
    return figures


def graphs_by_round(series: Sequence[Series]) -> list[Figure]:
    """Return the graphs of the first rounds of each topology that has another one in each round."""
    figures: list[Figure] = []
    alike = [runs for runs in by_key(series, _topology).values() if runs[0].shown.nodes <= MOST_NODES]
    for runs in alike[:MOST_DRAWINGS]:
        entry, schedule = runs[0].shown, _schedule(runs[0])
        if schedule is None:
            continue
        count = min(schedule.period or MOST_GRAPHS // 2, MOST_GRAPHS)
        graphs = {round: schedule.graph(round) for round in range(1, count + 1)}
        links = {
            "round": np.concatenate([np.full(len(graph.sources), round) for round, graph in graphs.items()]),
            "src": np.concatenate([graph.sources for graph in graphs.values()]),
            "dst": np.concatenate([graph.rows for graph in graphs.values()]),
        }
        order = order_nodes(entry, 64)
        values = count_links(links, order, [(round, round) for round in graphs])
        repeat = (
            f"The graphs repeat after {schedule.period} rounds" if schedule.period else "Each round has a new random graph"
        )
        shown = f"; the first {count} are shown." if schedule.period != count else "."
        frames = [{"label": f"round {k}", "values": each, "max": 100} for k, each in enumerate(values, 1)]
        binned = " Each row and column stands for several nodes." if order.binned else ""
        figures.append(
            {
                "id": f"graph-by-round{f'-{len(figures)}' if figures else ''}",
                "kind": "matrix",
                "title": f"Graph of each round: {entry.topology}, {entry.nodes} nodes",
                "note": f"A cell is filled if the node of the row fetches from that of the column. {repeat}{shown}{binned}",
                "n": len(order.sizes),
                "labels": order.labels,
                "x_label": "fetches from",
                "y_label": "node",
                "unit": "%",
                "frames": {runs[0].name: frames},
            }
        )
    return figures


def _sizes(runs: int, nodes: int) -> tuple[int, int]:
    """Return each run's number of matrices over time, and the maximum number of rows, so that all fit into a page."""
    choices = [(frames, bins) for bins in (MOST_BINS, 64, 32) for frames in (MOST_FRAMES, 4, 2)]
    return next((c for c in choices if runs * c[0] * min(nodes, c[1]) ** 2 <= MOST_CELLS), choices[-1])


def _note(series: Sequence[Series], order: Order) -> str:
    words = [f"{shown_seeds(series).capitalize()}."]
    if order.binned:
        words.append(
            f"Each row and column is a bin of up to {order.sizes.max()} nodes. A cell is the percentage of pairs and rounds"
            " in which a node of the row aggregated the model of a node of the column."
        )
    else:
        words.append(
            "A cell is the percentage of rounds in which the node of the row aggregated the model of the node of the column."
        )
    if any(one.shown.chosen_before for one in series):
        words.append("Selected before round 1: peers that a node's policy selected in its preparation.")
    if order.groups:
        words.append("Nodes are ordered by their groups.")
    return " ".join(words)


def _within(series: Series, entry: Entry) -> np.ndarray | None:
    """Return the share of a round's links within the own group, in percent."""
    if len(entry.groups) != entry.nodes or None in entry.groups or len(set(entry.groups)) < 2:
        return None
    links = series.links(entry)
    group = np.unique(np.array(entry.groups, str), return_inverse=True)[1]
    own = group[links["src"]] == group[links["dst"]]
    total = np.bincount(links["round"] - 1, minlength=1)
    share = np.full(len(total), np.nan)
    np.divide(100 * np.bincount(links["round"] - 1, own, minlength=1), total, out=share, where=total > 0)
    return share


def drawings(series: Sequence[Series], links: dict[str, Columns]) -> list[Figure]:
    """Return a drawing for each topology of at most MOST_NODES nodes, with the links of the runs that have it."""
    series = [one for one in series if one.shown.nodes <= MOST_NODES]
    linked = [one for one in series if len(links[one.name]["round"])]
    alike = list(by_key(linked or series, _topology).values())
    figures = []
    names = _names([runs[0] for runs in alike])
    for number, runs in enumerate(alike[:MOST_DRAWINGS]):
        figure = _drawing(f"topology{f'-{number}' if number else ''}", names[number], runs, links)
        if len(alike) > 1:
            figure["note"] = f"Of {some((one.words for one in runs), MOST_LISTED, '; ')}. {figure['note']}".rstrip()
        figures.append(figure)
    return figures


def _names(series: Sequence[Series]) -> list[str]:
    """Return the name of each topology, with the options in which equal names differ, such as "k-regular (degree=4)"."""
    tables = [flat({"topology": one.settings.get("topology")}) for one in series]
    names = [one.shown.topology or "without a name" for one in series]
    found = []
    for name, own in zip(names, tables, strict=True):
        others = [table for table, other in zip(tables, names, strict=True) if other == name]
        options = [
            f"{key.rpartition('.')[2]}={setting(key, value)}"
            for key, value in own.items()
            if any(other.get(key) != value for other in others)
        ]
        found.append(f"{name} ({', '.join(options)})" if options else name)
    return found


def _topology(series: Series) -> tuple[Any, ...]:
    entry = series.shown
    table = series.settings.get("topology")
    return json.dumps(table, sort_keys=True, default=str), entry.topology, entry.nodes, entry.seed, tuple(entry.labels)


def _drawing(id: str, name: str, series: Sequence[Series], links: dict[str, Columns]) -> Figure:
    entry = series[0].shown
    note = []
    complete = entry.topology == "complete" and entry.nodes > MOST_COMPLETE
    if complete:
        note.append("All nodes are neighbours; the edges are not drawn.")
    graph = _graph(series[0], edges=not complete)
    schedule = _schedule(series[0])
    if schedule is not None:
        note.append(
            f"The topology has another graph in each round; the edges of {schedule.period} rounds are drawn together."
            if schedule.period
            else "The topology has a new random graph in each round; the edges are not drawn."
        )
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
    return {
        "id": id,
        "kind": "network",
        "title": f"Topology: {name}, {count(entry.nodes, 'node')}",
        "note": " ".join(note),
        "nodes": nodes,
        "edges": edges.tolist(),
        "value_label": f"test {entry.metric}",
        "runs": {one.name: {"value": one.shown.node_values, "links": strongest[one.name]} for one in series},
    }


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
    return graph_to_place(made, where)


def graph_to_place(made: nx.Graph, where: nx.Graph) -> nx.Graph:
    """Return the graph on the nodes 0, 1, ... that `place_nodes` places: all edges of a period, and the coordinates.

    Args:
        made: the topology; its edges are left out if it has a new random graph in each round.
        where: the graph with the coordinates of its nodes, if there are any.
    """
    schedule, graph = schedule_of(made), nx.empty_graph(len(made))
    if schedule is None:
        graph.add_edges_from((j, i) for i, near in enumerate(neighbours(made)) for j in near)
    elif schedule.period:
        graph.add_edges_from(union(schedule).edges)
    with suppress(ValueError):  # it has no coordinates
        graph.graph["points"] = places(where).points
    return graph


def _schedule(series: Series) -> GraphSchedule | None:
    """Return the rule of a run's topology that gives each round another graph; None without one."""
    entry, table = series.shown, series.settings.get("topology")
    if not isinstance(table, dict) or (table.get("name") not in SCHEDULES and FILE not in table):
        return None
    with suppress(ConfigurationError):
        return schedule_of(topology(table, entry.nodes, entry.seed, dense=False))
    return None


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
