"""Image classification on real data sets, divided among nodes, with optional shifts between groups of nodes.

A shift of inputs rotates or translates images, or adds noise; the area outside of an image is black.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from p2pfl._util.binding import build, choose
from p2pfl.content import found_paths
from p2pfl.data import image_sets as sets
from p2pfl.data.image_sets import ImageSet
from p2pfl.data.partition.assignment import Share, plan
from p2pfl.errors import ConfigurationError
from p2pfl.learning import image_models
from p2pfl.learning.image_models import MODELS
from p2pfl.learning.losses import CLASSIFICATION, metrics_of
from p2pfl.learning.modules import last_layer, make_module, norm_layers
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.parameters import Parameters
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

Table = Mapping[str, Any]
IID, NO_SHIFT, MLP, PLAIN_SGD = {"name": "iid"}, {"name": "none"}, {"name": "mlp"}, {"name": "sgd"}
AS_THEY_ARE: Table = {}
# Tensors that several nodes share. Each is held once, as long as a node uses it.
_common: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()
Rng = np.random.Generator
_AT_ONCE = 2048  # images in one block


@dataclass
class ImageTask(TorchTask):
    """A TorchTask that can start from a file.

    Attributes:
        start: parameters from the file.
        drawn: names of tensors that are still drawn from the seed.
    """

    start: Parameters | None = None
    drawn: tuple[str, ...] = ()

    def initial(self, seed: int) -> Parameters:
        drawn = (*self.drawn, *self.layout.local)
        if self.start is not None and not drawn:
            return self.start
        params = super().initial(seed)
        if self.start is None:
            return params
        tensors = self.layout.unflatten(self.start) | {name: self.layout.unflatten(params)[name] for name in drawn}
        return self.layout.flatten(tensors)


def inputs(options: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files and folders that the task reads."""
    data = options.get("data", "digits")
    for name in [data] if isinstance(data, str) else data:
        if name != "digits":
            yield from found_paths(sets.folders_of, name, options.get("root", ""))
        elif (path := sets.file()) is not None:
            yield path
    if initial := options.get("initial"):
        yield Path(initial)


