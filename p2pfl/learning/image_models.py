"""Models for images by name, `linear`, `mlp`, `cnn` and `resnet18`, and their initial values from a safetensors file.

ResNet-18 is that of He et al., "Deep residual learning for image recognition", 2016, section 4.1. Its tensors have the names
and shapes of torchvision's, so weights trained elsewhere can be used once they are saved as safetensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from p2pfl._util.shared_work import once
from p2pfl.content import digest_file
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout, Parameters

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""
Start = Literal["torch", "kaiming"]
Norm = Literal["", "batch"]
"""Initial weights: torch's defaults, or Kaiming's uniform ones with biases of 0."""
MOST_LISTED = 20  # names in an error


def linear(shape: Shape, classes: int) -> nn.Module:
    """Return a linear model from the pixels to the logits."""
    return mlp(shape, classes, hidden=[])


def mlp(
    shape: Shape,
    classes: int,
    *,
    hidden: Sequence[int] = (64,),
    dropout: float = 0.0,
    start: Start = "torch",
    norm: Norm = "",
) -> nn.Module:
    """Return fully connected layers of the widths `hidden`, with ReLU between them.

    Args:
        dropout: probability with which each hidden value is 0 in training.
        start: initial weights; see `cnn`.
        norm: `batch` puts batch normalisation before each ReLU.
    """
    _check("hidden", hidden)
    return _started(nn.Sequential(nn.Flatten(), *_dense([prod(shape), *hidden, classes], dropout, norm)), start)


def cnn(
    shape: Shape,
    classes: int,
    *,
    channels: Sequence[int] = (6, 16),
    kernel: int = 5,
    dense: Sequence[int] = (84,),
    start: Start = "torch",
    norm: Norm = "",
) -> nn.Module:
    """Return blocks of convolution, ReLU and 2 x 2 maximum pooling, then fully connected layers with ReLU between them.

    With channels 6 and 16, kernel 5 and dense 120 and 84 it is the network of DPFL (Kharrat et al., appendix F.3),
    after LeNet-5. Convolutions are not padded: a block reduces n pixels to (n - kernel + 1) // 2.

    Args:
        channels: output channels of each convolution.
        kernel: width and height of the convolution kernels.
        dense: widths of the layers between the convolutions and the logits.
        start: initial weights: those of `torch` (default), or `kaiming`, uniform with the bound sqrt(6 / inputs) and
            biases of 0 (He et al. 2015), as in the program of DPFL's authors.
        norm: `batch` puts batch normalisation between each convolution and its ReLU.

    Raises:
        ConfigurationError: a size is below 1, or the images are too small for this number of blocks.
    """
    _check("channels", channels)
    _check("dense", dense)
    _check("kernel", [kernel])
    before, height, width = shape
    blocks: list[nn.Module] = []
    for k, after in enumerate(channels):
        if min(height, width) < kernel + 1:
            raise ConfigurationError(
                f"task.model: images of {shape[1]} x {shape[2]} pixels are too small for {len(channels)} blocks with kernel"
                f" {kernel}: {height} x {width} are left for block {k + 1}; use fewer channels or a smaller kernel"
            )
        normalised = [nn.BatchNorm2d(after)] if norm else []
        blocks += [nn.Conv2d(before, after, kernel), *normalised, nn.ReLU(), nn.MaxPool2d(2)]
        before, height, width = after, (height - kernel + 1) // 2, (width - kernel + 1) // 2
    return _started(nn.Sequential(*blocks, nn.Flatten(), *_dense([before * height * width, *dense, classes])), start)


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """Return a ResNet-18; see p2pfl.learning.image_models."""

    if min(shape[1:]) < 32:
        raise ConfigurationError(f"task.model: resnet18 needs images of 32 x 32 pixels or more, got {shape[1]} x {shape[2]}")
    return ResNet18(shape[0], classes)


MODELS = {"linear": linear, "mlp": mlp, "cnn": cnn, "resnet18": resnet18}


def _dense(sizes: Sequence[int], dropout: float = 0.0, norm: Norm = "") -> list[nn.Module]:
    if not 0 <= dropout < 1:
        raise ConfigurationError(f"task.model.dropout must be from 0 to below 1, got {dropout}")
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        if k:
            layers += [*([nn.BatchNorm1d(before)] if norm else []), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        layers.append(nn.Linear(before, after))
    return layers


def _started(module: nn.Sequential, start: Start) -> nn.Sequential:
    """Return the module with its initial weights drawn from torch's generator."""
    if start == "kaiming":
        for layer in module:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return module


def _check(name: str, sizes: Sequence[int]) -> None:
    if not all(size >= 1 for size in sizes):
        raise ConfigurationError(f"task.model.{name} must be 1 or more, got {list(sizes)}")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection; [n, inputs, h, w] to [n, outputs, h/stride, w/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        added = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(x)) + added)


class ResNet18(nn.Module):
    """ResNet-18: inputs [n, channels, h, w] of at least 32 x 32 become logits [n, classes].

    It has 11.7 million parameters with 1,000 classes. The running means and variances of its batch norms are averaged
    with those of peers, like weights.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def load(file: str, layout: Layout, without: tuple[str, ...] = ()) -> Parameters:
    """Return the tensors of a file as one vector. It is read again only after a change, and must not be modified.

    Args:
        file: its tensors must be float32 with the layout's names and shapes, as `p2pfl-node export` writes them. Batch
            norm's integer counters, which files of other programs contain, are ignored.
        layout: the layout of the model.
        without: names of tensors that are set to 0 and never taken from the file.

    Raises:
        ConfigurationError: it cannot be read, or its tensors differ; the text names the first one that differs.
    """
    path = Path(file).expanduser()
    try:
        content = once(("initial model", path), lambda: digest_file(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    return _load(path, content, layout, without)


@lru_cache(maxsize=2)
def _load(path: Path, content: bytes, layout: Layout, without: tuple[str, ...]) -> Parameters:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = {name for name in file.keys() if not name.endswith(".num_batches_tracked")} - set(without)  # noqa: SIM118
            needed = {name: shape for name, shape in layout.shapes if name not in without}
            for name, shape in needed.items():
                if name not in names:
                    raise ConfigurationError(f"{path} lacks the tensor {name}; it has {_format_names(names)}")
                found = file.get_slice(name)
                if found.get_dtype() != "F32" or tuple(found.get_shape()) != shape:
                    raise ConfigurationError(
                        f"{path}: {name} is {found.get_dtype()} {found.get_shape()}, but the model has F32 {list(shape)}"
                    )
            others = sorted(names - needed.keys())
            if others:
                raise ConfigurationError(f"{path} has the tensor {others[0]}, but the model has not")
            zeros = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes if name in without}
            params = layout.flatten(zeros | {name: file.get_tensor(name) for name in needed})
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} is damaged, or not a safetensors file: {error}") from error
    if not np.isfinite(params).all():
        raise ConfigurationError(f"{path}: some values are not finite")
    return params


def _format_names(names: Collection[str]) -> str:
    """Return names as a list in text; if there are many, only the first."""
    shown = sorted(names)[:MOST_LISTED]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more if names else "none"
