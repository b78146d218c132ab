"""Snapshots of a run in progress, a few kilobytes each.

Taking a snapshot only reads the data of the recorder, so watching does not affect results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.learning.task_stack import each
from p2pfl.node.evaluations import counted_stage
from p2pfl.sim.results.learning_curves import reported
from p2pfl.sim.results.results import Result
from p2pfl.sim.simulation.simulation import Simulation

Numbers = Sequence[float] | np.ndarray
CELLS = 64  # in a row of the matrix; with more nodes, adjacent nodes in the order of groups share a cell
EVERY = 0.5  # seconds between snapshots of a run
POINTS = 200  # of a curve


@dataclass
class Snapshot:
    """State of a run at one moment.

    Attributes:
        node_rounds: number of finished node-rounds.
        virtual_s, wall_s: seconds since the start of the run, in virtual time and in wall time.
        rounds, values: the mean over nodes of the judged models' test metric, for rounds that at least half of them
            have evaluated.
        bytes: sent by all nodes in their rounds.
        models: average number received by a node in the newest round that half of them have ended; for a finished run,
            over all rounds.
        most_models: the most models that one node has received in one round.
        limit: the least and the greatest budget of models for a round; None if no node has one.
        groups: the groups and their numbers of nodes, in the order of the matrix; empty without groups.
        weights: float32, shape [C, C] with C cells: the average weight of the models of the column's nodes in a merge
            of one of the row's nodes; a node's own model does not count.
    """

    node_rounds: int
    virtual_s: float
    wall_s: float
    metric: str
    higher_is_better: bool
    rounds: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    bytes: int = 0
    models: float = 0.0
    most_models: int = 0
    limit: tuple[int, int] | None = None
    groups: list[tuple[str, int]] = field(default_factory=list)
    weights: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))


class SnapshotCollector:
    """Collector of snapshots from a run in progress."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._begun, self._last = time.monotonic(), -EVERY
        plan, scenario = simulation.plan, simulation.plan.scenario
        self._reported = plan.policy(0).reported_stage
        self._half = scenario.nodes / 2
        self._cells = _Cells([facts.get("group") for facts in each(plan.tasks, "public_info")])
        self._tests: dict[int, list[float]] = {}
        self._models: dict[int, list[int]] = {}
        self._sent = np.zeros(scenario.nodes, np.int64)
        self._read = 0, 0, 0  # numbers of the recorder's entries already read
        limits = scenario.budget.of_each(scenario.seed, plan.names)["models"]
        limits = limits[limits > 0]
        self._limit = (int(limits.min()), int(limits.max())) if len(limits) else None

    def due(self) -> bool:
        """Return whether it is time for another snapshot."""
        return time.monotonic() - self._last >= EVERY

    def take(self) -> Snapshot:
        self._last = time.monotonic()
        self._look()
        recorder, task = self._simulation.recorder, self._simulation.plan.tasks[0]
        curve = {round: float(np.mean(values)) for round, values in self._tests.items() if len(values) >= self._half}
        rounds = thin_rounds(sorted(curve))
        ended = [round for round, models in self._models.items() if len(models) >= self._half]
        return Snapshot(
            node_rounds=recorder.rounds_done,
            virtual_s=self._simulation.loop.time(),
            wall_s=self._last - self._begun,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            rounds=rounds,
            values=[curve[round] for round in rounds],
            bytes=int(self._sent.sum()),
            models=float(np.mean(self._models[max(ended)])) if ended else 0.0,
            most_models=recorder.most_models,
            limit=self._limit,
            groups=self._cells.groups,
            weights=self._cells.weights(),
        )

    def _look(self) -> None:
        """Read the data noted since the last snapshot."""
        recorder = self._simulation.recorder
        rounds, edges, evaluations = recorder.after(self._read)
        self._read = recorder.counts
        places = rounds["node"]
        self._sent[places] = rounds["bytes_out"]  # the last row of a node counts
        for round, models in zip(rounds["round"].tolist(), rounds["models_in"].tolist(), strict=True):
            self._models.setdefault(round, []).append(models)
        self._cells.merged(places)
        self._cells.learned(edges["dst"], edges["src"], edges["weight"])
        key = f"test_{self._simulation.plan.tasks[0].metric}"
        for round, stages in evaluations:
            metrics = stages.get(counted_stage(self._reported, stages), {})
            if key in metrics:
                self._tests.setdefault(round, []).append(metrics[key])


class _Cells:
    """Sums of merge weights by cells, for nodes in the order of their groups."""

    def __init__(self, groups: Sequence[Any]) -> None:
        named = ["" if group is None else str(group) for group in groups]
        order = sorted(range(len(named)), key=lambda k: (not named[k].isdecimal(), len(named[k]), named[k], k))
        cells = min(len(named), CELLS)
        self._cell = np.zeros(len(named), np.int64)
        self._cell[order] = np.arange(len(named)) * cells // len(named)
        self._sums = np.zeros((cells, cells))
        self._merges = np.zeros(cells, np.int64)
        counts = Counter(named[k] for k in order)
        self.groups = list(counts.items()) if len(counts) > 1 else []

    def merged(self, nodes: Sequence[int] | np.ndarray) -> None:
        """Count a finished round for each of these nodes."""
        np.add.at(self._merges, self._cell[np.asarray(nodes, np.int64)], 1)

    def learned(self, dst: Numbers, src: Numbers, weights: Numbers) -> None:
        """Add the weights of other nodes' models in the merges of these nodes."""
        rows, columns = self._cell[np.asarray(dst, np.int64)], self._cell[np.asarray(src, np.int64)]
        np.add.at(self._sums, (rows, columns), weights)

    def weights(self) -> np.ndarray:
        return (self._sums / np.maximum(self._merges, 1)[:, None]).astype(np.float32)


def of_result(result: Result) -> Snapshot:
    """Return the final state of a finished run, in the form of a snapshot."""
    run, rounds, edges = result.summary, result.rounds, result.edges
    cells = _Cells(run.get("groups") or [None] * run["nodes"])
    cells.merged(rounds["node"])
    cells.learned(edges["dst"], edges["src"], edges["weight"])
    column = reported(rounds, run["reported_stage"], f"test_{run['metric']}")
    curve: dict[int, float] = {}
    for round in np.unique(rounds["round"]):
        values = column[rounds["round"] == round]
        values = values[~np.isnan(values)]
        if len(values) and len(values) * 2 >= run["nodes"]:
            curve[int(round)] = float(values.mean())
    kept = thin_rounds(sorted(curve))
    budget = run["traffic"].get("budget", {}).get("models")
    return Snapshot(
        node_rounds=len(rounds["round"]),
        virtual_s=run["time"]["virtual_s"],
        wall_s=run["time"]["wall_s"],
        metric=run["metric"],
        higher_is_better=run["higher_is_better"],
        rounds=kept,
        values=[curve[round] for round in kept],
        bytes=int(rounds["bytes_out"].sum()),
        models=float(rounds["models_in"].mean()) if len(rounds["round"]) else 0.0,
        most_models=run["traffic"]["max_models_in_round"],
        limit=(budget["least"], budget["greatest"]) if budget else None,
        groups=cells.groups,
        weights=cells.weights(),
    )


def thin_rounds(rounds: list[int]) -> list[int]:
    """Return at most POINTS rounds: the last one, and others at equal distances."""
    step = -(-len(rounds) // POINTS) or 1
    return rounds[::-1][::step][::-1]
