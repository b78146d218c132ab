"""Memory that a scenario takes at least: what cannot fit is refused before it is begun.

Such an estimate is low on purpose, so that nothing is refused that would fit: p2pfl.sim.execution.forecast tries runs, and
says what they really take.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import count_values
from p2pfl.learning.torch_task import TorchTask
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.scenario.topology import EDGE, edges_of
from p2pfl.system.available_memory import amount, free_memory
from p2pfl.task import Task

# Bytes. Measured are, without a model: 18,600 to 31,000 of a node, 430 to 2300 of a round of a node.
NODE, ROW = 15_000, 400
MODELS = 2  # of a node at the same time; measured are 4
TABLE_ROW = 100  # of a round of a node, kept until all runs are finished; measured are 340
IGNORE = "--ignore-memory (in Python: ignore_memory=True) begins all the same"


class Need(NamedTuple):
    """Bytes that a run takes at least, by what takes them."""

    nodes: float
    edges: float
    rounds: float
    models: float = 0

    @property
    def total(self) -> float:
        return sum(self)

    def check(self, what: str, free: int | None) -> None:
        """Raise ConfigurationError if it is more than is free; `what` takes it."""
        if free is not None and self.total > free:
            most = max(self._fields, key=lambda field: float(getattr(self, field)))
            raise ConfigurationError(
                f"{what} takes {amount(self.total)} of memory or more, most of it for its {most}, and {amount(free)} are"
                f" free; {IGNORE}"
            )


def need(scenario: Scenario, model: int = 0) -> Need:
    """Return what a run takes at least.

    Args:
        model: values of a node's model, if they are known.
    """
    nodes, rounds = scenario.nodes, scenario.rounds
    if scenario.patience:  # it may stop early
        rounds = min(rounds, scenario.patience + 1)
    return Need(NODE * nodes, EDGE * edges_of(scenario.topology, nodes), ROW * nodes * rounds, 4 * MODELS * nodes * model)


def check_runs(runs: Sequence[Scenario], seeds: int, processes: int) -> None:
    """Check that the runs of a scenario may fit into memory; cheap, and before anything is made.

    Args:
        seeds: with how many each is run.
        processes: as many are run side by side.

    Raises:
        ConfigurationError: they cannot; naming the run.
    """
    free = free_memory()
    if free is None:
        return
    for run in runs:
        need(run).check(f"run {run.name!r}", free)
    rows = sum(TABLE_ROW * run.nodes * (min(run.rounds, run.patience + 1) if run.patience else run.rounds) for run in runs)
    if (tables := rows * seeds) > free:
        raise ConfigurationError(
            f"the tables of all runs take {amount(tables)} of memory or more, and {amount(free)} are free; {IGNORE}"
        )
    largest = nlargest(processes, (need(run).total for run in runs for _ in range(min(seeds, processes))))
    if (together := sum(largest)) > free:
        raise ConfigurationError(
            f"{len(largest)} runs side by side take {amount(together)} of memory or more, and {amount(free)} are free;"
            f" fewer --workers need less, {IGNORE}"
        )


def check_model(run: Scenario, task: Task) -> None:
    """Check that the models of a run may fit into memory, before the first is made.

    Args:
        task: of one of its nodes; nothing but its size is asked for.

    Raises:
        ConfigurationError: they cannot; naming the run.
    """
    if isinstance(task, TorchTask) and (size := count_values(task.module)):
        need(run, size).check(f"run {run.name!r}, with models of {size:,} values,", free_memory())
