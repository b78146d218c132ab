"""Modules that are chains of layers, described for the hand-written gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace
from torch import nn

from p2pfl.learning.kernels.blocks import Block
from p2pfl.learning.kernels.dense_kernel import Layer
from p2pfl.learning.losses import cross_entropy, squared_error
from p2pfl.learning.torch_problem import TorchProblem

Parts = Sequence[tuple[str, nn.Module]]
"""Layers with the beginnings of their names in the state of the module: "" or with a dot at the end."""

Places = Mapping[str, tuple[int, int]]
"""Places of tensors in the flat vector, by name."""

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def dense_chain(task: TorchProblem) -> list[Layer] | None:
    """Return the layers of a chain of linear layers with ReLU or tanh between them; None for any other module.

    Dropout may follow ReLU.
    """
    parts, places = _parts(task), _places(task)
    if places is None:
        return None
    if parts and _flattens(parts[0][1]):
        return _layers(parts[1:], places)
    return _layers(parts, places) if task.data["train"].x.ndim == 2 else None


def convolution_chain(task: TorchProblem) -> tuple[list[Block], list[Layer]] | None:
    """Return the blocks of convolutions and the linear layers of a chain; None for any other module.

    Between them is an `nn.Flatten`. The loss is cross-entropy or squared error. Convolutions have neither groups nor
    dilation, and are padded with zeros. Pooling takes the maxima of windows that do not overlap.
    """
    x = task.data["train"].x
    if x.ndim != 4 or task.objectives is not None:
        return None
    parts, places = _parts(task), _places(task)
    if places is None:
        return None
    before = list(takewhile(lambda part: not _flattens(part[1]), parts))
    layers = _layers(parts[len(before) + 1 :], places)
    blocks = _blocks(before, places, (int(x.shape[2]), int(x.shape[3])))
    return (blocks, layers) if blocks and layers and not any(layer.dropout for layer in layers) else None


def _parts(task: TorchProblem) -> Parts:
    return list(_leaves("", task.template))


def _leaves(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _leaves(f"{prefix}{name}.", child)


def _places(task: TorchProblem) -> Places | None:
    """Return the places of a task's tensors; None if its loss or its buffers need `torch.func`."""
    layout = task.layout
    if task.objectives is None and task.loss not in (cross_entropy, squared_error):
        return None
    if layout.n_trained != layout.size:
        return None
    return {name: (start, stop) for name, start, stop, _ in layout.places}


def _flattens(part: nn.Module) -> bool:
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


def _layers(parts: Parts, places: Places) -> list[Layer] | None:
    layers: list[Layer] = []
    for position, (prefix, part) in enumerate(parts):
        if type(part) is nn.Linear and (position == 0 or layers[-1].activation):
            found = _tensors(prefix, part, places)
            if found is None:
                return None
            layers.append(Layer(*found, (part.out_features, part.in_features)))
        elif type(part) in ACTIVATIONS and layers and not layers[-1].activation:
            layers[-1] = replace(layers[-1], activation=ACTIVATIONS[type(part)])
        elif type(part) is nn.Dropout and layers and layers[-1].activation == "relu" and not layers[-1].dropout:
            if part.p == 1:  # torch draws no numbers
                return None
            layers[-1] = replace(layers[-1], dropout=part.p)
        else:
            return None
    return layers if layers and not layers[-1].activation else None


def _blocks(parts: Parts, places: Places, size: tuple[int, int]) -> list[Block] | None:
    blocks: list[Block] = []
    for prefix, part in parts:
        block: Block | None = None
        if type(part) is nn.Conv2d:
            block = _convolution(prefix, part, places, blocks[-1].output if blocks else size)
            blocks += [] if block is None else [block]
        elif blocks and type(part) in ACTIVATIONS and not blocks[-1].activation:
            block = blocks[-1] = replace(blocks[-1], activation=ACTIVATIONS[type(part)])
        elif blocks and type(part) is nn.MaxPool2d and blocks[-1].pool == (1, 1) and _is_plain_pool(part):
            block = blocks[-1] = replace(blocks[-1], pool=_pair(part.kernel_size))
        if block is None or min(block.output) < 1:
            return None
    return blocks


def _convolution(prefix: str, part: nn.Conv2d, places: Places, size: tuple[int, int]) -> Block | None:
    found = _tensors(prefix, part, places)
    plain = part.groups == 1 and _pair(part.dilation) == (1, 1) and part.padding_mode == "zeros"
    if found is None or not plain or part.padding == "same":
        return None
    padding = (0, 0) if isinstance(part.padding, str) else _pair(part.padding)
    shape = (part.out_channels, part.in_channels, *_pair(part.kernel_size))
    return Block(*found, shape, size, stride=_pair(part.stride), padding=padding)


def _is_plain_pool(part: nn.MaxPool2d) -> bool:
    """Return whether windows do not overlap and have no padding."""
    plain = not (part.ceil_mode or part.return_indices) and _pair(part.dilation) == (1, 1)
    return plain and _pair(part.stride) == _pair(part.kernel_size) and _pair(part.padding) == (0, 0)


def _tensors(
    prefix: str, part: nn.Linear | nn.Conv2d, places: Places
) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
    """Return the places of a layer's weight and bias; None if it shares them with another layer."""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in places or (part.bias is not None and bias not in places):
        return None
    return places[weight], places[bias] if part.bias is not None else None


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second
