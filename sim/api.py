"""Simulations from Python: `p2pfl.simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import networkx as nx
from msgspec.structs import replace

from p2pfl.sim.execution.memory_estimate import check_model, check_runs
from p2pfl.sim.results.results import Result, result_of
from p2pfl.sim.scenario.file_keys import check_seeds
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.scenario.topology import FILE
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.sim.simulation.simulation import run
from p2pfl.sim.simulation.workers import prepared_process
from p2pfl.system.available_memory import free_memory
from p2pfl.system.size_limit import READING, within


def simulate(
    scenario: str | Mapping[str, Any],
    *,
    changes: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    graph: nx.Graph | None = None,
    trust: bool = False,
    ignore_memory: bool = False,
) -> list[Result]:
    """Run a scenario in this process.

    During the run, torch uses one thread and the garbage collector runs less often. Modules that the scenario names are
    also looked up in its folder (for a dict, in the current folder). Afterwards these settings are restored. One effect
    remains on Linux with glibc: the process keeps freed memory for the next run.

    Args:
        scenario: the name of a shipped scenario, the path of a TOML file, or the contents of a TOML file as a dict.
        changes: "key=value" strings, applied to all runs.
        seeds: seeds that replace those of the scenario.
        graph: any NetworkX graph to use as the topology; it sets the number of nodes.
        trust: import any module that a file names, wherever it is. The modules of a dict are always trusted.
        ignore_memory: begin even if the estimate says that memory does not suffice.

    Returns:
        One result for each run and seed; `result.summary["test"]["mean"]` is the figure of the table.

    Raises:
        ConfigurationError: the scenario asks for something that does not exist or does not fit into memory, or a seed
            is given twice.
        RunError: a run cannot continue (p2pfl.errors).
    """
    changes = [*changes, *([f"nodes={len(graph)}"] if graph is not None else [])]
    if isinstance(scenario, str):
        file = load(scenario, changes, trust)
    else:
        file = resolve(scenario, changes, name="scenario", folder=".")
    if seeds is not None:
        file = replace(file, seeds=tuple(map(index, seeds)))
        check_seeds("seeds", list(file.seeds))
    with prepared_process(file.path):
        if not ignore_memory:
            runs = file.runs if graph is None else [replace(entry, topology={"name": FILE}) for entry in file.runs]
            check_runs(runs, len(file.seeds), 1)
            for entry in runs:
                with within(free_memory(), READING):
                    task = task_of(entry, 0)
                check_model(entry, task)
        return [result_of(run(replace(entry, seed=seed), graph=graph)) for entry in file.runs for seed in file.seeds]
