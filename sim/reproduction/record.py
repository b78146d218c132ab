"""Record the figures of finished runs: of a folder of `p2pfl-sim run` or `pareto`, or of each row of a run at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.inputs import Content, RunInputs, settings_of
from p2pfl.sim.execution.resume import Recomputed
from p2pfl.sim.formatting import some
from p2pfl.sim.reproduction import measured
from p2pfl.sim.reproduction.measured import Measured
from p2pfl.sim.results.artifacts import SCENARIO, SUMMARY
from p2pfl.sim.results.results import Result, summarise, versions
from p2pfl.sim.scenario.claims import figure_of
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of, load, shipped_scenarios

LEFT_OUT = "paper", "seed", "varied", "device"  # settings of a run that do not determine its figures

Form = tuple[str, ScenarioFile]
"""A form of a shipped scenario: its name, and the scenario in this form."""


def take(folder: Path, book: Path) -> str:
    """Record the figures of the rows in a folder, and return a line about them.

    Figures of other rows remain if they have the same seeds.

    Args:
        book: the file of measured figures.

    Raises:
        ConfigurationError: the folder is not a finished run of a shipped scenario, or matches none of its current
            forms.
    """
    if not (folder / SUMMARY).exists() and (folder / SCENARIO).exists():
        raise ConfigurationError(f"{folder} is not finished; continue with: p2pfl-sim run --resume {folder}")
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{folder} holds no finished run: {error}") from error
    name = summary["scenario"]
    if name not in shipped_scenarios():
        raise ConfigurationError(f"{folder} holds a run of {name}, which is not a shipped scenario")
    run = load(str(folder / SCENARIO))
    form = _form(str(folder), name, run)
    figures = _add(book, form, run, summary, str(folder))
    return f"{name}, form {form[0]}: {', '.join(figures)}"


class RowRecorder:
    """Record the figures of each row of a run as soon as its runs with all seeds are finished.

    Args:
        file: the runs.
        book: the file of measured figures.
        done: results of an earlier attempt, by the number of their job.

    Raises:
        ConfigurationError: the runs belong to no form of a shipped scenario.
    """

    def __init__(self, file: ScenarioFile, book: Path, done: Mapping[int, Result]) -> None:
        self._file = file
        self._book = book
        self._form = form_of(file)
        self._rows = [job.row for job in jobs_of(file)]
        self._results: dict[int, Result] = {}
        for number, result in done.items():
            self.finished(number, result)

    def finished(self, number: int, result: Result) -> None:
        """Record a row if this is the last of its results.

        Args:
            number: number of the job; see p2pfl.sim.scenario.scenario.jobs_of.

        Raises:
            ConfigurationError: the figures cannot be written.
        """
        self._results[number] = result
        row = self._rows[number]
        numbers = [k for k, name in enumerate(self._rows) if name == row]
        if all(k in self._results for k in numbers):
            part = self._file.part({run.name for run in self._file.rows()[row]}, self._file.seeds)
            summary = summarise(part, [self._results.pop(k) for k in numbers])
            _add(self._book, self._form, part, summary, "this run")

    def ended(self, file: ScenarioFile, summary: Mapping[str, Any]) -> None:
        """Record all rows of a finished run again, now with the figures that compare rows.

        Args:
            file: the runs that have results.
            summary: contents of summary.json.

        Raises:
            ConfigurationError: the figures cannot be written.
        """
        _add(self._book, self._form, file, summary, "this run")


def form_of(file: ScenarioFile) -> Form:
    """Return the form of a shipped scenario that runs belong to.

    Raises:
        ConfigurationError: there is none.
    """
    if file.name not in shipped_scenarios():
        raise ConfigurationError(f"{file.name} is not a shipped scenario; only figures of shipped scenarios are recorded")
    return _form("this command", file.name, file)


def without_recorded(file: ScenarioFile, book: Path, *, different_bits: bool = False) -> ScenarioFile:
    """Return the runs whose rows have no recorded figure with the same seeds and the same inputs.

    Its notes name the inputs of recorded rows that have changed, and rows that were recorded without their inputs.

    Args:
        different_bits: accept figures of other versions of the libraries.

    Raises:
        ConfigurationError: the runs belong to no form of a shipped scenario, or the file cannot be read.
    """
    form, _ = form_of(file)
    known = measured.load(book).get(file.name, {}).get(form, Measured())
    figures = known.figures if known.seeds == [*file.seeds] else {}
    again, inputs = Recomputed(), RunInputs(file)
    for row, runs in file.rows().items():
        if row in figures and row in known.inputs:
            files = {name: digest for run in runs for name, digest in inputs.files(run).items()}
            if changes := known.inputs[row].changes(_content(runs, files, versions()), different_bits=different_bits):
                again.add(row, changes)
    kept = [row for row in file.rows() if row in figures and row not in again.names]
    left = file.part([run.name for run in file.runs if run.row not in kept], file.seeds)
    unknown = [row for row in kept if row not in known.inputs]
    note = [f"recorded by an earlier version, so changes of their inputs are not known: {some(unknown)}"] if unknown else []
    return replace(left, notes=(*left.notes, *again.lines(), *note))


def _content(runs: Sequence[Scenario], files: Mapping[str, str], found: Mapping[str, str]) -> Content:
    """Return the content that the figures of a row depend on, except the seeds.

    Args:
        files: digests of the files that the runs read.
        found: versions of the software.
    """
    settings = [settings_of(run, ("p2pfl", *LEFT_OUT, "topology.file", "network.places")) for run in runs]
    digest = blake3(msgspec.json.encode(settings, order="deterministic")).hexdigest()
    of_row = {name: found[name] for name in ("torch", "numpy", "networkx") if name in found}
    return Content({"the scenario": digest}, dict(files), of_row)


def _add(book: Path, form: Form, run: ScenarioFile, summary: Mapping[str, Any], origin: str) -> dict[str, float]:
    """Record the figures of the complete rows of a run, and return them.

    Args:
        form: the form that the run belongs to.
        origin: name of the run for errors.
    """
    name, whole = form
    rows = {row: [each.name for each in runs] for row, runs in run.rows().items()}
    complete = {row for row, runs in whole.rows().items() if [each.name for each in runs] == rows.get(row)}
    figures = {row["name"]: figure_of(row, whole.figure) for row in summary["table"] if row["name"] in complete}
    known = measured.load(book).get(whole.name, {}).get(name, Measured())
    if len(known.seeds) > len(summary["seeds"]) and known.figures:
        raise ConfigurationError(
            f"{origin} has {_seeds(len(summary['seeds']))}; {_seeds(len(known.seeds))} are already recorded for {whole.name}"
        )
    found = by_seed(row for row in summary["table"] if row["name"] in complete)
    inputs = {}
    for row in complete:
        of_runs = [each.get("inputs", {}) for each in summary["runs"] if each["name"] in rows[row]]
        digests = {name: digest for each in of_runs for name, digest in each.items()}
        inputs[row] = _content(run.rows()[row], digests, summary.get("versions", {}))
    if known.seeds == summary["seeds"]:
        found = {figure: known.by_seed.get(figure, {}) | rows for figure, rows in found.items()}
        updated = replace(known, figures=known.figures | figures, version=summary["version"], by_seed=known.by_seed | found)
        updated = replace(updated, inputs=known.inputs | inputs)
    else:
        updated = Measured(None, known.cores, summary["seeds"], summary["version"], figures, found, inputs)
    measured.record(book, whole.name, name, updated)
    return figures


def by_seed(table: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the values by seed of rows of a summary's table, by figure and row."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in table:
        for figure, values in row.get("by_seed", {}).items():
            found.setdefault(figure, {})[row["name"]] = values
    return found


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _form(origin: str, name: str, run: ScenarioFile) -> Form:
    """Return the form of a scenario that a run belongs to."""
    forms = {form: load(name, [f"form={form}"]) for form in ("full", *load(name).forms) if form != "smoke"}
    for form, whole in forms.items():
        known = {each.name: _settings(each) for each in whole.runs}
        if all(known.get(each.name) == _settings(each) for each in run.runs):
            return form, whole
    raise ConfigurationError(f"{origin} holds a run of {name} that matches none of its current forms: {', '.join(forms)}")


def _settings(run: Scenario) -> Mapping[str, Any]:
    """Return the settings that determine the figures of a run, except the seeds, which the file sets.

    The device changes the order of sums, and the numbers that dropout draws.
    """
    return {key: getattr(run, key) for key in Scenario.__struct_fields__ if key not in LEFT_OUT}
