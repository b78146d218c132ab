"""The commands `p2pfl-sim run` and `p2pfl-sim sweep`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from p2pfl._util.machine import free_memory
from p2pfl._util.printable import to_json
from p2pfl.errors import ConfigurationError, DivergenceError, require
from p2pfl.sim.cli.console import print_attack_table, print_table
from p2pfl.sim.cli.data import same_rows_note
from p2pfl.sim.cli.options import (
    check_workers,
    cluster_of,
    folder_of,
    interrupt_on_sigterm,
    scenario_of,
    seed_ranges,
    words_of_end,
)
from p2pfl.sim.execution.forecast import PATIENCE, forecast
from p2pfl.sim.execution.inputs import RunInputs
from p2pfl.sim.execution.resume import Parts, explain_resume
from p2pfl.sim.execution.run_order import Listener, together
from p2pfl.sim.execution.runner import check_all, processes_of, run_all
from p2pfl.sim.formatting import count
from p2pfl.sim.monitor.monitor import line_of, progress_bar
from p2pfl.sim.monitor.run_monitor import tracking
from p2pfl.sim.report.answers import question_of
from p2pfl.sim.report.findings import findings_of_runs
from p2pfl.sim.report.folder import Summary
from p2pfl.sim.report.series import runs_of
from p2pfl.sim.reproduction import RowRecorder, form_of, without_recorded
from p2pfl.sim.results import results
from p2pfl.sim.results.objectives import collapses, died
from p2pfl.sim.results.results import Result
from p2pfl.sim.results.summary_metrics import waits
from p2pfl.sim.scenario.questions import label
from p2pfl.sim.scenario.scenario import ScenarioFile, jobs_of
from p2pfl.sim.scenario.sweep import Axis, check_changes, parse, sweep
from p2pfl.sim.simulation.workers import prepare_process

if TYPE_CHECKING:
    from p2pfl.sim.monitor.monitor import Watch


@dataclass(frozen=True)
class CommandResults:
    """Results that `run` and `sweep` have computed, and what they have written.

    Attributes:
        file: the runs that have results.
        summary: contents of summary.json.
        results: one for each run and seed.
        recomputed: a line for each result of an earlier attempt that was computed again.
        written: line that names the location of the results.
        problem: reason why there is no report; "" if there is a report, or none was requested.
        divergence: error of the runs that have diverged, whose rows have no results; None if none has.
    """

    file: ScenarioFile
    summary: dict[str, Any]
    results: Sequence[Result]
    recomputed: Sequence[str]
    written: str
    problem: str
    divergence: DivergenceError | None


def prepare_run(options: argparse.Namespace) -> Callable[[], int]:
    """Read and check a scenario; return the function that computes its runs, and returns the exit code."""
    file = scenario_of(options)
    if options.record is not None:
        form_of(file)  # raises the error of other scenarios before anything runs
    if options.skip_recorded:
        file = _without_recorded(options, file)
    return _prepare(options, _with_search_note(file), book=options.record)


def _without_recorded(options: argparse.Namespace, file: ScenarioFile) -> ScenarioFile:
    if options.record is None:
        raise ConfigurationError("--skip-recorded needs --record FILE, the file of measured figures")
    if options.resume is not None:
        raise ConfigurationError("--resume continues a run with its own rows; leave out --skip-recorded")
    left = without_recorded(file, options.record, different_bits=options.allow_different_bits)
    if not left.runs:
        raise ConfigurationError(f"{options.record} holds the figures of all rows; leave out --skip-recorded")
    return left


def prepare_sweep(options: argparse.Namespace) -> Callable[[], int]:
    """Prepare a scenario with every combination of the values of some keys, like `prepare_run`."""
    axes = parse(options.vary)
    file = scenario_of(options)
    if options.resume is None:
        _check_axes(axes, options.changes)
        file = file.with_given([(axis.key, value) for axis in axes for value in axis.values])
        prepare_process(file.path)  # as in _check
        file = sweep(file, axes)
    return _prepare(options, _with_search_note(file), forecasts=True)


def _check_axes(axes: Sequence[Axis], changes: Sequence[str]) -> None:
    """Raise ConfigurationError if there is no key to vary, or a key that cannot be varied here."""
    if not axes:
        raise ConfigurationError(
            "no key to vary: add --vary KEY=VALUES, such as --vary policy.tau=1,10,100, or use p2pfl-sim run"
        )
    both = {axis.key for axis in axes} & {change.partition("=")[0].strip() for change in changes}
    if both:
        raise ConfigurationError(f"{min(both)} is both in --set and in --vary; remove one of them")
    if idle := [axis.key for axis in axes if axis.key.partition(".")[0] == "search"]:
        raise ConfigurationError(
            f"--vary {idle[0]} has no effect in a sweep; change it with p2pfl-sim pareto --set {idle[0]}=VALUE"
        )


def _with_search_note(file: ScenarioFile) -> ScenarioFile:
    """Return a scenario, with a note if it is meant for a search by `pareto`."""
    if all(run.search is None for run in file.runs):
        return file
    note = f"single trainings with the preference of the task; p2pfl-sim pareto {file.name} searches for the front"
    return replace(file, notes=(*file.notes, note))


def _prepare(
    options: argparse.Namespace, file: ScenarioFile, forecasts: bool = False, book: Path | None = None
) -> Callable[[], int]:
    """Check a scenario; return the function that does all unfinished runs and prints the results.

    Args:
        forecasts: print a forecast of time and memory first; with --dry-run print only the forecast.
        book: file of measured figures to which each finished row is written.
    """
    interrupt_on_sigterm()
    require("duckdb", "p2pfl-sim")  # before the runs, not after them
    check_workers(options)
    out = folder_of(options, file.name)
    if getattr(options, "dry_run", False) and not options.json:
        _print_rows(file)
    inputs, forecasts = _check(options, file, out, forecasts)
    if forecasts and options.dry_run:
        _print_forecast(options, file)
        return lambda: 0
    return partial(_carry_out, options, file, out, inputs, forecasts=forecasts, book=book)


def _carry_out(
    options: argparse.Namespace, file: ScenarioFile, out: Path, inputs: RunInputs, *, forecasts: bool, book: Path | None
) -> int:
    parts = Parts(out, file, inputs, different_bits=options.allow_different_bits)
    outcome = _compute(options, file, parts, forecasts=forecasts, book=book)
    _print_outcome(options, outcome)
    if outcome.divergence is not None:
        again = f"p2pfl-sim {options.command} --resume {quote(str(out))}"
        print(f"after a change of its code, a row that is left out can be computed with: {again}", file=sys.stderr)
        raise outcome.divergence
    return 0


def _check(options: argparse.Namespace, file: ScenarioFile, out: Path, forecasts: bool) -> tuple[RunInputs, bool]:
    """Check the runs and print the notes on them; return their inputs, and whether a forecast can be made."""
    _say(options, f"preparing: reading the inputs of {count(len(file.runs), 'run')}")
    prepare_process(file.path)
    inputs = RunInputs(file, out)
    check_changes(file.runs, options.changes)
    if options.workers is not None and options.engine == "local":
        raise ConfigurationError("--workers needs --engine process; --engine local has no workers")
    processes = processes_of(options.engine, options.workers, cluster_of(options))
    forecasts = forecasts and _can_forecast(options)
    _say(options, f"preparing: checking {count(len(file.runs), 'run')}, with a node of each")
    few = check_all(file, processes, not options.ignore_memory)
    inputs.settle()
    for note in dict.fromkeys(filter(None, [*inputs.notes, *few, *map(same_rows_note, file.runs)])):
        print(f"note: {note}", file=sys.stderr)
    return inputs, forecasts


def _say(options: argparse.Namespace, text: str) -> None:
    """Say what is done before the first run: in a sweep, whose preparation is long, and on a terminal."""
    told = options.command == "sweep" and not options.dry_run  # which prints its rows first
    if not (options.json or options.quiet) and (told or sys.stderr.isatty()):
        print(text, file=sys.stderr, flush=True)


def _print_rows(file: ScenarioFile) -> None:
    """Print the rows of a sweep with --dry-run, before anything is measured."""
    for run in file.runs:
        print(label(run.name, run.varied))
    seeds, jobs = seed_ranges(sorted(file.seeds)), len(jobs_of(file))
    print(f"{count(len(file.runs), 'row')}, seeds {seeds}: {count(jobs, 'run')}", flush=True)


def _can_forecast(options: argparse.Namespace) -> bool:
    """Return whether this machine's speed is that of the runs.

    Raises:
        ConfigurationError: it is not, and only a forecast is requested.
    """
    if options.engine == "ray" and options.dry_run:
        raise ConfigurationError("--dry-run measures this machine, not a cluster; leave out --engine ray")
    return bool(options.engine != "ray")


def _compute(
    options: argparse.Namespace, file: ScenarioFile, parts: Parts, *, forecasts: bool, book: Path | None
) -> CommandResults:
    """Compute the missing results, and write the files of the run; rows with a run that diverges are left out."""
    from p2pfl.sim.report.write import try_write_report  # imported only after the workers have started

    out = parts.path
    with explain_resume(parts, len(jobs_of(file)), options.command):
        done, recomputed = parts.load()
        if forecasts:
            _print_forecast(options, file, done)
        with _watching(options, file, done) as watch, tracking(file, options.track, out, _warn) as track:
            recorder = None if book is None else RowRecorder(file, book, done)
            followers = [each for each in (watch, track) if each is not None]
            finished = dict(done)

            def keep(number: int, result: Result) -> None:
                parts.save(number, result)
                finished[number] = result
                if recorder is not None:
                    recorder.finished(number, result)

            whole, divergence = file, None
            try:
                with _progress(options, file, done) as progress:
                    outcome = run_all(
                        file,
                        options.engine,
                        options.workers,
                        done=done,
                        listener=together(Listener(finished=keep), progress, *map(Listener.of, followers)),
                        cluster=cluster_of(options),
                        finish_others=True,
                        inputs=parts.inputs,
                    )
            except DivergenceError as error:
                divergence = error
                file, outcome = _complete_rows(file, finished, error)
                if not outcome:
                    raise
            summary = results.summarise(file, outcome)
            results.write(out, file, outcome, summary)
            if recorder is not None and (lacking := recorder.ended(file, summary)):
                _warn(lacking)
            if divergence is None:
                parts.remove()
            else:
                parts.keep(whole)
            page, problem = (None, "") if options.no_report else try_write_report(out)
            written = words_of_end(out, page)
            if watch is not None:
                watch.ended(written)
    return CommandResults(file, summary, outcome, recomputed, written, problem, divergence)


def _complete_rows(
    file: ScenarioFile, finished: Mapping[int, Result], error: DivergenceError
) -> tuple[ScenarioFile, list[Result]]:
    """Return a scenario without the rows that lack a result because a run has diverged, and the results of the others.

    Args:
        finished: results by the number of their job.
        error: reason why the others are missing.
    """
    rows = [job.row for job in jobs_of(file)]
    left_out = list(dict.fromkeys(row for number, row in enumerate(rows) if number not in finished))
    kept = file.part({run.name for run in file.runs if run.row not in left_out}, file.seeds)
    note = f"left out: {', '.join(left_out)} ({error})"
    complete = [result for number, result in sorted(finished.items()) if rows[number] not in left_out]
    return replace(kept, notes=(*kept.notes, note)), complete


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def _progress(options: argparse.Namespace, file: ScenarioFile, done: Container[int]) -> Iterator[Listener]:
    """Yield the listener that shows the progress of the unfinished jobs."""
    each = [job.nodes * job.rounds for job in jobs_of(file)]
    kept = sum(rounds for number, rounds in enumerate(each) if number in done)
    quiet = options.json or options.quiet or (_watches(options) and sys.stderr.isatty())
    with progress_bar(sum(each), quiet, line_of(file), done=kept) as (advance, show):
        yield Listener(advance, lambda number, result: show(result))


def _print_outcome(options: argparse.Namespace, outcome: CommandResults) -> None:
    if options.json:
        print(to_json(outcome.summary, indent=1))
        return
    summary = msgspec.convert(outcome.summary, Summary)
    runs = runs_of(summary, outcome.file.to_toml()["run"])
    print_table(outcome.summary)
    print_attack_table(runs)
    question = question_of(summary)
    for sentence in (*question.lines(), *findings_of_runs(runs, summary)):
        print(sentence)
    of_runs = [note for result in outcome.results for note in result.notes]
    for line in [*collapses(outcome.summary["table"]), *died(outcome.summary["runs"])]:
        print(f"warning: {line}")
    for kind in ("graph", "data"):
        lines = [facts["line"] for result in outcome.results for facts in result.summary.get(kind, ())]
        for line in dict.fromkeys(lines):
            print(f"{kind}: {line}")
    resolved = [*filter(None, [outcome.file.overridden]), *outcome.file.notes]
    for note in dict.fromkeys([*resolved, *outcome.recomputed, *waits(outcome.summary["runs"]), *of_runs]):
        print(f"note: {note}")
    for line in question.last_lines():
        print(line)
    if outcome.problem:
        print(f"note: {outcome.problem}")
    print(outcome.written)


def _print_forecast(options: argparse.Namespace, file: ScenarioFile, done: Container[int] = ()) -> None:
    """Print a forecast of the unfinished jobs; --dry-run prints only this, on standard output."""
    left = [job for number, job in enumerate(jobs_of(file)) if number not in done]
    if not left:
        return
    _say(options, f"preparing: a forecast from the first rounds of a few runs, in about {PATIENCE:g} s")
    found, free = forecast(left, file.path, processes_of(options.engine, options.workers)), free_memory()
    if options.dry_run and options.json:
        rows = {"rows": [run.name for run in file.runs], "seeds": list(file.seeds)}
        print(to_json({**asdict(found), "free_memory": free, **rows}))
        return
    out = sys.stdout if options.dry_run else sys.stderr
    print(found, file=out, flush=True)
    if warning := found.warning(free):
        print(f"warning: {warning}", file=out, flush=True)


def _watching(
    options: argparse.Namespace, file: ScenarioFile, done: Mapping[int, Result]
) -> AbstractContextManager[Watch | None]:
    """Show the runs in progress, if the options ask for it."""
    if not _watches(options):
        return nullcontext()
    from p2pfl.sim.monitor.monitor import watching

    return watching(file, done, options.watch_port or 0, quiet=options.json)


def _watches(options: argparse.Namespace) -> bool:
    return options.watch or options.watch_port is not None
