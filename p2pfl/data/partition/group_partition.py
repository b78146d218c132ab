"""Division of grouped rows among nodes: partition rules, and the resulting splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl.data.partition.label_partition import quotas
from p2pfl.data.partition.splits import hold_out
from p2pfl.data.tabular.fairness_datasets import LABEL, FairSet
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import RandomStreams


class Share(NamedTuple):
    """Indices of a node's training, validation and test rows: sorted, disjoint."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def divide(
    data: FairSet,
    n_nodes: int,
    seed: int,
    *,
    partition: Mapping[str, Any],
    sensitive: Sequence[str],
    validation: float,
    test: float,
    official: bool,
) -> list[Share]:
    """Divide a data set among nodes without overlap. Test rows are divided by the same rule as the others.

    Args:
        partition: { name = one of PARTITIONS, and its options }.
        sensitive: attributes whose groups "stratified" divides equally.
        validation: fraction of a node's rows that are not for testing; see p2pfl.data.partition.splits.hold_out.
        test: fraction of all rows that are for testing.
        official: whether to use a data set's own test part instead, if it has one.

    Raises:
        ConfigurationError: an option is invalid, or a node has no row to train on.
    """
    if not (0 <= validation < 1 and 0 <= test < 1):
        raise ConfigurationError(f"task.validation and task.test must be from 0 to below 1, got {validation} and {test}")
    streams = RandomStreams(seed, "fair rows")
    make, options = choose("task.partition", partition, PARTITIONS)
    given = {"data": data, "n_nodes": n_nodes, "rng": streams.generator(0, "partition")}
    rule: Rule = build("task.partition", make, options, **given, **({"sensitive": sensitive} if make is stratified else {}))
    rest, tested = _parts(data, streams, test, official)
    shares = divide_rows(rest, rule, n_nodes, streams.generator(0, "rows"))
    tests = divide_rows(tested, rule, n_nodes, streams.generator(0, "test rows"))
    result = []
    for node, (own, tested) in enumerate(zip(shares, tests, strict=True)):
        if not len(own):
            raise ConfigurationError(f"{n_nodes} nodes are too many for the data: node {node} has no row to train on")
        rng = RandomStreams(seed, f"fair rows/{node}").generator(0, "splits")
        result.append(Share(*hold_out(own, rng, 0, validation), tested))
    return result


def _parts(data: FairSet, streams: RandomStreams, test: float, official: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows for training and validation, and the rows for testing."""
    n = len(data.labels)
    if official and data.test is not None:
        tested = data.test
    else:
        tested = np.sort(streams.generator(0, "test part").permutation(n)[: round(test * n)])
    return np.setdiff1d(np.arange(n), tested, assume_unique=True), tested


class Rule(NamedTuple):
    """The cell of each row, int64 [n], and each node's share of each cell, [cells, nodes]; None means equal shares."""

    cells: np.ndarray
    weights: np.ndarray | None = None


def divide_rows(index: np.ndarray, rule: Rule, n_nodes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal rows out in a random order; return a sorted index array for each node.

    Equal shares differ by at most one row, in total and in each cell. Other shares are rounded by the largest
    remainder.
    """
    order = rng.permutation(index)
    order = order[np.argsort(rule.cells[order], kind="stable")]
    if rule.weights is None:
        return [np.sort(order[node::n_nodes]) for node in range(n_nodes)]
    parts: list[list[np.ndarray]] = [[] for _ in range(n_nodes)]
    for cell, weights in enumerate(rule.weights):
        members = order[rule.cells[order] == cell]
        for part, share in zip(parts, np.split(members, np.cumsum(quotas(len(members), weights))[:-1]), strict=True):
            part.append(share)
    return [np.sort(np.concatenate(part)) for part in parts]


def iid(data: FairSet, n_nodes: int, rng: np.random.Generator) -> Rule:
    """Return equal parts of a random order, as in the dissertation's fairness benchmarks (Hartmann, chapter 5)."""
    return Rule(np.zeros(len(data.labels), np.int64))


def stratified(data: FairSet, n_nodes: int, rng: np.random.Generator, sensitive: Sequence[str]) -> Rule:
    """Return equal and similar parts: each node has as many rows of each label in each group.

    (The dissertation, section 5.4, suggests this instead of its own random parts, to reduce the noise.)
    """
    keys = np.column_stack([data.labels, *(data.attribute(name).numbers for name in sensitive)])
    return Rule(np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1))


def dirichlet(data: FairSet, n_nodes: int, rng: np.random.Generator, *, alpha: float, by: str = LABEL) -> Rule:
    """Divide each label, or each group of an attribute, in proportions drawn from Dir(alpha)."""
    if not 1e-6 <= alpha <= 1e6:
        raise ConfigurationError(f"task.partition.alpha must be from 1e-6 to 1e6, got {alpha}")
    cells = data.groups(by)
    return Rule(cells, rng.dirichlet(np.full(n_nodes, alpha), int(cells.max()) + 1))


def proportions(data: FairSet, n_nodes: int, rng: np.random.Generator, *, by: str, shares: list[list[float]]) -> Rule:
    """Divide each label, or each group of an attribute, in given proportions.

    PraFFL's SYNTHETIC (section A.3.2, b): by = "z", shares = [[.2, .4, .4], [.5, .3, .2]]. The paper does not state how
    it divides tables. Its authors' program divides adult by "employer", [[.2, .8], [.8, .2]]; bank by "debtless", [[.2,
    .6, .2], [.5, .1, .4]]; compas by "older", [[0, 1], [1, 0]].

    Args:
        by: "label", or the name of an attribute.
        shares: a row for each group, with a number of 0 or more for each node.
    """
    cells = data.groups(by)
    groups = 2 if by == LABEL else len(data.attribute(by).groups)
    fit = len(shares) == groups and all(len(row) == n_nodes for row in shares)
    if not fit or not all(min(row) >= 0 < sum(row) and isfinite(sum(row)) for row in shares):
        raise ConfigurationError(
            f"task.partition.shares must have {groups} rows (one for each group by {by!r}) of {n_nodes} numbers of 0 or more"
            " (one for each node)"
        )
    return Rule(cells, np.array(shares, np.float64))


PARTITIONS = {"iid": iid, "stratified": stratified, "dirichlet": dirichlet, "proportions": proportions}
