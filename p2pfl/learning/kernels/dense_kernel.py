"""Kernel for chains of linear layers, as batched products: about twice the speed of `vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TypeAlias

import msgspec
import torch
from torch import Tensor
from torch.func import grad, vmap

from p2pfl.learning.kernels.batched_gradient import values_at_once
from p2pfl.learning.losses import cross_entropy
from p2pfl.learning.torch_problem import TorchProblem

HIDDEN = 2**18  # values of a layer that are computed at once: 1 MiB, which fits into the cache
LINE = 16  # values of a cache line, 64 bytes: rows that begin at equal places of a line are summed in the same order
LARGE = 2**14  # weights of a layer from which it is faster to write their gradient in place than to copy it

Masks: TypeAlias = "Sequence[Tensor | None]"


class Layer(msgspec.Struct, frozen=True):
    """One step of a chain: matrix, bias, activation and dropout.

    Attributes:
        weight, bias: their places in the flat vector of a model.
        shape: (outputs, inputs).
        activation: "", "relu" or "tanh".
        dropout: probability with which an output is 0 in training; only after "relu".
    """

    weight: tuple[int, int]
    bias: tuple[int, int] | None
    shape: tuple[int, int]
    activation: str = ""
    dropout: float = 0.0


class DenseKernel:
    """Kernel for a chain of linear layers with cross-entropy or squared error, with a hand-written gradient."""

    chunk = 2**21

    def __init__(self, task: TorchProblem, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._loss_gradient = LossGradient(task)
        widths = (task.layout.size, *(width for layer in layers for width in layer.shape))
        self.alignment = max(2, LINE // gcd(LINE, *widths)) if task.objectives is None else 0
        self.random = any(layer.dropout for layer in layers)
        self._grad = torch.empty(0)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        # Samples are columns, so that layers with few outputs, and losses of few classes, use whole vector registers.
        k, n = x.shape[:2]
        columns = x.flatten(2).mT
        if not x.stride(0):  # all models have the same samples
            columns = columns[0].contiguous().expand(k, -1, n)
        part = max(2, values_at_once(HIDDEN, x.device) // (n * max(layer.shape[0] for layer in self._layers)))
        parts = zip(torch.split(flat, part), torch.split(columns, part), strict=True)
        return torch.cat([self._columns(*pair) for pair in parts]).mT

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        count = flat.shape[0]  # `len` of a tensor takes microseconds
        if self._grad.shape[0] < count or self._grad.device != flat.device:
            self._grad = torch.empty_like(flat)
        grad = self._grad[:count]
        masks = [_dropout_mask(layer, x) for layer in self._layers]
        inputs = forward(self._layers, flat, x.flatten(2), masks)
        backward(self._layers, flat, inputs, self._loss_gradient(inputs[-1], y, weights), grad, masks=masks)
        return grad

    def _columns(self, flat: Tensor, z: Tensor) -> Tensor:
        """Return the outputs for inputs of [K, inputs, n]: [K, outputs, n]."""
        for layer in self._layers:
            weight = _weight(layer, flat)
            if layer.bias is None:
                z = torch.bmm(weight, z)
            else:
                z = torch.baddbmm(flat[:, slice(*layer.bias)].unsqueeze(2), weight, z)
            z = _activate(layer, z)
        return z


def forward(layers: Sequence[Layer], flat: Tensor, x: Tensor, masks: Masks = ()) -> list[Tensor]:
    """Return the inputs of each layer and the outputs of the last one, [K, b, ...].

    Args:
        x: [K, b, inputs].
        masks: factors of the outputs of each layer, [K, b, outputs], or None; empty without dropout.
    """
    values = [x]
    for layer, mask in zip(layers, masks or [None] * len(layers), strict=True):
        weight = _weight(layer, flat).mT
        if layer.bias is None:
            z = torch.bmm(values[-1], weight)
        else:
            z = torch.baddbmm(flat[:, slice(*layer.bias)].unsqueeze(1), values[-1], weight)
        z = _activate(layer, z)
        values.append(z if mask is None else z.mul_(mask))
    return values


def backward(
    layers: Sequence[Layer],
    flat: Tensor,
    values: Sequence[Tensor],
    delta: Tensor,
    grad: Tensor,
    *,
    masks: Masks = (),
) -> Tensor:
    """Write the gradients of the layers' weights into `grad`.

    Args:
        values, masks: see `forward`.
        delta: gradient of the outputs, [K, b, outputs].

    Returns:
        The gradient of the outputs of the first layer, before its activation.
    """
    for depth in reversed(range(len(layers))):
        layer, z = layers[depth], values[depth]
        if layer.shape[0] * layer.shape[1] < LARGE:
            _weight(layer, grad).copy_(torch.bmm(delta.mT, z))
        else:
            torch.bmm(delta.mT, z, out=_weight(layer, grad))
        if layer.bias is not None:
            torch.sum(delta, 1, out=grad[:, slice(*layer.bias)])
        if depth:
            delta = torch.bmm(delta, _weight(layer, flat))
            if masks and (mask := masks[depth - 1]) is not None:
                delta.mul_(mask)
            if layers[depth - 1].activation == "relu":
                delta = torch.ops.aten.threshold_backward(delta, z, 0)
            else:
                delta.mul_(1 - z.square())
    return delta


def to_inputs(layers: Sequence[Layer], flat: Tensor, delta: Tensor) -> Tensor:
    """Return the gradient of the inputs, [K, b, inputs], from what `backward` returns."""
    return torch.bmm(delta, _weight(layers[0], flat))


def _dropout_mask(layer: Layer, x: Tensor) -> Tensor | None:
    """Return the factors of a layer's outputs for inputs [K, b, ...]; on a CPU with the numbers that `nn.Dropout` draws."""
    if not layer.dropout:
        return None
    kept = 1 - layer.dropout
    return torch.empty(*x.shape[:2], layer.shape[0], device=x.device).bernoulli_(kept).div_(kept)


def _weight(layer: Layer, flat: Tensor) -> Tensor:
    return flat[:, slice(*layer.weight)].view(flat.shape[0], *layer.shape)


def _activate(layer: Layer, z: Tensor) -> Tensor:
    """Return a layer's activation of z, computed in place."""
    if layer.activation:
        z = z.relu_() if layer.activation == "relu" else z.tanh_()
    return z


class LossGradient:
    """Gradient of the mean loss of a batch with respect to the outputs.

    With several objectives, torch.func computes it.
    """

    def __init__(self, task: TorchProblem) -> None:
        self._cross_entropy = task.loss is cross_entropy
        self._several = None if task.objectives is None else vmap(grad(task.batch_loss))

    def __call__(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the gradient, [K, b, outputs]."""
        if self._several is not None:
            several: Tensor = self._several(outputs, y, weights)
            return several
        b = outputs.shape[1]
        if self._cross_entropy:
            delta = (outputs - outputs.amax(-1, keepdim=True)).exp_()  # twice as fast as softmax over few classes
            delta.div_(delta.sum(-1, keepdim=True))
            delta.scatter_add_(2, y.unsqueeze(-1), torch.full((), -1.0, device=y.device).expand(*y.shape, 1))
            return delta.div_(b)
        return (outputs - y).mul_(2 / (b * outputs.shape[2]))
