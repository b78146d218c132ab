"""Recorder of a run: what its nodes do, as columns that lie on disk in long runs, as one hash, and by cluster.

The `Recorder` observes all nodes. Its tables have a row for each round of a node and for each model that a node has
merged; rounds that a node repeats after it went back count once, as repeated. The `Trace` hashes every event in order:
equal traces mean equal runs. `ClusterNotes` holds the clusters that a coordinated policy assigns, by round, and the
similarity of their members' models (see p2pfl.policies.clusters).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from p2pfl.attacks.attack import HonestView
from p2pfl.cohort import IdsOfEach, WeightsOfEach
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.node import Node, Observer
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.clusters import read
from p2pfl.policy import (
    Assignment,
    Coordinated,
    Fragment,
    Merge,
    PolicyStep,
    Stage,
    Submission,
    SupportsSimilarities,
    Update,
)
from p2pfl.sim.columns import PART, Columns, Table
from p2pfl.sim.simulation.clock import VirtualLoop

_Got = tuple[list[str], list[int]]
_NOTHING: _Got = ([], [])
Evaluation = tuple[int, dict[Stage, dict[str, float]]]
_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # the numbers of two nodes, and their similarity
# number of equal parts of a run after which matrices are recorded, in addition to rounds in which a cluster splits
TIMES = 10
MOST_PAIRS = 2**20  # maximum pairs of nodes in all recorded matrices of a run


class PeersOfEach(Protocol):
    """Models and bytes of all nodes of a cohort.

    Attributes:
        models_in: received in this round, [N].
        received, sent: bytes in all rounds so far, [N].
        edges: the models received in this round, and the bytes of each.
    """

    models_in: np.ndarray
    received: np.ndarray
    sent: np.ndarray
    edges: list[tuple[IdsOfEach, np.ndarray]]


class Trained(NamedTuple):
    """Trainings of the nodes of a cohort so far: their number, the samples in them, and their seconds; [N] each."""

    trainings: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray

    def after(self, nodes: np.ndarray, samples: np.ndarray, seconds: float) -> Trained:
        """Return them after one more training of some nodes, bool [N], on numbers of samples, [N]."""
        return Trained(self.trainings + nodes, self.samples + nodes * samples, self.seconds + nodes * seconds)


class Recorder(Observer):
    """Observer of all nodes of a run.

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
        self.results: Mapping[str, Mapping[str, float]] = {}
        self.most_models = 0
        self.most_prepared = 0
        self.rounds_done = 0
        self.progress: Callable[[int], None] = lambda rounds: None
        self._rounds = Columns(
            **{"round": np.int64, "virtual_time": np.float64, "node": np.int64},
            **{"bytes_in": np.int64, "bytes_out": np.int64, "models_in": np.int64},
            **{"trainings": np.int64, "samples": np.int64, "train_s": np.float64},
        )
        self._private = Columns(round=np.int64, node=np.int64, steps=np.int64)  # of nodes with a privacy budget
        self._repeated: list[tuple[int, int, int]] = []  # (K, node, round): of the first K rows, a node's from a round on
        self._sent_last: dict[int, tuple[int, int]] = {}  # by node: the bytes after its last round
        self._edges = Columns(row=np.int64, round=np.int32, src=np.int32, dst=np.int32, weight=np.float32, bytes=np.int64)
        self._waited: list[int] = []  # rows whose round waited for a deadline
        self._expired: dict[str, int] = {}  # deadlines that a node has missed until its last round
        self._got: dict[str, _Got] = {}  # senders and bytes in the current round of a node
        self._metrics = Columns(round=np.int64, node=np.int32, figure=np.int32, value=np.float64)
        self._figures: dict[tuple[Stage, str], int] = {}  # number of each stage's metric
        self._elections: list[tuple[float, int, int, int, int, str]] = []

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Remove the rounds that a node repeats after it went back."""
        place = self._place[node.name]
        if following <= finished:
            self._repeated.append((len(self._rounds), place, following))

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

    def received_fragments(self, id: str, round: int, fragments: Sequence[Fragment]) -> None:
        """Record the parts of models. Those of one sender make one edge, with the bytes of all."""
        self.trace.received(self._loop.now, id, round, ",".join(f"{each.sender}:{each.name}" for each in fragments))
        sizes = Counter[str]()
        for each in fragments:
            sizes[each.sender] += each.size
        if round:
            senders, known = self._got.get(id, _NOTHING)
            self._got[id] = senders + list(sizes), known + list(sizes.values())

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
        trained = node.me.training
        self._rounds.append(
            (
                *(round, self._loop.now, place, traffic.received_in_rounds, traffic.sent_in_rounds, models),
                *(trained.trainings, trained.samples, trained.effort.seconds),
            )
        )
        if node.me.privacy is not None:
            self._private.append((round, place, node.me.privacy.steps))
        for src, size in zip(*self._got.pop(name, _NOTHING), strict=True):
            if (weight := weights.get(src, 0.0)) > 0:
                self._edges.append((row, round, self._place[src], place, weight, size))
        if models > self.most_models:
            self.most_models = models
        expired = node.exchange.expired
        if expired != self._expired.get(name, 0):
            self._expired[name] = expired
            self._waited.append(row)
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
        assert isinstance(self.results, dict)
        self.results[node.name] = {} if self._attacks(node.name) else result
        self.trace.published(self._loop.now, node.name, "finished", node.round, node.me.params)

    # The same events of all nodes of a cohort, in the order of the nodes

    def published_by_all(self, round: int, stage: Stage, params: np.ndarray, nodes: np.ndarray) -> None:
        """Record the models, [N, P], of some nodes; see `published`."""
        names, rows, digest = list(self._place), np.ascontiguousarray(params), xxhash.xxh3_128_hexdigest
        numbers = nodes.tolist()
        self.trace.add(self._loop.now, [(names[k], f"{names[k]} {stage} - {round} {digest(rows[k])}") for k in numbers])

    def received_by_all(self, round: int, ids: IdsOfEach) -> None:
        """Record the senders of models; see `received`. A node without any has not asked."""
        names, starts = list(self._place), ids.starts.tolist()
        senders = [names[k] for k in ids.peers.tolist()]
        rows = zip(names, starts, starts[1:], strict=False)
        lines = [(name, f"{name} received {','.join(senders[a:b])} {round} -") for name, a, b in rows if a < b]
        self.trace.add(self._loop.now, lines)
        if not round:
            self.most_prepared = max(self.most_prepared, int(ids.counts.max()))

    def merged_by_all(
        self, round: int, peers: PeersOfEach, weights: WeightsOfEach | None, nodes: np.ndarray, trained: Trained
    ) -> None:
        """Record the end of a round; see `merged`.

        Args:
            weights: of the merges; None if each node keeps its own model alone.
            nodes: those that have not stopped early, in the order in which they end the round.
            trained: the trainings of all nodes.
        """
        first, models = len(self._rounds), peers.models_in
        self._rounds.extend(
            **{"round": round, "virtual_time": self._loop.now, "node": nodes},
            **{"bytes_in": peers.received[nodes], "bytes_out": peers.sent[nodes], "models_in": models[nodes]},
            **{"trainings": trained.trainings[nodes], "samples": trained.samples[nodes], "train_s": trained.seconds[nodes]},
        )
        row = np.zeros(len(models), np.int64)
        row[nodes] = first + np.arange(len(nodes))
        for ids, sizes in peers.edges if weights is not None else ():
            assert weights is not None
            if ids is weights.ids:
                weight = weights.others
            else:
                places = weights.ids.find(ids.rows, ids.peers)
                weight = np.where(places >= 0, weights.others[places] if len(weights.others) else 0.0, 0.0)
            used = np.flatnonzero(weight > 0)
            if len(used):
                used = used[row[ids.rows[used]].argsort(kind="stable")]
                dst, src = ids.rows[used], ids.peers[used]
                self._edges.extend(row=row[dst], round=round, src=src, dst=dst, weight=weight[used], bytes=sizes[used])
        self.most_models = max(self.most_models, int(models.max()))
        self.rounds_done += len(nodes)
        self.progress(self.rounds_done)

    def evaluated_by_all(self, round: int, stages: Mapping[Stage, Mapping[str, np.ma.MaskedArray]]) -> None:
        """Record metrics, [N] each, masked where a node has none; see `evaluated`."""
        given = [(stage, name, values) for stage, metrics in stages.items() for name, values in metrics.items()]
        if not given:
            return
        there = ~np.array([np.ma.getmaskarray(values) for *_, values in given]).T  # [N, figures]
        for k in np.argsort(there.argmax(0), kind="stable").tolist():  # in the order in which single nodes name them
            self._figures.setdefault(given[k][:2], len(self._figures))
        figures = np.array([self._figures[stage, name] for stage, name, _ in given])
        values = np.array([values.data for *_, values in given]).T
        nodes = np.arange(len(there))[:, None]
        self._metrics.extend(
            **{"round": round, "node": np.broadcast_to(nodes, there.shape)[there]},
            **{"figure": np.broadcast_to(figures, there.shape)[there], "value": values[there]},
        )

    def finished_by_all(
        self, round: int, params: np.ndarray, result: Mapping[str, np.ma.MaskedArray], nodes: np.ndarray
    ) -> None:
        """Record the end of some nodes; see `finished`.

        Args:
            result: the metrics of the results so far, [N] each.
        """
        self.published_by_all(round, "finished", params, nodes)  # type: ignore[arg-type]
        self.results = ResultsOfEach(self._place, result)

    def closed_by_all(self, nodes: np.ndarray, peers: PeersOfEach) -> None:
        """Record the bytes sent after the last rounds of some nodes; see `close`."""
        for k in nodes.tolist():
            self._sent_last[k] = int(peers.received[k]), int(peers.sent[k])

    def result(self, figure: str) -> np.ma.MaskedArray:
        """Return a metric of each node's result, float64 [N]: NaN, and masked, where a node has none, as without a round."""
        if isinstance(self.results, ResultsOfEach):
            none = np.ma.MaskedArray(np.full(len(self._place), np.nan), np.ones(len(self._place), bool))
            return self.results.columns.get(figure, none)
        values = [self.results.get(name, {}).get(figure) for name in self._place]
        absent = [value is None for value in values]
        return np.ma.MaskedArray([np.nan if value is None else value for value in values], absent, np.float64)

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
            The raw rounds: without metrics, with rounds that were repeated later, and bytes as sums since the start.
                The edges, as in `edges_table`. The
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

        Columns: round, virtual_time, node (its number), bytes_in, bytes_out, models_in, trainings, samples (of the
        trainings, repeated ones included), train_s (their virtual seconds), and <stage>_<split>_<metric>. Trainings of the
        preparation are in the first round.
        """
        table = self._rounds.table()
        last = np.full(len(self._place), -1)
        last[table["node"]] = np.arange(len(table["node"]))
        for place, (received, sent) in self._sent_last.items():  # the bytes after a node's last round count in that round
            if last[place] >= 0:
                table["bytes_in"][last[place]], table["bytes_out"][last[place]] = received, sent
        table = _rows_of(table, self._valid_rows(table))
        order = np.argsort(table["node"], kind="stable")  # each node's rows together, in their order
        begins = np.diff(table["node"][order], prepend=-1) != 0
        for name in ("bytes_in", "bytes_out", "trainings", "samples", "train_s"):  # recorded as sums since the start
            sums, table[name] = table[name][order], np.empty_like(table[name])
            table[name][order] = np.where(begins, sums, np.diff(sums, prepend=0))
        table["train_s"] = np.round(table["train_s"], 9)  # a difference of sums is off in its last digits
        return table | self._metrics_table(table)

    def private_steps(self, nodes: int) -> np.ndarray:
        """Return the private steps of each node until the end of each round, int64 [rounds + 1, N]; see p2pfl.privacy.

        Steps of a round that a node repeats count again: each of them was made.
        """
        table = self._private.table()
        steps = np.zeros((int(table["round"].max(initial=0)) + 1, nodes), np.int64)
        np.maximum.at(steps, (table["round"], table["node"]), table["steps"])
        found: np.ndarray = np.maximum.accumulate(steps)
        return found

    def waits(self) -> dict[str, int]:
        """Return how many `rounds` waited for a deadline, `of` all in the table of rounds: not those that were repeated."""
        kept = self._valid_rows(self._rounds.table())
        if kept is None:
            return {"rounds": len(self._waited), "of": len(self._rounds)}
        return {"rounds": int(kept[self._waited].sum()), "of": int(kept.sum())}

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


class ResultsOfEach(Mapping[str, Mapping[str, float]]):
    """Metrics of the results of a cohort by the name of a node.

    Args:
        place: the number of each node.
        columns: by the name of a metric, [N], masked where a node has none.
    """

    def __init__(self, place: Mapping[str, int], columns: Mapping[str, np.ma.MaskedArray]) -> None:
        self._place, self.columns = place, columns

    def __getitem__(self, name: str) -> dict[str, float]:
        k = self._place[name]
        there = {figure: values for figure, values in self.columns.items() if not np.ma.getmaskarray(values)[k]}
        return {figure: float(values.data[k]) for figure, values in there.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


def _rows_of(table: Table, kept: np.ndarray | None) -> Table:
    """Return the rows of a table where `kept` is true; None keeps all, without a copy."""
    return table if kept is None else {name: column[kept] for name, column in table.items()}


class Trace:
    """Hash of the lines "time node kind peer round parameters", ordered by time and then by node.

    Events of the same time are held until time moves on. The hash therefore does not depend on the order in which nodes
    run at one time.
    """

    def __init__(self) -> None:
        self._hash = sha256()
        self._instant = 0.0
        self._lines: list[tuple[str, str]] = []

    def published(self, now: float, node: str, stage: str, round: int, params: Parameters) -> None:
        self.add(now, [(node, f"{node} {stage} - {round} {xxhash.xxh3_128_hexdigest(params.data)}")])

    def received(self, now: float, node: str, round: int, senders: str) -> None:
        self.add(now, [(node, f"{node} received {senders} {round} -")])

    def add(self, now: float, lines: Iterable[tuple[str, str]]) -> None:
        """Add events: the node, and the line that is hashed."""
        if now != self._instant:
            self._flush(now)
        self._lines.extend(lines)

    def digest(self) -> str:
        """Return the SHA-256 of all events so far, in hexadecimal."""
        whole = self._hash.copy()
        for part in self._held():
            whole.update(part)
        return whole.hexdigest()

    def _flush(self, now: float) -> None:
        """Hash the held events, and begin the next time."""
        for part in self._held():
            self._hash.update(part)
        self._lines.clear()
        self._instant = now

    def _held(self) -> Iterator[bytes]:
        """Yield the events of this time in order of nodes, in parts; each node's events keep their own order."""
        self._lines.sort(key=itemgetter(0))
        if self._lines:
            yield f"{self._instant!r}\n".encode()
        for first in range(0, len(self._lines), PART):
            yield "".join([f"{line}\n" for _, line in self._lines[first : first + PART]]).encode()


