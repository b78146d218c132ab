"""Figures of the test metric against bytes and virtual time, with the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.sim.report.series import Figure, Series, by_key
from p2pfl.sim.report.summary import Entry
from p2pfl.sim.results.pareto import on_front

_FRONT = " Filled marks are Pareto-optimal: no other run is at least as good in both metric and cost, and better in one."
MOST_SHOWN = 8  # number of colours
DECADE = 10  # ratio of the greatest to the least value from which an axis is logarithmic
Cost = Callable[[Entry], float | None]
COSTS: tuple[tuple[str, str, Cost], ...] = (
    ("bytes sent", "B", lambda entry: entry.sent),
    ("virtual time", "s", lambda entry: entry.time.virtual_s),
)


def costs(series: Sequence[Series]) -> list[Figure]:
    """Return a figure for each metric, with its cost in bytes and in virtual time."""
    figures = []
    for metric, alike in by_key(series, lambda one: one.metric).items():
        comparable = len({one.problem for one in alike}) == 1
        views = [scatter(alike, label, unit, cost, comparable) for label, unit, cost in COSTS]
        views = [view for view in views if view["points"]]
        figure: Figure = {
            "id": "cost" if metric == series[0].metric else f"cost-{metric}",
            "kind": "scatter",
            "title": f"Test {metric} by cost",
            "note": points(views[0]["points"]) + _FRONT * (comparable and len(views[0]["points"]) > 1)
            if views
            else "The summary has no costs of these runs.",
        }
        figures.append(figure | (views[0] if views else {"x_label": "", "x_unit": "", "x_log": False, "points": []}))
        if len(views) > 1:
            figures[-1]["views"] = views
    return figures


def points(shown: Sequence[Mapping[str, Any]]) -> str:
    """Describe the points of a figure."""
    deviation = ", with one standard deviation over seeds" if any("y_dev" in point for point in shown) else ""
    return f"Each point is a run: the mean over nodes and seeds{deviation}."


def worth_showing(series: Sequence[Series], most: int = MOST_SHOWN) -> list[str]:
    """Return the names of the runs to show: first those on the front of sent bytes, then the best ones."""
    view = scatter(by_key(series, lambda one: one.metric)[series[0].metric], *COSTS[0])
    sign = -1 if series[0].shown.better_is_higher else 1
    best = sorted(view["points"], key=lambda point: (not point["on_front"], sign * point["y"]))
    chosen = {point["run"] for point in best[:most]} or {one.name for one in series[:most]}
    return [one.name for one in series if one.name in chosen]


def scatter(series: Sequence[Series], label: str, unit: str, cost: Cost, front: bool = True) -> dict[str, Any]:
    """Return the points of runs with the same metric."""
    found: list[dict[str, Any]] = []
    for one in series:
        x = one.mean(cost(entry) for entry in one.entries)
        means = one.means()
        if x is None or not means:
            continue
        point = {"run": one.name, "x": x, "y": float(np.mean(means)), "label": one.name}
        found.append(point | ({"y_dev": float(np.std(means, ddof=1))} if len(means) > 1 else {}))
    higher = series[0].shown.better_is_higher
    best = on_front([p["x"] for p in found], [p["y"] for p in found], higher) if front else [False] * len(found)
    for point, chosen in zip(found, best, strict=True):
        point["on_front"] = chosen
    xs = [point["x"] for point in found]
    return {
        "label": label,
        "x_label": label,
        "x_unit": unit,
        "x_log": len(xs) > 1 and min(xs) > 0 and max(xs) >= DECADE * min(xs),
        "y_label": f"test {series[0].metric}",
        "points": found,
    }
