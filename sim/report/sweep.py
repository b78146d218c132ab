"""Sections on what a scenario varies or aims at: a sweep's keys, two factors as heat maps, and the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl.sim.formatting import LIMITS, setting
from p2pfl.sim.report.figures import DECADE, costs, points, scatter
from p2pfl.sim.report.findings import unreached
from p2pfl.sim.report.folder import Entry, Reached
from p2pfl.sim.report.series import (
    Factor,
    Figure,
    Section,
    Series,
    by_key,
    factors,
    grid,
    places_of,
    reported_model,
    title_of,
)

COSTS = (  # fields of Reached, with label and unit
    ("round", "Rounds", "rounds", ""),
    ("virtual_s", "Virtual time", "virtual time", "s"),
    ("bytes", "Bytes sent", "bytes sent", "B"),
)


def sweep_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if no summary comes from a sweep."""
    swept = [one for one in series if one.folder.summary.varied]
    if not swept:
        return None
    keys = list(dict.fromkeys(key for one in swept for key in one.folder.summary.varied))
    figures = [figure for key in keys if (figure := against(key, swept)) is not None]
    words = [title_of(key) for key in keys if not any(figure["x_label"] == key for figure in figures)]
    text = [f"Varied: {', '.join(_values(key, swept) for key in keys)}."]
    if words:
        text.append(f"No figure for values that are not numbers: {', '.join(words)}; see the table.")
    return {
        "id": "sweep",
        "title": "Sweep",
        "text": text,
        "figures": [_of_all(each) for each in (*figures, *costs(swept))],
    }


def _of_all(figure: Figure) -> Figure:
    """Return a figure that always shows all runs, because its purpose is to compare them."""
    return figure | {"unfiltered": True}


def against(key: str, series: Sequence[Series]) -> Figure | None:
    """Return the metric against a numeric key; None if there are no numbers, or only one.

    Labels of points have the other varied keys; points with equal labels are joined.
    """
    there = [one for one in series if _number(one.shown.varied.get(key)) and one.metric == series[0].metric]
    if len({one.shown.varied[key] for one in there}) < 2:
        return None
    found = scatter(there, key, "", lambda entry: entry.varied[key], front=False)
    others = {one.name: one.words_without([key]) for one in there}  # the place of a point shows the value of its key
    joined = len(set(others.values())) < len(others)
    for point in found["points"]:
        point["label"] = others[point["run"]]
        if key in LIMITS and point["x"] == 0:
            point |= {"x": None, "no_limit": True}  # drawn as "none", at the right
    return {
        "id": f"against-{''.join(c if c.isalnum() else '-' for c in key)}",
        "kind": "scatter",
        "title": f"Test {series[0].metric} against {key}",
        "note": points(found["points"], reported_model(there))
        + (" Lines connect runs that differ in this key only." if joined else ""),
        "joined": joined,
        "decimals": places_of(there)[series[0].metric],
        **found,
    }


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(key: str, series: Sequence[Series]) -> str:
    values = dict.fromkeys(setting(key, value) for one in series for value in one.folder.summary.varied.get(key, []))
    return f"{title_of(key)} ({', '.join(values)})"


class _Quantity(NamedTuple):
    """A quantity of the cells of a heat map."""

    id: str
    title: str
    unit: str
    value: Callable[[Entry], float | None]
    of_target: bool = False  # whether only runs that reached the target have it
    higher: bool = False  # whether more is better


TO_TARGET = (
    _Quantity("target-time", "Virtual time to the target", "s", lambda entry: entry.cost("virtual_s"), True),
    _Quantity("target-bytes", "Bytes to the target", "B", lambda entry: entry.cost("bytes"), True),
)
TIME = _Quantity("time", "Virtual time", "s", lambda entry: entry.time.virtual_s)
SENT = _Quantity("bytes", "Bytes sent", "B", lambda entry: entry.sent)


