"""scikit-learn's handwritten digits (1,797 images of 8 x 8) with a small MLP. The task needs no data file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from p2pfl.data.image_sets import file, read
from p2pfl.errors import ConfigurationError
from p2pfl.learning.dense import DenseNetwork, DenseTask
from p2pfl.learning.optimizers import SGD
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task
from p2pfl.tasks.mlp import as_tensors, has_torch, mlp

if TYPE_CHECKING:
    from torch import nn

    from p2pfl.learning.task_stack import TaskStack

CLASSES = 10


def inputs(options: Mapping[str, Any]) -> list[Path]:
    """Return the file that the task reads."""
    return [] if (path := file()) is None else [path]


def digits(
    part: Part,
    seed: int,
    *,
    labels: int = CLASSES,
    samples: int = 0,
    shared: bool = False,
    judged_on: Literal["own", "all"] = "own",
    hidden: int = 64,
    lr: float = 0.05,
    momentum: float = 0.9,
    batch_size: int = 4,
    private: Literal["", "head"] = "",
) -> Task:
    """Digits, divided among the nodes; an MLP 64-hidden-10 with ReLU, trained by SGD.

    80 % of the images are for training, 10 % for validation, 10 % for test. The training images of a label are divided
    among the nodes that have the label; no image is on two nodes. A node is validated and tested on the images of its
    labels (see judged_on), which it shares with the other nodes that have them.

    Args:
        labels: number of labels of each node, of ten.
        samples: maximum number of training images of a node; 0 takes an equal share of all.
        shared: each node draws its `samples` images independently, for more nodes than there are images.
        judged_on: the labels of the images for validation and test: the node's `own` (default), or `all` ten. With
            `all`, a node with few labels can learn most of them only from others.
        hidden: width of the hidden layer.
        lr, momentum: learning rate and momentum of SGD.
        batch_size: samples in one step of the optimiser.
        private: "head" keeps the last layer on its node; the layers before it are shared.
    """
    if not 1 <= labels <= CLASSES:
        raise ConfigurationError(f"task.labels must be from 1 to {CLASSES}, got {labels}")
    if samples < 0 or hidden < 1:
        raise ConfigurationError("task.samples must be 0 or more and task.hidden 1 or more")
    own = node_labels(seed, part.count, labels)[part.index]
    tested = tuple(range(CLASSES)) if judged_on == "all" else own
    if shared and not samples:
        raise ConfigurationError("task.shared needs task.samples, the number of images that each node draws")
    x, y, _ = digit_images(seed)
    if shared:
        pool = _pool_of(seed, "train", own)
        train = RandomStreams(seed, f"digits {part.index}").generator(0, "images").permutation(pool)[:samples]
    else:
        train = digit_shares(seed, part.count, labels)[part.index][: samples or None]
    if not len(train):
        raise ConfigurationError(
            f"{part.count} nodes are too many for the digits: node {part.index} has no image to train on; with"
            " task.shared = true, nodes may have the same ones"
        )
    data: dict[Split, tuple[Any, Any]] = {
        "train": as_tensors(x[train], y[train]),
        "validation": _pool(seed, "validation", tested),
        "test": _pool(seed, "test", tested),
    }
    facts = {"labels": ",".join(map(str, own))}
    return _task(hidden, data, private, optimizer=SGD(lr, momentum), batch_size=batch_size, public_info=facts)


def _digits_of_all(first: Task, count: int, seed: int, **options: Any) -> TaskStack | None:
    """Return the tasks of all nodes that draw their images from all training images, as rows of these."""
    from p2pfl.learning.batched_training import StackedData
    from p2pfl.learning.task_stack import TaskStack
    from p2pfl.learning.torch_task import TorchTask

    if not (isinstance(first, TorchTask) and options.get("shared") and options.get("labels", CLASSES) == CLASSES):
        return None
    x, y, splits = digit_images(seed)
    pool, own = splits["train"], first.n_samples
    index = np.empty((count, own), np.int64)
    for k in range(count):
        index[k] = RandomStreams(seed, f"digits {k}").generator(0, "images").permutation(pool)[:own]
    counts, nothing = np.full(count, own), np.zeros(count, np.int64)
    data = {
        split: StackedData.of_rows(*samples, np.full(count, len(samples.x)), nothing)
        for split, samples in first.data.items()
    }
    data["train"] = StackedData.of_rows(*as_tensors(x, y), counts, np.arange(count) * own, index.ravel())
    return TaskStack.of(first, data, [first.public_info] * count)


digits.of_all = _digits_of_all  # type: ignore[attr-defined]


def _task(hidden: int, data: dict[Split, tuple[Any, Any]], private: str, **options: Any) -> Task:
    layers = ["2"] if private else []
    if not has_torch():
        return DenseTask(DenseNetwork((64, hidden, CLASSES), private=layers), data, **options)
    from p2pfl.learning.torch_task import classification

    return classification(_module(hidden), *data.values(), private=layers, **options)


@lru_cache(maxsize=8)
def _module(hidden: int) -> Callable[[], nn.Module]:
    """Return the factory of the MLP: the same object for all nodes, which therefore share a template."""
    return lambda: mlp((64, hidden, CLASSES))


@lru_cache(maxsize=8)
def digit_images(seed: int) -> tuple[np.ndarray, np.ndarray, dict[Split, np.ndarray]]:
    """Return all images (pixels from 0 to 1), their labels, and the indices of each split."""
    pixels, labels = read()
    order = RandomStreams(seed, "digits").generator(0, "splits").permutation(len(labels))
    train, validation, test = np.split(order, [int(0.8 * len(order)), int(0.9 * len(order))])
    x = (pixels / 16).astype(np.float32)
    return x, labels.astype(np.int64), {"train": train, "validation": validation, "test": test}


@lru_cache(maxsize=8)
def node_labels(seed: int, count: int, labels: int) -> list[tuple[int, ...]]:
    """Return the labels of each of `count` nodes: `labels` at every node, and each label at (nearly) as many nodes."""
    rng = RandomStreams(seed, "digits").generator(0, "labels")
    held = np.zeros(CLASSES, int)
    result = []
    for _ in range(count):
        order = np.lexsort((rng.random(CLASSES), held))[:labels]  # the labels on the fewest nodes, ties at random
        held[order] += 1
        result.append(tuple(sorted(order.tolist())))
    return result


@lru_cache(maxsize=8)
def digit_shares(seed: int, count: int, labels: int) -> list[np.ndarray]:
    """Return the training images of each node: the images of each label are divided equally among its nodes."""
    _, y, splits = digit_images(seed)
    train = splits["train"]
    if labels == CLASSES:  # every node has all labels: equal parts of a random order
        size = len(train) // count
        return [train[k * size : (k + 1) * size] for k in range(count)]
    owners = node_labels(seed, count, labels)
    shares: list[list[np.ndarray]] = [[] for _ in range(count)]
    for label in range(CLASSES):
        holders = [k for k in range(count) if label in owners[k]]
        images = train[y[train] == label]
        for k, images_of_k in zip(holders, np.array_split(images, len(holders)) if holders else [], strict=True):
            shares[k].append(images_of_k)
    rng = RandomStreams(seed, "digits").generator(0, "shares")
    return [rng.permutation(np.concatenate(share)) for share in shares]


@lru_cache(maxsize=512)
def _pool(seed: int, split: Split, labels: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the validation or test images of some labels, as tensors that all nodes with these labels share."""
    x, y, _ = digit_images(seed)
    index = _pool_of(seed, split, labels)
    return as_tensors(x[index], y[index])


@lru_cache(maxsize=512)
def _pool_of(seed: int, split: Split, labels: tuple[int, ...]) -> np.ndarray:
    """Return the indices of a split's images that have one of these labels."""
    _, y, splits = digit_images(seed)
    return splits[split][np.isin(y[splits[split]], labels)]
