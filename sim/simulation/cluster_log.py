"""Record of a run's clusters by round, and of the similarity of their members' models.

Only coordinated policies have clusters (see p2pfl.policy.Coordinated and p2pfl.policies.clusters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.parameters import Layout
from p2pfl.policies.clusters import read
from p2pfl.policy import Assignment, Coordinated, Step, Submission, SupportsSimilarities
from p2pfl.sim.columns import Columns, Table

_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # the numbers of two nodes, and their similarity

# number of equal parts of a run after which matrices are recorded, in addition to rounds in which a cluster splits
TIMES = 10
MOST_PAIRS = 2**20  # maximum pairs of nodes in all recorded matrices of a run
SAME = 0.95  # the adjusted Rand index from which clusters count as equal to the true groups


class ClusterNotes:
    """Recorder of a run's clusters.

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

    def watching(self, policy: Coordinated) -> Step:
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


def adjusted_rand(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the agreement of two partitions of n members: 1 if they are equal, about 0 for agreement by chance.

    It is the index of Hubert and Arabie 1985, as in scikit-learn: 1 if both have one part, or both have n.

    Args:
        one, other: the part of each member.
    """
    first, second = (np.unique([str(part) for part in parts], return_inverse=True)[1] for parts in (one, other))
    if not len(first):
        return 1.0
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)
    together = _pairs(table)
    rows, columns, everyone = _pairs(table.sum(1)), _pairs(table.sum(0)), _pairs(table.sum(keepdims=True))
    chance = rows * columns / everyone if everyone else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == chance else float((together - chance) / (most - chance))


def _pairs(counts: np.ndarray) -> float:
    return float((counts * (counts - 1) / 2).sum())


def over_rounds(table: Table, groups: Sequence[Any]) -> dict[str, Any]:
    """Return the development of a run's clusters.

    rounds, count: the rounds in which clusters were assigned, and their number of clusters. A node without an
        assignment in a round stays in its last cluster; a node that was never assigned one is in the cluster of all
        nodes.
    adjusted_rand: in the same rounds, against the true groups; None if a node has no group. With it `best`, the
        greatest value, `best_round`, its first round, and `final`.
    nodes: the final cluster of each node.

    Args:
        table: see ClusterNotes.tables.
        groups: of each node.
    """
    current = [""] * len(groups)
    known = all(group is not None for group in groups)
    figures: dict[str, Any] = {"rounds": [], "count": [], "adjusted_rand": [] if known else None}
    for round in np.unique(table["round"]).tolist():
        rows = table["round"] == round
        for node, cluster in zip(table["node"][rows].tolist(), table["cluster"][rows].tolist(), strict=True):
            current[node] = cluster
        figures["rounds"].append(round)
        figures["count"].append(len(set(current)))
        if known:
            figures["adjusted_rand"].append(adjusted_rand(current, groups))
    if known:
        index = figures["adjusted_rand"]
        figures |= {"best": max(index), "best_round": figures["rounds"][index.index(max(index))], "final": index[-1]}
    return figures | {"nodes": current}


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the summary of the clusters for a row of the table, or None without clusters and true groups.

    best, best_round, final: as for a run (see `over_rounds`), averaged over seeds.
    reached: number of seeds that reached the true groups in some round, by an adjusted Rand index of 0.95 or more.
    """
    found = [run["clusters"] for run in runs if run.get("clusters", {}).get("adjusted_rand")]
    if not found:
        return None
    row: dict[str, Any] = {key: float(np.mean([f[key] for f in found])) for key in ("best", "best_round", "final")}
    return row | {"reached": sum(f["best"] >= SAME for f in found)}
