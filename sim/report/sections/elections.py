"""Section on elections: the coordinator over time as each node saw it, its term, and reasons for its absence.

A node records its coordinator whenever that changes. A coordinator records itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import number, some
from p2pfl.sim.report.folder import Columns
from p2pfl.sim.report.series import Figure, Section, Series

MOST_NODES = 100  # rows of a run, without the row of all nodes
MOST_REASONS = 3  # reasons for having no coordinator, in one part of the row of all nodes
STARTING = "no coordinator yet"
NOBODY = -1


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


def section(series: Sequence[Series]) -> Section | None:
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
    note = "First row: the coordinator by its own record. Other rows: the coordinator as each node saw it."
    note += " Numbers are terms; each term has at most one coordinator."
    if any(one.shown.nodes > MOST_NODES for one, *_ in views.values()):
        note += f" Only the first {MOST_NODES} nodes are shown."
    figure: Figure = {"id": "coordinators", "kind": "lanes", "title": "Coordinator over time", "note": note, "runs": runs}
    figure |= {"x_label": "virtual time", "x_unit": "s", "inside": True, "keys": keys, "none": "no coordinator"}
    return figure | {"row_label": "seen by", "key_label": "coordinator", "block_label": "term, or reason for no coordinator"}
