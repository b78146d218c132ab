"""Training, validation and test samples: how a node's data is divided, and whether the parts of all nodes are separate.

`check_separation` compares the training and test samples of all nodes of a simulation by content. A node that trains on
what another node tests reports too good a figure, because it passes on what it has learnt. Samples that p2pfl has held out,
and that other nodes train on, stop a run. Single samples with equal contents may be duplicates in the user's data; they are
noted with their number. The work is linear in the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pfl.data.partition.label_partition import quotas
from p2pfl.errors import ConfigurationError

Rng = np.random.Generator
FEW = 20  # test samples of a node, below which a note names the reason
Keys = np.ndarray  # int64 [n]: the hash of each sample, valid in this process
MOST_INVOLVED = 64  # nodes in which repeated samples are looked for
MANY = 0.1  # of the samples held out; fewer, or samples that one node has twice, may be duplicates in the data
SAME = "all nodes have the same rows; set partition"
REMEDY = (
    "give each node other samples: pass all of them to every node, with partition=p2pfl.partition(...), part=part,"
    " seed=seed; or pass test samples that no node trains on"
)
DUPLICATES = "a node has equal samples more than once; remove duplicates from the data to keep them apart"


def check_sizes(samples: int, validation: float, test: int) -> None:
    """Raise ConfigurationError if a size is invalid."""
    if samples < 0 or test < 0:
        raise ConfigurationError(f"task.samples and task.test must be 0 or more, got {samples} and {test}")
    if not (0 <= validation <= 0.5 or (validation >= 1 and validation == int(validation))):
        raise ConfigurationError(f"task.validation must be a whole number, or a share of at most 0.5, got {validation}")


def hold_out(share: np.ndarray, rng: Rng, samples: int, validation: float) -> tuple[np.ndarray, np.ndarray]:
    """Divide a node's share into training and validation samples; the rest, if any, is not used.

    Args:
        share: indices, [n].
        rng: the generator of the draw.
        samples: maximum number of training samples; 0 is no limit.
        validation: number of validation samples, or a fraction of all samples that the node uses, at most 0.5. A node
            with at least two samples has at least one, and at most half of its share.

    Returns:
        Training and validation samples: sorted, disjoint, drawn at random.
    """
    n = len(share)
    if validation < 1:
        used = min(n, round(samples / (1 - validation))) if samples else n
        held = round(validation * used)
    else:
        held = int(validation)
    held = min(max(held, 1), n // 2) if validation else 0
    train = min(samples, n - held) if samples else n - held
    order = rng.permutation(share)
    return np.sort(order[:train]), np.sort(order[train : train + held])


def by_class(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the indices of each class's samples."""
    return [np.flatnonzero(labels == label) for label in range(classes)]


