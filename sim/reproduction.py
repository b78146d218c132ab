"""Catalogue of the shipped scenarios: their papers, rows, printed figures and last measured figures.

The measured figures are in a file of the repository, which is not part of the installed packages. `p2pfl-sim reproduce
--record` writes it from a finished folder of `p2pfl-sim run` or `pareto`; `p2pfl-sim run --record` writes each row as
soon as its runs are finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.forecast import duration
from p2pfl.sim.execution.inputs import Content, RunInputs, settings_of
from p2pfl.sim.execution.resume import Recomputed
from p2pfl.sim.formatting import count, number, some
from p2pfl.sim.report.attacks import NO_ATTACK, AttackRow, AttackStudy, attack_studies
from p2pfl.sim.results.results import Result, summarise, versions
from p2pfl.sim.results.tables import SCENARIO, SUMMARY
from p2pfl.sim.scenario.claims import MEAN, Claim, check, figure_of, has_figure
from p2pfl.sim.scenario.scenario import SHIPPED, Scenario, ScenarioFile, jobs_of, load, shipped_scenarios, unknown_scenario

FORMS = ("full", "reduced", "short")
HEADS = ("paper, table, scenario and row", "printed", "measured", "reduced form", "short form")
COLUMNS = ("printed", "full form", "reduced form", "short form")  # of a table in Markdown
WIDTH = 100  # columns of a line of Markdown
MOST_ROWS = 200  # of a table in Markdown, unless a paper printed figures
OWN = "p2pfl's own"
COUNTS = """\
The first column counts the rows of shipped scenarios that have a printed figure.
The next two count the rows measured in the full form, and in a shorter form only.
A figure is within two deviations if it differs from the printed one by at most two standard
deviations over the seeds; rows with one seed, or without recorded values by seed, are not counted.
The last column counts the paper's claims on the order of rows that hold, of all that have a
scenario, each in the longest form that was measured. For rows with one seed, or without recorded
values by seed, the difference of the means decides. Rows and claims that repeat those of a table
with other options or seeds, such as `dac-synthetic-default`, count again."""
FILE = SHIPPED.resolve().parents[1] / "results" / "measured.json"  # in a checkout; missing if p2pfl is installed
EQUAL = "equal."  # figures of a row at what all rows of its run have spent
TOGETHER = "it is taken at what all rows have spent, so they must be run together"
LEFT_OUT = "paper", "seed", "varied", "device"  # settings of a run that do not determine its figures
Form = tuple[str, ScenarioFile]
"""A form of a shipped scenario: its name, and the scenario in this form."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A scenario, and its measured figures by form."""

    file: ScenarioFile
    measured: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, float | None]:
        """Return the rows of its table, each with the figure printed in its paper."""
        return {name: runs[0].paper for name, runs in self.file.rows().items()}

    @property
    def title(self) -> str:
        """Return a title like "Listo Zec et al., table 3"; OWN if there is no paper."""
        return ", ".join(part for part in (self.source, self.file.table) if part)

    @property
    def source(self) -> str:
        """Return the paper, or OWN."""
        return self.file.source or OWN

    @property
    def figure(self) -> str:
        """Return the name of the compared figure; empty for the mean of the test metric."""
        named = self.file.figure
        if named.startswith(EQUAL):
            return named.replace(".", " ")  # "seconds" would be taken for the figure
        return "" if named == MEAN else named.rpartition(".")[2]

    @property
    def decimals(self) -> int:
        """Return the decimals of all figures of the scenario's table: 3 below 2, 2 below 1000, else 0."""
        shown = [abs(value) for row, paper in self.rows.items() for value in (paper, *self.figures(row).values()) if value]
        return 3 if max(shown, default=0.0) < 2 else 2 if min(shown) < 1000 else 0

    def figures(self, row: str) -> dict[str, float]:
        """Return the measured figures of a row, by form."""
        return {
            form: measured.figures[row]
            for form in FORMS
            if (measured := self.measured.get(form)) and row in measured.figures
        }

    def written(self, row: str) -> tuple[str, ...]:
        """Return the printed figure of a row and the measured ones of FORMS, formatted for the table."""
        figures = self.figures(row)
        values = (self.rows[row], *(figures.get(form) for form in FORMS))
        return tuple("" if value is None else f"{value:,.{self.decimals}f}" for value in values)

    def further(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """Yield the name of each further figure, and its rows in the columns of a Markdown table."""
        for figure, printed in self.file.printed.items():
            found = [self.measured.get(form, Measured()).by_seed.get(figure, {}) for form in FORMS]
            rows = []
            for row in [row for row in self.rows if row in printed or any(row in of for of in found)]:
                values = (printed.get(row), *(fmean(of[row]) if row in of else None for of in found))
                rows.append((row, *("" if each is None else f"{each:,.2f}" for each in values)))
            if rows:
                yield figure.rpartition(".")[2], rows

    def deviation(self, row: str) -> float | None:
        """Return the standard deviation over the seeds of a row's figure in the full form; None if it is unknown."""
        values = self.measured.get("full", Measured()).by_seed.get(self.file.figure, {}).get(row, [])
        return stdev(values) if len(values) > 1 else None

    def verdict(self, claim: Claim) -> str:
        """Return "held", "not held" or "not decided" by the first of FORMS that has the figures; else ""."""
        return next((verdict for verdict in _verdicts(self, claim) if verdict), "")

    def not_run(self) -> list[str]:
        """Return the rows for which no form has a figure."""
        return [row for row in self.rows if not self.figures(row)]


def entries(names: Sequence[str], book: Book) -> list[CatalogueEntry]:
    """Return the scenarios with these names, or all shipped ones, in the order of their papers.

    Raises:
        ConfigurationError: there is no such scenario.
    """
    known = shipped_scenarios()
    for name in names:
        if name not in known:
            raise unknown_scenario(name)
    found = [CatalogueEntry(load(name), book.get(name, {})) for name in (names or known)]
    return found if names else sorted(found, key=lambda entry: (not entry.file.source, entry.file.source, entry.file.name))


def to_dict(entry: CatalogueEntry) -> dict[str, Any]:
    """Return an entry as plain values."""
    forms = {form: {"seconds": of.seconds, "cores": of.cores, "seeds": of.seeds} for form, of in entry.measured.items()}
    return {
        "scenario": entry.file.name,
        "paper": entry.file.source,
        "table": entry.file.table,
        "figure": entry.file.figure,
        "printed": {figure: dict(rows) for figure, rows in entry.file.printed.items()},
        "forms": forms,
        "rows": [{"name": row, "paper": paper, "measured": entry.figures(row)} for row, paper in entry.rows.items()],
        "claims": [f"{claim} ({claim.whose})" for claim in entry.file.claims],
    }


def lines(entry: CatalogueEntry) -> list[tuple[str, ...]]:
    """Return the lines of a scenario in the listing, in the columns of HEADS.

    They are the title, the rows, one line for all rows that were not run, and the claims with their verdicts.
    """
    of = f", {entry.figure}" if entry.figure else ""
    about = (_about(entry.measured.get(form)) for form in FORMS)
    found: list[tuple[str, ...]] = [(f"{entry.title}: `{entry.file.name}`{of}", "", *about)]
    found += [(row, *entry.written(row)) for row in entry.rows if entry.figures(row)]
    if missing := entry.not_run():
        found.append((_not_run(entry, missing), *[""] * len(HEADS[1:])))
    return found + [(f"{claim} ({claim.whose})", "", *_verdicts(entry, claim)) for claim in entry.file.claims]


def _not_run(entry: CatalogueEntry, rows: Sequence[str]) -> str:
    """Name the rows that were not run, each with its printed figure."""
    named = [f"{row} ({printed})" if (printed := entry.written(row)[0]) else row for row in rows]
    return f"{count(len(rows), 'row')} not run yet: {', '.join(named)}"


def _verdicts(entry: CatalogueEntry, claim: Claim) -> list[str]:
    return [_verdict(entry, claim, form) for form in FORMS]


def _verdict(entry: CatalogueEntry, claim: Claim, form: str) -> str:
    """Return the verdict on a claim in the figures of a form; an empty string if a figure or a row is missing."""
    measured = entry.measured.get(form)
    if measured is None:
        return ""
    figure = claim.figure or entry.file.figure
    by_seed = measured.by_seed.get(figure, {})
    figures = measured.figures if figure == entry.file.figure else {row: fmean(values) for row, values in by_seed.items()}
    table = [{"name": row, MEAN: value, "by_seed": {MEAN: by_seed.get(row, [])}} for row, value in figures.items()]
    found = check([replace(claim, figure="")], MEAN, table)
    said = {checked.verdict for checked in found}
    if verdict := next((each for each in ("not held", "not decided") if each in said), ""):
        return verdict
    return "held" if len(found) == len(claim.runs) * len(claim.others) else ""


def _about(measured: Measured | None) -> str:
    if measured is None:
        return ""
    time = "" if measured.seconds is None else duration(measured.seconds)
    if not measured.figures:
        return f"not run, about {time}"
    seeds = count(len(measured.seeds), "seed")
    return f"{seeds}, {time}" if time else seeds


def markdown(found: Sequence[CatalogueEntry]) -> str:
    """Return the generated part of docs/reproduced.md: counts, a section for each paper, and one for each scenario."""
    parts = ["## Counts by paper", COUNTS, _counts([entry for entry in found if entry.file.source])]
    for source, entries in groupby(found, key=lambda entry: entry.source):
        parts += [f"## {source}", *(part for entry in entries for part in _section(entry))]
    return "\n\n".join(parts)


def _counts(found: Sequence[CatalogueEntry]) -> str:
    """Return a Markdown table with a row for each paper: its printed figures, and its claims."""
    rows = []
    for source, entries in groupby(found, key=lambda entry: entry.source):
        mine = list(entries)
        printed = [(entry, row, paper) for entry in mine for row, paper in entry.rows.items() if paper is not None]
        measured = [(entry, row, paper) for entry, row, paper in printed if "full" in entry.figures(row)]
        spread = [
            (abs(entry.figures(row)["full"] - paper), deviation)
            for entry, row, paper in measured
            if (deviation := entry.deviation(row)) is not None
        ]
        shorter = sum(bool(entry.figures(row)) for entry, row, _ in printed) - len(measured)
        near = f"{sum(away <= 2 * deviation for away, deviation in spread)} of {len(spread)}" if spread else ""
        claims = [entry.verdict(claim) for entry in mine for claim in entry.file.claims if claim.paper]
        orders = f"{claims.count('held')} of {len(claims)}" if claims else ""
        rows.append((source, str(len(printed)), str(len(measured)), str(shorter), near, orders))
    heads = ("paper", "rows with a printed figure", "full form", "shorter form only", "within two deviations", "claims held")
    return _table(heads, rows)


def _section(entry: CatalogueEntry) -> Iterator[str]:
    yield f"### `{entry.file.name}`" + (f": {entry.file.table}" if entry.file.table else "")
    about = [f"{form.capitalize()} form: {text}." for form in FORMS if (text := _about(entry.measured.get(form)))]
    if entry.figure:
        about.append(f"Figure: {entry.figure}.")
    if about:
        yield " ".join(about)
    rows = [(row, *entry.written(row)) for row in entry.rows if entry.figures(row)]
    if len(rows) > MOST_ROWS and not entry.file.source:
        yield f"The figures of its {len(rows):,} rows are in `results/measured.json`."
        yield from _attack_table(entry)
    elif rows:
        yield _table(("row", *COLUMNS), rows)
    missing = entry.not_run()
    if len(missing) > MOST_ROWS:
        yield f"{len(missing):,} rows are not run yet."
    elif missing:
        whole = _not_run(entry, missing).replace(" (", "\u00a0(")  # no line break between a row and its figure
        names = "\n".join(wrap(whole, WIDTH, break_long_words=False, break_on_hyphens=False)).replace("\u00a0", " ")
        yield f"```text\n{names}\n```"
    for figure, more in entry.further():
        yield f"Further figure: {figure}."
        yield _table(("row", *COLUMNS), more)
    if entry.file.claims:
        claims = [(str(claim), claim.whose, *_verdicts(entry, claim)) for claim in entry.file.claims]
        yield _table(("claim", "whose", *COLUMNS[1:]), claims, text=2)


def _attack_table(entry: CatalogueEntry) -> Iterator[str]:
    """Yield a table of the lowest figure of each robust rule; nothing unless the rows differ in rules and attacks."""
    by_row = entry.measured.get("full", Measured()).figures
    found = [AttackRow(run["name"], run, by_row.get(run["name"]), None) for run in entry.file.to_toml()["run"]]
    by_label: dict[str, list[AttackStudy]] = {}
    for study in attack_studies(found):
        by_label.setdefault(study.label, []).append(study)
    if not by_label:
        return
    shares = dict.fromkeys(sorted((study.attackers for studies in by_label.values() for study in studies), key=_number))
    rows = []
    for label, studies in by_label.items():
        for rule in studies[0].rules:
            worst = {study.attackers: study.worst(rule, MEAN, higher_is_better=True) for study in studies}
            cells = ["" if (of := worst.get(share)) is None else f"{number(of[0])} ({of[1]})" for share in shares]
            rows.append((label, rule, number(studies[0].clean(rule, MEAN)), *cells))
    yield "The lowest mean of the honest nodes under any attack, with the attack, by the share of attackers:"
    yield _table(("settings", "rule", NO_ATTACK, *shares), rows, text=2)


def _number(text: str) -> float:
    """Return the number at the beginning of a text such as "30 %"."""
    return float(text.split()[0])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """Return a Markdown table without its empty columns; the first `text` columns are aligned to the left."""
    kept = [k for k in range(len(heads)) if k == 0 or any(row[k] for row in rows)]
    aligned = ["---" if k < text else "---:" for k in range(len(heads))]
    shown = [[line[k].replace("|", "\\|") for k in kept] for line in (heads, aligned, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def print_listing(found: Sequence[CatalogueEntry]) -> None:
    """Print the table on a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for head in HEADS:
        table.add_column(head, justify="left" if head == HEADS[0] else "right")
    for entry in found:
        for first, *figures in lines(entry):
            table.add_row(first, *figures)
        table.add_section()
    Console(highlight=False, markup=False).print(table)


class Measured(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Figures of a form of a scenario.

    Attributes:
        seconds: duration on `cores` otherwise idle cores; None if unknown.
        figures: for each row, the figure that the scenario compares with the paper's; {} if only the time was
            estimated.
        seeds: seeds over which the figures are means.
        version: version of p2pfl that produced them.
        by_seed: for each figure that claims compare and each row, its values by seed; {} in older entries.
        inputs: for each row, the content that its figures were computed from (see p2pfl.sim.execution.inputs); rows that
            earlier versions have recorded have none.
    """

    seconds: float | None = None
    cores: int = 2
    seeds: list[int] = []
    version: str = ""
    figures: dict[str, float] = {}
    by_seed: dict[str, dict[str, list[float]]] = {}
    inputs: dict[str, Content] = {}


Book = dict[str, dict[str, Measured]]
"""By scenario and form."""


def load_measured(path: Path) -> Book:
    """Read measured figures; {} if the file does not exist.

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Book)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error


def record(path: Path, scenario: str, form: str, measured: Measured) -> None:
    """Write the figures of a form in place of earlier ones, with four digits.

    Raises:
        ConfigurationError: the file cannot be read or written.
    """
    book = load_measured(path)
    figures = {row: _rounded(figure) for row, figure in measured.figures.items()}
    by_seed = {
        figure: {row: [_rounded(value) for value in values] for row, values in rows.items()}
        for figure, rows in measured.by_seed.items()
    }
    book.setdefault(scenario, {})[form] = msgspec.structs.replace(measured, figures=figures, by_seed=by_seed)
    ordered = {name: dict(sorted(book[name].items())) for name in sorted(book)}
    try:
        replace_file(path, [msgspec.json.format(msgspec.json.encode(ordered), indent=1), b"\n"])
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


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
    lacking = without_figure(form[1], summary["table"])
    return f"{name}, form {form[0]}: {'; '.join(filter(None, [', '.join(figures), lacking]))}"


def without_figure(whole: ScenarioFile, table: Sequence[Mapping[str, Any]]) -> str:
    """Return that rows of a summary's table have no figure to record, and why; "" if all have one.

    Args:
        whole: the form that the run belongs to.
    """
    rows = _rows_without(_comparable(whole, table), whole.figure)
    why = ""
    if whole.figure.startswith(EQUAL):
        part = len(table) < len(whole.rows())
        why = f": {TOGETHER}" if part else ": some node had not ended its first round by then"
    return f"no figure {whole.figure} for {some(rows, sign='; ')}{why}" if rows else ""


def _rows_without(table: Iterable[Mapping[str, Any]], figure: str) -> list[str]:
    return [row["name"] for row in table if not has_figure(row, figure)]


class RowRecorder:
    """Record the figures of each row of a run as soon as its runs with all seeds are finished.

    Args:
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
        for index, result in done.items():
            self.finished(index, result)

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

    def ended(self, file: ScenarioFile, summary: Mapping[str, Any]) -> str:
        """Record all rows of a finished run again, now with the figures that compare rows.

        Returns:
            Which rows lack the scenario's figure, and are not recorded; "" if none does.

        Args:
            file: the runs that have results.
            summary: contents of summary.json.

        Raises:
            ConfigurationError: the figures cannot be written.
        """
        _add(self._book, self._form, file, summary, "this run")
        return without_figure(self._form[1], summary["table"])


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
    form, whole = form_of(file)
    known = load_measured(book).get(file.name, {}).get(form, Measured())
    figures = known.figures if known.seeds == [*file.seeds] else {}
    again, inputs = Recomputed(), RunInputs(file)
    for row, runs in file.rows().items():
        if row in figures and row in known.inputs:
            files = {name: digest for run in runs for name, digest in inputs.files(run).items()}
            if changes := known.inputs[row].changes(_content(runs, files, versions()), different_bits=different_bits):
                again.add(row, changes)
    kept = [row for row in file.rows() if row in figures and row not in again.names]
    together: list[str] = []
    if whole.figure.startswith(EQUAL) and 0 < len(kept) < len(file.rows()):
        together, kept = [f"all rows were computed again, because of the figure {whole.figure}: {TOGETHER}"], []
    left = file.part([run.name for run in file.runs if run.row not in kept], file.seeds)
    unknown = [row for row in kept if row not in known.inputs]
    note = [f"recorded by an earlier version, so changes of their inputs are not known: {some(unknown)}"] if unknown else []
    return replace(left, notes=(*left.notes, *again.lines(), *together, *note))


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
    """Record the figures of the complete rows of a run, and return them; a row without the scenario's figure is left out.

    Args:
        form: the form that the run belongs to.
        origin: name of the run for errors.
    """
    name, whole = form
    rows = {row: [each.name for each in runs] for row, runs in run.rows().items()}
    complete = {row for row, runs in whole.rows().items() if [each.name for each in runs] == rows.get(row)}
    table = _comparable(whole, summary["table"])
    complete -= set(_rows_without(table, whole.figure))
    figures = {row["name"]: figure_of(row, whole.figure) for row in table if row["name"] in complete}
    if not figures:
        return {}
    known = load_measured(book).get(whole.name, {}).get(name, Measured())
    if len(known.seeds) > len(summary["seeds"]) and known.figures:
        there, recorded = count(len(summary["seeds"]), "seed"), count(len(known.seeds), "seed")
        raise ConfigurationError(f"{origin} has {there}; {recorded} are already recorded for {whole.name}")
    found = by_seed(row for row in table if row["name"] in complete)
    inputs = {}
    for row in complete:
        of_runs = [each.get("inputs", {}) for each in summary["runs"] if each["name"] in rows[row]]
        digests = {name: digest for each in of_runs for name, digest in each.items()}
        inputs[row] = _content(run.rows()[row], digests, summary.get("versions", {}))
    if known.seeds == summary["seeds"]:
        changed = {row for row in complete if known.inputs.get(row) != inputs[row]}  # what they lack now is of other inputs
        kept = {
            figure: {row: values for row, values in of.items() if row not in changed} for figure, of in known.by_seed.items()
        }
        found = {figure: kept.get(figure, {}) | found.get(figure, {}) for figure in {**kept, **found}}
        found = {figure: of for figure, of in found.items() if of}
        updated = replace(known, figures=known.figures | figures, version=summary["version"], by_seed=found)
        updated = replace(updated, inputs=known.inputs | inputs)
    else:
        updated = Measured(None, known.cores, summary["seeds"], summary["version"], figures, found, inputs)
    record(book, whole.name, name, updated)
    return figures


def _comparable(whole: ScenarioFile, table: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of a summary's table; of a part of a form, without the figures at equal measures.

    The measures are what all rows of a run have spent. Those of another part differ, and so do the figures at them.
    """
    rows = list(table)
    if {row["name"] for row in rows} == {*whole.rows()}:
        return rows

    def without(row: Mapping[str, Any]) -> Mapping[str, Any]:
        of_seeds = {name: values for name, values in row.get("by_seed", {}).items() if not name.startswith(EQUAL)}
        return {key: of_seeds if key == "by_seed" else value for key, value in row.items() if key != "equal"}

    return [without(row) for row in rows]


def by_seed(table: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the values by seed of rows of a summary's table, by figure and row."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in table:
        for figure, values in row.get("by_seed", {}).items():
            found.setdefault(figure, {})[row["name"]] = values
    return found


def _form(origin: str, name: str, run: ScenarioFile) -> Form:
    """Return the form that a run belongs to: of those with its settings the one with its seeds, else the first."""
    forms = {form: load(name, [f"form={form}"]) for form in ("full", *load(name).forms) if form != "smoke"}
    alike: list[Form] = []
    for form, whole in forms.items():
        known = {each.name: _settings(each) for each in whole.runs}
        if all(known.get(each.name) == _settings(each) for each in run.runs):
            alike.append((form, whole))
    if alike:
        return next((each for each in alike if {*each[1].seeds} == {*run.seeds}), alike[0])
    raise ConfigurationError(f"{origin} holds a run of {name} that matches none of its current forms: {', '.join(forms)}")


def _settings(run: Scenario) -> Mapping[str, Any]:
    """Return the settings that determine the figures of a run, except the seeds, which the file sets.

    The device changes the order of sums, and the numbers that dropout draws.
    """
    return {key: getattr(run, key) for key in Scenario.__struct_fields__ if key not in LEFT_OUT}
