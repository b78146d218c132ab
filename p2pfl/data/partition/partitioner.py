"""Division of a user's samples among the nodes of a simulation: `p2pfl.partition`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl.data.partition.label_partition import PARTITIONS
from p2pfl.data.partition.splits import FEW, by_class, draw_test, histogram
from p2pfl.errors import ConfigurationError, none_of
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

RULES = {name: rule for name, rule in PARTITIONS.items() if name != "writer"}  # samples have no writers
WITHOUT_CLASSES = ("iid", "quantity")  # the rules that do not read the labels
SMALL = 0.25  # of the test samples of a node's classes; a node that draws fewer, and fewer than FEW, is noted
JUDGED_ON = ("own", "all")
REMEDY = 'use p2pfl.partition(..., judged_on="all")'


class Partition(msgspec.Struct, frozen=True):
    """Rule that divides samples among nodes: a pure function of the labels, the node and the seed.

    Attributes:
        table: JSON of the rule's name and options.
        judged_on: "own" draws a node's test samples in the proportions of its training labels, "all" takes all of them.
    """

    table: str
    judged_on: Literal["own", "all"] = "own"

    def train(self, labels: np.ndarray, part: Part, seed: int) -> np.ndarray:
        """Return the sorted indices of a node's training samples, int64 [k].

        Args:
            labels: class of each sample, int64 [n].
            part: the node.
            seed: seed of the draws.

        Raises:
            ConfigurationError: an option of the rule is invalid, or there are fewer samples than nodes.
        """
        share = _shares(self.table, labels.tobytes(), part.count, seed)[part.index]
        if not len(share):
            raise ConfigurationError(
                f"{part.count} nodes are too many for {len(labels)} samples: node {part.index} has no sample to train on"
            )
        return share

    def test(self, own: np.ndarray, labels: np.ndarray, part: Part, seed: int) -> np.ndarray:
        """Return the sorted indices of a node's test samples, int64 [k]; different nodes may have the same ones.

        Args:
            own: labels of the node's training samples, int64.
            labels: label of each test sample, int64 [n].
            part, seed: see `train`.
        """
        if self.judged_on == "all" or not len(labels):
            return np.arange(len(labels))
        known, pools = _pools(labels.tobytes())
        place = np.searchsorted(known, own).clip(max=len(known) - 1)
        counts = histogram(place[known[place] == own], len(known))
        return draw_test(counts, pools, RandomStreams(seed, f"partition/{part.index}").generator(0, "test"), 0)

    @property
    def needs_classes(self) -> bool:
        """True if the rule divides by classes; if not, the labels may be any numbers."""
        return json.loads(self.table)["name"] not in WITHOUT_CLASSES


def check_test(train: np.ndarray, test: np.ndarray, own: np.ndarray, drawn: np.ndarray, remedy: str = REMEDY) -> str:
    """Return a note if a node draws few test samples in the proportions of its training labels, or none of a class.

    It is "" if there is nothing to say.

    Args:
        train, test: labels of all nodes' samples, int64 [n].
        own, drawn: positions of the node's training and test samples.
        remedy: what to do, for messages.

    Raises:
        ConfigurationError: no training sample has the label of a test sample, which no node would draw.
    """
    unknown = np.flatnonzero(~np.isin(test, train))
    if len(unknown):
        raise ConfigurationError(
            f"test data: target {unknown[0]} is {test[unknown[0]]}, which no training sample has; leave such samples out,"
            f" or {remedy}"
        )
    there = np.isin(test, train[own])
    lacking = np.setdiff1d(train[own], test)
    if len(lacking) and len(test):
        return f"no test sample is of class {lacking[0]}, on which a node trains"
    if len(drawn) >= FEW or len(drawn) >= there.sum() * SMALL:
        return ""
    classes, counts = np.unique(test[there], return_counts=True)
    rarest = int(counts.argmin())
    return (
        f"a node is tested on {len(drawn)} of {len(there)} test samples, because its test samples have the proportions of"
        f" its training labels, and only {counts[rarest]} of class {classes[rarest]}; for all test samples"
        f" {remedy}"
    )


def partition(name: str, *, judged_on: Literal["own", "all"] = "own", **options: Any) -> Partition:
    """Return a rule that divides samples among nodes, for the argument `partition` of `p2pfl.classification`.

    Args:
        name: `iid`, `dirichlet` (alpha), `pathological` (classes), `quantity` (alpha), or `clusters` (groups, sizes); see
            p2pfl.data.partition.label_partition.
        judged_on: test samples of a node: its `own` share, in the proportions of its training labels, or `all`.
        options: options of the rule.

    Raises:
        ConfigurationError: the name or `judged_on` is unknown, or an option is not a plain value.
    """
    choose("partition", {"name": name}, RULES)
    if judged_on not in JUDGED_ON:
        raise none_of("partition: judged_on", judged_on, JUDGED_ON)
    return partition_of({"name": name, **options}, judged_on)


def partition_of(table: Mapping[str, Any], judged_on: Literal["own", "all"] = "own") -> Partition:
    """Return the rule of a table, such as { name = "dirichlet", alpha = 0.3 }."""
    try:
        return Partition(json.dumps(dict(table), sort_keys=True), judged_on)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"partition: {error}") from error


@lru_cache(maxsize=8)
def _shares(table: str, labels: bytes, count: int, seed: int) -> Sequence[np.ndarray]:
    rule, options = choose("task.partition", json.loads(table), RULES)
    rng = RandomStreams(seed, "partition").generator(0, "shares")
    given = {"labels": np.frombuffer(labels, np.int64), "n_nodes": count, "rng": rng}
    shares: Sequence[np.ndarray] = build("task.partition", rule, options, **given)
    return shares


@lru_cache(maxsize=8)
def _pools(labels: bytes) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the classes of some samples, sorted, and the indices of each class's samples."""
    known, places = np.unique(np.frombuffer(labels, np.int64), return_inverse=True)
    return known, by_class(places, len(known))
