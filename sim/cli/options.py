"""Options that several commands of p2pfl-sim share, and the reading of their values."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from p2pfl._util.console import add_changes, add_output
from p2pfl.errors import COMMAND_LINE, ConfigurationError
from p2pfl.tracking.tracker import TRACKERS

if TYPE_CHECKING:
    from p2pfl.sim.execution.cluster import ClusterOptions
    from p2pfl.sim.scenario.scenario import ScenarioFile

MOST_SEEDS = 100_000  # more are probably a mistake


def add_run_options(running: argparse.ArgumentParser) -> None:
    """Add the argument and the options of `run` and `sweep`."""
    execution = add_choice(running)
    execution.add_argument(
        "--engine",
        choices=("local", "process", "ray"),
        default="process",
        help="local: in this process; process: in parallel worker processes, where spare workers train nodes of the same"
        " run; ray: like process, on the machines of a Ray cluster (default: process)",
    )
    execution.add_argument(
        "--workers", type=int, metavar="N", help="number of worker processes (default: one for each core)"
    )
    execution.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster for --engine ray, or auto for the cluster on this machine (default: the environment variable"
        " RAY_ADDRESS; without it Ray starts on this machine)",
    )
    monitor = running.add_argument_group("monitor")
    monitor.add_argument("--watch", action="store_true", help="show the runs in the terminal and on a local web page")
    monitor.add_argument(
        "--watch-port",
        type=int,
        metavar="N",
        help="port of that page, http://127.0.0.1:N; implies --watch (default: a free port)",
    )
    monitor.add_argument(
        "--track",
        metavar="TRACKER",
        action="append",
        default=[],
        help=f"give the figures of each run to {', '.join(TRACKERS)}, or your own package.module:factory; can be repeated",
    )
    add_results(running)


def add_choice(running: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the argument and the options for the choice of runs, and return the group for options of their execution."""
    running.add_argument("scenario", nargs="?", metavar="SCENARIO", help="name of a shipped scenario, or a TOML file")
    runs = running.add_argument_group("runs")
    add_selection(runs, "change a key of all runs, such as nodes=20, policy.name=random or form=smoke")
    seeds = runs.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seeds", metavar="A:B", help="seeds A to B-1, or a list such as 3,5 (default: the seeds of the scenario)"
    )
    seeds.add_argument("--seed", dest="seeds", metavar="N", type=_seed, help="one seed; the same as --seeds N")
    execution = running.add_argument_group("execution")
    execution.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="continue an interrupted command that wrote to DIR; finished runs whose inputs have not changed are kept, and"
        " others start again",
    )
    execution.add_argument(
        "--allow-different-bits",
        action="store_true",
        help="accept results that differ in the last bits: with --resume, those of other versions of libraries (default:"
        " compute them again); with --engine ray, those of other kinds of machines (default: stop)",
    )
    execution.add_argument("--ignore-memory", action="store_true", help="start even if the estimate exceeds the free memory")
    return execution


def add_results(running: argparse.ArgumentParser) -> None:
    """Add the options for the output of runs."""
    output = add_output_folder(running, "print the contents of summary.json and nothing else")
    output.add_argument("--no-report", action="store_true", help="do not write report.html")


def add_output_folder(running: argparse.ArgumentParser, json_help: str) -> argparse._ArgumentGroup:
    """Add the options for a folder of results and for what is printed, and return their group."""
    output = add_output(running, json_help)
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write; it must hold no run (default: runs/SCENARIO-TIME)"
    )
    output.add_argument("-q", "--quiet", action="store_true", help="do not print the progress")
    return output


def add_selection(runs: argparse._ActionsContainer, changes_help: str) -> None:
    """Add the options that select and change the runs of a scenario, and `--trust` and `--root`."""
    add_changes(runs, changes_help)
    runs.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        default=[],
        help="only runs whose name contains TEXT, or is NAME with =NAME; can be repeated (default: all runs)",
    )
    runs.add_argument(
        "--trust",
        action="store_true",
        help="import every module that the scenario names; its code runs with your rights (default: only modules in the"
        " scenario's folder and registered entry points)",
    )
    runs.add_argument(
        "--root", metavar="DIR", default="", help="folder with the data sets (default: the environment variable P2PFL_DATA)"
    )


