"""Figures that several sections draw: lines by round, points of metric and cost, and the worst tenth of nodes.

A figure by round shows the mean over a run's seeds, and the standard deviation. A seed that ended early counts with its
last value. In an asynchronous run, moments take the place of rounds; see p2pfl.sim.results.learning_curves. Points of
metric and cost mark the Pareto front if the runs have the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from p2pfl.sim.report.folder import Entry
from p2pfl.sim.report.series import Figure, Run, Series, by_key, places_of, reported_model
from p2pfl.sim.results import learning_curves
from p2pfl.sim.results.learning_curves import Timeline, mean
from p2pfl.sim.results.objectives import on_front

PerRound = Callable[[Series, Entry], np.ndarray | None]
_FRONT = " Filled marks are Pareto-optimal: no other run is at least as good in both metric and cost, and better in one."
MOMENTS = "In an asynchronous run: the model that each node has at a moment."
MOST_SHOWN = 8  # number of colours
DECADE = 10  # ratio of the greatest to the least value from which an axis is logarithmic
Cost = Callable[[Entry], float]
COSTS: tuple[tuple[str, str, Cost], ...] = (
    ("bytes sent", "B", lambda entry: entry.sent),
    ("virtual time", "s", lambda entry: entry.time.virtual_s),
)
ENERGY: tuple[str, str, Cost] = ("energy of all nodes", "J", lambda entry: entry.joules)


def of_nodes(series: Series, entry: Entry, stage: str, what: str) -> np.ndarray:
    """Return a metric of a snapshot by round, or by moment, and node; rounds without any evaluation are NaN."""
    rounds, timeline = series.rounds(entry), series.timeline(entry)
    if series.asynchronous or timeline.incomplete:
        return timeline.reported(stage, what)
    measured = [rounds[name] for name in (f"{stage}_{what}", f"merged_{what}") if name in rounds]
    evaluated = np.zeros(int(rounds["round"].max(initial=0)), bool)
    for column in measured:
        evaluated[rounds["round"][~np.isnan(column)] - 1] = True
    return np.where(evaluated[:, None], learning_curves.of_nodes(rounds, stage, what), np.nan)


def reported_curve(series: Series, entry: Entry) -> np.ndarray:
    """Return the test metric of the reported snapshot by round, or by moment, and node; see of_nodes."""
    return of_nodes(series, entry, series.stage(), f"test_{series.metric}")


def worst_tenth(table: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """Return for each round the mean of the worst tenth of its nodes, at least one; NaN until all have a number."""
    worst_first = np.sort(table if higher_is_better else -table, axis=1)[:, : max(1, table.shape[1] // 10)]
    found = mean(worst_first) if higher_is_better else -mean(worst_first)
    return np.where(np.isnan(table).any(axis=1), np.nan, found)


def over_seeds(series: Series, per_round: PerRound) -> np.ndarray:
    """Return a figure for each seed and round; shape [seeds, rounds], NaN if there is none.

    For a pool, it is the mean over its runs.
    """
    found = [(entry.seed, values) for entry in series.entries if (values := per_round(series, entry)) is not None]
    longest = max((len(values) for _, values in found), default=0)
    table = np.full((len(found), longest), np.nan)
    for row, (_, values) in zip(table, found, strict=True):
        row[: len(values)] = values
        if len(values):
            row[len(values) :] = values[-1]
    seeds = [seed for seed, _ in found]
    if len(different := dict.fromkeys(seeds)) == len(seeds):
        return table
    return np.array([table[np.array(seeds) == seed].mean(axis=0) for seed in different])


def lines(
    series: Sequence[Series],
    per_round: PerRound,
    *,
    id: str,
    title: str,
    y_label: str,
    note: str = "",
    by_round: bool = False,
    **more: Any,
) -> Figure:
    """Return a figure of lines: the mean against rounds, bytes and virtual time, with a band of one deviation.

    Mean and deviation are over seeds. The figure omits rounds without a number for some seed, runs without any number,
    and rounds after the last one that was done with any seed. Where a run is asynchronous, or does not train once a round,
    the figure has trainings as well.

    Args:
        per_round: returns a value for each round or, in an asynchronous run, for each of its moments.
        by_round: whether it returns a value for each round in an asynchronous run, too.
    """
    tables: dict[str, np.ndarray] = {}
    x: dict[str, dict[str, np.ndarray]] = {"rounds": {}, "bytes": {}, "seconds": {}, "trainings": {}}
    for one in series:
        table = over_seeds(one, per_round)
        there = np.flatnonzero(np.isfinite(table).all(axis=0)) if len(table) else np.zeros(0, int)
        axes = {axis: over_seeds(one, partial(_measure, axis, by_round)) for axis in x}
        there = there[there < axes["bytes"].shape[1]]
        if len(there):
            tables[one.name] = table[:, there]
            for axis, values in axes.items():
                x[axis][one.name] = values[:, there].mean(axis=0)
            if one.asynchronous and not by_round:
                note = note if MOMENTS in note else f"{note} {MOMENTS}".strip()
            else:
                x["rounds"][one.name] = there + 1
    apart = any((x["trainings"][name] != rounds).any() for name, rounds in x["rounds"].items())
    views: list[dict[str, Any]] = [
        {"label": "rounds", "unit": "", "x": x["rounds"]},
        {"label": "bytes sent", "unit": "B", "x": x["bytes"]},
        {"label": "virtual time", "unit": "s", "x": x["seconds"]},
        *([{"label": "trainings of a node", "unit": "", "x": x["trainings"]}] if apart else []),
    ]
    note = note if tables else "No round of these runs has this value."
    figure: Figure = {"id": id, "kind": "lines", "title": title, "views": views, "y_label": y_label} | with_band(
        tables, note
    )
    return figure | {key: value for key, value in more.items() if value is not None}


def _measure(axis: str, by_round: bool, series: Series, entry: Entry) -> np.ndarray:
    """Return a measure of a run, an attribute of Timeline; `by_round` as if nodes waited for each other."""
    rounds = Timeline(series.rounds(entry), False, entry.traffic.preparation.bytes)
    found: np.ndarray = getattr(rounds if by_round else series.timeline(entry), axis)
    return found


def with_band(tables: Mapping[str, np.ndarray], note: str) -> dict[str, Any]:
    """Return the means over the first axis, which is that of the seeds, the band of one deviation, and a note on it."""
    found: dict[str, Any] = {"note": note, "y": {name: table.mean(axis=0) for name, table in tables.items()}}
    deviations = {name: table.std(axis=0, ddof=1) for name, table in tables.items() if len(table) > 1}
    if deviations:
        found["note"] = f"{note} Mean over the seeds; the band is one standard deviation over them on each side.".strip()
        found["low"] = {name: found["y"][name] - each for name, each in deviations.items()}
        found["high"] = {name: found["y"][name] + each for name, each in deviations.items()}
    return found


def clipped(figure: Figure) -> Figure:
    """Return lines of shares in percent with their bands between 0 and 100, whatever the deviation."""
    bands = [band for band in ("low", "high") if band in figure]
    return figure | {band: {run: values.clip(0, 100) for run, values in figure[band].items()} for band in bands}


def costs(series: Sequence[Series]) -> list[Figure]:
    """Return a figure for each metric, with its cost in bytes, in virtual time and, with watts of devices, in joules."""
    figures = []
    for metric, alike in by_key(series, lambda one: one.metric).items():
        comparable = len({one.problem for one in alike}) == 1
        kinds = (*COSTS, ENERGY) if all(entry.joules for one in alike for entry in one.entries) else COSTS
        views = [scatter(alike, label, unit, cost, comparable) for label, unit, cost in kinds]
        shown = views[0]["points"]
        note = (
            points(shown, reported_model(alike)) + _FRONT * (comparable and len(shown) > 1)
            if shown
            else "These runs have no test metric."
        )
        figure: Figure = {"id": "cost" if metric == series[0].metric else f"cost-{metric}", "kind": "scatter"}
        figure |= {"title": f"Test {metric} by cost", "note": note, "decimals": places_of(alike)[metric]} | views[0]
        figures.append(figure | ({"views": views} if shown else {}))
    return figures


def points(shown: Sequence[Mapping[str, Any]], model: str) -> str:
    """Describe the points of a figure, and which model of a node they show."""
    deviation = ", with one standard deviation over the seeds" if any("y_dev" in point for point in shown) else ""
    return f"Each point is a run: the mean over the nodes, then over the seeds{deviation}; of {model}."


def worth_showing(series: Sequence[Series], most: int = MOST_SHOWN) -> list[str]:
    """Return the names of the runs to show: first those on the front of sent bytes, then the best ones."""
    view = scatter(by_key(series, lambda one: one.metric)[series[0].metric], *COSTS[0])
    sign = -1 if series[0].shown.higher_is_better else 1
    best = sorted(view["points"], key=lambda point: (not point["on_front"], sign * point["y"]))
    chosen = {point["run"] for point in best[:most]} or {one.name for one in series[:most]}
    return [one.name for one in series if one.name in chosen]


def scatter(series: Sequence[Series], label: str, unit: str, cost: Cost, front: bool = True) -> dict[str, Any]:
    """Return the points of runs with the same metric."""
    found: list[dict[str, Any]] = []
    for one in series:
        means = one.means()
        if not means:
            continue
        x = float(np.mean([cost(entry) for entry in one.entries]))
        point = {"run": one.name, "x": x, "y": float(np.mean(means)), "label": one.name}
        found.append(point | ({"y_dev": float(np.std(means, ddof=1))} if len(means) > 1 else {}))
    higher = series[0].shown.higher_is_better
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


def distribution(series: Sequence[Run], values: Mapping[str, np.ndarray], higher_is_better: bool, **more: Any) -> Figure:
    """Return a figure with one mark per node and run, and the worst tenth of the nodes; runs without a number are left out.

    Args:
        series: the runs, which give the names of the nodes if all have the same.
        values: value of each node, by the name of the run; NaN is no mark.
    """
    runs = {
        name: {"values": each, "worst": worst(each, higher_is_better), "mean": float(np.nanmean(each))}
        for name, each in values.items()
        if np.isfinite(each).any()
    }
    labels = next((one.shown.labels for one in series if one.shown.labels), [])
    alike = all(one.shown.labels in (labels, []) and one.shown.nodes == series[0].shown.nodes for one in series)
    return {"kind": "distribution", "runs": runs} | ({"labels": labels} if labels and alike else {}) | more


def worst(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """Return 1 for each of the worst tenth of the values, at least one; 0 for the others and for NaN."""
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there] if higher_is_better else -values[there], kind="stable")]
    marks = np.zeros(len(values), np.uint8)
    marks[order[: max(1, len(there) // 10)]] = 1
    return marks
