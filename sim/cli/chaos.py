"""The command `p2pfl-sim chaos`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from p2pfl._util.console import FAILED, INTERRUPTED, add_command, add_output
from p2pfl._util.machine import usable_cores
from p2pfl._util.printable import plural, to_json
from p2pfl.sim.cli.options import add_selection, check_workers, interrupt_on_sigterm, load_changed, parse_seeds, seed_ranges

if TYPE_CHECKING:
    from p2pfl.sim.chaos.run import Found
    from p2pfl.sim.scenario.scenario import ScenarioFile

SEEDS = "0:100"  # tried by default


def add_commands(commands: Any) -> None:
    """Add the command."""
    chaos = add_command(
        commands,
        "chaos",
        "run real nodes under random faults, and check their invariants",
        "p2pfl-sim chaos chaos --seeds 0:1000",
        "p2pfl-sim chaos chaos --replay runs/chaos-chaos/seed-17.toml",
    )
    chaos.add_argument("scenario", metavar="SCENARIO", help="name of a shipped scenario, or a TOML file")
    runs = chaos.add_argument_group("runs")
    add_selection(runs, "change a key of all runs, such as nodes=6 or policy.name=random")
    runs.add_argument(
        "--seeds",
        metavar="A:B",
        default=SEEDS,
        help="seeds A to B-1, or a list such as 3,5; each draws a schedule of faults, and the runs of the scenario take"
        f" turns (default: {SEEDS})",
    )
    runs.add_argument("--replay", type=Path, metavar="FILE", help="run the schedule in FILE, and print what happens")
    execution = chaos.add_argument_group("execution")
    execution.add_argument(
        "--workers", type=int, metavar="N", help="number of processes; 1 is this process (default: one for each core)"
    )
    execution.add_argument("--no-shrink", action="store_true", help="do not shorten the schedule of a violation")
    output = add_output(chaos)
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the schedules of violations (default: runs/chaos-SCENARIO)"
    )
    output.add_argument("-q", "--quiet", action="store_true", help="do not print the progress")
    chaos.set_defaults(do=_chaos)


def _chaos(options: argparse.Namespace) -> int:
    interrupt_on_sigterm()
    check_workers(options)
    file = load_changed(options)
    return _search(options, file) if options.replay is None else _replay(options, file)


def _replay(options: argparse.Namespace, file: ScenarioFile) -> int:
    """Run the schedule of a file; the exit code is 1 if an invariant does not hold."""
    from p2pfl.sim.chaos.run import Trials
    from p2pfl.sim.chaos.schedule import read_schedule
    from p2pfl.sim.simulation.workers import prepared_process

    schedule = read_schedule(options.replay)
    with prepared_process(file.path):
        outcome = Trials(file).replay(schedule)
    if options.json:
        print(to_json(msgspec.to_builtins(outcome)))
    else:
        print("\n".join(outcome.trace))
        held = f"all invariants held; healed in {outcome.healed_in:.1f} s of virtual time"
        print(held if outcome.violation is None else f"violation: {outcome.violation}")
    return 0 if outcome.violation is None else FAILED


class _Report:
    """Results so far, and the files of their schedules."""

    def __init__(self, file: ScenarioFile, seeds: Sequence[int], folder: Path) -> None:
        self.results: dict[int, Found] = {}
        self.files: dict[int, Path] = {}
        self._file = file
        self._seeds = seeds
        self._folder = folder

    def add(self, found: Found) -> None:
        """Add a result, and write the schedule of a violation."""
        from p2pfl.sim.chaos.schedule import Schedule, write_schedule

        self.results[found.seed] = found
        if found.violation is not None:
            path = self.files[found.seed] = self._folder / f"seed-{found.seed}.toml"
            schedule = Schedule(found.run, found.seed, found.faults, str(found.violation))
            write_schedule(path, schedule, f"p2pfl-sim chaos {self._file.name} --replay")

    def line(self, found: Found) -> str:
        """Return a result in words."""
        if found.violation is None:
            return f"{len(self.results)} of {len(self._seeds)} seeds, {len(self.files)} with violations"
        path = self.files[found.seed]
        size = f"{len(found.faults)} of {found.drawn} faults"
        return f"seed {found.seed} ({found.run}): {found.violation}\n  {size} are enough: {path}"

    @property
    def unfinished(self) -> str:
        """The seeds to continue with, as for --seeds; "" if all are done."""
        return seed_ranges([seed for seed in self._seeds if seed not in self.results])

    def answer(self) -> dict[str, Any]:
        """Return the figures for --json."""
        found = list(self.results.values())
        healed = [each.healed_in for each in found if each.violation is None]
        violations = [
            {
                "seed": each.seed,
                "run": each.run,
                **msgspec.to_builtins(each.violation),
                "faults": len(each.faults),
                "drawn": each.drawn,
                "file": str(self.files[each.seed]),
            }
            for each in sorted(found, key=lambda each: each.seed)
            if each.violation is not None
        ]
        return {
            "scenario": self._file.name,
            "seeds": len(found),
            "violations": violations,
            "cpu_s": sum(each.cpu for each in found) / max(1, len(found)),
            "healed_s": {"mean": sum(healed) / max(1, len(healed)), "max": max(healed, default=0.0)},
            "unfinished": self.unfinished,
        }


def _search(options: argparse.Namespace, file: ScenarioFile) -> int:
    """Try the seeds; the exit code is 1 if an invariant does not hold with one of them."""
    from p2pfl.sim.chaos.run import search
    from p2pfl.sim.monitor.monitor import progress_bar

    seeds = parse_seeds(options.seeds)
    report = _Report(file, seeds, options.out or Path("runs") / f"chaos-{file.name}")
    workers = min(len(seeds), options.workers or usable_cores())
    tenth = ceil(len(seeds) / 10)  # without a bar, a line for each tenth
    interrupted = False
    with progress_bar(len(seeds), options.json or options.quiet, report.line) as (advance, show):

        def received(found: Found) -> None:
            report.add(found)
            advance(1)
            if found.violation is None and (sys.stderr.isatty() or len(report.results) % tenth == 0):
                show(found)
            elif found.violation is not None and not options.json:
                print(report.line(found), flush=True)

        try:
            search(file, seeds, workers, received, shrinks=not options.no_shrink)
        except KeyboardInterrupt:
            if not report.results:
                raise
            interrupted = True
    answer = report.answer()
    print(to_json(answer) if options.json else _summary(answer), flush=True)
    if interrupted:
        print(f"interrupted; continue with --seeds {report.unfinished}", file=sys.stderr)
        return INTERRUPTED
    return FAILED if report.files else 0


def _summary(answer: dict[str, Any]) -> str:
    healed = answer["healed_s"]
    seeds, violations = plural(answer["seeds"], "seed"), plural(len(answer["violations"]), "violation")
    return (
        f"{seeds}, {violations}; {answer['cpu_s']:.2f} s of processor time each;"
        f" after the last fault all members learned together within {healed['mean']:.1f} s on average, {healed['max']:.1f} s"
        " at most (virtual time)"
    )
