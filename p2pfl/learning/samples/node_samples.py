"""Samples of one node as tensors, from the data that a user gives to a task."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from p2pfl._util.shared_work import once
from p2pfl.data.partition.partitioner import Partition, check_test
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.learning.samples.datasets import Columns, Source, read_source, take
from p2pfl.learning.samples.numeric import Array, Labels
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

Pairs = Mapping[Split, tuple[Array, Array]]

WHOLE = 2.0**53  # greatest number up to which floats are exact
FAR = 50  # times as great: inputs of two splits that are scaled differently


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


class NodeData(NamedTuple):
    """Samples of a node, and what the user should know of them.

    Attributes:
        samples: by split.
        facts: how each source was understood.
        notes: sentences about the node's splits.
        held_out: splits that were drawn from the training samples.
    """

    samples: Mapping[Split, NodeSamples]
    facts: tuple[DataFacts, ...]
    notes: tuple[str, ...]
    held_out: tuple[Split, ...]


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


def node_samples(train: Any, validation: Any, test: Any, kind: torch.dtype, division: Division) -> NodeData:
    """Return the samples of a node, with targets of a type.

    Samples that are held out are drawn from the seed. Without a partition, all nodes with equally many samples hold out
    the same positions, so that nodes with the same samples do not train on what the others test.

    Args:
        train: samples; see p2pfl.learning.samples.datasets.read_source.
        validation, test: samples; None; or a number of training samples to hold out, or a fraction of them.
        kind: int64 for classes, float32 for numbers.

    Raises:
        ConfigurationError: the samples are invalid, or cannot be divided so.
    """
    given: Mapping[Split, Any] = {"train": train, "validation": validation, "test": test}
    sizes = {split: size for split, size in given.items() if isinstance(size, int | float)}
    sources: dict[Split, Source] = {
        split: read_source(split, data, division.columns, division.labels)
        for split, data in given.items()
        if data is not None and split not in sizes
    }
    if "train" not in sources:
        raise ConfigurationError(f"train must be samples, got {train!r:.60}")
    pairs: Pairs = {split: (source.x, source.y) for split, source in sources.items()}
    if kind == torch.int64:
        for split, (_, y) in pairs.items():
            _check_whole(split, y)
    notes = _one_class(pairs["train"][1]) if kind == torch.int64 else []
    chosen = {split: _Chosen(split) for split in pairs}
    if division.partition is not None:
        chosen |= _divide(pairs, division.partition, division, kind, notes)
    n = len(pairs["train"][0]) if (own := chosen["train"].places) is None else len(own)
    chosen |= _hold_out(n, chosen["train"], sizes, division, notes)
    samples = {split: _samples(pairs, chosen[split], kind) for split in given if split in chosen}
    for found in samples.values():
        _check_finite(found)
    notes += _range_notes(samples)
    facts = tuple(source.facts for source in sources.values() if source.facts is not None)
    return NodeData(samples, facts, tuple(notes), tuple(split for split, size in sizes.items() if size))


def _check_whole(split: Split, y: Array) -> None:
    """Raise ConfigurationError if class numbers are not whole."""
    values = torch.as_tensor(y)
    if values.is_floating_point() and not (whole := (values == values.floor()) & (values.abs() <= WHOLE)).all():
        first = int((~whole).nonzero()[0, 0])
        raise ConfigurationError(
            f"{split} data: target {first} is {float(values[first].flatten()[0]):g}; a class must be a whole number from 0"
        )


def _one_class(y: Array) -> list[str]:
    """Return a note if all targets are one class, which any module learns."""
    values = torch.as_tensor(y)
    if len(values) < 2 or values.ndim != 1 or (values != values[0]).any():
        return []
    return [f"train data: all targets are class {int(values[0])}"]


def _divide(
    pairs: Pairs, partition: Partition, division: Division, kind: torch.dtype, notes: list[str]
) -> dict[Split, _Chosen]:
    """Return the training and test samples of one node, out of those of all nodes."""
    if not isinstance(partition, Partition):
        raise ConfigurationError(f'partition must be a rule such as p2pfl.partition("iid"), got {partition!r:.60}')
    part, seed = division.part, division.seed
    if part is None:
        raise ConfigurationError("partition needs the part and the seed of the task function: part=part, seed=seed")
    classes = kind == torch.int64
    if not classes and partition.needs_classes:
        raise ConfigurationError("this partition needs classes; a regression can be divided by iid or quantity")
    labels = {split: _labels(y) if classes else np.zeros(len(y), np.int64) for split, (_, y) in pairs.items()}
    index: dict[Split, np.ndarray] = {"train": partition.train(labels["train"], part, seed)}
    if "test" in pairs and partition.judged_on == "own" and classes:
        index["test"] = partition.test(labels["train"][index["train"]], labels["test"], part, seed)
        if note := check_test(labels["train"], labels["test"], index["train"], index["test"]):
            warnings.warn(note, stacklevel=2)
            notes.append(note)
    return {split: _Chosen(split, places) for split, places in index.items()}


def _labels(y: Array) -> np.ndarray:
    labels = torch.as_tensor(y).to(torch.int64).numpy()
    if labels.ndim != 1:
        raise ConfigurationError(
            f"a partition needs class numbers [n], got targets of shape {list(labels.shape)}"
            f"{without_extra_dimension(labels.shape)}"
        )
    return labels


def _hold_out(
    n: int, train: _Chosen, sizes: Mapping[Split, float], division: Division, notes: list[str]
) -> dict[Split, _Chosen]:
    """Return the splits for which only a number is given, out of n training samples, and the remaining ones."""
    rest = 1.0
    for split, size in sizes.items():
        if isinstance(size, bool) or not (0 <= size <= rest / 2 or (isinstance(size, int) and size >= 1)):
            raise ConfigurationError(
                f"{split} must be samples, a whole number, or a fraction of at most {rest / 2:g}, got {size!r}"
            )
        rest -= size if size < 1 else 0
    divided = division.partition is not None and division.part is not None
    name = f"samples/{division.part.index}" if divided and division.part is not None else "samples"
    order = RandomStreams(division.seed, name).generator(0, "splits").permutation(n) if sizes else np.arange(0)
    found: dict[Split, _Chosen] = {}
    for split, size in sizes.items():
        held = round(size * n) if size < 1 else int(size)
        kept = min(max(held, 1), len(order) // 2) if size else 0
        if kept < held or (size and not kept):
            asked = f"{size:,}" if size >= 1 else f"a fraction of {size:g}"
            notes.append(
                f"{split}: {kept:,} samples are held out, not {asked}; at least half of {len(order):,} must remain for"
                " training"
            )
        found[split], order = train.part(np.sort(order[:kept])), order[kept:]
    return found | ({"train": train.part(np.sort(order))} if sizes else {})


def _samples(pairs: Pairs, chosen: _Chosen, kind: torch.dtype) -> NodeSamples:
    """Return a node's samples; nodes with the same samples of one array share the tensors."""
    x, y = pairs[chosen.source]
    places = chosen.places
    if places is not None:
        key = ("taken", id(x), id(y), places.tobytes())
        x, y, *_ = once(key, lambda: (take(x, places), take(y, places), *pairs[chosen.source]))
    inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
    return NodeSamples(inputs.float() if inputs.is_floating_point() else inputs, targets.to(kind), *chosen)


