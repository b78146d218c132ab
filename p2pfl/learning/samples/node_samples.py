"""Samples of one node as tensors, from the data that a user gives to a task."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from p2pfl.data.partition.partitioner import Partition
from p2pfl.errors import ConfigurationError
from p2pfl.learning.samples.datasets import Array, Columns, read_samples, take
from p2pfl.learning.samples.labels import Labels
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.system.shared_work import once
from p2pfl.task import Part

Pairs = Mapping[Split, tuple[Array, Array]]

FEW = 20  # test samples of a node, below which a warning names the reason


class NodeSamples(NamedTuple):
    """Samples of a node, and their places in the data that the user gave.

    Attributes:
        x, y: inputs [n, ...] and targets [n, ...].
        source: the split of the data; that of held-out samples is "train".
        places: their positions in it, int64 [n]; None if they are all of it, in order.
    """

    x: Tensor
    y: Tensor
    source: Split
    places: np.ndarray | None = None

    def name(self, what: str, k: int) -> str:
        """Return the name of a value for an error, such as "train data: input 3", by its place in the user's data."""
        return f"{self.source} data: {what} {k if self.places is None else self.places[k]}"


class Division(NamedTuple):
    """Choice of a node's samples.

    Attributes:
        partition: rule that divides the samples among the nodes; None if all are this node's.
        part: the node; required with a partition.
        seed: seed of the draws.
        columns, labels: see p2pfl.learning.samples.datasets.read_samples.
    """

    partition: Partition | None = None
    part: Part | None = None
    seed: int = 0
    columns: Columns | None = None
    labels: Labels | None = None


class _Chosen(NamedTuple):
    """Samples that a node takes from the data of a split; None for all of them."""

    source: Split
    places: np.ndarray | None = None

    def part(self, places: np.ndarray) -> _Chosen:
        """Return some of these samples."""
        return _Chosen(self.source, places if self.places is None else self.places[places])


def node_samples(train: Any, validation: Any, test: Any, kind: torch.dtype, division: Division) -> dict[Split, NodeSamples]:
    """Return the samples of a node by split, with targets of a type.

    Args:
        train: samples; see p2pfl.learning.samples.datasets.read_samples.
        validation, test: samples; None; or a number of training samples to hold out, or a fraction of them.
        kind: int64 for classes, float32 for numbers.

    Raises:
        ConfigurationError: the samples are invalid, or cannot be divided so.
    """
    given: Mapping[Split, Any] = {"train": train, "validation": validation, "test": test}
    sizes = {split: size for split, size in given.items() if isinstance(size, int | float)}
    pairs: Pairs = {
        split: read_samples(split, data, division.columns, division.labels)
        for split, data in given.items()
        if data is not None and split not in sizes
    }
    if "train" not in pairs:
        raise ConfigurationError(f"train must be samples, got {train!r}")
    if kind == torch.int64:
        for split, (_, y) in pairs.items():
            _check_whole(split, y)
    chosen = {split: _Chosen(split) for split in pairs}
    if division.partition is not None:
        chosen |= _divide(pairs, division.partition, division.part, division.seed, kind)
    n = len(pairs["train"][0]) if (own := chosen["train"].places) is None else len(own)
    chosen |= _hold_out(n, chosen["train"], sizes, division)
    samples = {split: _samples(pairs, chosen[split], kind) for split in given if split in chosen}
    for found in samples.values():
        _check_finite(found)
    return samples


def _check_whole(split: Split, y: Array) -> None:
    """Raise ConfigurationError if class numbers are not whole."""
    values = torch.as_tensor(y)
    if values.is_floating_point() and not (whole := values == values.floor()).all():
        first = int((~whole).nonzero()[0, 0])
        raise ConfigurationError(
            f"{split} data: target {first} is {float(values[first].flatten()[0]):g}; a class must be a whole number from 0"
        )


