"""Simulations from Python: `p2pfl.simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
from msgspec.structs import replace

from sim.engine import prepare_process
from sim.results import Result, result_of
from sim.run import run
from sim.scenario import load, resolve


def simulate(
    scenario: str | Mapping[str, Any],
    *,
    changes: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    graph: nx.Graph | None = None,
) -> list[Result]:
    """Run a scenario in this process.

    Args:
        scenario: the name of a shipped one, the path of a TOML file, or what such a file holds as a dict.
        changes: "key=value", applied to all runs.
        seeds: in place of the scenario's.
        graph: any NetworkX graph to use as the topology; it sets the number of nodes.

    Returns:
        One result for each run and seed; `result.summary["test"]["mean"]` is the figure of the table.

    Raises:
        ConfigurationError: the scenario asks for what does not exist.
    """
    changes = [*changes, *([f"nodes={len(graph)}"] if graph is not None else [])]
    if isinstance(scenario, str):
        file = load(scenario, changes)
    else:
        file = resolve(scenario, changes, name="scenario", folder=".")
    prepare_process(file.folder)
    return [
        result_of(run(replace(entry, seed=seed), graph=graph))
        for entry in file.runs
        for seed in (file.seeds if seeds is None else seeds)
    ]