class ClusterNotes:
    """Clusters of the nodes of a run by round, and matrices of similarities in a few of its rounds.

    Args:
        place: the number of each node.
        rounds: number of rounds of the run.
    """

    def __init__(self, place: Mapping[str, int], rounds: int) -> None:
        self._place = place
        self._every = max(1, rounds // TIMES)
        self._clusters = Columns(round=np.int32, node=np.int32, cluster=np.int32)
        self._names: dict[str, int] = {}  # number of each cluster
        self._similarities: dict[int, list[_Pairs]] = {}  # by round, one for each cluster
        self._pairs = 0

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        """Record the cluster of a node, if the policy has clusters."""
        if "cluster" in assignment.extras and (said := read(assignment.extras)) is not None:
            cluster = self._names.setdefault(said[0], len(self._names))
            self._clusters.append((round, self._place[id], cluster))

    @property
    def held(self) -> int:
        """Return the number of rows of the table `clusters` that are in memory."""
        return self._clusters.held

    def watching(self, policy: Coordinated) -> PolicyStep:
        """Return the policy's step, wrapped to record the similarities of the models that it receives."""
        if not isinstance(policy, SupportsSimilarities):
            return policy.step
        similarities = policy.similarities

        def step(
            submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
        ) -> tuple[dict[str, Assignment], dict[str, Any]]:
            assignments, after = policy.step(submissions, state, layout)
            round = max(s.round for s in submissions)
            split = len(after.get("clusters", ())) > max(1, len(state.get("clusters", ())))
            if round not in self._similarities and (split or round % self._every == 0):
                self._note(round, similarities(submissions, state, layout))
            return assignments, after

        return step

    def _note(self, round: int, found: Sequence[tuple[Sequence[str], np.ndarray]]) -> None:
        size = sum(len(ids) * (len(ids) - 1) // 2 for ids, _ in found)
        if self._pairs + size > MOST_PAIRS:
            return
        self._pairs += size
        for ids, matrix in found:
            places = np.array([self._place[id] for id in ids], np.int32)
            one, other = np.triu_indices(len(ids), 1)
            columns = places[one], places[other], matrix[one, other].astype(np.float32)
            self._similarities.setdefault(round, []).append(columns)

    def tables(self) -> dict[str, Table]:
        """Return the tables that have rows, by name.

        clusters: round, node (its number), cluster (its name; "" is the cluster of all nodes).
        similarities: round, node, other (numbers of members of the same cluster before the step, the lower one first),
            similarity.
        """
        found: dict[str, Table] = {}
        if len(self._clusters):
            found["clusters"] = self._clusters_table()
        if self._pairs:
            rounds = sorted(self._similarities)
            lengths = [sum(len(part[0]) for part in self._similarities[round]) for round in rounds]
            node, other, similarity = (
                np.concatenate([part[k] for round in rounds for part in self._similarities[round]]) for k in range(3)
            )
            round = np.repeat(np.array(rounds, np.int32), lengths)
            found["similarities"] = {"round": round, "node": node, "other": other, "similarity": similarity}
        return found

    def _clusters_table(self) -> Table:
        table = self._clusters.table()
        keys = table["round"].astype(np.int64) * len(self._place) + table["node"]
        order = np.argsort(keys, kind="stable")
        last = np.diff(keys[order], append=-1) != 0  # of a round that a node repeats, the last cluster counts
        table = {name: column[order[last]] for name, column in table.items()}
        return table | {"cluster": np.array(list(self._names), np.str_)[table["cluster"]]}
