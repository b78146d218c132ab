"""Section on two factors, such as topology and budget: heat maps of the test metric and of its costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl.sim.report.factors import Factor, factors, grid
from p2pfl.sim.report.sections.fronts import DECADE
from p2pfl.sim.report.series import Figure, Section, Series
from p2pfl.sim.report.summary import Entry, Reached


class _Quantity(NamedTuple):
    """A quantity of the cells of a heat map."""

    id: str
    title: str
    unit: str
    value: Callable[[Entry], float | None]
    missing: str = "no value"
    higher: bool = False  # whether more is better


TO_TARGET = (
    _Quantity("target-time", "Virtual time to the target", "s", lambda entry: _cost(entry, "virtual_s"), "never"),
    _Quantity("target-bytes", "Bytes to the target", "B", lambda entry: _cost(entry, "bytes"), "never"),
)
TIME = _Quantity("time", "Virtual time", "s", lambda entry: entry.time.virtual_s)
SENT = _Quantity("bytes", "Bytes sent", "B", lambda entry: entry.sent)


def section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if the runs do not combine the levels of two factors."""
    by = grid(factors(series))
    if by is None or len({one.metric for one in series}) > 1:
        return None
    metric = _Quantity(
        "metric", f"Test {series[0].metric}", "", lambda entry: entry.test.mean, higher=series[0].shown.better_is_higher
    )
    aimed = any(entry.reached is not msgspec.UNSET for one in series for entry in one.entries)
    quantities = (metric, *(TO_TARGET if aimed else (TIME,)), SENT)
    figures = [figure for quantity in quantities if (figure := _heatmap(quantity, by, series)) is not None]
    return {"id": "grid", "title": f"Combinations of {by[0].title} and {by[1].title}", "text": [], "figures": figures}


def _cost(entry: Entry, key: str) -> float | None:
    return float(getattr(entry.reached, key)) if isinstance(entry.reached, Reached) else None


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
    means = [cell["value"] for cell in cells.values() if np.isfinite(cell["value"])]
    if not means or (len(set(means)) == 1 and len(means) == len(cells)):
        return None
    best = (max if quantity.higher else min)(means, default=None)
    for cell in cells.values():
        cell["best"] = cell["value"] == best
    note = f"Mean over {'nodes and seeds' if quantity.id == 'metric' else 'seeds'}. The best value has a frame."
    never = quantity.missing == "never" and len(means) < len(cells)
    return {
        "id": f"grid-{quantity.id}",
        "kind": "heatmap",
        "title": quantity.title,
        "note": note + " Never: some seed did not reach the target." * never,
        "rows": list(rows.texts),
        "columns": list(columns.texts),
        "y_label": rows.title,
        "x_label": columns.title,
        "label": quantity.title[0].lower() + quantity.title[1:],
        "unit": quantity.unit,
        "log": len(means) > 1 and min(means) > 0 and max(means) >= DECADE * min(means),
        "missing": quantity.missing,
        "cells": cells,
        "unfiltered": True,
    }