def scenario_of(options: argparse.Namespace) -> ScenarioFile:
    """Return the scenario that the options name, or the scenario of the run to resume.

    Raises:
        ConfigurationError: the options name no scenario, or one that cannot be loaded, or they contradict each other.
    """
    from msgspec.structs import replace

    from p2pfl.sim.execution.resume import scenario_to_resume
    from p2pfl.sim.scenario.scenario import load

    if options.resume is None:
        if options.scenario is None:
            raise ConfigurationError(
                "no scenario: name one, or continue a run with --resume DIR; `p2pfl-sim list` prints the shipped scenarios"
            )
        file = load_changed(options)
        return file if options.seeds is None else replace(file, seeds=tuple(parse_seeds(options.seeds)))
    given = {"a scenario": options.scenario, "--set": options.changes, "--seeds": options.seeds, "--only": options.only}
    of_sweep = {f"--{key.replace('_', '-')}": getattr(options, key, None) for key in ("vary", "dry_run")}
    for what, value in (given | {"--out": options.out} | of_sweep).items():
        if value:
            raise ConfigurationError(f"--resume continues a run with its own settings; leave out {what}")
    return load(scenario_to_resume(options.resume, options.command, options.trust), trust=options.trust)


def _seed(text: str) -> str:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is a whole number of 0 or more, got {text!r}; for several use --seeds")
    return text


def load_changed(options: argparse.Namespace) -> ScenarioFile:
    """Return the scenario that the options name, with the changes of --set, and only the runs that --only selects.

    Raises:
        ConfigurationError: the scenario or a change is wrong; the text names its source, the file or the command line.
    """
    from p2pfl.sim.scenario.scenario import load

    return load(options.scenario, options.changes, options.trust, options.only, changer=COMMAND_LINE)


def parse_seeds(text: str) -> list[int]:
    """Read "0:5" (0 to 4), "3" or "3,5", or a list such as "3,7:10"."""
    from p2pfl.sim.scenario.scenario import check_seeds

    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, end = (int(end or 0) for end in part.split(":")) if ":" in part else (int(part), int(part) + 1)
            if len(seeds) + end - first > MOST_SEEDS:
                raise ConfigurationError(
                    f"--seeds {text} are {len(seeds) + end - first:,} seeds; the maximum is {MOST_SEEDS:,}"
                )
            if end <= first:
                raise ConfigurationError(f"--seeds {text} is empty; write the first seed, and the one after the last")
            seeds += range(first, end)
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ConfigurationError(f"--seeds must be a range such as 0:5 or a list such as 3,5, got {text!r}")
    check_seeds("--seeds", seeds)
    return seeds


def seed_ranges(seeds: Sequence[int]) -> str:
    """Return increasing seeds as `parse_seeds` reads them, with ranges for those in a row; "" for none."""
    parts: list[str] = []
    first = 0
    for end in range(1, len(seeds) + 1):
        if end == len(seeds) or seeds[end] != seeds[end - 1] + 1:
            low, high = seeds[first], seeds[end - 1]
            parts.append(str(low) if low == high else f"{low}:{high + 1}")
            first = end
    return ",".join(parts)


def check_workers(options: argparse.Namespace) -> None:
    """Raise ConfigurationError if `--workers` makes no sense."""
    if options.workers is not None and options.workers < 1:
        raise ConfigurationError(f"--workers must be 1 or more, got {options.workers}")


def cluster_of(options: argparse.Namespace) -> ClusterOptions:
    """Return the options of the engine `ray`.

    Raises:
        ConfigurationError: they are given for another engine.
    """
    from p2pfl.sim.execution.cluster import ClusterOptions

    if options.engine != "ray":
        if options.ray_address:
            raise ConfigurationError("--ray-address needs --engine ray")
        if options.allow_different_bits and options.resume is None and not getattr(options, "skip_recorded", False):
            raise ConfigurationError("--allow-different-bits needs --engine ray or --resume")
    address = os.environ.get("RAY_ADDRESS", "") if options.ray_address is None else options.ray_address
    return ClusterOptions(address, options.allow_different_bits)


def folder_of(options: argparse.Namespace, scenario: str) -> Path:
    """Return the output folder: that of the run to resume, or a new one.

    Raises:
        ConfigurationError: the folder already holds a run.
    """
    from p2pfl.sim.execution.resume import refuse_to_overwrite

    if options.resume is not None:
        return Path(options.resume)
    out = options.out or Path("runs") / f"{scenario}-{datetime.now():%Y%m%d-%H%M%S}"
    refuse_to_overwrite(out)
    return Path(out)


@contextmanager
def before_runs(options: argparse.Namespace) -> Iterator[None]:
    """Explain what is kept if the preparation is interrupted: the imports, the reading of data, and the checks.

    Later interruptions are explained by p2pfl.sim.execution.resume.explain_resume.
    """
    try:
        yield
    except KeyboardInterrupt:
        text = "nothing has begun, and nothing is kept; the same command starts again"
        if options.resume is not None:
            again = f"p2pfl-sim {options.command} --resume {quote(str(options.resume))}{' --trust' * options.trust}"
            text = f"what was finished before is kept; continue with: {again}"
        print(text, file=sys.stderr)
        raise


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that no processes or empty folders remain."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def words_of_end(out: Path, page: Path | None) -> str:
    """Return the line that names the location of the results."""
    return f"results: {out}" if page is None else f"results: {out}; report: {page}"
