"""Samples of one node as tensors, from the data that a user gives to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from p2pfl.data.partition.partitioner import Partition
from p2pfl.errors import ConfigurationError
from p2pfl.learning.samples.datasets import Array, Columns, read_samples, take
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

Pairs = dict[Split, tuple[Array, Array]]
Tensors = dict[Split, tuple[Tensor, Tensor]]


class Division(NamedTuple):
    """Choice of a node's samples.

    Attributes:
        partition: rule that divides the samples among the nodes; None if all are this node's.
        part: the node; required with a partition.
        seed: seed of the draws.
        columns: see p2pfl.learning.samples.datasets.read_samples.
    """

    partition: Partition | None = None
    part: Part | None = None
    seed: int = 0
    columns: Columns | None = None


def node_samples(train: Any, validation: Any, test: Any, kind: torch.dtype, division: Division) -> Tensors:
    """Return the samples of a node by split: inputs [n, ...] and targets [n, ...] of a type.

    Args:
        train: samples; see p2pfl.learning.samples.datasets.read_samples.
        validation, test: samples; None; or a number of training samples to hold out, or below 1 a fraction of them.
        kind: int64 for classes, float32 for numbers.

    Raises:
        ConfigurationError: the samples are invalid, or cannot be divided so.
    """
    given: Mapping[Split, Any] = {"train": train, "validation": validation, "test": test}
    sizes = {split: size for split, size in given.items() if isinstance(size, int | float)}
    pairs: Pairs = {
        split: read_samples(split, data, division.columns)
        for split, data in given.items()
        if data is not None and split not in sizes
    }
    if "train" not in pairs:
        raise ConfigurationError(f"train must be samples, got {train!r}")
    if kind == torch.int64:
        for split, (_, y) in pairs.items():
            _check_whole(split, y)
    if division.partition is not None:
        _divide(pairs, division.partition, division.part, division.seed, kind)
    _hold_out(pairs, sizes, division)
    return {split: _tensors(*pairs[split], kind) for split in given if split in pairs}


def _check_whole(split: Split, y: Array) -> None:
    """Raise ConfigurationError if class numbers are not whole."""
    values = torch.as_tensor(y)
    if values.is_floating_point() and not (whole := values == values.floor()).all():
        first = int((~whole).nonzero()[0, 0])
        raise ConfigurationError(
            f"{split} data: target {first} is {float(values[first].flatten()[0]):g}; a class must be a whole number from 0"
        )


def _divide(pairs: Pairs, partition: Partition, part: Part | None, seed: int, kind: torch.dtype) -> None:
    """Replace the training and test samples of all nodes by those of one node."""
    if part is None:
        raise ConfigurationError("partition needs the part and the seed of the task function: part=part, seed=seed")
    classes = kind == torch.int64
    if not classes and partition.needs_classes:
        raise ConfigurationError("this partition needs classes; a regression can be divided by iid or quantity")
    labels = {split: _labels(y) if classes else np.zeros(len(y), np.int64) for split, (_, y) in pairs.items()}
    index: dict[Split, np.ndarray] = {"train": partition.train(labels["train"], part, seed)}
    if "test" in pairs and partition.judged_on == "own" and classes:
        index["test"] = partition.test(labels["train"][index["train"]], labels["test"], part, seed)
    for split, chosen in index.items():
        x, y = pairs[split]
        pairs[split] = take(x, chosen), take(y, chosen)


def _labels(y: Array) -> np.ndarray:
    labels = torch.as_tensor(y).to(torch.int64).numpy()
    if labels.ndim != 1:
        raise ConfigurationError(f"a partition needs class numbers [n], got targets of shape {list(labels.shape)}")
    return labels


def _hold_out(pairs: Pairs, sizes: Mapping[Split, float], division: Division) -> None:
    """Move training samples to the splits for which only a number is given."""
    for split, size in sizes.items():
        if not size >= 0 or (size >= 1 and size != int(size)):
            raise ConfigurationError(f"{split} must be samples, a whole number, or a fraction below 1, got {size!r}")
    x, y = pairs["train"]
    name = "samples" if division.part is None else f"samples/{division.part.index}"
    order = RandomStreams(division.seed, name).generator(0, "splits").permutation(len(x)) if sizes else np.arange(len(x))
    for split, size in sizes.items():
        held = round(size * len(x)) if size < 1 else int(size)
        held = min(max(held, 1), len(order) // 2) if size else 0
        chosen, order = np.sort(order[:held]), order[held:]
        pairs[split] = take(x, chosen), take(y, chosen)
    if sizes:
        rest = np.sort(order)
        pairs["train"] = take(x, rest), take(y, rest)


def _tensors(x: Array, y: Array, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
    return inputs.float() if inputs.is_floating_point() else inputs, targets.to(kind)