def images(
    part: Part,
    seed: int,
    *,
    data: str | list[str] = "digits",
    root: str = "",
    samples: int = 0,
    validation: int | float = 0.2,
    test: int = 0,
    test_classes: Literal["own", "all", "writers"] = "own",
    partition: Table = IID,
    shift: Table = NO_SHIFT,
    augment: Table = AS_THEY_ARE,
    model: Table = MLP,
    optimizer: Table = PLAIN_SGD,
    batch_size: int = 16,
    initial: str = "",
    head: Literal["file", "new"] = "file",
    metrics: Sequence[str] = (),
    private: Literal["", "head", "norm"] = "",
) -> TorchTask:
    """Image classification on one or several data sets, with cross-entropy loss; reports accuracy.

    Training and validation samples come from a set's official training part, test samples from its official test part.
    No two nodes train on the same sample. Pixels are scaled to 0 to 1, then by the mean and standard deviation of each
    channel of the set. These are 0.1307 and 0.3081 for MNIST, 0.2860 and 0.3530 for Fashion-MNIST, and 0.3053 and
    0.3760 for digits. Those of the CIFAR sets are in p2pfl.data.image_sets; for FEMNIST and other sets they are computed
    from the training part.

    Args:
        data: a folder of the data root (data.images.registry), "digits" for scikit-learn's, or a list for a domain
            shift.
        root: the folder of the data sets; by default the environment variable P2PFL_DATA.
        samples: maximum number of training samples of a node; 0 is its whole share.
        validation: number of validation samples of a node, or a fraction of its samples; at most half of its share.
        test: maximum number of test samples of a node; 0 takes all available.
        test_classes: proportions of the classes in the test samples: those of the node's training labels (`own`), or those
            of the whole test part (`all`); `writers` takes the test samples of the writers whose images the node has.
        partition: { name = "iid" }, "dirichlet" (alpha), "pathological" (classes, alpha), "quantity" (alpha), "writer", or
            "clusters" (groups, sizes); see p2pfl.data.partition.label_partition.
        shift: { name = "none" }, "rotation" (angles, sizes), "label-groups" (groups, sizes), "concept" (groups, sizes),
            "label-permutation" (share or nodes, permutation), or "domain" (sizes, labels); see
            p2pfl.data.partition.assignment.
        augment: { shift = pixels, rotation = degrees, noise = deviation } makes all images harder, once, before the
            run; see p2pfl.tasks.images.
        model: { name = "linear" }, "mlp" (hidden, dropout, start), "cnn" (channels, kernel, dense, start), or
            "resnet18"; see p2pfl.learning.image_models.
        optimizer: { name = "sgd" } (lr, momentum, weight_decay, lasting, schedule), or "adam" or "adamw" (lr, betas,
            eps, weight_decay, lasting, schedule). `lasting = true` keeps its state over the rounds. schedule is
            { name = "cosine", rounds = 20 }, "linear", "step", "inverse" or "exponential"; see
            p2pfl.learning.schedules.
        batch_size: samples in one step of the optimiser.
        initial: a safetensors file with initial weights, instead of weights drawn from the seed.
        head: take the last layer from that `file` too, or draw it from the seed (`new`), for weights that were trained
            on other classes.
        metrics: further metrics besides accuracy: "f1", "auc", "balanced_accuracy".
        private: "head" keeps the last layer on its node; the layers before it are shared. "norm" keeps the normalisation
            layers.

    Raises:
        ConfigurationError: an option is invalid, or the data or the file cannot be used.
    """
    names = [data] if isinstance(data, str) else data
    if not names:
        raise ConfigurationError("task.data must name a data set")
    division = json.dumps([partition, shift, samples, validation, test, test_classes], sort_keys=True, default=str)
    loaded = tuple(sets.load(name, root) for name in names)
    share = _plan(loaded, division, part.count, seed)[part.index]
    source = loaded[share.source]
    make, options = choose("task.model", model, MODELS)
    module = partial(build, "task.model", make, options, shape=source.train.x.shape[1:], classes=share.labels)
    make_module(module)  # reports an invalid module early
    steps, how = choose("task.optimizer", optimizer, OPTIMIZERS)
    streams = RandomStreams(seed, f"images/{part.index}")
    splits: dict[Split, np.ndarray] = {"train": share.train, "validation": share.validation, "test": share.test}
    if not validation:
        del splits["validation"]
    task = ImageTask(
        module,
        {
            split: _samples(source, split, index, share=share, harder=augment, streams=streams)
            for split, index in splits.items()
        },
        optimizer=build("task.optimizer", steps, how),
        batch_size=batch_size,
        public_info={} if share.group is None else {"group": share.group},
        metrics=metrics_of(metrics, CLASSIFICATION),
        data_facts=() if source.name == "digits" else (source.facts,),
        data_notes=share.notes,
    )
    if private:
        task.private = last_layer(task.template) if private == "head" else norm_layers(task.template)
    if initial:
        task.drawn = last_layer(task.template) if head == "new" else ()
        task.start = image_models.load(initial, task.layout, (*task.drawn, *task.layout.local))
    return task


@lru_cache(maxsize=4)
def _plan(loaded: tuple[ImageSet, ...], division: str, count: int, seed: int) -> list[Share]:
    names = ("partition", "shift", "samples", "validation", "test", "test_classes")
    return plan(loaded, count, seed, **dict(zip(names, json.loads(division), strict=True)))


def _samples(
    source: ImageSet, split: Split, index: np.ndarray, *, share: Share, harder: Table, streams: RandomStreams
) -> Samples:
    """Return a node's samples as tensors; nodes with identical samples share the same tensors."""
    images = source.test if split == "test" else source.train
    which = (source, split == "test", index.tobytes())
    inputs = (*which, object() if harder else share.angle % 360)  # random augmentation is never shared
    targets = (*which, share.names.tobytes())
    x, y = _common.get(inputs), _common.get(targets)
    if x is None:
        rng = streams.generator(0, f"augment {split}")
        x = torch.from_numpy(_pixels(source, images.x[index], share.angle, harder, rng))
    if y is None:
        y = torch.from_numpy(share.names[images.y[index]])
    _common[inputs], _common[targets] = x, y
    return Samples(x, y)


