"""Options that several commands of p2pfl-sim share, and the reading of their values."""

from __future__ import annotations

import argparse
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from p2pfl.errors import ConfigurationError

if TYPE_CHECKING:
    from p2pfl.sim.scenario.scenario import ScenarioFile

MOST_SEEDS = 100_000  # more are probably a mistake


def add_run_options(running: argparse.ArgumentParser) -> None:
    """Add the options of `run` and `sweep`."""
    add_choice(running)
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
    add_results(running)


def add_choice(running: argparse.ArgumentParser) -> None:
    """Add the options for the choice of runs and of the output folder."""
    running.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a key of all runs, such as nodes=20, policy.name=random or network.latency=0.05",
    )
    running.add_argument("--seeds", metavar="A:B", help="seeds A to B-1, or a list such as 3,5 (default: the scenario's)")
    add_trust(running)
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


def add_results(running: argparse.ArgumentParser) -> None:
    """Add the options for the display of results."""
    running.add_argument("--no-report", action="store_true", help="leave report.html out")
    running.add_argument("--json", action="store_true", help="print summary.json and nothing else")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, without which a scenario imports its own modules only."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import whatever module the scenario names: its code runs with your rights (default: only modules in the"
        " scenario's own folder, and installed ones that register themselves)",
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
    from p2pfl.sim.scenario.file_keys import check_seeds

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


def check_workers(options: argparse.Namespace) -> None:
    """Raise ConfigurationError if `--workers` makes no sense."""
    if options.workers is not None and options.workers < 1:
        raise ConfigurationError(f"--workers must be 1 or more, got {options.workers}")


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


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that no processes or empty folders remain."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def words_of_end(out: Path, page: Path | None) -> str:
    """Return the line that names the location of the results."""
    return f"written to {out}" if page is None else f"written to {out}; to look at: {page}"
