"""Sections on a search for a front (`p2pfl-sim pareto`): its progress and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from p2pfl.sim.formatting import number, of_paper
from p2pfl.sim.markup import bullets, table
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Figure, Section, Series
from p2pfl.sim.report.summary import Row


def section(series: Sequence[Series]) -> Section | None:
    """Return the section on the growth of the hypervolume; nothing if the task has no reference point."""
    shown = [one for one in series if all(entry.hypervolumes for entry in one.entries)]
    figures = [progress(shown)] if shown else []
    return {"id": "search", "title": "Search", "text": [], "figures": figures} if figures else None


def progress(series: Sequence[Series]) -> Figure:
    """Return the hypervolume against iterations and candidates, the mean over seeds with a band of one deviation.

    Seeds of a run can differ in their number of iterations, for example after a change of the scenario. The curve ends
    with the shortest.
    """
    y, low, high = {}, {}, {}
    x: dict[str, dict[str, np.ndarray]] = {"iterations": {}, "candidates": {}}
    for one in series:
        shortest = min(len(entry.hypervolumes) for entry in one.entries)
        values = np.array([entry.hypervolumes[:shortest] for entry in one.entries])
        y[one.name] = values.mean(0)
        if len(values) > 1:
            deviation = values.std(0, ddof=1)
            low[one.name], high[one.name] = y[one.name] - deviation, y[one.name] + deviation
        iterations = np.arange(1, shortest + 1)
        found = one.shown.objectives
        each = len(found.nodes) // len(one.shown.hypervolumes) if found is not None else 1
        x["iterations"][one.name], x["candidates"][one.name] = iterations, iterations * each
    views: list[dict[str, Any]] = [{"label": label, "unit": "", "x": values} for label, values in x.items()]
    note = "Front of all candidates so far, relative to the reference point of the task; mean over seeds."
    note += " The band is one standard deviation over seeds on each side." if low else ""
    figure: Figure = {
        "id": "hypervolume",
        "kind": "lines",
        "title": "Hypervolume of the front",
        "note": note,
        "views": views,
    }
    return figure | {"y_label": "hypervolume", "y": y} | ({"low": low, "high": high} if low else {})


def results(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return a table for each folder with the number of candidates and the time, next to a paper's figure."""
    html = ""
    for folder in folders:
        rows = {row.name: row for row in folder.summary.table}
        papers = any(row.paper is not None for row in rows.values())
        heads = ["Run", "nodes", "rounds per candidate", "candidates", "seconds per seed"]
        heads += [of_paper(folder.summary.figure)] if papers else []
        cells = []
        for one in (each for each in series if each.folder is folder):
            row = rows.get(one.shown.name, Row(one.shown.name))
            cells.append([one.name, str(one.shown.nodes), str(one.shown.rounds), str(row.candidates or "")])
            cells[-1] += [number(row.seconds), *([number(row.paper)] if papers else [])]
        html += f"<h3>{escape(str(folder.path))}</h3>\n" if len(folders) > 1 else ""
        html += table(heads, cells) + bullets([f"Note: {note}" for note in folder.summary.notes])
    return html
