"""The p2pfl-sim command."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from node.commands import Parser, guarded
from p2pfl import __version__
from p2pfl.errors import ConfigurationError
from sim import data, reproduce

if TYPE_CHECKING:
    from sim.results import Result
    from sim.scenario import Scenario, ScenarioFile
    from sim.watch import Watch


MOST_SEEDS = 100_000  # a mistake makes more


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    with _data_in(getattr(options, "root", None)):
        return do(options)


@contextmanager
def _data_in(root: str | None) -> Iterator[None]:
    """Have tasks, in worker processes too, read data sets from a folder; None leaves it to the variable P2PFL_DATA."""
    if not root:
        yield
        return
    from p2pfl.data.sets import ROOT, data_root

    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(data_root(root, "--root").resolve())
    try:
        yield
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before


def parser() -> Parser:
    """Return the parser of the command line; docs/ is made from it, too."""
    parser = Parser(prog="p2pfl-sim", description="Simulate many p2pfl nodes in one process, on a virtual clock.")
    parser.add_argument("--version", action="version", version=f"p2pfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="list the scenarios that come with p2pfl-sim")
    listing.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    listing.set_defaults(do=_list)

    running = commands.add_parser("run", help="run a scenario and print its table")
    running.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    _add_options(running)
    running.set_defaults(do=_run)

    sweeping = commands.add_parser(
        "sweep",
        help="run a scenario with every combination of the values of some keys",
        description="Every run of the scenario is run with every combination of the values that --vary lists. A key that a"
        " run does not take, such as policy.tau for the policy local, is left out for that run, which is then run once.",
    )
    sweeping.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    sweeping.add_argument(
        "--vary",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="the values of a key, such as policy.tau=1,10,100; a pair such as [2,10] is one value",
    )
    _add_options(sweeping)
    sweeping.add_argument("--dry-run", action="store_true", help="print what it would take, and stop")
    sweeping.set_defaults(do=_sweep)

    searching = commands.add_parser(
        "pareto",
        help="search for the front of a task with several objectives: one training for each of many preferences",
        description="Pareto simulated annealing proposes preferences, with each of which all nodes are trained; models"
        " that no other is better than are kept (MOFL/D). For scenarios with a table [search].",
    )
    searching.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    _add_choice(searching)
    searching.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="how many processes train a candidate each (default: one for each core); with 1 it is this process",
    )
    _add_results(searching)
    searching.set_defaults(do=_pareto)

    reporting = commands.add_parser(
        "report", help="write a page with the figures of a finished run, or compare several runs"
    )
    reporting.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the folder of a finished run")
    reporting.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write (default: report.html in DIR, or for several folders in the current one)",
    )
    reporting.add_argument(
        "--seed", type=int, metavar="N", help="which seed the pictures show that can show only one (default: the first)"
    )
    reporting.add_argument("--open", action="store_true", help="open the page in the browser")
    reporting.set_defaults(do=_report)

    graph = commands.add_parser("topology", help="print what a named topology, or one from a file, is like")
    graph.add_argument("topology", help="the name of a topology, or a file (GraphML, or a list of edges)")
    graph.add_argument("--nodes", type=int, metavar="N", help="how many (default: 10; a file has its own)")
    graph.add_argument("--seed", type=int, default=0, metavar="N", help="for a random topology (default: 0)")
    graph.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="an option of it, such as degree=4"
    )
    graph.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    graph.set_defaults(do=_topology)
    data.add_commands(commands)
    reproduce.add_commands(commands, _main)
    return parser


def _add_options(running: argparse.ArgumentParser) -> None:
    """Add what `run` and `sweep` have in common."""
    _add_choice(running)
    running.add_argument(
        "--engine",
        choices=("local", "process"),
        default="process",
        help="all in this process, or in worker processes: runs side by side, and if there are fewer of these than processes"
        " the nodes of a run, where they are trained one by one (default: process)",
    )
    running.add_argument(
        "--workers", type=int, metavar="N", help="how many processes for engine process (default: one for each core)"
    )
    running.add_argument(
        "--watch", action="store_true", help="show what the runs do while they go on, here and on a page of this machine"
    )
    running.add_argument(
        "--watch-port", type=int, metavar="N", help="where to show that page, http://127.0.0.1:N (default: a free port)"
    )
    _add_results(running)


def _add_choice(running: argparse.ArgumentParser) -> None:
    """Add what says what is to be done, and where it is left."""
    running.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a key of all runs, such as nodes=20, policy.name=random or network.latency=0.05",
    )
    running.add_argument("--seeds", metavar="A:B", help="seeds A to B-1, or a list such as 3,5 (default: the scenario's)")
    data.add_trust(running)
    running.add_argument(
        "--ignore-memory", action="store_true", help="begin although the estimate says that memory does not suffice"
    )
    running.add_argument("--root", metavar="DIR", help="the folder of data sets (default: the variable P2PFL_DATA)")
    running.add_argument("--only", metavar="TEXT", default="", help="only runs whose name contains TEXT")
    running.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: runs/SCENARIO-TIME)")
    running.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on with what was interrupted: runs that are finished are kept, one that was in the middle starts again",
    )


def _add_results(running: argparse.ArgumentParser) -> None:
    running.add_argument("--no-report", action="store_true", help="leave report.html out")
    running.add_argument("--json", action="store_true", help="print summary.json and nothing else")


def _list(options: argparse.Namespace) -> int:
    from sim.scenario import load, shipped

    files = [load(name) for name in shipped()]
    if options.json:
        print(json.dumps({file.name: {"description": file.description, "runs": len(file.runs)} for file in files}))
        return 0
    for file in files:
        first = file.runs[0]
        print(f"{file.name}: {len(file.runs)} runs of {first.nodes} nodes, {first.rounds} rounds{_searched(first)}")
        print(f"    {' '.join(file.description.split())}")
    return 0


def _searched(run: Scenario) -> str:
    """Say so where a run is for the command `pareto`."""
    return "" if run.search is None else f" for each of {run.search.iterations * run.search.samples} candidates (pareto)"


def _topology(options: argparse.Namespace) -> int:
    from sim.topology import show

    show(options.topology, options.nodes, options.seed, options.changes, options.json)
    return 0


def _run(options: argparse.Namespace) -> int:
    return _carry_out(options, _told(_scenario(options)))


def _told(file: ScenarioFile) -> ScenarioFile:
    """Note of a scenario that is for `pareto` that this is no search."""
    from msgspec.structs import replace

    if all(run.search is None for run in file.runs):
        return file
    note = f"these are single trainings with the task's preference; p2pfl-sim pareto {file.name} searches for the front"
    return replace(file, notes=(*file.notes, note))


def _pareto(options: argparse.Namespace) -> int:
    from sim.pareto_command import carry_out

    return carry_out(options, _scenario(options))


def _sweep(options: argparse.Namespace) -> int:
    from sim.grid import parse, sweep
    from sim.imports import with_given
    from sim.processes import prepare_process

    axes = parse(options.vary)
    file = _scenario(options)
    if options.resume is None:
        if not axes:
            raise ConfigurationError("say what to vary, such as --vary policy.tau=1,10,100")
        both = {axis.key for axis in axes} & {change.partition("=")[0].strip() for change in options.changes}
        if both:
            raise ConfigurationError(f"{min(both)} is in --set and in --vary; leave out one of them")
        if idle := [axis.key for axis in axes if axis.key.partition(".")[0] == "search"]:
            raise ConfigurationError(
                f"{idle[0]} changes nothing in a sweep, which makes single trainings: vary it by pareto --set"
            )
        file = with_given(file, [(axis.key, value) for axis in axes for value in axis.values])
        prepare_process(file.path)  # which options a module's factory takes, it says itself
        file = sweep(file, axes)
    return _carry_out(options, _told(file), forecasts=True)


def _forecast(options: argparse.Namespace, file: ScenarioFile, done: Container[int] = ()) -> None:
    """Say what the jobs that are not done will take: to --dry-run on standard output, as all that it was asked for."""
    from p2pfl.machine import free_memory
    from sim.engine import processes_of
    from sim.forecast import forecast
    from sim.scenario import jobs_of

    left = [job for number, job in enumerate(jobs_of(file)) if number not in done]
    if not left:
        return
    found, free = forecast(left, file.path, processes_of(options.engine, options.workers)), free_memory()
    if options.dry_run and options.json:
        print(json.dumps({**asdict(found), "free_memory": free}))
        return
    out = sys.stdout if options.dry_run else sys.stderr
    print(found, file=out, flush=True)
    if warning := found.warning(free):
        print(f"warning: {warning}", file=out, flush=True)


def _carry_out(options: argparse.Namespace, file: ScenarioFile, forecasts: bool = False) -> int:
    """Do all runs of a scenario that are not done, and say what came of them.

    Args:
        forecasts: say before what it will take; with --dry-run do no more.
    """
    from sim import results
    from sim.engine import check_all, processes_of, run_all
    from sim.findings import findings
    from sim.parts import Parts, kept, refuse_to_overwrite
    from sim.printed import line_of, print_table, progress
    from sim.scenario import jobs_of

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no process and no empty folder then either
    if options.workers is not None and options.workers < 1:
        raise ConfigurationError(f"--workers must be 1 or more, got {options.workers}")
    if options.workers is not None and options.engine == "local":
        raise ConfigurationError("--workers is for --engine process; --engine local has no workers")
    check_all(file, processes_of(options.engine, options.workers), not options.ignore_memory)
    out = options.resume or options.out or Path("runs") / f"{file.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if options.resume is None:
        refuse_to_overwrite(out)
    if forecasts and options.dry_run:
        _forecast(options, file)
        return 0
    parts = Parts(out, file)
    with kept(parts, len(jobs_of(file)), options.command):
        done, repeated = parts.load()
        if forecasts:
            _forecast(options, file, done)
        left = [job.nodes * job.rounds for number, job in enumerate(jobs_of(file)) if number not in done]
        with ExitStack() as stack:
            watch = stack.enter_context(_watching(options, file, done))
            quiet = options.json or (watch is not None and sys.stderr.isatty())
            advance, show = stack.enter_context(progress(sum(left), quiet, line_of))

            def finished(number: int, result: Result) -> None:
                parts.save(number, result)
                show(result)
                if watch is not None:
                    watch.finished(number, result)

            saw = None if watch is None else watch.saw
            outcome = run_all(file, options.engine, options.workers, advance, finished, done, saw)
            summary = results.summarise(file, outcome)
            results.write(out, file, outcome, summary)
            parts.remove()
            page, problem = (None, "") if options.no_report else reported(out)
            written = f"written to {out}" if page is None else f"written to {out}; to look at: {page}"
            if watch is not None:
                watch.ended(written)
    if options.json:
        print(results.to_json(summary))
        return 0
    print_table(summary)
    for sentence in findings(summary, file.raw()["run"]):
        print(sentence)
    for note in dict.fromkeys([*file.notes, *repeated, *(note for result in outcome for note in result.notes)]):
        print(f"note: {note}")
    if problem:
        print(f"note: {problem}")
    print(written)
    return 0


def _watching(
    options: argparse.Namespace, file: ScenarioFile, done: Mapping[int, Result]
) -> AbstractContextManager[Watch | None]:
    """Return what shows the runs while they go on, if that was asked for."""
    if not options.watch and options.watch_port is None:
        return nullcontext()
    from sim.watch import watching

    return watching(file, done, options.watch_port or 0, quiet=options.json)


def reported(out: Path) -> tuple[Path | None, str]:
    """Write the report of a run that is finished, and return where it is; else None, and why. It is no reason to fail."""
    from sim.report.write import write_report

    try:
        return write_report([out]), ""
    except ConfigurationError as error:
        return None, f"report.html was not made: {error}"
    except Exception as error:  # a mistake in the report takes nothing from the run, which is whole
        return None, f"report.html was not made: {type(error).__name__}: {error}"


def _report(options: argparse.Namespace) -> int:
    from sim.report.write import write_report

    page = write_report(options.folders, options.out, options.seed)
    print(f"written to {page}")
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser was found; open the file by hand", file=sys.stderr)
    return 0


def _scenario(options: argparse.Namespace) -> ScenarioFile:
    """Return what the options of `run` ask for: a scenario, or the one of the run to go on with."""
    from msgspec.structs import replace

    from sim.parts import scenario_to_resume
    from sim.scenario import load

    if options.resume is None:
        if options.scenario is None:
            raise ConfigurationError("name a scenario, or with --resume the folder of a run to go on with")
        file = load(options.scenario, options.changes, options.trust).only(options.only)
        return file if options.seeds is None else replace(file, seeds=tuple(parse_seeds(options.seeds)))
    given = {"a scenario": options.scenario, "--set": options.changes, "--seeds": options.seeds, "--only": options.only}
    of_sweep = {f"--{key.replace('_', '-')}": getattr(options, key, None) for key in ("vary", "dry_run")}
    for what, value in (given | {"--out": options.out} | of_sweep).items():
        if value:
            raise ConfigurationError(f"--resume goes on with a run as it was begun; it cannot be combined with {what}")
    return load(scenario_to_resume(options.resume, options.command), trust=options.trust)


def parse_seeds(text: str) -> list[int]:
    """Read "0:5" (0 to 4), "3" or "3,5"."""
    from sim.scenario import check_seeds

    try:
        if ":" in text:
            first, end = (int(part or 0) for part in text.split(":"))
            if end - first > MOST_SEEDS:
                raise ConfigurationError(f"--seeds {text} are {end - first:,}; at most {MOST_SEEDS:,} are possible")
            seeds = list(range(first, end))
        else:
            seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ConfigurationError(f"--seeds {text!r} is not of the form 0:5 or 3,5")
    check_seeds("--seeds", seeds)
    return seeds
