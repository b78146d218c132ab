"""Lower bound of a scenario's memory, to refuse runs that cannot fit before they begin.

The estimate is low on purpose, so that it refuses nothing that would fit. p2pfl.sim.execution.forecast runs trials, and
reports the real need.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

from p2pfl._util.machine import amount, free_memory
from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import count_values
from p2pfl.learning.torch_task import TorchTask
from p2pfl.node.settings import End
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.scenario.topology import COMPLETE, EDGE, edges_of
from p2pfl.task import Task
from p2pfl.topologies.rows import LIMIT, ROWS

# Bytes. Measured without a model: 18,600 to 31,000 for a node that runs by itself. A row of a cohort had 7,800, of which
# 2,200 were its samples. The rounds of a node are on disk until the tables are made: 600 with ten models a round.
NODE, ROW_OF_COHORT, ROW = 15_000, 1_000, 150
ENTRIES = 16  # bytes of an edge of a graph that is made as rows: a number at both ends
NAMES = 16  # bytes of an edge of a complete graph: the names of neighbours, at both ends
MODELS = 2  # models that a node holds at the same time; 4 were measured
TABLE_ROW = 100  # bytes of a round of a node, kept until all runs are finished; 340 were measured
IGNORE = "--ignore-memory (in Python: ignore_memory=True) starts anyway"


class Need(NamedTuple):
    """Minimum memory of a run in bytes, by use."""

    nodes: float
    edges: float
    rounds: float
    models: float = 0

    @property
    def total(self) -> float:
        return sum(self)

    def check(self, what: str, free: int | None) -> None:
        """Raise ConfigurationError if it exceeds the free memory; `what` names the user of the memory."""
        if free is not None and self.total > free:
            most = max(self._fields, key=lambda field: float(getattr(self, field)))
            raise ConfigurationError(
                f"{what} needs at least {amount(self.total)} of memory, most of it for its {most}, but {amount(free)} are"
                f" free; {IGNORE}"
            )


def need(scenario: Scenario, model: int = 0) -> Need:
    """Return the minimum memory of a run.

    Args:
        model: number of values in a node's model, if known.
    """
    nodes, rounds = scenario.nodes, least_rounds(scenario)
    name = scenario.topology.get("name")
    edge = NAMES if name == COMPLETE else ENTRIES if name in ROWS and nodes > LIMIT else EDGE
    return Need(
        (ROW_OF_COHORT if may_be_cohort(scenario) else NODE) * nodes,
        edge * edges_of(scenario.topology, nodes),
        ROW * nodes * rounds,
        4 * MODELS * nodes * model,
    )


def least_rounds(scenario: Scenario) -> int:
    """Return how many rounds a run does at least: its `end` and its `patience` may end it before the others."""
    if scenario.end != End():
        return min(scenario.rounds, 1)
    return min(scenario.rounds, scenario.patience + 1) if scenario.patience else scenario.rounds


def may_be_cohort(scenario: Scenario) -> bool:
    """Return whether nothing in a scenario shows that its nodes run one by one; see p2pfl.sim.simulation.cohort."""
    alike = scenario.mode == "synchronous" and scenario.attack is None and scenario.robust == "none"
    return alike and scenario.fidelity == "modelled" and scenario.trainer != "one-by-one"


def check_runs(runs: Sequence[Scenario], seeds: int, processes: int) -> None:
    """Check that the runs of a scenario may fit into memory; the check is cheap, and comes before any object is made.

    Args:
        seeds: number of seeds of each run.
        processes: number of runs in parallel.

    Raises:
        ConfigurationError: they cannot fit; the error names the run.
    """
    free = free_memory()
    if free is None:
        return
    for run in runs:
        need(run).check(f"run {run.name!r}", free)
    rows = sum(TABLE_ROW * run.nodes * least_rounds(run) for run in runs)
    if (tables := rows * seeds) > free:
        raise ConfigurationError(
            f"the tables of all runs need at least {amount(tables)} of memory, but {amount(free)} are free; {IGNORE}"
        )
    largest = nlargest(processes, (need(run).total for run in runs for _ in range(min(seeds, processes))))
    if (together := sum(largest)) > free:
        raise ConfigurationError(
            f"{len(largest)} parallel runs need at least {amount(together)} of memory, but {amount(free)} are free;"
            f" use fewer --workers; {IGNORE}"
        )


def check_model(run: Scenario, task: Task) -> None:
    """Check that the models of a run may fit into memory, before the first is made.

    Args:
        task: task of one of its nodes; only its size is read.

    Raises:
        ConfigurationError: they cannot fit; the error names the run.
    """
    if isinstance(task, TorchTask) and (size := count_values(task.module)):
        need(run, size).check(f"run {run.name!r}, with models of {size:,} values,", free_memory())
