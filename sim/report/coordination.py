"""Sections on coordinated policies: the clusters of the nodes, and the elections of the coordinator.

Clusters: their members, their agreement with the true groups, and the similarity of the models, as in figures 11 and 12
of Hartmann et al. (FedPref, 2024).

Elections: the coordinator over time as each node saw it, its term, and reasons for its absence. A node records its
coordinator whenever that changes. A coordinator records itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import number, some
from p2pfl.sim.report.collaboration import MOST_CELLS, Order, order_nodes
from p2pfl.sim.report.figures import lines
from p2pfl.sim.report.folder import Columns, Entry
from p2pfl.sim.report.page import Hundredths
from p2pfl.sim.report.series import Figure, Section, Series, by_key, shown_seeds

MOST_BINS = 100  # rows and columns of a matrix
MOST_FRAMES = 6  # matrices of a run
MOST_PARTS = 40_000  # of lanes, in all runs together
MOST_NODES = 100  # rows of a run, without the row of all nodes
MOST_REASONS = 3  # reasons for having no coordinator, in one part of the row of all nodes
STARTING = "no coordinator yet"
NOBODY = -1


class States(NamedTuple):
    """Clusters of a run, for the seed that is shown.

    Attributes:
        names: names of the clusters; "" is the cluster of all nodes.
        table: the cluster of each node in each round as an index into `names`, or -1; [rounds, nodes].
    """

    names: list[str]
    table: np.ndarray

    @property
    def final(self) -> list[str]:
        """Return the name of each node's last cluster; "", the cluster of all nodes, if it was never assigned one."""
        last = [column[column >= 0] for column in self.table.T]
        return [self.names[column[-1]] if len(column) else "" for column in last]


def clusters_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if no policy has clusters or compares models."""
    states = {one.name: found for one in series if (found := states_of(one)) is not None}
    figures = [lanes(series, states)] if states else []
    of = "Of the clusters after the coordinator's step in each round, over all nodes."
    note = f"{of} 1: they equal the true groups; about 0: they agree by chance (Hubert and Arabie 1985)."
    title = "Agreement of clusters and true groups"
    figures += _non_empty(lines(series, _rand, id="rand", title=title, y_label="adjusted Rand index", note=note))
    title = "Number of clusters"
    figures += _non_empty(lines(series, _count, id="clusters-count", title=title, y_label="clusters", even=True, note=of))
    figures += similarities(series, states)
    return {"id": "clusters", "title": "Clusters", "text": [], "figures": figures} if figures else None


def _non_empty(figure: Figure) -> list[Figure]:
    return [figure] if figure["y"] else []


def _rand(series: Series, entry: Entry) -> np.ndarray | None:
    found = entry.clusters
    return None if found is None or found.adjusted_rand is None else _by_round(entry, found.rounds, found.adjusted_rand)


def _count(series: Series, entry: Entry) -> np.ndarray | None:
    return None if entry.clusters is None else _by_round(entry, entry.clusters.rounds, entry.clusters.count)


def _by_round(entry: Entry, rounds: Sequence[int], values: Sequence[float]) -> np.ndarray:
    found = np.full(entry.rounds, np.nan)
    for round, value in zip(rounds, values, strict=True):
        if 1 <= round <= entry.rounds:
            found[round - 1] = value
    return found


def states_of(series: Series) -> States | None:
    """Return the clusters of the seed that is shown; None if the run has none."""
    columns = series.more("clusters", series.shown)
    if columns is None or not len(columns["round"]):
        return None
    names, which = np.unique(columns["cluster"].astype(str), return_inverse=True)
    table = np.full((int(columns["round"].max()), series.shown.nodes), -1)
    table[columns["round"] - 1, columns["node"]] = which
    return States(names.tolist(), table)


def lanes(series: Sequence[Series], states: dict[str, States]) -> Figure:
    """Return each node's cluster by round; the nodes of a cluster are adjacent as long as it has no gaps."""
    own = {one.name: one for one in series}
    kinds = sorted({group for name in states for group in _groups(own[name].shown)}, key=lambda name: (len(name), name))
    runs: dict[str, dict[str, Any]] = {}
    left = MOST_PARTS
    for name, state in states.items():
        entry = own[name].shown
        groups = _groups(entry)
        order = sorted(range(entry.nodes), key=lambda k: (state.final[k], groups[k] if groups else "", k))
        parts = [(row, *part) for row, node in enumerate(order) for part in _episodes(state.table[:, node])]
        if len(parts) > left:
            break  # the note mentions the omitted runs
        left -= len(parts)
        rows, first, last, block = np.array(parts).T
        called = entry.labels if len(entry.labels) == entry.nodes else [f"node {k}" for k in range(entry.nodes)]
        members = [np.any(state.table == k, axis=0).sum() for k in range(len(state.names))]
        runs[name] = {
            "rows": [called[node] for node in order],
            "span": [0.5, max(len(state.table), own[name].rounds(entry)["round"].max(initial=1)) + 0.5],
            "row": rows,
            "from": first - 0.5,
            "to": last + 0.5,
            "key": np.array([kinds.index(groups[order[row]]) if groups else 0 for row in rows]),
            "block": block,
            "blocks": [
                f"cluster {cluster}, of {count}" if cluster else f"the cluster of all {count}"
                for cluster, count in zip(state.names, members, strict=True)
            ],
        }
        if groups:
            runs[name]["groups"] = [f"group {groups[node]}" for node in order]
    of = ", in the colour of its true group" if kinds else ""
    seed = shown_seeds(own[name] for name in states)
    note = (
        f"Each row is a node{of}, {seed}: its cluster after the coordinator's step in each round. Adjacent nodes are in the"
    )
    note += " same cluster; in a gap a node has no cluster."
    note += " Clusters are named by their splits: 01 is the second part of 0."
    if len(runs) < len(states):
        note += f" Not shown, because the figure would be too large: {some(set(states) - set(runs))}."
    figure: Figure = {"id": "clusters-over-rounds", "kind": "lanes", "title": "Cluster of each node", "note": note}
    most = max(runs, key=lambda name: len(runs[name]["row"]), default=None)
    figure |= {
        "x_label": "round",
        "x_unit": "",
        "joined": True,
        "first": most,
        "keys": [f"group {kind}" for kind in kinds] or ["node"],
    }
    return figure | {"row_label": "node", "key_label": "group", "block_label": "cluster", "runs": runs}


