"""Time until PraFFL answers a preference: from a node's parameters to a module, and to its decisions on the test data.

Prints the median and the maximum of the repetitions in milliseconds, for each available data set, with one torch
thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from p2pfl.errors import MissingRequirementError
from p2pfl.fairness.praffl import PrafflTask, spread
from p2pfl.task import Part, make_task

DATA = {
    "synthetic": {},
    "compas": {"sensitive": "sex+race"},
    "bank": {"sensitive": "quintile"},
    "adult": {"sensitive": "sex"},
}


def seconds(task: PrafflTask, repetitions: int) -> dict[str, list[float]]:
    """Return the times of each answer, without and with its decisions."""
    params, x = task.initial(0), task.data["test"].x
    found: dict[str, list[float]] = {"answer": [], "decisions": []}
    for preference in spread(repetitions).tolist():
        begun = time.perf_counter()
        module = task.model_for(params, preference)
        found["answer"].append(time.perf_counter() - begun)
        with torch.no_grad():
            _ = module(x) > 0
        found["decisions"].append(time.perf_counter() - begun)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000, help="number of preferences to answer (default: 1000)")
    parser.add_argument("--json", type=Path, help="write all times in seconds to this file, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for data, more in DATA.items():
        try:
            task = make_task("praffl", {"data": data, **more}, Part(0, 1), 0)
        except MissingRequirementError as error:
            print(f"{data}: {error}")
            continue
        figures[data] = found = seconds(task, options.repetitions)
        rows = len(task.data["test"].x)
        for what, times in found.items():
            label = f"{what} on {rows:,} rows" if what == "decisions" else what
            print(f"{data}: {label}: {1e3 * statistics.median(times):.2f} ms, at most {1e3 * max(times):.2f} ms")
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
