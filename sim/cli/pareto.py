"""The command `p2pfl-sim pareto`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl._util.printable import to_json
from p2pfl.sim import pareto
from p2pfl.sim.cli.console import print_whole
from p2pfl.sim.cli.options import check_workers, folder_of, interrupt_on_sigterm, scenario_of, words_of_end
from p2pfl.sim.execution.inputs import RunInputs
from p2pfl.sim.execution.resume import explain_resume
from p2pfl.sim.execution.runner import check_all, processes_of
from p2pfl.sim.formatting import as_printed, number, of_paper
from p2pfl.sim.monitor.monitor import progress_bar
from p2pfl.sim.pareto import Candidates, FrontSearch, candidate, objectives_of, search_all, searches_of
from p2pfl.sim.scenario.scenario import ScenarioFile, jobs_of
from p2pfl.sim.simulation.plan import check
from p2pfl.sim.simulation.workers import prepare_process

COLUMNS = (("hypervolume", "hypervolume"), ("sparsity", "sparsity"), ("igd", "IGD"), ("cardinality", "solutions"))


def prepare_pareto(options: argparse.Namespace) -> Callable[[], int]:
    """Read and check a scenario; return the function that does its unfinished searches, and returns the exit code."""
    file = scenario_of(options)
    interrupt_on_sigterm()
    check_workers(options)
    out = folder_of(options, file.name)
    prepare_process(file.path)
    inputs = RunInputs(file, out)
    searches = begin(file, processes_of("process", options.workers), not options.ignore_memory)
    inputs.settle()
    return partial(_carry_out, options, file, out, inputs, searches)


def _carry_out(
    options: argparse.Namespace, file: ScenarioFile, out: Path, inputs: RunInputs, searches: Sequence[FrontSearch]
) -> int:
    """Do all unfinished searches, and print the results."""
    from p2pfl.sim.report.write import try_write_report

    candidates = Candidates(out, file, inputs, different_bits=options.allow_different_bits)
    with explain_resume(candidates, sum(search.total for search in searches), "pareto", "candidates"):
        total = sum(search.total * search.scenario.nodes * search.scenario.rounds for search in searches)
        with progress_bar(total, options.json or options.quiet, _line) as (advance, show):
            search_all(searches, file.path, candidates, workers=options.workers, progress=advance, iterated=show)
        summary = pareto.summarise(file, searches, [*inputs.notes, *candidates.notes])
        for search, entry in zip(searches, summary["runs"], strict=True):
            entry["inputs"] = inputs.files(search.scenario)
        pareto.write(out, searches, summary)
        candidates.remove()
    page, problem = (None, "") if options.no_report else try_write_report(out)
    if options.json:
        print(to_json(summary, indent=1))
        return 0
    print_table(summary)
    for note in [*summary["notes"], *([problem] if problem else [])]:
        print(f"note: {note}")
    print(words_of_end(out, page))
    return 0


def begin(file: ScenarioFile, processes: int = 1, memory: bool = True) -> list[FrontSearch]:
    """Check all rows of a scenario, and return a search for each row and seed.

    Args:
        processes, memory: see p2pfl.sim.execution.runner.check_all.

    Raises:
        ConfigurationError: a row cannot be searched; the error names it.
    """
    for row in file.runs:
        if row.search is None:
            objectives_of(row)
    check_all(file, processes, memory)
    for row in file.runs:
        goals = objectives_of(row)
        check(candidate(row, np.full(len(goals), 1 / len(goals))))  # fails unless the task takes a preference
    return searches_of(jobs_of(file))


def _line(search: FrontSearch) -> str:
    """Return the progress of a search as a line."""
    done = len(search.candidates) // search.settings.samples
    volume = pareto.hypervolume_of(search, done)
    of_front = "" if volume is None else f", hypervolume {number(volume)}"
    return f"{search.scenario.name}, seed {search.scenario.seed}: iteration {done} of {search.settings.iterations}{of_front}"


def print_table(summary: Mapping[str, Any]) -> None:
    """Print the table of a summary: measures of the fronts, averaged over seeds."""
    from rich.table import Table

    rows, seeds = summary["table"], len(summary["seeds"])
    table = Table()
    columns = [(key, head) for key, head in COLUMNS if any(key in row["objectives"] for row in rows)]
    papers = any("paper" in row for row in rows)
    heads = ["run"]
    for _, head in columns:
        heads += [head, "+- over seeds"] if head == "hypervolume" and seeds > 1 else [head]
    for head in [*heads, "candidates", "seconds", *([of_paper(summary.get("figure", ""))] if papers else [])]:
        table.add_column(head, justify="left" if head == "run" else "right", no_wrap=True)
    for row, paper in zip(rows, as_printed(row.get("paper") for row in rows), strict=True):
        cells = [row["name"]]
        for key, head in columns:
            cells.append(f"{row['objectives'][key]:.1f}" if key == "cardinality" else number(row["objectives"].get(key)))
            cells += [number(row.get("std"))] if head == "hypervolume" and seeds > 1 else []
        cells += [str(row["candidates"]), f"{row['seconds']:.1f}"]
        table.add_row(*cells, *([paper] if papers else []))
    print(f"{summary['scenario']}: fronts of a search, mean over {seeds} seed{'s' * (seeds > 1)}; seconds per seed")
    print_whole(table)
