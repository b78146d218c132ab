"""Recorder of a run: rounds, edges and metrics, as columns that lie on disk in long runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from p2pfl.attacks.attack import HonestView
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.node import Node
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Merge, Stage, Update
from p2pfl.sim.columns import Columns, Table
from p2pfl.sim.simulation.clock import VirtualLoop
from p2pfl.sim.simulation.cluster_log import ClusterNotes
from p2pfl.sim.simulation.trace import Trace

_Got = tuple[list[str], list[int]]
_NOTHING: _Got = ([], [])
Evaluation = tuple[int, dict[Stage, dict[str, float]]]


class Recorder:
    """Observer of all nodes of a run (see p2pfl.node.node.Observer).

    Attributes:
        results: the metrics of each node's result, by name.
        most_models: the greatest number of models that a node has received in one round.
        most_prepared: the same for one step of the preparation.
        clusters: record of a coordinated policy's clusters.
        view: the honest nodes' models for the attackers; None without attackers. The metrics of attackers are not
            recorded.
    """

    def __init__(self, loop: VirtualLoop, names: Sequence[str], rounds: int) -> None:
        self._loop = loop
        self._place = {name: k for k, name in enumerate(names)}
        self.clusters = ClusterNotes(self._place, rounds)
        self.view: HonestView | None = None
        self.trace = Trace()
        self.results: dict[str, Mapping[str, float]] = {}
        self.most_models = 0
        self.most_prepared = 0
        self.rounds_done = 0
        self.progress: Callable[[int], None] = lambda rounds: None
        self._rounds = Columns(
            **{"round": np.int64, "virtual_time": np.float64, "node": np.int64},
            **{"bytes_in": np.int64, "bytes_out": np.int64, "models_in": np.int64},
        )
        self._repeated: list[tuple[int, int, int]] = []  # (K, node, round): of the first K rows, a node's from a round on
        self._sent_last: dict[int, tuple[int, int]] = {}  # by node: the bytes after its last round
        self._edges = Columns(row=np.int64, round=np.int32, src=np.int32, dst=np.int32, weight=np.float32, bytes=np.int64)
        self._got: dict[str, _Got] = {}  # senders and bytes in the current round of a node
        self._metrics = Columns(round=np.int64, node=np.int32, figure=np.int32, value=np.float64)
        self._figures: dict[tuple[Stage, str], int] = {}  # number of each stage's metric
        self._elections: list[tuple[float, int, int, int, int, str]] = []

    def restored(self, node: Node) -> None: ...

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Remove the rounds that a node repeats after it went back."""
        place = self._place[node.name]
        if following <= finished:
            self._repeated.append((len(self._rounds), place, following))

    def discarded(self, id: str, round: int, reason: str, senders: Sequence[str]) -> None: ...

    def published(self, id: str, round: int, stage: Stage, params: Parameters) -> None:
        self.trace.published(self._loop.now, id, stage, round, params)
        if self.view is not None and not self._attacks(id):
            self.view.published(id, params)

    def received(self, id: str, round: int, updates: Sequence[Update]) -> None:
        senders = [update.sender for update in updates]
        self.trace.received(self._loop.now, id, round, ",".join(senders))
        if not round:  # the preparation is not a round, and has no edges
            self.most_prepared = max(self.most_prepared, len(updates))
            return
        got = senders, [update.size for update in updates]
        if id in self._got:
            self._got[id] = self._got[id][0] + got[0], self._got[id][1] + got[1]
        else:
            self._got[id] = got

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        """Record the models in an assignment: they arrive mixed into one, so each is recorded without bytes."""
        others = [other for other in sorted(assignment.weights) if other != id]
        self.trace.received(self._loop.now, id, round, ",".join(others))
        self._got[id] = others, [0] * len(others)
        self.clusters.assigned(id, round, assignment)

    def elected(self, node: Node, elected: Elected) -> None:
        coordinator = -1 if elected.coordinator is None else self._place[elected.coordinator]
        self._elections.append((self._loop.now, self._place[node.name], *elected.term, coordinator, elected.problem))

    def merged(self, node: Node, merge: Merge) -> None:
        name, traffic = node.name, node.exchange.traffic
        if self.view is not None and not self._attacks(name):
            self.view.merged(name, merge.params)
        models = node.peers.models_in
        round, place = node.me.round, self._place[name]
        row, weights = len(self._rounds), merge.weights
        self._rounds.append((round, self._loop.now, place, traffic.received_in_rounds, traffic.sent_in_rounds, models))
        for src, size in zip(*self._got.pop(name, _NOTHING), strict=True):
            if (weight := weights.get(src, 0.0)) > 0:
                self._edges.append((row, round, self._place[src], place, weight, size))
        if models > self.most_models:
            self.most_models = models
        self.rounds_done += 1
        if self.rounds_done % len(self._place) == 0:
            self.progress(self.rounds_done)

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        if not self._attacks(node.name):
            place = self._place[node.name]
            for stage, metrics in stages.items():
                for name, value in metrics.items():
                    figure = self._figures.setdefault((stage, name), len(self._figures))
                    self._metrics.append((round, place, figure, value))

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self.results[node.name] = {} if self._attacks(node.name) else result
        self.trace.published(self._loop.now, node.name, "finished", node.round, node.me.params)

    def _attacks(self, id: str) -> bool:
        return self.view is not None and id in self.view.attackers

    def close(self, nodes: Mapping[str, Node]) -> None:
        """Record the bytes sent after the nodes' last rounds, while others still ran; they count for the last round."""
        for name, node in nodes.items():
            traffic = node.exchange.traffic
            self._sent_last[self._place[name]] = traffic.received_in_rounds, traffic.sent_in_rounds

    @property
    def held(self) -> int:
        """Return the greatest number of rows of one table that are in memory."""
        return max(self._rounds.held, self._edges.held, self._metrics.held, self.clusters.held)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of node-rounds, of aggregated models and of metrics so far; see `after`."""
        return len(self._rounds), len(self._edges), len(self._metrics)

    def after(self, counts: tuple[int, int, int]) -> tuple[Table, Table, list[Evaluation]]:
        """Return the entries after the first ones.

        Args:
            counts: the number of entries to leave out; see `counts`.

        Returns:
            The rounds, as in `rounds_table`, but with bytes since the start. The edges, as in `edges_table`. The
                evaluations: round, and metrics by stage.
        """
        rounds, edges, metrics = counts
        return self._rounds.table(rounds), self._edges.table(edges), self._evaluations(self._metrics.table(metrics))

    def _evaluations(self, metrics: Table) -> list[Evaluation]:
        """Return evaluations from rows of metrics; those of one evaluation are consecutive."""
        found: list[Evaluation] = []
        figures, last = list(self._figures), None
        for round, node, figure, value in zip(*(column.tolist() for column in metrics.values()), strict=True):
            stage, name = figures[figure]
            if (round, node) != last or name in found[-1][1].get(stage, ()):
                found.append((round, {}))
                last = round, node
            found[-1][1].setdefault(stage, {})[name] = value
        return found

    def rounds_table(self) -> Table:
        """Return one row for each round of each node; a metric that was not computed is NaN.

        Columns: round, virtual_time, node (its number), bytes_in, bytes_out, models_in, and <stage>_<split>_<metric>.
        """
        table = self._rounds.table()
        self._count_last(table)
        table = _rows_of(table, self._valid_rows(table))
        order = np.argsort(table["node"], kind="stable")  # each node's rows together, in their order
        begins = np.diff(table["node"][order], prepend=-1) != 0
        for name in ("bytes_in", "bytes_out"):  # recorded as sums since the start
            sums, table[name] = table[name][order], np.empty_like(table[name])
            table[name][order] = np.where(begins, sums, np.diff(sums, prepend=0))
        return table | self._metrics_table(table)

    def _count_last(self, table: Table) -> None:
        """Write the bytes after the last rounds into the last row of each node."""
        last = np.full(len(self._place), -1)
        last[table["node"]] = np.arange(len(table["node"]))
        for node, (received, sent) in self._sent_last.items():
            if last[node] >= 0:
                table["bytes_in"][last[node]], table["bytes_out"][last[node]] = received, sent

    def _valid_rows(self, table: Table) -> np.ndarray | None:
        """Return whether each row of all rounds is of a round that was not repeated, bool [K]; None if all are."""
        if not self._repeated:
            return None
        kept = np.ones(len(table["round"]), bool)
        for before, node, round in self._repeated:
            kept[:before] &= (table["node"][:before] != node) | (table["round"][:before] < round)
        return kept

    def _metrics_table(self, rounds: Table) -> Table:
        """Return the columns of the metrics for the rows of `rounds`, in the order in which they came."""
        metrics, nodes = self._metrics.table(), len(self._place)
        keys = rounds["round"] * nodes + rounds["node"]
        order = np.argsort(keys, kind="stable")
        wanted = metrics["round"] * nodes + metrics["node"]
        found = keys[order].searchsorted(wanted, side="right") - 1
        rows = order[found] if len(order) else found
        known = keys[rows] == wanted if len(order) else np.zeros(len(wanted), bool)
        rows, figures, values = rows[known], metrics["figure"][known], metrics["value"][known]
        present, first = np.unique(figures, return_index=True)
        names = list(self._figures)
        table: Table = {}
        for figure in present[np.argsort(first)].tolist():
            column = table["_".join(names[figure])] = np.full(len(keys), np.nan)
            column[rows[figures == figure]] = values[figures == figure]  # of several values NumPy keeps the last
        return table

    def edges_table(self) -> Table:
        """Return one row for each aggregated model: round, src, dst (node numbers), weight, bytes."""
        table = self._edges.table()
        valid, row = self._valid_rows(self._rounds.table()), table.pop("row")
        return _rows_of(table, None if valid is None else valid[row])

    def elections(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the table `elections`: one row for each change of the coordinator as a node sees it.

        The table exists only if messages are sent and the policy is coordinated.

        Columns: time, node (its number), membership_version, term (the newest that it knows), coordinator (a number,
            -1 for none), and problem (the reason for having none).
        """
        names = ("time", "node", "membership_version", "term", "coordinator", "problem")
        if not self._elections:
            return {}
        kinds = (np.float64, np.int32, np.int64, np.int64, np.int32, np.str_)
        columns = zip(names, zip(*self._elections, strict=True), kinds, strict=True)
        return {"elections": {name: np.array(column, kind) for name, column, kind in columns}}


def _rows_of(table: Table, kept: np.ndarray | None) -> Table:
    """Return the rows of a table where `kept` is true; None keeps all, without a copy."""
    return table if kept is None else {name: column[kept] for name, column in table.items()}
