"""Division of training samples among nodes: pure functions of labels, the number of nodes and a generator.

All functions return one sorted index array (int64) for each node. Unless a function states otherwise, each sample
belongs to exactly one node. A node that would be empty takes a sample of any class from the node with the most samples
(on a tie the first). Every node therefore has a sample if there are as many samples as nodes. Draws are converted to
integers before they are used (by the largest remainder, Hamilton), and sorts are stable: the same generator gives the same
split on every platform.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from p2pfl.errors import ConfigurationError

Shares = list[np.ndarray]
Rng = np.random.Generator
_FINE = 2**31  # resolution of fractions, so that rounding errors of a platform have no effect


def iid(labels: np.ndarray, n_nodes: int, rng: Rng) -> Shares:
    """Return equal parts of a random order; the first nodes have one more sample if the division leaves a remainder."""
    return _finish(np.array_split(rng.permutation(len(labels)), n_nodes))


def dirichlet(labels: np.ndarray, n_nodes: int, rng: Rng, *, alpha: float) -> Shares:
    """Divide each class among the nodes in proportions drawn from Dir(alpha); with a lower alpha nodes have fewer.

    As in DPFL (Kharrat et al., appendix F.2, alpha = 0.1), after Yurochkin et al. 2019. Hsu, Qi and Brown 2019 (arXiv
    1909.06335) draw the proportions of the classes for each node instead. Nodes have very different numbers of samples.
    """
    _check_alpha(alpha)
    parts: list[Shares] = [[] for _ in range(n_nodes)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        _deal(members, quotas(len(members), _proportions(rng, alpha, n_nodes)), parts)
    return _finish([_concatenate(part) for part in parts])


def pathological(labels: np.ndarray, n_nodes: int, rng: Rng, *, classes: int, alpha: float = 0.0) -> Shares:
    """Give each node `classes` of the classes, and divide each class among the nodes that have it.

    As in DPFL (Kharrat et al. 2024, appendix F.2, three classes), after McMahan et al. 2017 (arXiv 1602.05629), who deal two
    shards of samples sorted by label to each node. Each class is assigned to (nearly) the same number of nodes. If a
    class cannot be divided evenly, the nodes with the fewest samples so far get one more. If all nodes together have
    fewer classes than the data, the samples of the other classes are not used. A `classes` above the number of classes
    means all.

    Args:
        alpha: 0 divides a class equally among its nodes (default); otherwise in proportions drawn from Dir(alpha).
            DPFL's paper states alpha = 0.5 for CINIC-10 (appendix F.5); its authors' program has it for CIFAR-10 too.
    """
    if classes < 1:
        raise ConfigurationError(f"task.partition.classes must be 1 or more, got {classes}")
    if alpha:
        _check_alpha(alpha)
    known = np.unique(labels)
    held = np.zeros(len(known), np.int64)
    owners: list[list[int]] = [[] for _ in known]
    for node in range(n_nodes):
        order = rng.permutation(len(known))
        for c in order[np.argsort(held[order], kind="stable")][:classes]:  # the classes on the fewest nodes
            held[c] += 1
            owners[c].append(node)
    parts: list[Shares] = [[] for _ in range(n_nodes)]
    sizes = np.zeros(n_nodes, np.int64)
    for own, label in zip(owners, known, strict=True):
        if own:
            nodes = rng.permutation(own)
            nodes = nodes[np.argsort(sizes[nodes], kind="stable")]
            members = rng.permutation(np.flatnonzero(labels == label))
            if alpha:
                ends = np.cumsum(quotas(len(members), _proportions(rng, alpha, len(nodes))))
                shares = np.split(members, ends[:-1])
            else:
                shares = np.array_split(members, len(nodes))
            for node, share in zip(nodes.tolist(), shares, strict=True):
                parts[node].append(share)
                sizes[node] += len(share)
    return _finish([_concatenate(part) for part in parts])


def quantity(labels: np.ndarray, n_nodes: int, rng: Rng, *, alpha: float) -> Shares:
    """Divide all classes alike, with sizes in proportions drawn from Dir(alpha) (Li et al. 2022, arXiv 2102.02079)."""
    _check_alpha(alpha)
    parts: list[Shares] = [[] for _ in range(n_nodes)]
    _deal(rng.permutation(len(labels)), quotas(len(labels), _proportions(rng, alpha, n_nodes)), parts)
    return _finish([_concatenate(part) for part in parts])


def writer(labels: np.ndarray, n_nodes: int, rng: Rng, *, writers: np.ndarray | None) -> Shares:
    """Give each node all samples of one or several writers: the writers are dealt one by one in a random order.

    Args:
        writers: the writer of each sample, int64 [n].

    Raises:
        ConfigurationError: the data set does not record its writers, or has fewer writers than nodes.
    """
    if writers is None:
        raise ConfigurationError('task.partition "writer" needs a data set that names its writers, such as "qmnist"')
    known = rng.permutation(np.unique(writers))
    if len(known) < n_nodes:
        raise ConfigurationError(f'task.partition "writer": {len(known)} writers are too few for {n_nodes} nodes')
    return [np.flatnonzero(np.isin(writers, known[node::n_nodes])) for node in range(n_nodes)]


def clusters(
    labels: np.ndarray, n_nodes: int, rng: Rng, *, groups: Sequence[Sequence[int]], sizes: Sequence[float] = ()
) -> Shares:
    """Divide the nodes into groups with their own classes, and each group's samples equally within the group.

    Args:
        groups: the classes of each group; see `class_pools`.
        sizes: relative numbers of nodes in the groups; equal by default.
    """
    counts = group_sizes(n_nodes, len(groups), sizes)
    pools = class_pools(labels, groups, counts, rng)
    shares: Shares = []
    for pool, count in zip(pools, counts.tolist(), strict=True):
        shares += [pool[share] for share in iid(labels[pool], count, rng)] if count else []
    return shares


PARTITIONS = {
    "iid": iid,
    "dirichlet": dirichlet,
    "pathological": pathological,
    "quantity": quantity,
    "writer": writer,
    "clusters": clusters,
}


def group_sizes(n_nodes: int, n_groups: int, sizes: Sequence[float] = ()) -> np.ndarray:
    """Return the number of nodes in each group, int64 [n_groups].

    Args:
        sizes: relative sizes of the groups; equal by default. If there are enough nodes, an empty group takes a node
            from one of the largest.

    Raises:
        ConfigurationError: `sizes` does not have one number above 0 for each group.
    """
    if not n_groups:
        raise ConfigurationError("a list of groups is empty")
    if sizes and (len(sizes) != n_groups or not all(size > 0 for size in sizes) or not isfinite(sum(sizes))):
        raise ConfigurationError(f"`sizes` must be {n_groups} numbers above 0, one for each group, got {list(sizes)}")
    counts = quotas(n_nodes, sizes or [1] * n_groups)
    while n_nodes >= n_groups and not counts.all():
        counts[int(np.argmin(counts))] += 1
        counts[int(np.argmax(counts))] -= 1
    return counts


def class_pools(labels: np.ndarray, groups: Sequence[Sequence[int]], counts: np.ndarray, rng: Rng) -> Shares:
    """Return the samples of each group's classes, as sorted index arrays.

    A class of several groups is divided among them in proportion to their nodes, `counts`. Samples of a class that no
    group has, or only groups without nodes, are in no pool.

    Raises:
        ConfigurationError: a group has no class, or a class without samples.
    """
    known = set(np.unique(labels).tolist())
    for group in groups:
        if not group or not set(group) <= known:
            raise ConfigurationError(f"a group's classes must be among {sorted(known)}, got {list(group)}")
    parts: list[Shares] = [[] for _ in groups]
    for label in sorted(known):
        weights = np.array([count if label in group else 0 for group, count in zip(groups, counts, strict=True)])
        if weights.any():
            members = rng.permutation(np.flatnonzero(labels == label))
            _deal(members, quotas(len(members), weights), parts)
    return [np.sort(_concatenate(part)) for part in parts]


def _check_alpha(alpha: float) -> None:
    if not 1e-6 <= alpha <= 1e6:
        raise ConfigurationError(f"task.partition.alpha must be from 1e-6 to 1e6, got {alpha}")


def _proportions(rng: Rng, alpha: float, n: int) -> np.ndarray:
    return rng.dirichlet(np.full(n, alpha)) if n > 1 else np.ones(1)


def _deal(samples: np.ndarray, counts: np.ndarray, parts: list[Shares]) -> None:
    """Append the first counts[0] samples to parts[0], the next counts[1] to parts[1], and so on."""
    for part, share in zip(parts, np.split(samples, np.cumsum(counts)[:-1]), strict=True):
        part.append(share)


def _concatenate(parts: Shares) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _finish(shares: Shares) -> Shares:
    """Give every empty node a sample, and sort the samples of each node."""
    sizes = np.array([len(share) for share in shares])
    for node in np.flatnonzero(sizes == 0):
        most = int(np.argmax(sizes))
        if sizes[most] < 2:
            break
        shares[node], shares[most] = shares[most][-1:], shares[most][:-1]
        sizes[node], sizes[most] = 1, sizes[most] - 1
    return [np.sort(share) for share in shares]


def whole(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return weights as integers in the same proportions, int64 [k]; integers are returned unchanged."""
    values = np.asarray(weights, np.float64)
    if (values == np.floor(values)).all() and values.max(initial=0) < _FINE:
        return values.astype(np.int64)
    parts: np.ndarray = np.rint(values / values.sum() * _FINE).astype(np.int64)
    return parts


def quotas(total: int, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `weights`.

    Args:
        total: 0 to 2**31.
        weights: [k], 0 or more, not all 0.

    Returns:
        int64 [k] with the sum `total`. Each is its exact share rounded down, plus one for the largest remainders; on a
        tie the first.
    """
    shares = whole(weights)
    result, rest = np.divmod(total * shares, shares.sum())
    largest = np.argsort(-rest, kind="stable")[: total - int(result.sum())]
    result[largest] += 1
    return result