def histogram(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of samples of each class, int64 [classes]."""
    return np.bincount(labels, minlength=classes)


def draw_test(wanted: np.ndarray, pools: list[np.ndarray], rng: Rng, size: int) -> np.ndarray:
    """Draw test samples in the proportions of a node's training samples (largest remainder).

    No sample is drawn twice. The result has fewer than `size` samples if the test part has too few of a class to keep
    the proportions. Other nodes may draw the same samples. A class that the test part lacks is left out.

    Args:
        wanted: the histogram of the node's training labels, [classes].
        pools: the test part's indices of each class.
        rng: the generator of the draw.
        size: number of samples; 0 draws as many as the proportions allow.

    Returns:
        Sorted indices; empty if the test part has none of the node's classes.
    """
    there = np.array([len(pool) for pool in pools])
    weights = np.where(there > 0, wanted, 0)
    held = weights > 0
    if not held.any():
        return np.empty(0, np.int64)
    n = int((there[held] * weights.sum() // weights[held]).min())
    n = min(n, size) if size else n
    counts = quotas(n, weights)
    while (counts > there).any():  # rounding up may require one too many
        n -= 1
        counts = quotas(n, weights)
    drawn = [rng.permutation(pool)[:count] for pool, count in zip(pools, counts.tolist(), strict=True) if count]
    return np.sort(np.concatenate(drawn))


class Found(NamedTuple):
    """Test samples of all nodes that are equal to training samples.

    Attributes:
        tested: number of test samples of all nodes.
        of_others: those that another node trains on.
        own: those that the same node trains on.
        example: a node that tests one, and the other node that trains on it; None if there is none.
        involved: nodes whose samples these are, at most about 64.
    """

    tested: int
    of_others: int
    own: int
    example: tuple[int, int] | None
    involved: frozenset[int]


class Parts(NamedTuple):
    """Samples of one node: inputs and targets [n, ...]; None without test samples."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray] | None


def check_separation(parts: Sequence[Parts], held_out: Sequence[bool], names: Sequence[str]) -> list[str]:
    """Return notes on held-out samples of nodes with equal data, and on test samples that are also training samples.

    Args:
        parts: the samples of each node.
        held_out: whether p2pfl has drawn the node's test samples from its training samples.
        names: the names of the nodes.

    Raises:
        ConfigurationError: nodes train on samples that were held out for the test of others.
    """
    keys_of = _keys_by_array()
    train = [keys_of(part.train) for part in parts]
    test = [None if part.test is None else keys_of(part.test) for part in parts]
    alike = len(train) > 1 and all(held_out) and all(each is train[0] or np.array_equal(each, train[0]) for each in train)
    notes = [SAME] if alike else []
    found = overlap(train, test)
    if found.example is not None:
        tester, trainer = (names[k] for k in found.example)
        twice = any(
            _repeats(np.concatenate([train[k], *([] if (own := test[k]) is None or not held_out[k] else [own])]))
            for k in found.involved
        )
        said = f"{found.of_others:,} of the {found.tested:,} test samples of all nodes are training samples of other nodes"
        if held_out[found.example[0]] and not twice and found.of_others >= MANY * found.tested:
            raise ConfigurationError(
                f"{said}; {trainer} trains on samples that {tester} has held out for its test; {REMEDY}"
            )
        remedy = DUPLICATES if twice else REMEDY
        notes.append(f"{said}; for example, {trainer} trains on samples that {tester} is tested on; {remedy}")
    if found.own:
        notes.append(
            f"{found.own:,} of the {found.tested:,} test samples of all nodes are training samples of the same node"
        )
    return notes


def overlap(train: Sequence[Keys], test: Sequence[Keys | None]) -> Found:
    """Return the test samples of all nodes that are training samples of any node.

    Args:
        train, test: hashes of each node's samples. Nodes with the same samples may share one array.
    """
    first, last = _owners(train)
    known = np.concatenate([first.keys, np.empty(0, np.int64)])
    tested = of_others = own = 0
    example: tuple[int, int] | None = None
    involved: set[int] = set()
    hits_of: dict[int, np.ndarray] = {}  # by array of test samples: places of their keys among the known ones
    for node, keys in enumerate(test):
        if keys is None or not len(keys):
            continue
        tested += len(keys)
        if id(keys) not in hits_of:
            places = np.searchsorted(known, keys).clip(max=max(0, len(known) - 1))
            hits_of[id(keys)] = places[known[places] == keys] if len(known) else places[:0]
        hits = hits_of[id(keys)]
        if not len(hits):
            continue
        elsewhere = (first.nodes[hits] != node) | (last.nodes[hits] != node)
        of_others += int(elsewhere.sum())
        if not np.array_equal(keys, train[node]):  # who passes the training samples for the test means it
            own += int(len(hits) - elsewhere.sum())
        if elsewhere.any():
            place = hits[np.argmax(elsewhere)]
            other = int(first.nodes[place] if first.nodes[place] != node else last.nodes[place])
            example = example or (node, other)
            involved |= {node, other} if len(involved) < MOST_INVOLVED else set()
    return Found(tested, of_others, own, example, frozenset(involved))


class _Owners(NamedTuple):
    keys: np.ndarray
    nodes: np.ndarray


def _owners(train: Sequence[Keys]) -> tuple[_Owners, _Owners]:
    """Return the different keys of all training samples, sorted, each with the first and with the last node that has it."""
    arrays: dict[int, Keys] = {}
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for node, keys in enumerate(train):
        arrays[id(keys)] = keys
        firsts.setdefault(id(keys), node)
        lasts[id(keys)] = node
    every = np.concatenate([np.empty(0, np.int64), *arrays.values()])
    sizes = [len(keys) for keys in arrays.values()]
    order = np.argsort(every, kind="stable")
    every = every[order]
    begins = np.flatnonzero(np.diff(every, prepend=every[:1] - 1 if len(every) else 0) != 0)
    least = np.repeat(np.array([*firsts.values()], np.int64), sizes)[order]
    most = np.repeat(np.array([*lasts.values()], np.int64), sizes)[order]
    if not len(begins):
        return _Owners(every, least), _Owners(every, most)
    keys = every[begins]
    return _Owners(keys, np.minimum.reduceat(least, begins)), _Owners(keys, np.maximum.reduceat(most, begins))


def _repeats(keys: Keys) -> bool:
    return len(np.unique(keys)) < len(keys)


def _keys_by_array() -> Callable[[tuple[np.ndarray, np.ndarray]], Keys]:
    """Return a function from samples to their keys, which computes those of shared arrays once."""
    known: dict[tuple[Any, ...], tuple[Keys, Any]] = {}

    def keys_of(pair: tuple[np.ndarray, np.ndarray]) -> Keys:
        x, y = pair
        place = (*(part.__array_interface__["data"][0] for part in (x, y)), x.shape, x.strides, y.shape, y.strides)
        if place not in known:
            known[place] = _keys(x, y), pair  # the pair stays alive, so that no other gets its place in memory
        return known[place][0]

    return keys_of


def _keys(x: np.ndarray, y: np.ndarray) -> Keys:
    keys: np.ndarray = _hashes(x) * np.int64(1_000_003) ^ _hashes(y)
    return keys


def _hashes(values: np.ndarray) -> Keys:
    """Return the hash of each row, int64 [n]."""
    if not values.size:
        return np.zeros(len(values), np.int64)
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    size = rows.shape[1] * rows.itemsize
    found = np.empty(len(rows), np.int64)
    step = max(1, 2**24 // size)
    for first in range(0, len(rows), step):
        packed = rows[first : first + step].tobytes()
        found[first : first + step] = [hash(packed[k : k + size]) for k in range(0, len(packed), size)]
    return found


def parts_of(task: Any) -> Parts | None:
    """Return a node's samples; None if its task has none that can be compared, such as an environment."""
    data = task.data
    if not isinstance(data, Mapping) or "train" not in data:
        return None
    try:
        pairs = {split: tuple(data[split][:2]) for split in ("train", "test") if split in data}
        return Parts(_plain(pairs["train"]), _plain(pairs["test"]) if "test" in pairs else None)
    except (TypeError, KeyError, ValueError, RuntimeError):  # of a user's own task
        return None


def _plain(pair: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    x, y = map(np.asarray, pair)
    if x.dtype.hasobject or y.dtype.hasobject or len(x) != len(y):
        raise TypeError
    return x, y
