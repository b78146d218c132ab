"""Time of a grid of runs on Ray, relative to worker processes of this machine.

    python benchmarks/cluster.py --json cluster.json
    python benchmarks/cluster.py --runs 6 --rounds 1000

Each repetition runs `p2pfl-sim run` twice, with the same runs and the same number of workers:

    process  --engine process
    ray      --engine ray, with a start of Ray on this machine

The runs differ in their seeds. The times include the start of the program and of its workers, and the results as JSON.
The efficiency is the time of `process` divided by that of `ray`; the traces of both must be equal. The mean time of one
run is that of `process`: with other work on the machine it is longer, and the efficiency varies.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
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


def measure(engine: str, options: argparse.Namespace, folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a command, and the contents of its summary.json."""
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
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "p2pfl.sim", "run", *grid, "--engine", engine, *output],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return time.perf_counter() - begun, json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16, help="number of runs (default: 16)")
    parser.add_argument("--rounds", type=int, default=3000, help="rounds of each run (default: 3000)")
    parser.add_argument("--workers", type=int, default=2, help="workers of each engine (default: 2)")
    parser.add_argument("--repetitions", type=int, default=1, help="repetitions of the pair (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the figures to")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {"process": [], "ray": [], "run": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repetitions):
            traces = {}
            for engine in ("process", "ray"):
                seconds, summary = measure(engine, options, Path(folder))
                figures[engine].append(seconds)
                traces[engine] = [run["trace"] for run in summary["runs"]]
                if engine == "process":
                    figures["run"].append(statistics.mean(run["time"]["wall_s"] for run in summary["runs"]))
            if traces["process"] != traces["ray"]:
                raise SystemExit("the traces of the engines differ")
    ratios = [here / there for here, there in zip(figures["process"], figures["ray"], strict=True)]
    print(f"{options.runs} runs of {statistics.median(figures['run']):.1f} s on {options.workers} workers:")
    print(f"  process {statistics.median(figures['process']):.1f} s, ray {statistics.median(figures['ray']):.1f} s")
    print(f"  efficiency {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json:
        options.json.write_text(json.dumps({**figures, "efficiency": ratios}), encoding="utf-8")


if __name__ == "__main__":
    main()