def _range_notes(samples: Mapping[Split, NodeSamples]) -> list[str]:
    """Return a note on inputs whose size differs very much from that of the training inputs, as pixels and pixels / 255."""
    if not any(each.x.is_floating_point() for each in samples.values()):
        return []  # whole numbers, such as places in an embedding
    sizes = {split: size for split, each in samples.items() if (size := _size(each.x))}
    return [
        f"{split} data: inputs are more than {FAR} times as {'great' if size > sizes['train'] else 'small'} as those of the"
        " training data; scale both alike"
        for split, size in sizes.items()
        if "train" in sizes and max(size, sizes["train"]) > FAR * min(size, sizes["train"])
    ]


def _size(x: Tensor) -> float:
    """Return the greatest absolute value of inputs; 0 if there is none."""
    if not x.numel() or x.dtype == torch.bool:
        return 0.0
    least, greatest = once((_size,), lambda: torch.stack(x.aminmax()).tolist(), x)
    return float(max(abs(least), abs(greatest)))


def without_extra_dimension(shape: Sequence[int]) -> str:
    """Return the remedy for targets that are columns or one-hot vectors instead of class numbers."""
    if len(shape) == 2:
        return "; for a column take y.reshape(-1)" if shape[1] == 1 else "; for one-hot vectors take y.argmax(1)"
    return ""


def _check_finite(samples: NodeSamples) -> None:
    for what, values in (("input", samples.x), ("target", samples.y)):
        if (first := first_not_finite(values)) is not None:
            raise ConfigurationError(f"{samples.name(what, first)} is not finite (NaN, infinite, or too large for float32)")


def first_not_finite(values: Tensor) -> int | None:
    """Return the first sample with a value that is not finite; None if there is none."""
    if not values.is_floating_point():
        return None
    return once((first_not_finite,), lambda: _first_not_finite(values), values)


def _first_not_finite(values: Tensor) -> int | None:
    finite = values.isfinite()
    return None if finite.all() else int((~finite).nonzero()[0, 0])
