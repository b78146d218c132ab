"""Who was in which cluster in which round, and how alike the models of its members were: what a run notes of both.

Only policies that are coordinated have either (see p2pfl.policy.Coordinated and p2pfl.policies.clusters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.parameters import Layout
from p2pfl.policies.clusters import read
from p2pfl.policy import Assignment, Coordinated, Step, Submission, SupportsSimilarities

Table = dict[str, np.ndarray]
_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # the numbers of two nodes, and how alike they are

TIMES = 10  # into how many equal parts of a run its matrices are noted, beside those of the rounds in which a cluster splits
MOST_PAIRS = 2**20  # of nodes, in all matrices that are noted of a run
SAME = 0.95  # the adjusted Rand index from which clusters are taken for the true groups


class ClusterNotes:
    """What is noted of a run's clusters while it goes.

    Args:
        place: the number of each node.
        rounds: how many the run has.
    """

    def __init__(self, place: Mapping[str, int], rounds: int) -> None:
        self._place = place
        self._every = max(1, rounds // TIMES)
        self._clusters: dict[tuple[int, int], str] = {}  # by round and node
        self._similarities: dict[int, list[_Pairs]] = {}  # by round, of each cluster
        self._pairs = 0

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        """A node was told its cluster, if the policy has any."""
        if "cluster" in assignment.extras and (said := read(assignment.extras)) is not None:
            self._clusters[round, self._place[id]] = said[0]

    def watching(self, policy: Coordinated) -> Step:
        """Return the policy's step, wrapped to note the similarities of the models that it gets."""
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

        clusters: round, node (its number), cluster (its name; "" is that of all).
        similarities: round, node, other (numbers of members of the same cluster before the step, the lower one first),
            similarity.
        """
        found: dict[str, Table] = {}
        if self._clusters:
            keys = sorted(self._clusters)
            found["clusters"] = {
                "round": np.array([round for round, _ in keys], np.int32),
                "node": np.array([node for _, node in keys], np.int32),
                "cluster": np.array([self._clusters[key] for key in keys], np.str_),
            }
        if self._pairs:
            rounds = sorted(self._similarities)
            lengths = [sum(len(part[0]) for part in self._similarities[round]) for round in rounds]
            node, other, similarity = (
                np.concatenate([part[k] for round in rounds for part in self._similarities[round]]) for k in range(3)
            )
            round = np.repeat(np.array(rounds, np.int32), lengths)
            found["similarities"] = {"round": round, "node": node, "other": other, "similarity": similarity}
        return found


def adjusted_rand(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return how alike two partitions of n members are: 1 if they are the same, about 0 if they are so by chance.

    It is the index of Hubert and Arabie 1985, as of scikit-learn: 1 where both have one part, or each has n.

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
    """Return how the clusters of a run developed.

    rounds, count: in each round in which clusters were assigned, how many there were. A node that was assigned none
        is in the one of its last assignment; one that never was is in that of all.
    adjusted_rand: of the same rounds, against the true groups; None where a node is of none. With it `best`, the greatest,
        `best_round`, when it was reached first, and `final`.
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
    """Return what a row of the table says of the clusters of its runs, or None without clusters and true groups.

    best, best_round, final: as of a run (see `over_rounds`), averaged over seeds.
    reached: with how many seeds the true groups were there in some round, by an adjusted Rand index of .95 or more.
    """
    found = [run["clusters"] for run in runs if run.get("clusters", {}).get("adjusted_rand")]
    if not found:
        return None
    row: dict[str, Any] = {key: float(np.mean([f[key] for f in found])) for key in ("best", "best_round", "final")}
    return row | {"reached": sum(f["best"] >= SAME for f in found)}
