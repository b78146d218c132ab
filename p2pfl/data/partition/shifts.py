"""Shifts between groups of nodes: in inputs, classes, labels of classes, or whole data sets.

The kinds are those of Listo Zec et al. (section 3.3). Groups are blocks of nodes: the first nodes are group 0. `sizes`
are proportions, scaled to the number of nodes by the largest remainder; equal by default. If there are at least as many
nodes as groups, no group is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

from p2pfl.data.partition.label_partition import group_sizes
from p2pfl.errors import ConfigurationError

Rng = np.random.Generator


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
