"""Recorder of a run: rounds, edges and metrics, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from p2pfl.attacks.attack import HonestView
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.node import Node
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Merge, Stage, Update
from p2pfl.sim.simulation.clock import VirtualLoop
from p2pfl.sim.simulation.cluster_log import ClusterNotes
from p2pfl.sim.simulation.trace import Trace

_Got = tuple[list[str], list[int]]
_NOTHING: _Got = ([], [])
_Round = tuple[int, float, int, int, int, int]
_Edge = tuple[int, int, float]
_Evaluation = tuple[int, int, Mapping[Stage, Mapping[str, float]]]


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
        self._rounds: list[_Round] = []
        self._undone: set[int] = set()  # places of rounds that were repeated
        self._edges: list[tuple[int, int, Mapping[str, float], _Got]] = []
        self._got: dict[str, _Got] = {}  # senders and bytes in the current round of a node
        self._metrics: list[_Evaluation] = []
        self._elections: list[tuple[float, int, int, int, int, str]] = []

    def restored(self, node: Node) -> None: ...

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Remove the rounds that a node repeats after it went back."""
        place = self._place[node.name]
        if following <= finished:
            self._undone |= {k for k, (round, _, who, *_) in enumerate(self._rounds) if who == place and round >= following}

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
        self._rounds.append((round, self._loop.now, place, traffic.received_in_rounds, traffic.sent_in_rounds, models))
        self._edges.append((round, place, merge.weights, self._got.pop(name, _NOTHING)))
        if models > self.most_models:
            self.most_models = models
        self.rounds_done += 1
        if self.rounds_done % len(self._place) == 0:
            self.progress(self.rounds_done)

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        if not self._attacks(node.name):
            self._metrics.append((round, self._place[node.name], stages))

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self.results[node.name] = {} if self._attacks(node.name) else result
        self.trace.published(self._loop.now, node.name, "finished", node.round, node.me.params)

    def _attacks(self, id: str) -> bool:
        return self.view is not None and id in self.view.attackers

    def close(self, nodes: Mapping[str, Node]) -> None:
        """Record the bytes sent after the nodes' last rounds, while others still ran; they count for the last round."""
        last = {place: k for k, (_, _, place, *_) in enumerate(self._rounds)}
        for name, node in nodes.items():
            if (k := last.get(self._place[name])) is not None:
                traffic = node.exchange.traffic
                self._rounds[k] = (
                    *self._rounds[k][:3],
                    traffic.received_in_rounds,
                    traffic.sent_in_rounds,
                    self._rounds[k][5],
                )

    def after(self, rounds: int, evaluations: int) -> tuple[list[_Round], list[_Edge], list[_Evaluation]]:
        """Return the entries after the given numbers of node-rounds and evaluations.

        Returns:
            The rounds: round, time, node, bytes in, bytes out (both since the start), models. The merges in them: dst,
                src, weight. The evaluations: round, node, metrics by stage.
        """
        edges = [
            (dst, self._place[src], weight)
            for _, dst, weights, (senders, _) in self._edges[rounds:]
            for src in senders
            if (weight := weights.get(src, 0.0)) > 0
        ]
        return self._rounds[rounds:], edges, self._metrics[evaluations:]

    def rounds_table(self) -> dict[str, np.ndarray]:
        """Return one row for each round of each node; a metric that was not computed is NaN.

        Columns: round, virtual_time, node (its number), bytes_in, bytes_out, models_in, and <stage>_<split>_<metric>.
        """
        names = ("round", "virtual_time", "node", "bytes_in", "bytes_out", "models_in")
        kept = [row for k, row in enumerate(self._rounds) if k not in self._undone]
        columns = list(zip(*kept, strict=True)) or [()] * len(names)
        kinds = (np.int64, np.float64, np.int64, np.int64, np.int64, np.int64)
        table = {name: np.array(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)}
        order = np.argsort(table["node"], kind="stable")  # each node's rows together, in their order
        begins = np.diff(table["node"][order], prepend=-1) != 0
        for name in ("bytes_in", "bytes_out"):  # recorded as sums since the start
            sums = table[name][order]
            table[name][order] = np.where(begins, sums, np.diff(sums, prepend=0))
        row_of = {(round, node): k for k, (round, _, node, *_) in enumerate(kept)}
        for round, node, stages in self._metrics:
            row = row_of.get((round, node))
            if row is None:
                continue
            for stage, metrics in stages.items():
                for metric, value in metrics.items():
                    key = f"{stage}_{metric}"
                    if key not in table:
                        table[key] = np.full(len(kept), np.nan)
                    table[key][row] = value
        return table

    def edges_table(self) -> dict[str, np.ndarray]:
        """Return one row for each aggregated model: round, src, dst (node numbers), weight, bytes."""
        rows = [
            (round, self._place[src], dst, weights.get(src, 0.0), size)
            for k, (round, dst, weights, (senders, sizes)) in enumerate(self._edges)
            if k not in self._undone
            for src, size in zip(senders, sizes, strict=True)
            if weights.get(src, 0.0) > 0
        ]
        columns = list(zip(*rows, strict=True)) or [()] * 5
        kinds = (np.int32, np.int32, np.int32, np.float32, np.int64)
        names = ("round", "src", "dst", "weight", "bytes")
        return {name: np.array(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)}

    def elections(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the table `elections`: one row for each change of the coordinator as a node sees it.

        The table exists only if messages are sent and the policy is coordinated.

        Columns: time, node (its number), epoch, term (the newest that it knows), coordinator (a number, -1 for none),
            and problem (the reason for having none).
        """
        names = ("time", "node", "membership_version", "term", "coordinator", "problem")
        if not self._elections:
            return {}
        kinds = (np.float64, np.int32, np.int64, np.int64, np.int32, np.str_)
        columns = zip(names, zip(*self._elections, strict=True), kinds, strict=True)
        return {"elections": {name: np.array(column, kind) for name, column, kind in columns}}
