"""Plan of a division: the samples, group and shift of each node, from options and a seed.

A shift makes groups of nodes differ: in inputs, classes, labels of classes, or whole data sets (Listo Zec et al., section
3.3). Groups are blocks of nodes: the first nodes are group 0. `sizes` are proportions, scaled to the number of nodes by the
largest remainder; equal by default. If there are at least as many nodes as groups, no group is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl.data.image_sets import ImageSet
from p2pfl.data.partition.label_partition import PARTITIONS, class_pools, group_sizes
from p2pfl.data.partition.splits import FEW, by_class, check_sizes, draw_test, histogram, hold_out
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import RandomStreams

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Share:
    """Data of one node.

    Attributes:
        source: index of the data set.
        train, validation: indices into its training part; disjoint.
        test: indices into its test part.
        group: the node's group; None without a shift.
        angle: rotation of its images in degrees.
        names: the node's label for each class, int64 [classes].
        labels: number of different labels of all nodes.
        notes: sentences on splits that are smaller than requested.
    """

    source: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    group: int | None
    angle: float
    names: np.ndarray
    labels: int
    notes: tuple[str, ...] = ()


def plan(
    sets: Sequence[ImageSet],
    n_nodes: int,
    seed: int,
    *,
    partition: Mapping[str, Any],
    shift: Mapping[str, Any],
    samples: int,
    validation: float,
    test: int,
    test_classes: str = "own",
) -> list[Share]:
    """Divide data sets among nodes.

    A node whose share is too small for a held-out sample is validated on another one; see `_ensure_validation`.

    Args:
        sets: one, or for the shift `domain` several of the same shape.
        partition: { name = one of PARTITIONS, and its options }, applied to each pool from which a group of nodes draws.
        shift: { name = one of SHIFTS, and its options }.
        samples, validation: see `splits.hold_out`.
        test: see `splits.draw_test`.
        test_classes: proportions of the test samples: those of the node's training labels, "own", or of the test part,
            "all"; or "writers": the test samples of the writers of the node's training samples, as they are.

    Raises:
        ConfigurationError: an option is invalid, or a node has no sample to train on.
    """
    check_sizes(samples, validation, test)
    _check_labels(sets if test_classes == "own" else ())
    streams = RandomStreams(seed, "images")
    classes = max(data.classes for data in sets)
    kind = _shift(sets, n_nodes, classes, streams, shift)
    shares = _partition(sets, kind, n_nodes, streams, partition)
    groups = kind.groups.tolist()
    labels = max((int(names.max()) + 1 for names in kind.names or ()), default=classes)
    sources = [kind.sources[group] if kind.sources else 0 for group in groups]
    pools = [by_class(data.test.y, classes) for data in sets]
    written = [_by_writer(data) for data in sets] if test_classes == "writers" else []
    result = []
    for node, (share, group, source) in enumerate(zip(shares, groups, sources, strict=True)):
        if not len(share):
            raise ConfigurationError(
                f"{n_nodes} nodes are too many for the data: node {node} has no image to train on (group {group})"
            )
        own = RandomStreams(seed, f"images/{node}")
        train, held = hold_out(share, own.generator(0, "splits"), samples, validation)
        if written:
            pool = _test_of_writers(node, sets[source], share, written[source])
            drawn = np.sort(own.generator(0, "test").permutation(pool)[:test]) if test else pool
        else:
            counts = histogram(sets[source].test.y if test_classes == "all" else sets[source].train.y[train], classes)
            drawn = draw_test(counts, pools[source], own.generator(0, "test"), test)
        parts = train, held, drawn
        result.append(
            Share(
                source,
                *parts,
                None if len(kind.counts) == 1 else group,
                kind.angles[group] if kind.angles else 0,
                kind.names[group] if kind.names else np.arange(classes),
                labels,
                _size_notes(sets[source], parts, validation, test, chosen=not written),
            )
        )
    return _ensure_validation(result, sets, seed) if validation else result


def _shift(sets: Sequence[ImageSet], n_nodes: int, classes: int, streams: RandomStreams, table: Mapping[str, Any]) -> Shift:
    factory, options = choose("task.shift", table, SHIFTS)
    given: dict[str, Any] = {"n_nodes": n_nodes, "n_classes": classes, "rng": streams.generator(0, "shift")}
    if factory is SHIFTS["domain"]:
        if len(sets) < 2:
            raise ConfigurationError("the shift domain needs several data sets, such as data = ['mnist', 'fashion-mnist']")
        if len({id(data.train.x) for data in sets}) < len(sets):
            raise ConfigurationError("the shift domain needs different data sets: no two nodes train on the same image")
        shapes = {data.name: list(data.train.x.shape[1:]) for data in sets}
        if len({str(shape) for shape in shapes.values()}) > 1:
            raise ConfigurationError(f"the shift domain needs data sets of one shape, got {shapes}")
        given["sets"] = len(sets)
    elif len(sets) > 1:
        raise ConfigurationError('several data sets need shift = { name = "domain" }')
    shift: Shift = build("task.shift", factory, options, **given)
    return shift


def _partition(
    sets: Sequence[ImageSet], shift: Shift, n_nodes: int, streams: RandomStreams, table: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return each node's indices into the training part of its data set."""
    factory, options = choose("task.partition", table, PARTITIONS)
    counts = np.array(shift.counts)
    pools: list[tuple[ImageSet, np.ndarray, int]] = []
    if shift.classes is not None:
        labels = sets[0].train.y
        found = class_pools(labels, shift.classes, counts, streams.generator(0, "pools"))
        pools = [(sets[0], pool, count) for pool, count in zip(found, shift.counts, strict=True)]
    elif shift.sources is not None:
        pools = [(data, np.arange(len(data.train.y)), count) for data, count in zip(sets, shift.counts, strict=True)]
    else:
        pools = [(sets[0], np.arange(len(sets[0].train.y)), n_nodes)]
    shares = []
    for k, (data, pool, count) in enumerate(pools):
        if not count:
            continue
        given = {"labels": data.train.y[pool], "n_nodes": count, "rng": streams.generator(0, f"partition/{k}")}
        if factory is PARTITIONS["writer"]:
            given["writers"] = None if data.train.writers is None else data.train.writers[pool]
        shares += [pool[share] for share in build("task.partition", factory, options, **given)]
    return shares