def grid_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if the runs do not combine the levels of two factors."""
    by = grid(factors(series))
    if by is None or len({one.metric for one in series}) > 1:
        return None
    metric = _Quantity(
        "metric", f"Test {series[0].metric}", "", lambda entry: entry.test.mean, higher=series[0].shown.higher_is_better
    )
    aimed = any(entry.reached is not msgspec.UNSET for one in series for entry in one.entries)
    quantities = (metric, *(TO_TARGET if aimed else (TIME,)), SENT)
    figures = [figure for quantity in quantities if (figure := _heatmap(quantity, by, series)) is not None]
    return {"id": "grid", "title": f"Combinations of {by[0].title} and {by[1].title}", "text": [], "figures": figures}


def _heatmap(quantity: _Quantity, by: tuple[Factor, Factor], series: Sequence[Series]) -> Figure | None:
    """Return the mean of a quantity over the seeds of each run, without a number if any seed has none.

    Returns:
        None if no run has the quantity, or if all have the same.
    """
    rows, columns = by
    cells: dict[str, dict[str, Any]] = {}
    for one in series:
        values = [np.nan if (each := quantity.value(entry)) is None else each for entry in one.entries]
        cell = {"row": rows.level[one.name], "column": columns.level[one.name], "value": float(np.mean(values))}
        cells[one.name] = cell | ({"dev": float(np.std(values, ddof=1))} if len(values) > 1 else {})
        if quantity.of_target and (words := _partly(one)):
            cells[one.name]["missing"] = words.removesuffix(" seeds")  # a cell is narrow
    means = [cell["value"] for cell in cells.values() if np.isfinite(cell["value"])]
    if not means or (len(set(means)) == 1 and len(means) == len(cells)):
        return None
    problems = by_key(series, lambda one: one.problem)
    several = len(problems) > 1
    for alike in problems.values():
        mine = [cells[one.name] for one in alike]
        best = (max if quantity.higher else min)(
            (cell["value"] for cell in mine if np.isfinite(cell["value"])), default=None
        )
        for cell in mine:
            cell["best"] = cell["value"] == best and (len(mine) > 1 or not several)  # alone it is better than no other
    of_metric = quantity.id == "metric"
    over = f"the nodes, then over the seeds, of {reported_model(series)}" if of_metric else "the seeds"
    note = f"Mean over {over}."
    if any(cell["best"] for cell in cells.values()):
        note += f" The best value{' of each learning problem' * several} has a frame."
    partly = quantity.of_target and len(means) < len(cells)
    return {
        "id": f"grid-{quantity.id}",
        "kind": "heatmap",
        "title": quantity.title,
        "note": note + " No number: not all seeds reached the target." * partly,
        "rows": list(rows.texts),
        "columns": list(columns.texts),
        "y_label": rows.title,
        "x_label": columns.title,
        "label": quantity.title[0].lower() + quantity.title[1:],
        "unit": quantity.unit,
        **({"decimals": places_of(series)[series[0].metric]} if of_metric else {}),
        "log": len(means) > 1 and min(means) > 0 and max(means) >= DECADE * min(means),
        "missing": "no value",
        "cells": cells,
        "unfiltered": True,
    }


def target_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if no summary has a target."""
    aimed = [one for one in series if any(entry.reached is not msgspec.UNSET for entry in one.entries)]
    if not aimed:
        return None
    figures = [_bars(*cost, aimed) for cost in COSTS] if any(not _partly(one) for one in aimed) else []
    text = []
    goals = by_key(aimed, lambda one: (one.metric, one.folder.summary.target, one.shown.higher_is_better))
    for (metric, target, higher), alike in goals.items():
        if target is not None:
            side = "more" if higher else "less"
            text.append(f"The target is a mean test {metric} of {target:g} or {side}, of each node's model of the round.")
            text += unreached(alike, target)
    return {"id": "target", "title": "Reaching the target", "text": text, "figures": figures}


def _bars(key: str, title: str, label: str, unit: str, series: Sequence[Series]) -> Figure:
    """Return bars of the cost of runs that reached the target with every seed.

    The mean over only the seeds that reached it would make a run that seldom does look cheap: such a run has no bar.
    """
    partly = {one.name: words for one in series if (words := _partly(one))}
    note = "Total of all nodes, including the preparation. " * (key == "bytes") + "Mean over the seeds."
    return {
        "id": f"target-{key.replace('_', '-')}",
        "kind": "bars",
        "title": f"{title} until the target was reached",
        "note": note + " No bar: not all seeds reached it." * bool(partly),
        "x_label": label,
        "unit": unit,
        "runs": {
            one.name: None if one.name in partly else one.mean(entry.cost(key) for entry in one.entries) for one in series
        },
        "missing": partly,
    }


def _partly(one: Series) -> str:
    """Return how many seeds reached the target, such as "by 1 of 4 seeds" or "never"; "" if all did."""
    reached = sum(isinstance(entry.reached, Reached) for entry in one.entries)
    every = len(one.entries)
    return "" if reached == every else f"by {reached} of {every} seeds" if reached else "never"
