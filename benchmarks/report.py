"""Time and size of a large report: to make it, and to open it in Chromium.

    python benchmarks/report.py
    python benchmarks/report.py --nodes 1000 --runs 20

The runs are simulated with a hundredth of the nodes. Their tables and results are then repeated for all nodes, with some
noise, and written as a run writes them. The report is made in a process of its own, for its memory. Chromium has no GPU
and an empty cache. `loaded` is the load event, after the scripts; `drawn` is the moment when the visible figures are drawn.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import p2pfl
from p2pfl.sim.report.write import write_report
from p2pfl.sim.results.results import Result, summarise, write
from p2pfl.sim.results.tables import REPORT, SUMMARY
from p2pfl.sim.scenario.scenario import resolve

COPIES = 100  # nodes of the report for each simulated one
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def scenario(nodes: int, runs: int, rounds: int) -> dict[str, Any]:
    """Return a scenario of runs that differ in their learning rate."""
    return {
        "name": "large-report",
        "nodes": nodes,
        "rounds": rounds,
        "task": {"name": "digits", "hidden": 4, "batch_size": 64},
        "topology": {"name": "k-regular", "degree": 4},
        "policy": {"name": "random", "neighbours": 3},
        "run": [{"name": f"rate {0.01 * (k + 1):.2f}", "task": {"lr": 0.01 * (k + 1)}} for k in range(runs)],
    }


def enlarge(result: Result, copies: int) -> Result:
    """Return a result of more nodes: each is repeated, and its figures get some noise."""
    small = result.summary["nodes"]
    rng = np.random.default_rng(result.summary["seed"])

    def repeated(table: dict[str, np.ndarray], numbered: tuple[str, ...]) -> dict[str, np.ndarray]:
        size = len(table["round"])
        copy = np.tile(np.arange(copies), size)
        found = {name: np.repeat(column, copies) for name, column in table.items()}
        for name in numbered:
            found[name] = found[name] + (copy * small).astype(found[name].dtype)
        for name, column in found.items():
            if "_test_" in name or "_validation_" in name:
                found[name] = column + rng.normal(0, 0.01, len(column))
        return found

    test = result.summary["test"]
    values = np.tile(np.array(test["nodes"], float), copies)
    values = values + rng.normal(0, 0.01, len(values))
    summary = result.summary | {"nodes": small * copies, "test": test | {"nodes": values.tolist()}}
    rounds, edges = repeated(result.rounds, ("node",)), repeated(result.edges, ("src", "dst"))
    return Result(summary, rounds, edges, result.notes, result.more)


def make_folder(folder: Path, nodes: int, runs: int, rounds: int) -> None:
    """Write the folder of a finished run."""
    small = p2pfl.simulate(scenario(nodes // COPIES, runs, rounds), progress=False)
    file = resolve(scenario(nodes, runs, rounds), [], "large-report.toml", ".")
    results = [enlarge(result, COPIES) for result in small]
    folder.mkdir(parents=True)
    write(folder, file, results, summarise(file, results))


def peak_memory() -> int:
    """Return the peak memory of this process in KiB. Linux's `ru_maxrss` counts the parent's memory as well."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_report(folder: Path) -> None:
    """Write the report in this process, and print its costs as JSON."""
    begun, busy = time.perf_counter(), time.process_time()
    path = write_report([folder])
    costs = {
        "make, s": time.perf_counter() - begun,
        "make, CPU s": time.process_time() - busy,
        "memory, MiB": peak_memory() / 1024,
        "page, MB": path.stat().st_size / 1e6,
    }
    print(json.dumps(costs))


def open_report(page: Path, repetitions: int) -> dict[str, list[float]]:
    """Return the times from the navigation to the first paint, the load event and the drawn figures, in seconds."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    found: dict[str, list[float]] = {"first paint, s": [], "loaded, s": [], "drawn, s": []}
    for _ in range(repetitions):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
            view = browser.new_page(viewport={"width": 1280, "height": 900})
            view.goto(page.absolute().as_uri(), wait_until="load", timeout=300_000)
            view.wait_for_function("document.documentElement.dataset.ready === '1'", timeout=300_000)
            drawn = view.evaluate("performance.now()")
            paint = view.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
            loaded = view.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            for times, value in zip(found.values(), (paint, loaded, drawn), strict=True):
                times.append(value / 1000)
            browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000, help=f"a multiple of {COPIES} (default: 10000)")
    parser.add_argument("--runs", type=int, default=100, help="number of runs (default: 100)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each run (default: 10)")
    parser.add_argument("--repetitions", type=int, default=5, help="how often Chromium opens the report (default: 5)")
    parser.add_argument("--folder", type=Path, help="keep the results here, and use those of an earlier call")
    parser.add_argument("--only-make", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_make:
        make_report(options.folder)
        return
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "results"
        if not (folder / SUMMARY).exists():
            make_folder(folder, options.nodes, options.runs, options.rounds)
        made = subprocess.run(
            [sys.executable, __file__, "--only-make", "--folder", folder], check=True, capture_output=True, text=True
        ).stdout
        for name, value in json.loads(made).items():
            print(f"{name:16s} {value:8.2f}")
        for name, values in open_report(folder / REPORT, options.repetitions).items():
            print(f"{name:16s} {statistics.median(values):8.2f}   ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
