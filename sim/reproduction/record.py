"""Record the figures of finished runs from a folder of `p2pfl-sim run` or `pareto`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.sim.reproduction import measured
from p2pfl.sim.reproduction.measured import Measured
from p2pfl.sim.results.artifacts import SCENARIO, SUMMARY
from p2pfl.sim.scenario.claims import figure_of
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, load, shipped_scenarios


def take(folder: Path, book: Path) -> str:
    """Record the figures of the rows in a folder, and return a line about them.

    Figures of other rows remain if they have the same seeds.

    Args:
        book: the file of measured figures.

    Raises:
        ConfigurationError: the folder is not a finished run of a shipped scenario, or matches none of its current
            forms.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{folder} holds no finished run: {error}") from error
    name = summary["scenario"]
    if name not in shipped_scenarios():
        raise ConfigurationError(f"{folder} holds a run of {name}, which is not a shipped scenario")
    run = load(str(folder / SCENARIO))
    form, whole = _form(folder, name, run)
    rows = {row: [each.name for each in runs] for row, runs in run.rows().items()}
    complete = {row for row, runs in whole.rows().items() if [each.name for each in runs] == rows.get(row)}
    figures = {row["name"]: figure_of(row, whole.figure) for row in summary["table"] if row["name"] in complete}
    known = measured.load(book).get(name, {}).get(form, Measured())
    if len(known.seeds) > len(summary["seeds"]) and known.figures:
        raise ConfigurationError(
            f"{folder} has {_seeds(len(summary['seeds']))}; {_seeds(len(known.seeds))} are already recorded for {name}"
        )
    if known.seeds == summary["seeds"]:
        told = replace(known, figures=known.figures | figures, version=summary["version"])
    else:
        told = Measured(None, known.cores, summary["seeds"], summary["version"], figures)
    measured.record(book, name, form, told)
    return f"{name}, form {form}: {', '.join(figures)}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _form(folder: Path, name: str, run: ScenarioFile) -> tuple[str, ScenarioFile]:
    """Return the form of a scenario that a run belongs to: its name, and the form."""
    forms = {form: load(name, [f"form={form}"]) for form in ("full", "short") if form in ("full", *load(name).forms)}
    for form, whole in forms.items():
        known = {each.name: _settings(each) for each in whole.runs}
        if all(known.get(each.name) == _settings(each) for each in run.runs):
            return form, whole
    raise ConfigurationError(f"{folder} holds a run of {name} that matches none of its current forms: {', '.join(forms)}")


def _settings(run: Scenario) -> Mapping[str, Any]:
    """Return the settings that determine the figures of a run, except the seeds, which the file sets."""
    return {key: getattr(run, key) for key in Scenario.__struct_fields__ if key not in ("paper", "seed", "varied")}
