"""Ratios of the benchmarks by commit, and a comparison of new ones with the last entry.

    python benchmarks/history.py --measure --quick
    python benchmarks/history.py --measure --record "two cores, AMD EPYC"
    python benchmarks/history.py sim.json wire.json rules.json

`--measure` runs `sim_speed.py`, `wire.py` and `robust.py`, first in full and then with `--quick`, and `--record` appends
an entry for each of the two. Continuous integration measures only with `--quick`. Files are the JSON figures of earlier
calls of these programs.

A ratio compares two systems of one interleaved run, and more is better. Other work on the machine changes ratios of
elapsed time (sim) much more than those of processor time (wire, rule), so record on a machine without other work:

    sim WORKLOAD          node-rounds per second, relative to the stacked program, or to the plain loop where there is none
    module WORKLOAD       the same with a module of one's own
    dac, dpfl WORKLOAD    node-rounds per second of these policies, relative to those of gossip
    evaluated WORKLOAD    node-rounds per second with an evaluation in every round, relative to those without
    wire SIZE             core time of both ends of bare TLS, relative to that of p2pfl
    rule NAME             core time of the means of 100 simulated nodes, relative to that of the means and the rule together

A ratio that has fallen by a quarter gives a warning. The exit status is 1 if one has fallen below half. A ratio is
compared with the last entry of the same kind, quick or in full; where there is none, with the last entry that has it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parent.parent
BENCHMARKS = (
    ("sim_speed.py", "--only", "digits", "--policy", "dac", "--policy", "dpfl"),
    ("sim_speed.py", "--only", "linear", "--only", "cnn"),
    ("wire.py",),
    ("robust.py",),
)
SYSTEMS = {
    "sim": "stacked",
    "module": "stacked",
    "dac": "sim",
    "dpfl": "sim",
    "evaluated": "sim",
}  # and what they are compared with
RULES = "4810 merged by 100 nodes with 10 peers"
WARNING, FAILURE = 0.75, 0.5  # of the last entry's ratio


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured ratios of one commit.

    Attributes:
        date: day of the measurement, as YYYY-MM-DD.
        machine: short description.
        ratios: ratios by name.
        quick: whether they were measured with `--quick`.
    """

    commit: str
    date: str
    machine: str
    ratios: dict[str, float]
    quick: bool = False


def measure(quick: bool, folder: Path) -> list[Path]:
    """Run the benchmarks, and return the files of their figures."""
    files = []
    for number, command in enumerate(BENCHMARKS):
        files.append(folder / f"{number}.json")
        options = ["--json", str(files[-1]), *(["--quick"] if quick else [])]
        subprocess.run([sys.executable, str(ROOT / "benchmarks" / command[0]), *command[1:], *options], check=True)
    return files


def ratios_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratios in the JSON figures of `sim_speed.py` or of `wire.py`, by name."""
    if "both ends, CPU s/GB" in figures:
        return {
            f"wire {size}": seconds["tls-loop"] / seconds["p2pfl"]
            for size, seconds in figures["both ends, CPU s/GB"].items()
        }
    if RULES in figures:
        return {f"rule {name}": 1 / (1 + max(cost, 0.0)) for name, cost in figures[RULES].items()}
    return {
        f"{system} {name}": _median_ratio(speeds, system, base)
        for system, base in SYSTEMS.items()
        for name, speeds in figures.items()
        if system in speeds
    }


def _median_ratio(speeds: Mapping[str, list[float]], system: str, base: str) -> float:
    other = speeds.get(base, speeds["loop"])
    return statistics.median(own / other for own, other in zip(speeds[system], other, strict=True))


def last_entry(entries: Sequence[Entry], name: str, quick: bool) -> Entry | None:
    """Return the last entry with a ratio: one of the same kind, else any."""
    having = [entry for entry in entries if name in entry.ratios]
    return next((entry for entry in reversed(having) if entry.quick == quick), having[-1] if having else None)


def compare(ratios: Mapping[str, float], entries: Sequence[Entry], quick: bool) -> bool:
    """Print each ratio with that of the last entry; return whether one has fallen below half of it."""
    failed = False
    for name, ratio in ratios.items():
        last = last_entry(entries, name, quick)
        if last is None:
            print(f"{name:20s} {ratio:6.2f}   no earlier ratio")
            continue
        before = last.ratios[name]
        print(f"{name:20s} {ratio:6.2f}   {before:6.2f} at {last.commit} ({last.date}, {last.machine})")
        if ratio < WARNING * before:
            mark = "::warning::" if "GITHUB_ACTIONS" in os.environ else "warning: "
            print(f"{mark}{name} has fallen from {before:.2f} to {ratio:.2f}")
        failed = failed or ratio < FAILURE * before
    return failed


def new_entry(ratios: Mapping[str, float], machine: str, quick: bool) -> Entry:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    rounded = {name: round(ratio, 3) for name, ratio in ratios.items()}
    return Entry(commit, datetime.now(UTC).date().isoformat(), machine, rounded, quick)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="*", metavar="FILE", help="JSON figures of the benchmarks")
    parser.add_argument("--measure", action="store_true", help="run the benchmarks, in place of FILE")
    parser.add_argument(
        "--quick", action="store_true", help="measure only with --quick; with FILE, the figures were measured so"
    )
    parser.add_argument("--record", metavar="MACHINE", help="append the ratios as entries, with this description")
    parser.add_argument(
        "--history",
        type=Path,
        default=Path(__file__).with_suffix(".json"),
        metavar="FILE",
        help="file of the entries (default: benchmarks/history.json)",
    )
    options = parser.parse_args()
    if options.measure == bool(options.figures):
        parser.error("name files of figures, or --measure")
    entries = msgspec.json.decode(options.history.read_bytes(), type=list[Entry]) if options.history.exists() else []
    found, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        for quick in (True,) if options.quick else (False, True) if options.measure else (False,):
            files = measure(quick, Path(folder)) if options.measure else options.figures
            figures = [ratios_of(msgspec.json.decode(file.read_bytes())) for file in files]
            ratios = {name: ratio for each in figures for name, ratio in each.items()}
            print(f"ratios, {'quick' if quick else 'in full'}, and those of the last entry")
            failed = compare(ratios, entries, quick) or failed
            found.append((ratios, quick))
    if options.record:
        entries += [new_entry(ratios, options.record, quick) for ratios, quick in found]
        options.history.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
