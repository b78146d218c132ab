"""Snapshots of a run while it goes on, a few kilobytes each.

Taking one only reads what the recorder has, so that watching does not affect results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.sim.results.results import Result
from p2pfl.sim.simulation.simulation import Simulation

Numbers = Sequence[float] | np.ndarray
CELLS = 64  # in a row of the matrix: of more nodes, neighbours in the order of groups share one
EVERY = 0.5  # seconds between snapshots of a run
POINTS = 200  # of a curve


@dataclass
class Snapshot:
    """
    Attributes:
        node_rounds: how many were done.
        virtual_s, wall_s: seconds since its begin, on the run's own clock and on the wall's.
        rounds, values: the mean over nodes of the judged models' test metric, of rounds that half of them have evaluated.
        bytes: sent by all nodes in their rounds.
        models: received by a node, on average, in the newest round that half of them have ended; in any of a finished run.
        most_models: the most that one has received in one round.
        limit: the least and the greatest budget of models for a round; none has one if it is None.
        groups: of nodes, and how many each has, in the order of the matrix; empty where there are none.
        weights: float32, shape [C, C] with C cells: how much the models of the column's nodes have counted in a merge of one
            of the row's nodes, on average; a node's own model does not count.
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
    """Takes snapshots of a run while it goes on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._begun, self._last = time.monotonic(), -EVERY
        nodes = list(simulation.nodes.values())
        self._reported = nodes[0].policy.reported_stage
        self._half = len(nodes) / 2
        self._cells = _Cells([node.task.public_info.get("group") for node in nodes])
        self._tests: dict[int, list[float]] = {}
        self._models: dict[int, list[int]] = {}
        self._sent = np.zeros(len(nodes), np.int64)
        self._rows = self._evaluations = 0  # that were looked at
        limits = [limit for node in nodes if (limit := node.me.budget.models)]
        self._limit = (min(limits), max(limits)) if limits else None

    def due(self) -> bool:
        """Return whether it is time for another one."""
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
        """Take in what was noted since the last time."""
        rows, edges, evaluations = self._simulation.recorder.after(self._rows, self._evaluations)
        self._rows += len(rows)
        self._evaluations += len(evaluations)
        for round, _, place, _, sent, models in rows:
            self._sent[place] = sent
            self._models.setdefault(round, []).append(models)
        self._cells.merged([place for _, _, place, *_ in rows])
        if edges:
            self._cells.learned(*zip(*edges, strict=True))
        key = f"test_{self._simulation.plan.tasks[0].metric}"
        for round, _, stages in evaluations:
            metrics = stages.get(self._reported) or stages["merged"]
            if key in metrics:
                self._tests.setdefault(round, []).append(metrics[key])


class _Cells:
    """Adds up who has counted how much, of nodes in the order of their groups."""

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
        """So many nodes have ended a round."""
        np.add.at(self._merges, self._cell[np.asarray(nodes, np.int64)], 1)

    def learned(self, dst: Numbers, src: Numbers, weights: Numbers) -> None:
        """Nodes have merged models of others with these weights."""
        rows, columns = self._cell[np.asarray(dst, np.int64)], self._cell[np.asarray(src, np.int64)]
        np.add.at(self._sums, (rows, columns), weights)

    def weights(self) -> np.ndarray:
        return (self._sums / np.maximum(self._merges, 1)[:, None]).astype(np.float32)


def of_result(result: Result) -> Snapshot:
    """Return what a finished run has come to, in the form in which it was watched."""
    run, rounds, edges = result.summary, result.rounds, result.edges
    cells = _Cells(run.get("groups") or [None] * run["nodes"])
    cells.merged(rounds["node"])
    cells.learned(edges["dst"], edges["src"], edges["weight"])
    column = rounds.get(f"{run['reported_stage']}_test_{run['metric']}")
    curve: dict[int, float] = {}
    if column is not None:
        for round in np.unique(rounds["round"]):
            values = column[rounds["round"] == round]
            values = values[~np.isnan(values)]
            if len(values) * 2 >= run["nodes"]:
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
    """Return at most so many rounds as a curve has points: the last one, and others at equal distances."""
    step = -(-len(rounds) // POINTS) or 1
    return rounds[::-1][::step][::-1]