def _divide(pairs: Pairs, partition: Partition, part: Part | None, seed: int, kind: torch.dtype) -> dict[Split, _Chosen]:
    """Return the training and test samples of one node, out of those of all nodes."""
    if not isinstance(partition, Partition):
        raise ConfigurationError(f'partition must be a rule such as p2pfl.partition("iid"), got {partition!r:.60}')
    if part is None:
        raise ConfigurationError("partition needs the part and the seed of the task function: part=part, seed=seed")
    classes = kind == torch.int64
    if not classes and partition.needs_classes:
        raise ConfigurationError("this partition needs classes; a regression can be divided by iid or quantity")
    labels = {split: _labels(y) if classes else np.zeros(len(y), np.int64) for split, (_, y) in pairs.items()}
    index: dict[Split, np.ndarray] = {"train": partition.train(labels["train"], part, seed)}
    if "test" in pairs and partition.judged_on == "own" and classes:
        index["test"] = partition.test(labels["train"][index["train"]], labels["test"], part, seed)
        _check_test(labels, index)
    return {split: _Chosen(split, places) for split, places in index.items()}


def _check_test(labels: Mapping[Split, np.ndarray], index: Mapping[Split, np.ndarray]) -> None:
    """Check the test samples that a node draws in the proportions of its training labels.

    Args:
        labels: the labels of all nodes' samples.
        index: the samples of the node.

    Raises:
        ConfigurationError: no training sample has the label of a test sample, which no node would draw.
    """
    unknown = np.flatnonzero(~np.isin(labels["test"], labels["train"]))
    if len(unknown):
        raise ConfigurationError(
            f"test data: target {unknown[0]} is {labels['test'][unknown[0]]}, which no training sample has; leave such"
            ' samples out, or use p2pfl.partition(..., judged_on="all")'
        )
    drawn, own = len(index["test"]), np.isin(labels["test"], labels["train"][index["train"]])
    if drawn < FEW and drawn < own.sum() / 10:
        classes, counts = np.unique(labels["test"][own], return_counts=True)
        rarest = int(counts.argmin())
        warnings.warn(
            f"a node is tested on {drawn} of {len(own)} test samples, because its test samples have the proportions of its"
            f" training labels, and only {counts[rarest]} of class {classes[rarest]}; for all test samples use"
            ' p2pfl.partition(..., judged_on="all")',
            stacklevel=2,
        )


def _labels(y: Array) -> np.ndarray:
    labels = torch.as_tensor(y).to(torch.int64).numpy()
    if labels.ndim != 1:
        raise ConfigurationError(f"a partition needs class numbers [n], got targets of shape {list(labels.shape)}")
    return labels


def _hold_out(n: int, train: _Chosen, sizes: Mapping[Split, float], division: Division) -> dict[Split, _Chosen]:
    """Return the splits for which only a number is given, out of n training samples, and the remaining ones."""
    rest = 1.0
    for split, size in sizes.items():
        if isinstance(size, bool) or not (0 <= size <= rest / 2 or (isinstance(size, int) and size >= 1)):
            raise ConfigurationError(
                f"{split} must be samples, a whole number, or a fraction of at most {rest / 2:g}, got {size!r}"
            )
        rest -= size if size < 1 else 0
    name = "samples" if division.part is None else f"samples/{division.part.index}"
    order = RandomStreams(division.seed, name).generator(0, "splits").permutation(n) if sizes else np.arange(0)
    found: dict[Split, _Chosen] = {}
    for split, size in sizes.items():
        held = round(size * n) if size < 1 else int(size)
        held = min(max(held, 1), len(order) // 2) if size else 0
        found[split], order = train.part(np.sort(order[:held])), order[held:]
    return found | ({"train": train.part(np.sort(order))} if sizes else {})


def _samples(pairs: Pairs, chosen: _Chosen, kind: torch.dtype) -> NodeSamples:
    x, y = pairs[chosen.source]
    if chosen.places is not None:
        x, y = take(x, chosen.places), take(y, chosen.places)
    inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
    return NodeSamples(inputs.float() if inputs.is_floating_point() else inputs, targets.to(kind), *chosen)


def _check_finite(samples: NodeSamples) -> None:
    for what, values in (("input", samples.x), ("target", samples.y)):
        if (first := first_not_finite(values)) is not None:
            raise ConfigurationError(f"{samples.name(what, first)} is not finite (NaN or infinite)")


def first_not_finite(values: Tensor) -> int | None:
    """Return the first sample with a value that is not finite; None if there is none."""
    return once((first_not_finite, values), lambda: _first_not_finite(values)) if values.is_floating_point() else None


def _first_not_finite(values: Tensor) -> int | None:
    finite = values.isfinite()
    return None if finite.all() else int((~finite).nonzero()[0, 0])