def _pixels(source: ImageSet, x: np.ndarray, angle: float, harder: Table, rng: np.random.Generator) -> np.ndarray:
    """Return images as the model's input: float32 [n, c, h, w], rotated, augmented and normalised."""
    values = rotate(x.astype(np.float32) / np.float32(source.top), angle)
    if harder:
        values = build("task.augment", augment, harder, x=values, rng=rng)
    mean, std = (np.array(moment, np.float32)[:, None, None] for moment in (source.mean, source.std))
    result: np.ndarray = (values - mean) / std
    return result


def rotate(x: np.ndarray, degrees: float) -> np.ndarray:
    """Rotate images counter-clockwise about their centre.

    Args:
        x: float32 [n, c, h, w].
        degrees: multiples of 90 are exact; for other angles pixels are interpolated (bilinear).

    Raises:
        ConfigurationError: the images are not square and the angle is an odd multiple of 90.
    """
    if degrees % 90 == 0:
        quarters = int(degrees // 90) % 4
        if quarters % 2 and x.shape[2] != x.shape[3]:
            raise ConfigurationError(
                f"images of {x.shape[2]} x {x.shape[3]} pixels cannot be rotated by {degrees:g} degrees"
            )
        return np.ascontiguousarray(np.rot90(x, quarters, (2, 3)))
    n = len(x)
    return _rotate_and_shift(x, np.full(n, degrees), np.zeros((n, 2)))


def augment(x: np.ndarray, rng: Rng, *, shift: int = 0, rotation: float = 0.0, noise: float = 0.0) -> np.ndarray:
    """Augment each image randomly: rotate and move it, add noise, then clip it to the range 0 to 1.

    Args:
        x: float32 [n, c, h, w], values from 0 to 1.
        rng: the generator of the augmentation.
        shift: maximum translation in whole pixels, in each direction.
        rotation: maximum rotation in degrees.
        noise: standard deviation of the normal noise of each value.
    """
    if shift < 0 or not all(isfinite(value) and value >= 0 for value in (rotation, noise)):
        raise ConfigurationError("task.augment: shift, rotation and noise must be 0 or more, and finite")
    if shift or rotation:
        angles = rng.uniform(-rotation, rotation, len(x))
        x = _rotate_and_shift(x, angles, rng.integers(-shift, shift, (len(x), 2), endpoint=True))
    if noise:
        x = x + rng.standard_normal(x.shape, np.float32) * np.float32(noise)
    result: np.ndarray = np.clip(x, 0, 1)
    return result


def _rotate_and_shift(x: np.ndarray, degrees: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Rotate and then move each image, with bilinear interpolation between the four nearest source pixels."""
    blocks = range(0, len(x), _AT_ONCE)
    parts = [_rotate_and_shift_block(*(a[k : k + _AT_ONCE] for a in (x, degrees, shifts))) for k in blocks]
    return np.concatenate(parts) if parts else x


def _rotate_and_shift_block(x: np.ndarray, degrees: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    n, _, h, w = x.shape
    angle = np.radians(degrees)[:, None, None]
    down = np.arange(h)[None, :, None] - (h - 1) / 2 - shifts[:, 0, None, None]
    right = np.arange(w)[None, None, :] - (w - 1) / 2 - shifts[:, 1, None, None]
    rows = np.sin(angle) * right + np.cos(angle) * down + (h - 1) / 2
    columns = np.cos(angle) * right - np.sin(angle) * down + (w - 1) / 2
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 2)))  # a black frame, wider at the end for the next pixel
    rows, columns = np.clip(rows, -1, h) + 1, np.clip(columns, -1, w) + 1
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    image = np.arange(n)[:, None, None]
    result = np.zeros((n, h, w, x.shape[1]), np.float32)
    for below in (0, 1):
        for beside in (0, 1):
            near = np.abs(1 - below - (rows - top)) * np.abs(1 - beside - (columns - left))
            result += near[..., None].astype(np.float32) * padded[image, :, top + below, left + beside]
    return np.ascontiguousarray(result.transpose(0, 3, 1, 2))