def _groups(entry: Entry) -> list[str]:
    """Return the true group of each node; nothing if some node has none."""
    known = len(entry.groups) == entry.nodes and None not in entry.groups
    return [str(group) for group in entry.groups] if known else []


def _episodes(clusters: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the first and the last round of each of a node's stays in a cluster.

    Args:
        clusters: clusters of one node by round, from round 1; -1 is none.
    """
    ends = np.flatnonzero(np.diff(clusters)) + 1
    starts = [0, *ends.tolist()]
    stops = [*ends.tolist(), len(clusters)]
    return [(a + 1, b, int(clusters[a])) for a, b in zip(starts, stops, strict=True) if clusters[a] >= 0]


def similarities(series: Sequence[Series], states: dict[str, States]) -> list[Figure]:
    """Return the similarities of the models at some rounds of the seeds shown; one figure for each set of nodes."""
    found = {one.name: columns for one in series if (columns := one.more("similarities", one.shown)) is not None}
    compared = [one for one in series if one.name in found and len(found[one.name]["round"])]
    alike = by_key(compared, lambda one: (one.shown.nodes, tuple(one.shown.groups)))
    figures = []
    for index, runs in enumerate(alike.values()):
        grouped = bool(_groups(runs[0].shown))
        orders = {one.name: _order(one, grouped, states.get(one.name)) for one in runs}
        frames = {
            one.name: _panels(found[one.name], orders[one.name], _frames(len(compared), one.shown.nodes)) for one in runs
        }
        of = f": {some(one.name for one in runs)}" if len(alike) > 1 else ""
        figure: Figure = {"id": f"similarity-{index}" if index else "similarity", "kind": "matrix", "frames": frames}
        figure |= {"title": f"Similarity of models{of}", "note": _alike(runs, grouped, orders), "unit": ""}
        figure |= {"x_label": "node", "y_label": "node"} | _rows(orders[runs[0].name])
        figure["first"] = next(
            (name for name in sorted(states, key=lambda k: -len(states[k].names)) if name in frames), None
        )
        figure["least"] = -1 if any((found[one.name]["similarity"] < 0).any() for one in runs) else 0
        figures.append(figure | ({} if grouped else {"orders": {name: _rows(order) for name, order in orders.items()}}))
    return figures


def _order(series: Series, grouped: bool, states: States | None) -> Order:
    """Return nodes ordered by their true groups, or else by their last clusters."""
    final = states.final if states is not None else [""] * series.shown.nodes
    return order_nodes(series.shown, MOST_BINS, groups=None if grouped else final)


def _panels(columns: Columns, order: Order, most: int) -> list[dict[str, Any]]:
    """Return the matrices of some rounds; rounds in which most nodes are alone are used only if there are no others."""
    rounds = np.unique(columns["round"])
    there = [len(np.unique([columns[name][columns["round"] == round] for name in ("node", "other")])) for round in rounds]
    full = [round for round, count in zip(rounds, there, strict=True) if 2 * count >= len(order.place)]
    return [
        {"label": f"round {round}", "values": Hundredths(matrix(columns, round, order)), "max": 1}
        for round in _some(np.array(full or rounds), most)
    ]


def _rows(order: Order) -> dict[str, Any]:
    rows: dict[str, Any] = {"n": len(order.sizes), "labels": order.labels}
    return rows | ({"groups": [{"label": label, "count": count} for label, count in order.groups]} if order.groups else {})


def _frames(runs: int, nodes: int) -> int:
    """Return the number of matrices that a run may have, so that all fit into a page."""
    return max(1, min(MOST_FRAMES, MOST_CELLS // (2 * runs * min(nodes, MOST_BINS) ** 2)))


def _some(rounds: np.ndarray, most: int) -> list[int]:
    """Return at most `most` rounds: the first, the last, and others at equal distances."""
    if len(rounds) <= most:
        return [int(round) for round in rounds]
    return [int(rounds[k]) for k in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))]


def matrix(columns: Columns, round: int, order: Order) -> np.ndarray:
    """Return the similarities of a round, [rows, rows]; rows of several nodes have the mean of known values."""
    here = columns["round"] == round
    one, other, value = (columns[name][here] for name in ("node", "other", "similarity"))
    there = np.unique([one, other])
    a, b = order.place[np.concatenate([one, other, there])], order.place[np.concatenate([other, one, there])]
    n = len(order.sizes)
    values = np.concatenate([value, value, np.ones(len(there))])
    counts = np.bincount(a * n + b, minlength=n * n)
    sums = np.bincount(a * n + b, values, minlength=n * n)
    mean: np.ndarray = np.divide(sums, counts, out=np.full(n * n, np.nan), where=counts > 0).reshape(n, n)
    return mean


def _alike(runs: Sequence[Series], grouped: bool, orders: dict[str, Order]) -> str:
    words = (
        f"Similarity of two nodes' models of that round, {shown_seeds(runs)}, as the policy computes it before the"
        " coordinator's step. Hatched: not computed,"
    )
    words += " for example between different clusters."
    words += f" Nodes are ordered by their {'true groups, which are named at the left' if grouped else 'last clusters'}."
    binned = any(order.binned for order in orders.values())
    return words + (" A cell is the mean of several pairs of nodes." if binned else "")


class View(NamedTuple):
    """Interval in which a node saw one coordinator, or none.

    Attributes:
        coordinator: the number of a node, or NOBODY.
        problem: reason for having no coordinator.
    """

    start: float
    end: float
    coordinator: int
    term: int
    problem: str


def elections_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if no run has elections."""
    found = {one.name: (one, columns) for one in series if (columns := one.more("elections", one.shown)) is not None}
    found = {name: (one, columns) for name, (one, columns) in found.items() if len(columns["time"])}
    if not found:
        return None
    views = {
        name: (one, *coordinator_views(columns, one.shown.nodes, run_end(one))) for name, (one, columns) in found.items()
    }
    text = [describe(one.name, everyone) for one, everyone, _ in views.values()]
    return {"id": "elections", "title": "Elections", "text": text, "figures": [timeline(views)]}


def run_end(series: Series) -> float:
    """Return the end of the run with the seed that is shown, in virtual seconds."""
    last = float(series.rounds(series.shown)["virtual_time"].max(initial=0.0))
    return max(last, series.shown.time.virtual_s or 0.0)


def coordinator_views(columns: Columns, nodes: int, end: float) -> tuple[list[View], list[list[View]]]:
    """Return the actual coordinators, from nodes' records about themselves, and the coordinators that each node saw.

    Args:
        columns: time, node, term, coordinator and problem; each row holds from its time on.
        end: end of the run; later rows are ignored.
    """
    each: list[list[View]] = [[] for _ in range(nodes)]
    for k in np.lexsort((np.arange(len(columns["time"])), columns["time"])):
        node, time = int(columns["node"][k]), min(float(columns["time"][k]), end)
        before = each[node].pop() if each[node] else View(0.0, end, NOBODY, 0, STARTING)
        if before.start < time:
            each[node].append(before._replace(end=time))
        each[node].append(
            View(time, end, int(columns["coordinator"][k]), int(columns["term"][k]), str(columns["problem"][k]))
        )
    each = [_merge_views(views) if views else [View(0.0, end, NOBODY, 0, STARTING)] for views in each]
    return _of_all(each, end), each


def _merge_views(views: Sequence[View]) -> list[View]:
    """Merge adjacent views that are equal; a term counts only if there is a coordinator."""
    found: list[View] = []
    for view in views:
        if found and _what(found[-1]) == _what(view):
            found[-1] = found[-1]._replace(end=view.end)
        elif view.start < view.end:
            found.append(view)
    return found


def _what(view: View) -> tuple[Any, ...]:
    return view.coordinator, view.problem, view.term if view.coordinator != NOBODY else 0


def _of_all(each: Sequence[Sequence[View]], end: float) -> list[View]:
    """Return the coordinators from the start to the end; in gaps, the reasons that the nodes recorded."""
    own = sorted(view for node, views in enumerate(each) for view in views if view.coordinator == node)
    found: list[View] = []
    time = 0.0
    for view in [*own, View(end, end, NOBODY, 0, "")]:
        if time < view.start:
            problems = {v.problem for views in each for v in views if v.start < view.start and v.end > time and v.problem}
            found.append(View(time, view.start, NOBODY, 0, some(sorted(problems), MOST_REASONS)))
        if time < view.end:
            found.append(view._replace(start=max(time, view.start)))
        time = max(time, view.end)
    return _merge_views(found)


def describe(name: str, everyone: Sequence[View]) -> str:
    """Describe a run's coordinators: their names, the number of changes, and the time without one."""
    led = [view for view in everyone if view.coordinator != NOBODY]
    whole = everyone[-1].end - everyone[0].start
    without = whole - sum(view.end - view.start for view in led)
    if not led:
        return f"{name}: no node was ever elected as coordinator."
    nodes, terms = len({view.coordinator for view in led}), len({view.term for view in led})
    words = (
        f"{name}: {nodes} coordinator{'s' * (nodes > 1)} in {terms} term{'s' * (terms > 1)}. The first one was elected at"
    )
    words += f" {number(led[0].start)} s of virtual time"
    gaps = sum(view.coordinator == NOBODY for view in everyone[1:])
    if gaps:
        words += f"; the coordinator was lost {gaps} time{'s' * (gaps > 1)}"
    return words + f". There was no coordinator for {number(without)} of {number(whole)} s ({100 * without / whole:.1f} %)."


def timeline(views: dict[str, tuple[Series, list[View], list[list[View]]]]) -> Figure:
    """Return the coordinators over time, and below them each node's view."""
    runs: dict[str, dict[str, Any]] = {}
    keys: list[str] = []
    for name, (one, everyone, each) in views.items():
        entry = one.shown
        called = entry.labels if len(entry.labels) == entry.nodes else [f"node {k}" for k in range(entry.nodes)]
        rows = [everyone, *each[:MOST_NODES]]
        parts = [(row, view) for row, own in enumerate(rows) for view in own]
        keys += [called[v.coordinator] for _, v in parts if v.coordinator != NOBODY and called[v.coordinator] not in keys]
        keys = list(dict.fromkeys(keys))
        runs[name] = {
            "rows": ["coordinator", *called[:MOST_NODES]],
            "row": np.array([row for row, _ in parts]),
            "from": np.array([view.start for _, view in parts]),
            "to": np.array([view.end for _, view in parts]),
            "key": np.array([keys.index(called[v.coordinator]) if v.coordinator != NOBODY else -1 for _, v in parts]),
            "block": np.arange(len(parts)),
            "brief": [str(view.term) if view.coordinator != NOBODY else "" for _, view in parts],
            "blocks": [
                f"{called[v.coordinator]}, term {v.term}" if v.coordinator != NOBODY else v.problem or "no coordinator"
                for _, v in parts
            ],
        }
    seed = shown_seeds(one for one, *_ in views.values())
    note = f"Of {seed}. First row: the coordinator by its own record. Other rows: the coordinator as each node saw it."
    note += " Numbers are terms; each term has at most one coordinator."
    if any(one.shown.nodes > MOST_NODES for one, *_ in views.values()):
        note += f" Only the first {MOST_NODES} nodes are shown."
    figure: Figure = {"id": "coordinators", "kind": "lanes", "title": "Coordinator over time", "note": note, "runs": runs}
    figure |= {"x_label": "virtual time", "x_unit": "s", "inside": True, "keys": keys, "none": "no coordinator"}
    return figure | {"row_label": "seen by", "key_label": "coordinator", "block_label": "term, or reason for no coordinator"}
