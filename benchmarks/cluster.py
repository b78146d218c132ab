"""Time of a grid of runs on Ray, relative to worker processes of this machine.

    python benchmarks/cluster.py --json cluster.json
    python benchmarks/cluster.py --runs 6 --rounds 800

Each repetition runs `p2pfl-sim run` twice, with the same runs and the same number of workers:

    process  --engine process
    ray      --engine ray, with a start of Ray on this machine

The runs differ in their seeds. The times include the start of the program and of its workers, and the results as JSON.
The efficiency is the time of `process` divided by that of `ray`; the traces of both must be equal. The mean time of one
run is that of `process`: with other work on the machine it is longer, and the efficiency varies.

On Linux the same ratio is printed for processor time, which varies less. It is the sum over the command, its workers and
all processes of Ray, which are read from /proc several times a second; the last fraction of a second of each is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SCENARIO = """
nodes = 100
evaluate_every = 100
task = { name = "digits", batch_size = 16, lr = 0.1, momentum = 0.9 }
policy = { name = "random", neighbours = 5 }
"""


class ProcessorTime:
    """Processor time of a program and all its descendants, which inherit a variable of its environment.

    The processes of Ray leave the tree of the program, so that no process can wait for them.

    Attributes:
        variable: name and value, for the environment of the program.
    """

    EVERY = 0.2  # seconds

    def __init__(self) -> None:
        self.variable = ("P2PFL_BENCHMARK", f"{os.getpid()}-{time.monotonic_ns()}")
        self._mark = "=".join(self.variable).encode()
        self._ended = threading.Event()
        self._ticks: dict[tuple[str, str], int] = {}  # by process id and time of start
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Return the seconds; 0 on other systems than Linux."""
        self._ended.set()
        self._thread.join()
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK") if self._ticks else 0.0

    def _watch(self) -> None:
        while not self._ended.wait(self.EVERY):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    process = (folder.name, fields[19])
                    if process in self._ticks or self._mark in (folder / "environ").read_bytes():
                        self._ticks[process] = int(fields[11]) + int(fields[12])
                except OSError:  # it has ended, or belongs to another user
                    continue


def measure(engine: str, options: argparse.Namespace, folder: Path) -> tuple[float, float, dict[str, Any]]:
    """Return the wall seconds and the processor seconds of a command, and the contents of its summary.json."""
    (folder / "grid.toml").write_text(SCENARIO, encoding="utf-8")
    grid = [
        "grid.toml",
        "--seeds",
        f"0:{options.runs}",
        "--set",
        f"rounds={options.rounds}",
        "--workers",
        str(options.workers),
    ]
    output = ["--json", "--no-report", "--out", f"{engine}-{time.monotonic_ns()}"]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    processors = ProcessorTime()
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "p2pfl.sim", "run", *grid, "--engine", engine, *output],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)} | dict([processors.variable]),
        stdout=subprocess.PIPE,
        check=True,
    )
    return time.perf_counter() - begun, processors.end(), json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16, help="number of runs (default: 16)")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of each run (default: 2000)")
    parser.add_argument("--workers", type=int, default=2, help="workers of each engine (default: 2)")
    parser.add_argument("--repetitions", type=int, default=1, help="repetitions of the pair (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the figures to")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {"process": [], "ray": [], "run": []}
    processors: dict[str, list[float]] = {"process": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repetitions):
            traces = {}
            for engine in ("process", "ray"):
                seconds, used, summary = measure(engine, options, Path(folder))
                figures[engine].append(seconds)
                processors[engine].append(used)
                traces[engine] = [run["trace"] for run in summary["runs"]]
                if engine == "process":
                    figures["run"].append(statistics.mean(run["time"]["wall_s"] for run in summary["runs"]))
            if traces["process"] != traces["ray"]:
                raise SystemExit("the traces of the engines differ")
    print(f"{options.runs} runs of {statistics.median(figures['run']):.1f} s on {options.workers} workers:")
    ratios = compare("wall", figures["process"], figures["ray"])
    written: dict[str, Any] = {**figures, "efficiency": ratios}
    if all(processors["process"]):
        written["processors"] = {**processors, "efficiency": compare("processor", **processors)}
    if options.json:
        options.json.write_text(json.dumps(written), encoding="utf-8")


def compare(kind: str, process: list[float], ray: list[float]) -> list[float]:
    """Print the times of both engines and their ratio, and return the ratios."""
    ratios = [here / there for here, there in zip(process, ray, strict=True)]
    times = f"process {statistics.median(process):.1f} s, ray {statistics.median(ray):.1f} s"
    efficiency = f"efficiency {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  {kind} time: {times}, {efficiency}")
    return ratios


if __name__ == "__main__":
    main()