def _by_writer(data: ImageSet) -> dict[int, np.ndarray]:
    """Return the indices of the test images of each writer, sorted.

    Raises:
        ConfigurationError: the data set does not record its writers.
    """
    if data.test.writers is None:
        raise ConfigurationError(f'task.test_classes "writers": the data set {data.name!r} does not name its writers')
    order = np.argsort(data.test.writers, kind="stable")
    names, starts = np.unique(data.test.writers[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))


def _test_of_writers(node: int, data: ImageSet, share: np.ndarray, written: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the test images of the writers of a share; sorted indices."""
    own = [] if data.train.writers is None else np.unique(data.train.writers[share]).tolist()
    found = [written[name] for name in own if name in written]
    if not found:
        raise ConfigurationError(
            f'task.test_classes "writers": no writer of node {node} has test images in {data.name!r}; make the data set with'
            ' "-t sample", or set task.test_classes = "own"'
        )
    return np.sort(np.concatenate(found))


def _check_labels(sets: Sequence[ImageSet]) -> None:
    """Raise ConfigurationError if no training image of a set has the label of a test image, which no node would draw."""
    for data in sets:
        unknown = np.setdiff1d(data.test.y, data.train.y)
        if len(unknown):
            raise ConfigurationError(
                f"the data set {data.name!r} has test images of the label {unknown[0]}, but no training image of it; leave"
                ' these images out, or set task.test_classes = "all"'
            )


def _size_notes(
    data: ImageSet, parts: tuple[np.ndarray, np.ndarray, np.ndarray], validation: float, test: int, *, chosen: bool
) -> tuple[str, ...]:
    """Return notes on splits of a node that are smaller than requested; `chosen` if the test samples have proportions."""
    train, held, drawn = parts
    notes = []
    if validation >= 1 and len(held) < validation:
        notes.append(f"validated on {len(held):,} images, not {validation:,g}, because half of its share is for training")
    own = data.test.y[np.isin(data.test.y, data.train.y[train])]
    if not chosen:
        if len(drawn) < test:
            notes.append(f"tested on {len(drawn):,} of {test:,} test images: its writers have no more")
    elif len(drawn) < (test or min(FEW, len(own) // 10)):
        labels, counts = np.unique(own, return_counts=True)
        rarest = f", and only {counts.min():,} have the label {labels[counts.argmin()]}" if len(labels) else ""
        notes.append(
            f"tested on {len(drawn):,} of {test or len(data.test.y):,} test images, which have the proportions of its"
            f" training labels{rarest}"
        )
    return tuple(notes)


def _ensure_validation(shares: list[Share], sets: Sequence[ImageSet], seed: int) -> list[Share]:
    """Give each node without validation samples one that no node trains on and whose class the node has, if there is one.

    An unused sample is preferred to one on which another node is validated.
    """
    result = list(shares)
    for source, data in enumerate(sets):
        lacking = [k for k, share in enumerate(shares) if share.source == source and not len(share.validation)]
        if not lacking:
            continue
        near = [share for share in shares if share.source == source]
        free = np.ones(len(data.train.y), bool)
        free[np.concatenate([share.train for share in near])] = False
        held = np.zeros(len(data.train.y), bool)
        held[np.concatenate([share.validation for share in near])] = True
        for k in lacking:
            own = free & np.isin(data.train.y, data.train.y[shares[k].train])
            choices = np.flatnonzero(own & ~held) if (own & ~held).any() else np.flatnonzero(own)
            if len(choices):
                rng = RandomStreams(seed, f"images/{k}").generator(0, "validation")
                result[k] = replace(shares[k], validation=choices[[rng.integers(len(choices))]])
    return result


@dataclass(frozen=True)
class Shift:
    """Differences between the groups. None means that there is no difference.

    Attributes:
        counts: number of nodes in each group.
        angles: rotation of the images of each group, in degrees, counter-clockwise.
        classes: the classes of each group.
        names: int64 [classes] for each group: its label for each class.
        sources: index of the data set of each group.
    """

    counts: tuple[int, ...]
    angles: tuple[float, ...] | None = None
    classes: tuple[tuple[int, ...], ...] | None = None
    names: tuple[np.ndarray, ...] | None = None
    sources: tuple[int, ...] | None = None

    @property
    def groups(self) -> np.ndarray:
        """Group of each node, int64 [n_nodes]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def none(n_nodes: int, n_classes: int, rng: Rng) -> Shift:
    """Return no shift: all nodes are alike."""
    return Shift((n_nodes,))


def rotation(
    n_nodes: int, n_classes: int, rng: Rng, *, angles: Sequence[float] = (0, 90, 180, 270), sizes: Sequence[float] = ()
) -> Shift:
    """Return a covariate shift: each group's images are rotated by one angle, in degrees; see `transforms.rotate`."""
    if not all(isfinite(angle) for angle in angles):
        raise ConfigurationError(f"task.shift.angles must be finite, got {list(angles)}")
    return Shift(_counts(n_nodes, len(angles), sizes), angles=tuple(angles))


def label_groups(
    n_nodes: int, n_classes: int, rng: Rng, *, groups: Sequence[Sequence[int]], sizes: Sequence[float] = ()
) -> Shift:
    """Return a label shift: each group has its own classes; see `label_partition.class_pools`."""
    return Shift(_counts(n_nodes, len(groups), sizes), classes=tuple(tuple(group) for group in groups))


def concept(n_nodes: int, n_classes: int, rng: Rng, *, groups: int = 0, sizes: Sequence[float] = ()) -> Shift:
    """Return a concept shift: each group permutes the labels of the classes; group 0 has the true ones.

    Args:
        groups: number of groups; by default the length of `sizes`.
        sizes: relative numbers of nodes in the groups.
    """
    if groups < 0:
        raise ConfigurationError(f"task.shift.groups must be 0 or more, got {groups}")
    count = groups or len(sizes) or 2
    return Shift(_counts(n_nodes, count, sizes), names=_names(n_classes, count, rng))


def label_permutation(
    n_nodes: int,
    n_classes: int,
    rng: Rng,
    *,
    share: float | None = None,
    nodes: int | None = None,
    permutation: Literal["common", "own"] = "common",
) -> Shift:
    """Return a shift in which the last nodes have permuted labels, in training, validation and test alike.

    DPFL's experiment (Kharrat et al., section 5.3: 40 of 100, with one permutation).

    Args:
        share: fraction of the nodes, rounded to whole nodes; or
        nodes: number of nodes.
        permutation: `common` makes one group of them, with one permutation; `own` gives each of them its own
            permutation, so that each is a group.
    """
    if (share is None) == (nodes is None):
        raise ConfigurationError("task.shift needs either `share` or `nodes`: how many have permuted labels")
    count = round((share or 0) * n_nodes) if nodes is None else nodes
    if not 0 <= count <= n_nodes:
        raise ConfigurationError(f"task.shift: {count} of {n_nodes} nodes cannot have permuted labels")
    if permutation == "common":
        return Shift((n_nodes - count, count), names=_names(n_classes, 2, rng))
    return Shift((n_nodes - count, *[1] * count), names=_names(n_classes, 1 + count, rng))


def domain(
    n_nodes: int,
    n_classes: int,
    rng: Rng,
    *,
    sets: int,
    sizes: Sequence[float] = (),
    labels: Literal["shared", "apart"] = "shared",
) -> Shift:
    """Return a domain shift: each group has its own data set.

    Args:
        sets: number of data sets.
        sizes: relative numbers of nodes in the groups.
        labels: `shared` numbers the classes of each set from 0. `apart` numbers the classes of all sets consecutively
            (the 20 labels of Listo Zec et al., table 8), so that a model also distinguishes the sets.
    """
    names = tuple(np.arange(n_classes) + k * n_classes for k in range(sets)) if labels == "apart" else None
    return Shift(_counts(n_nodes, sets, sizes), names=names, sources=tuple(range(sets)))


SHIFTS = {
    "none": none,
    "rotation": rotation,
    "label-groups": label_groups,
    "concept": concept,
    "label-permutation": label_permutation,
    "domain": domain,
}


def _counts(n_nodes: int, n_groups: int, sizes: Sequence[float]) -> tuple[int, ...]:
    return tuple(group_sizes(n_nodes, n_groups, sizes).tolist())


def _names(n_classes: int, count: int, rng: Rng) -> tuple[np.ndarray, ...]:
    """Return the identity, and permutations that differ from it and, if there are enough, from each other."""
    names = [np.arange(n_classes)]
    tries = 0
    while len(names) < count:
        other = rng.permutation(n_classes)
        tries += 1
        if tries > 100 * count or not any((other == known).all() for known in names):
            names.append(other)
    return tuple(names)
