"""The command `p2pfl-sim reproduce`: list the reproduced tables of papers, and run them again."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._util.console import FAILED, add_command, add_output
from p2pfl._util.printable import to_json
from p2pfl.errors import ConfigurationError, MissingRequirementError, RunError

if TYPE_CHECKING:
    from p2pfl.sim.reproduction import CatalogueEntry
    from p2pfl.sim.scenario.claims import Checked
    from p2pfl.sim.scenario.scenario import ScenarioFile

Command = Callable[[Sequence[str]], int]


@dataclass
class Outcome:
    """Figures of one scenario of the catalogue, or the reason why there are none.

    Attributes:
        state: "done", "skipped" or "failed".
        reason: one line with the reason if the state is not "done".
        origin: "" if the results are new; otherwise where they were taken from.
        seconds: see p2pfl.sim.reproduction.Measured; 0 if some of the results existed already.
        by_seed: see p2pfl.sim.reproduction.Measured.
        lacking: which rows have no figure, and why; "" if all have one.
    """

    scenario: str
    form: str
    state: str = "done"
    reason: str = ""
    origin: str = ""
    seconds: float = 0.0
    seeds: list[int] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    by_seed: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    claims: list[Checked] = field(default_factory=list)
    lacking: str = ""

    @property
    def good(self) -> bool:
        return self.state != "failed" and all(claim.stated for claim in self.claims)


def add_commands(commands: Any, command: Command) -> None:
    """Add `reproduce` to the commands of p2pfl-sim.

    Args:
        command: function that runs another command of p2pfl-sim, and raises the error that the command ends with.
    """
    parser = add_command(
        commands,
        "reproduce",
        "list the reproduced tables of papers with printed and measured figures, or run them again",
        "p2pfl-sim reproduce dac-synthetic",
        "p2pfl-sim reproduce fedpref-dst dpfl-budgets --short --out runs/tables",
        "p2pfl-sim reproduce --smoke",
    )
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="names of scenarios (default: all shipped scenarios)")
    which = parser.add_argument_group("form", "Without one of these options the command lists figures and runs nothing.")
    form = which.add_mutually_exclusive_group()
    form.add_argument(
        "--smoke", dest="form", action="store_const", const="smoke", help="run each scenario for a few seconds"
    )
    form.add_argument(
        "--short",
        dest="form",
        action="store_const",
        const="short",
        help="run the short forms, or the full form where there is none, and check the claims",
    )
    form.add_argument(
        "--full", dest="form", action="store_const", const="full", help="run the full forms; some take hours or days"
    )
    _add_figures(parser)
    output = add_output(parser)
    output.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write, with a subfolder for each scenario; in the folder of an earlier command finished scenarios"
        " are kept and interrupted ones continue (default: runs/reproduce-TIME)",
    )
    form.add_argument("--markdown", action="store_true", help="print the tables of docs/reproduced.md, and run nothing")
    parser.set_defaults(do=lambda options: _reproduce(options, command))


def _add_figures(parser: argparse.ArgumentParser) -> None:
    """Add the options of measured figures."""
    figures = parser.add_argument_group("measured figures")
    figures.add_argument(
        "--record",
        action="store_true",
        help="write the measured figures to the file of --measured, each row as soon as it is finished",
    )
    figures.add_argument(
        "--resume",
        action="store_true",
        help="with --record, skip rows whose figures are recorded with the same seeds and the same inputs",
    )
    figures.add_argument(
        "--allow-different-bits",
        action="store_true",
        help="with --resume, also skip rows that other versions of libraries have computed",
    )
    figures.add_argument(
        "--take",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="write the figures of the finished runs in these folders to the file of --measured, and run nothing",
    )
    figures.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="file of measured figures (default: results/measured.json in a checkout of the repository)",
    )


def _reproduce(options: argparse.Namespace, command: Command) -> int:
    from p2pfl.sim import reproduction

    book: Path = options.measured or reproduction.FILE
    if (options.record or options.take) and options.measured is None and not book.exists():
        raise ConfigurationError(f"{book} does not exist; name the file of measured figures with --measured FILE")
    if options.take:
        return _take(options, book)
    found = reproduction.entries(options.names, reproduction.load_measured(book))
    if options.form is not None:
        return _run_all(options, found, command, book)
    if options.record or options.out:
        raise ConfigurationError("--record and --out need a form: add --smoke, --short or --full")
    if options.resume:
        raise ConfigurationError("--resume needs --record and a form: add --record, and --short or --full")
    if not book.exists():
        print(f"no measured figures: {book} does not exist; it is part of the repository", file=sys.stderr)
    if options.json:
        print(to_json({"scenarios": [reproduction.to_dict(entry) for entry in found]}))
    elif options.markdown:
        print(reproduction.markdown(found))
    else:
        reproduction.print_listing(found)
    return 0


def _take(options: argparse.Namespace, book: Path) -> int:
    """Record the figures of finished runs."""
    if options.names or options.form or options.out:
        raise ConfigurationError(
            "--take cannot be combined with names, a form or --out; give it folders of finished runs only"
        )
    from p2pfl.sim.reproduction import take

    lines = []
    for folder in options.take:
        lines.append(take(folder, book))
        if not options.json:
            print(lines[-1])
    if options.json:
        print(to_json({"recorded": lines}))
    return 0


def _run_all(options: argparse.Namespace, found: Sequence[CatalogueEntry], command: Command, book: Path) -> int:
    """Run a form of each scenario, and print the outcomes."""
    if options.record and options.form == "smoke":
        raise ConfigurationError("--record needs --short or --full; figures of the smoke form are not recorded")
    if options.allow_different_bits and not options.resume:
        raise ConfigurationError("--allow-different-bits needs --resume")
    if options.resume and not options.record:
        raise ConfigurationError("--resume needs --record; without it only --out DIR continues an earlier command")
    out = options.out or Path("runs") / f"reproduce-{datetime.now():%Y%m%d-%H%M%S}"
    outcomes = []
    recording = Recording(book, options.resume, options.allow_different_bits) if options.record else None
    quiet = options.json or options.form == "smoke"
    for entry in found:
        outcomes.append(run(entry.file, options.form, out, command, quiet=quiet, recording=recording))
        if not options.json:
            _print_outcome(outcomes[-1])
        if options.record:
            _record(outcomes[-1], entry.file, book)
    if options.json:
        print(to_json({"form": options.form, "scenarios": [asdict(outcome) for outcome in outcomes]}))
    else:
        counts = [f"{sum(o.state == state for o in outcomes)} {state}" for state in ("done", "skipped", "failed")]
        missed = sum(not claim.stated for outcome in outcomes for claim in outcome.claims)
        print(f"{', '.join(counts)}" + (f"; {missed} claim{'s' * (missed != 1)} not as stated" if missed else ""))
    return 0 if all(outcome.good for outcome in outcomes) else FAILED


@dataclass(frozen=True)
class Recording:
    """Options of the recording of figures.

    Attributes:
        book: the file of measured figures.
        resume: skip rows that have figures with the same seeds and the same inputs.
        different_bits: also skip rows that other versions of the libraries have computed.
    """

    book: Path
    resume: bool = False
    different_bits: bool = False


def run(
    file: ScenarioFile, form: str, out: Path, command: Command, *, quiet: bool, recording: Recording | None = None
) -> Outcome:
    """Run one form of a scenario with its command; an error is also an outcome.

    Args:
        form: name of the form; `short` means the whole scenario where there is no short form.
        out: parent of the scenario's own folder.
        quiet: print nothing.
        recording: record each row as soon as it is finished; None records nothing.
    """
    from p2pfl.sim.execution.resume import changes_since
    from p2pfl.sim.reproduction import load_measured, without_recorded
    from p2pfl.sim.results.tables import SCENARIO, SUMMARY
    from p2pfl.sim.scenario.scenario import load

    form = form if form in file.forms else "full"
    outcome = Outcome(file.name, form)
    folder = out / f"{file.name}-{form}"
    try:
        whole = load(file.name, [f"form={form}"])
        left = whole
        if recording and recording.resume:
            left = without_recorded(whole, recording.book, different_bits=recording.different_bits)
        if recording and not left.runs:
            recorded = load_measured(recording.book)[outcome.scenario][outcome.form]
            outcome.origin, outcome.seeds, outcome.figures = "recorded before", recorded.seeds, recorded.figures
            return outcome
        if (folder / SUMMARY).exists():
            if changes := ", ".join(changes_since(folder)):
                raise ConfigurationError(f"{folder} has results of other inputs: {changes}; name another folder with --out")
            outcome.origin = "taken from the folder"
        else:
            begun = (folder / SCENARIO).exists()
            more = [*_record_options(file, recording, begun), *["--json"] * quiet]
            with redirect_stdout(StringIO()) if quiet else nullcontext(), _measure_time(outcome, whole):
                _carry_out(file, form, folder, command, more)
            if begun or len(left.runs) < len(whole.runs):
                outcome.seconds = 0.0
        _stopping(outcome, file, whole, folder)
    except Exception as error:  # a scenario that fails does not stop the others
        line = str(error) if isinstance(error, ConfigurationError | RunError) else f"{type(error).__name__}: {error}"
        outcome.state = "skipped" if _missing(error) else "failed"
        outcome.reason = " ".join(line.split())
    finally:
        gc.unfreeze()  # a run freezes all objects; DuckDB complains about its own at exit
    return outcome


def _record_options(file: ScenarioFile, recording: Recording | None, begun: bool) -> list[str]:
    """Return the options of the command `run` that record each row; `pareto` has none."""
    if recording is None or file.runs[0].search is not None:
        return []
    skipping = recording.resume and not begun
    different = recording.different_bits and (begun or skipping)
    more = [*["--skip-recorded"] * skipping, *["--allow-different-bits"] * different]
    return ["--record", str(recording.book), *more]


def _carry_out(file: ScenarioFile, form: str, folder: Path, command: Command, options: Sequence[str]) -> None:
    """Run a scenario, or resume an interrupted run."""
    from p2pfl.sim.results.tables import SCENARIO

    begun = (folder / SCENARIO).exists()
    what = ["--resume", str(folder)] if begun else [file.name, "--set", f"form={form}", "--out", str(folder)]
    name = "run" if file.runs[0].search is None else "pareto"
    code = command([name, *what, *options])
    if code:
        raise RunError(f"the command ended with exit code {code}")


def _stopping(outcome: Outcome, file: ScenarioFile, whole: ScenarioFile, folder: Path) -> None:
    """Read the results of a run, and check them.

    Args:
        file: the scenario, whose claims are checked.
        whole: its form.
    """
    from p2pfl.sim.reproduction import by_seed, without_figure
    from p2pfl.sim.results.tables import SUMMARY
    from p2pfl.sim.scenario.claims import check, figure_of, has_figure

    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    outcome.seeds = summary["seeds"]
    table = summary["table"]
    outcome.lacking = without_figure(whole, table)
    outcome.figures = {row["name"]: figure_of(row, file.figure) for row in table if has_figure(row, file.figure)}
    outcome.by_seed = by_seed(summary["table"])
    expired = sum(run.get("deadlines_expired", 0) for run in summary["runs"])
    if expired:
        raise RunError(f"{expired} deadline{'s' * (expired != 1)} expired, expected none")
    if not (folder / "report.html").exists():
        raise RunError("report.html is missing")
    if outcome.form == ("short" if "short" in file.forms else "full"):
        outcome.claims = check(file.claims, file.figure, summary["table"])


@contextmanager
def _measure_time(outcome: Outcome, file: ScenarioFile) -> Iterator[None]:
    """Measure processor seconds, divided by the number of processes; the time of other programs does not count."""
    from p2pfl.sim.execution.runner import processes_of
    from p2pfl.sim.simulation.workers import processor_seconds

    before, begun = processor_seconds(), time.monotonic()
    yield
    spent = processor_seconds() - before
    trainings = sum(1 if run.search is None else run.search.samples for run in file.runs) * len(file.seeds)
    processes = min(processes_of("process", None), trainings)  # run in parallel
    outcome.seconds = min(time.monotonic() - begun, spent / processes)


def _missing(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, MissingRequirementError):
        error = error.__cause__
    return error is not None


def _print_outcome(outcome: Outcome) -> None:
    from p2pfl.sim.execution.forecast import duration

    if outcome.state != "done":
        where = sys.stderr if outcome.state == "failed" else sys.stdout
        print(f"{outcome.scenario}: {outcome.state}: {outcome.reason}", file=where, flush=True)
        return
    rows = f"{len(outcome.figures)} row{'s' * (len(outcome.figures) != 1)}"
    time = f" in {duration(outcome.seconds)}" if outcome.seconds else f", {outcome.origin}" if outcome.origin else ""
    print(f"{outcome.scenario}, form {outcome.form}: {rows}{time}", flush=True)
    if outcome.lacking:
        print(f"    {outcome.lacking}", flush=True)
    for claim in outcome.claims:
        print(f"    {claim}", flush=True)


def _record(outcome: Outcome, file: ScenarioFile, book: Path) -> None:
    """Record the figures of a form if all its rows are new; those of a part were recorded row by row."""
    from p2pfl._version import __version__
    from p2pfl.sim.execution.runner import processes_of
    from p2pfl.sim.reproduction import Measured, load_measured, record

    if outcome.state == "done" and not outcome.origin and set(outcome.figures) == set(file.rows()):
        known = load_measured(book).get(outcome.scenario, {}).get(outcome.form, Measured())
        cores = processes_of("process", None)
        seconds = round(outcome.seconds, 1) or (known.seconds if known.seeds == outcome.seeds else None)
        measurement = Measured(seconds, cores, outcome.seeds, __version__, outcome.figures, outcome.by_seed, known.inputs)
        record(book, outcome.scenario, outcome.form, measurement)
