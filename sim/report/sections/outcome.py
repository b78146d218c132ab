"""Section on results: each node's metric with the worst tenth, and the means of the groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.sim.report.series import Figure, Section, Series, by_key

MOST_MARKS = 40_000  # of all runs of a distribution
LEAST_MARKS = 200  # of a run
MOST_GROUPS = 8  # a figure with more bars would be less readable than the table


def section(series: Sequence[Series]) -> Section:
    """Return the section: a distribution for each metric, and bars for each group."""
    figures: list[Figure] = []
    for metric, alike in by_key(series, lambda one: one.metric).items():
        suffix = "" if metric == series[0].metric else f"-{metric}"
        figures += [distribution(f"nodes{suffix}", metric, alike), *groups(f"group{suffix}", metric, alike)]
    return {"id": "results", "title": "Results", "text": [], "figures": figures}


def distribution(id: str, metric: str, series: Sequence[Series]) -> Figure:
    """Return each node's test metric for one seed, with a mark on the worst tenth of the nodes, at least one.

    With too many nodes in all runs together, each run shows a part of its nodes: their values have equal distances in the
    order of all values, from the least to the greatest.
    """
    runs = {}
    marks = max(MOST_MARKS // max(len(series), 1), LEAST_MARKS)
    thinned = sum(len(one.shown.test.nodes) for one in series) > MOST_MARKS
    for one in series:
        values = np.array([np.nan if value is None else value for value in one.shown.test.nodes], float)
        if not np.isfinite(values).any():
            continue
        marked = worst(values, one.shown.better_is_higher)
        kept = spread(values, marks) if thinned else slice(None)
        runs[one.name] = {"values": values[kept], "worst": marked[kept], "mean": float(np.nanmean(values))}
    note = f"One mark per node, {_seeds(series)}; the worst tenth of the nodes is highlighted."
    if thinned:
        note += f" A run has at most {marks:,} marks, from the least to the greatest value, at equal distances in order."
    if not runs:
        note = "The summary has no results of single nodes."
    labels = next((one.shown.labels for one in series if one.shown.labels), [])
    alike = all(one.shown.labels in (labels, []) and one.shown.nodes == series[0].shown.nodes for one in series)
    figure: Figure = {
        "id": id,
        "kind": "distribution",
        "title": f"Test {metric} of each node",
        "note": note,
        "x_label": f"test {metric}",
        "runs": runs,
    }
    if thinned:
        return figure | {"of": "value", "labels": [f"value {k + 1}" for k in range(marks)]}
    return figure | ({"labels": labels} if labels and alike else {})


def spread(values: np.ndarray, most: int) -> np.ndarray:
    """Return the places of at most `most` values, from the least to the greatest at equal distances in their order."""
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there], kind="stable")]
    kept: np.ndarray = order[np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)]
    return kept


def worst(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """Return 1 for each of the worst tenth of the values, at least one; 0 for the others and for NaN."""
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there] if higher_is_better else -values[there], kind="stable")]
    marks = np.zeros(len(values), np.uint8)
    marks[order[: max(1, len(there) // 10)]] = 1
    return marks


def groups(id: str, metric: str, series: Sequence[Series]) -> list[Figure]:
    """Return a bar figure for each group of nodes: the mean over its nodes and over seeds."""
    names = list(dict.fromkeys(group for one in series for entry in one.entries for group in entry.test.per_group))
    if not 1 < len(names) <= MOST_GROUPS:
        return []
    figures = []
    for number, group in enumerate(names):
        means = {one.name: one.mean(entry.test.per_group.get(group) for entry in one.entries) for one in series}
        figures.append(
            {
                "id": f"{id}-{number}",
                "kind": "bars",
                "title": f"Test {metric} in group {group}",
                "note": "",
                "x_label": f"test {metric}",
                "unit": "",
                "runs": {run: mean for run, mean in means.items() if mean is not None},
            }
        )
    return figures


def _seeds(series: Sequence[Series]) -> str:
    seeds = sorted({one.shown.seed for one in series})
    return f"seed {seeds[0]}" if len(seeds) == 1 else "one seed of each run"
