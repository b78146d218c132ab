"""Table of the keys that differ between the scenarios of several folders, as resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from p2pfl.sim.markup import bullets, paragraphs, table
from p2pfl.sim.report.factors import flat
from p2pfl.sim.report.folder import Folder

MOST_VALUES = 6


def differences(folders: Sequence[Folder], names: Sequence[str]) -> str:
    """Return a table of the keys that differ, as HTML.

    Runs are compared by name. If the folders have no runs of the same name, the values of all runs are compared.
    """
    runs = [_runs(folder) for folder in folders]
    if not all(runs):
        missing = [name for name, found in zip(names, runs, strict=True) if not found]
        return paragraphs([f"The scenarios cannot be compared: no readable scenario.toml in {', '.join(missing)}."])
    shared = [run for run in runs[0] if all(run in found for found in runs[1:])]
    compared = [{run: found[run] for run in shared} if shared else found for found in runs]
    keys = list(dict.fromkeys(key for found in compared for table in found.values() for key in table))
    rows = [["seeds", *(_value(folder.scenario.get("seeds")) for folder in folders)]]
    rows = rows if len(set(rows[0][1:])) > 1 else []
    for key in keys:
        values = [{run: table.get(key) for run, table in found.items()} for found in compared]
        differ = (
            any(each != values[0] for each in values[1:]) if shared else len({_format_values(each) for each in values}) > 1
        )
        if differ:
            rows.append([key, *(_format_values(each) for each in values)])
    html = table(["Key", *names], rows) if rows else ""
    words = [] if rows else ["The runs with the same names have equal settings." if shared else "All settings are equal."]
    only = [
        f"Only in {name}: {', '.join(run for run in found if run not in shared)}."
        for name, found in zip(names, runs, strict=True)
        if shared and len(found) > len(shared)
    ]
    if not shared:
        only.append("No run has the same name in all folders, so the table compares the values of all runs.")
    return html + paragraphs(words) + bullets(only)


def _runs(folder: Folder) -> dict[str, dict[str, Any]]:
    """Return each run's keys with dots; only the runs in the summary."""
    names = dict.fromkeys(entry.name for entry in folder.summary.runs)
    found = {name: flat(folder.settings(name)) for name in names}
    return {name: table for name, table in found.items() if table}


def _format_values(values: Mapping[str, Any]) -> str:
    """Return the common value of all runs, or each value with its runs."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(_value(value), []).append(run)
    if len(runs) == 1:
        return next(iter(runs))
    words = [f"{value} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" for value, names in runs.items()]
    return "; ".join(words[:MOST_VALUES]) + ("; ..." if len(words) > MOST_VALUES else "")


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
