"""Figures of quantities by round: the mean over a run's seeds, and the standard deviation.

A seed that ended early counts with its last value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from p2pfl.sim.report.series import Figure, Series
from p2pfl.sim.report.summary import Entry
from p2pfl.sim.results import learning_curves
from p2pfl.sim.results.learning_curves import mean

PerRound = Callable[[Series, Entry], np.ndarray | None]


def of_nodes(series: Series, entry: Entry, stage: str, what: str) -> np.ndarray:
    """Return a metric of a snapshot by round and node; rounds without any evaluation are NaN."""
    rounds = series.rounds(entry)
    measured = [rounds[name] for name in (f"{stage}_{what}", f"merged_{what}") if name in rounds]
    evaluated = np.zeros(int(rounds["round"].max(initial=0)), bool)
    for column in measured:
        evaluated[rounds["round"][~np.isnan(column)] - 1] = True
    return np.where(evaluated[:, None], learning_curves.of_nodes(rounds, stage, what), np.nan)


def reported_curve(series: Series, entry: Entry) -> np.ndarray:
    """Return the test metric of the judged snapshot by round and node; see of_nodes."""
    return of_nodes(series, entry, series.stage(), f"test_{series.metric}")


def worst_tenth(table: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """Return for each round the mean of the worst tenth of its nodes, at least one; NaN until all have a number."""
    worst_first = np.sort(table if higher_is_better else -table, axis=1)[:, : max(1, table.shape[1] // 10)]
    found = mean(worst_first) if higher_is_better else -mean(worst_first)
    return np.where(np.isnan(table).any(axis=1), np.nan, found)


def bytes_sent(series: Series, entry: Entry) -> np.ndarray:
    """Return the total bytes sent by all nodes until the end of each round, including the preparation."""
    return learning_curves.bytes_sent(series.rounds(entry), entry.traffic.preparation.bytes)


def round_ends(series: Series, entry: Entry) -> np.ndarray:
    """Return the time at which the last node ended each round, in virtual seconds."""
    return learning_curves.round_ends(series.rounds(entry))


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
    series: Sequence[Series], per_round: PerRound, *, id: str, title: str, y_label: str, note: str = "", **more: Any
) -> Figure:
    """Return a figure of lines: the mean against rounds, bytes and virtual time, with a band of one deviation.

    Mean and deviation are over seeds. The figure omits rounds without a number for some seed, runs without any number,
    and rounds after the last one that was done with any seed.
    """
    y, low, high = {}, {}, {}
    x: dict[str, dict[str, np.ndarray]] = {"rounds": {}, "bytes": {}, "time": {}}
    for one in series:
        table = over_seeds(one, per_round)
        there = np.flatnonzero(np.isfinite(table).all(axis=0)) if len(table) else np.zeros(0, int)
        sent, times = over_seeds(one, bytes_sent), over_seeds(one, round_ends)
        there = there[there < sent.shape[1]]
        if not len(there):
            continue
        table = table[:, there]
        y[one.name] = table.mean(axis=0)
        if len(table) > 1:
            deviation = table.std(axis=0, ddof=1)
            low[one.name], high[one.name] = y[one.name] - deviation, y[one.name] + deviation
        x["rounds"][one.name] = there + 1
        x["bytes"][one.name] = sent[:, there].mean(axis=0)
        x["time"][one.name] = times[:, there].mean(axis=0)
    views: list[dict[str, Any]] = [
        {"label": "rounds", "unit": "", "x": x["rounds"]},
        {"label": "bytes sent", "unit": "B", "x": x["bytes"]},
        {"label": "virtual time", "unit": "s", "x": x["time"]},
    ]
    band = "The band is one standard deviation over seeds on each side." if low else ""
    if not y:
        note = "No round of these runs has this value."
    figure: Figure = {"id": id, "kind": "lines", "title": title, "note": f"{note} {band}".strip(), "views": views}
    figure |= {"y_label": y_label, "y": y} | ({"low": low, "high": high} if low else {})
    return figure | {key: value for key, value in more.items() if value is not None}
