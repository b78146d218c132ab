"""Fuzz the targets in turns, and keep the inputs that reach code which no earlier one has reached; see scripts/fuzz.

The work is in .fuzz: the corpus of each target, its log, and the inputs that are findings. tests/fuzz/corpus keeps the
inputs beyond the golden vectors, minimised, one in hexadecimal digits a line.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from tests.fuzz.corpus import MOST, read_corpus, write_corpus
from tests.fuzz.targets import LONGEST, ROOT, TARGETS

FOLDER = ROOT / ".fuzz"
TURN = 60  # seconds of a target before the next one
OPTIONS = ("-rss_limit_mb=2048", "-timeout=25", f"-max_len={LONGEST}", "-reload=0", "-print_final_stats=1")


def fill(folder: Path, inputs: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / sha256(data).hexdigest()[:16]).write_bytes(data)


def call(target: str, *arguments: str) -> tuple[int, str]:
    """Run Atheris on a target; return its exit status and its log."""
    command = [sys.executable, "-m", "tests.fuzz.harness", target, *arguments, f"-artifact_prefix={FOLDER / target}/found-"]
    found = subprocess.run([*command, *OPTIONS], cwd=ROOT, capture_output=True, check=False)
    return found.returncode, (found.stdout + found.stderr).decode("utf-8", "replace")


def fuzz(target: str, seconds: int) -> tuple[int, bool]:
    """Fuzz a target; return the number of executions, and whether nothing was found."""
    folder = FOLDER / target / "corpus"
    fill(folder, [*TARGETS[target].seeds(), *read_corpus(target)])
    status, log = call(target, str(folder), f"-max_total_time={seconds}")
    with (FOLDER / target / "log").open("a", encoding="utf-8") as file:
        file.write(log)
    count = re.search(r"number_of_executed_units: (\d+)", log)
    if status:
        print(f"{target}: a finding, see {FOLDER / target}", flush=True)
    return int(count[1]) if count else 0, status == 0


def keep(target: str) -> None:
    """Keep the inputs that add something to the seeds, the shortest first."""
    minimal = FOLDER / target / "minimal"
    shutil.rmtree(minimal, ignore_errors=True)
    seeds = TARGETS[target].seeds()
    fill(minimal, seeds)
    call(target, "-merge=1", str(minimal), str(FOLDER / target / "corpus"))
    added = {path.read_bytes() for path in minimal.iterdir()} - set(seeds)
    write_corpus(target, sorted(added, key=lambda data: (len(data), data))[:MOST])


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"those to fuzz: {', '.join(TARGETS)} (all)")
    parser.add_argument("--minutes", type=float, default=11.0, help="in all (11)")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"unknown target {min(unknown)!r}: {', '.join(TARGETS)}")
    left, executions, sound = given.minutes * 60, dict.fromkeys(names, 0), True
    while left >= 1:
        turn = int(max(1, min(TURN, left / len(names))))
        for name in names:
            count, right = fuzz(name, turn)
            executions[name] += count
            sound &= right
        left -= turn * len(names)
    for name in names:
        keep(name)
        print(f"{name:10} {executions[name]:>9,} executions, {len(read_corpus(name))} inputs kept")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
