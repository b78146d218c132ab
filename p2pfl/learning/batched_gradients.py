"""Gradients and outputs of K models of one architecture at once: row k of `flat` is evaluated on row k of `x`.

Chains of linear layers have a hand-written gradient as batched products (about twice the speed of `vmap`). Any other
module that torch can `vmap` uses `torch.func`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from p2pfl.errors import ConfigurationError
from p2pfl.learning.losses import cross_entropy, squared_error
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.torch_problem import TorchProblem

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)

HIDDEN = 2**18  # values of a layer that are computed at once: 1 MiB, which fits into the cache

Tensors = dict[str, Tensor]


class BatchedGradient(Protocol):
    """Kernel that computes gradients and outputs of K models.

    Attributes:
        random: whether gradients draw random numbers; see p2pfl.learning.row_randomness.
        independent: whether a stack can be computed in parts of 64 or more models, with the same bits.
        chunk: number of values of inputs for which outputs are best computed at once.
    """

    random: bool
    independent: bool
    chunk: int

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the gradient of each model's mean loss.

        Args:
            flat: float32, [K, P].
            x, y: a batch for each model, [K, b, ...].
            weights: weights of the objectives, [K, m], if the task has several.

        Returns:
            [K, n_trained]; the next call overwrites it.
        """

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """Return each model's outputs, [K, b, ...]."""


def kernel_for(task: TorchProblem, dense: bool = True) -> BatchedGradient:
    """Return the fastest kernel for a task's module.

    Args:
        dense: whether chains of linear layers may use the hand-written gradient.

    Raises:
        ConfigurationError: the module cannot be stacked (it couples the samples of a batch, or torch cannot stack it).
    """
    if not getattr(task.template, "stackable", True):
        raise ConfigurationError(f"module {type(task.template).__name__} shares values with those of other nodes")
    chain = _chain(task) if dense else None
    return DenseKernel(task, chain) if chain is not None else VmapKernel(task)


class VmapKernel:
    """Kernel for any module without buffers that change in training."""

    independent = False
    chunk = 2**18  # 1 MiB, which fits into the cache

    def __init__(self, task: TorchProblem) -> None:
        layout = task.layout
        training, evaluating = deepcopy(task.template).train(), deepcopy(task.template).eval()
        local = {name: b for name, b in training.named_buffers() if name not in dict(layout.shapes)}
        for name, part in training.named_modules():
            if isinstance(part, NORMS) and part.track_running_stats:
                raise ConfigurationError(
                    f"layer {name or 'itself'} ({type(part).__name__}) changes its buffers in training; GroupNorm and"
                    " LayerNorm do not"
                )

        def loss(trained: Tensors, rest: Tensors, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
            return task.batch_loss(functional_call(training, trained | rest | local, (x,)), y, weights)

        def outputs(tensors: Tensors, x: Tensor) -> Tensor:
            result: Tensor = functional_call(evaluating, tensors | local, (x,))
            return result

        self._layout = layout
        self._trained = [name for name, _, stop, _ in layout.places if stop <= layout.n_trained]
        dimensions = (0, 0, 0, 0, None if task.objectives is None else 0)
        self._gradients = vmap(grad(loss), in_dims=dimensions, randomness="different")
        self._outputs = vmap(outputs)
        self.random = self._try(task)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        tensors: Tensors = self._layout.unflatten(flat)
        trained = {name: tensors.pop(name) for name in self._trained}
        gradients = self._gradients(trained, tensors, x, y, weights)
        return torch.cat([gradients[name].reshape(len(flat), -1) for name in self._trained], 1)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._outputs(self._layout.unflatten(flat), x)

    def _try(self, task: TorchProblem) -> bool:
        """Run two models on a batch of two, so that a module that cannot be stacked fails before the training.

        Returns:
            Whether the training draws random numbers.
        """
        x, y = (part[:1].repeat(2, *[1] * (part.ndim - 1)) for part in task.data["train"])
        flat = torch.zeros(2, task.layout.size, device=x.device)
        own, generators = task.weights(x.device), RowGenerators([0, 1])
        weights = None if own is None else torch.stack([own, own])
        try:
            with generators.drawing(range(2)):
                self.gradient(flat, torch.stack([x, x]), torch.stack([y, y]), weights)
            with torch.no_grad():
                self.outputs(flat, torch.stack([x, x]))
        except (RuntimeError, NotImplementedError, ValueError, ConfigurationError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigurationError(f"module {type(task.template).__name__} cannot be stacked: {reason}") from error
        if generators.used and x.device.type != "cpu":
            raise ConfigurationError("modules with random layers are stacked on a CPU only")
        return generators.used


@dataclass(frozen=True)
class _Layer:
    weight: tuple[int, int]  # places in the flat vector
    bias: tuple[int, int] | None
    shape: tuple[int, int]  # (outputs, inputs)
    activation: str  # "", "relu" or "tanh"


def _chain(task: TorchProblem) -> list[_Layer] | None:
    """Return the layers of a chain of linear layers with ReLU or tanh between them; None for any other module."""
    module, layout = task.template, task.layout
    parts = list(module.named_children()) if isinstance(module, nn.Sequential) else [("", module)]
    if task.objectives is None and task.loss not in (cross_entropy, squared_error):
        return None
    if layout.n_trained != layout.size:
        return None
    places = {name: (start, stop) for name, start, stop, _ in layout.places}
    if parts and isinstance(parts[0][1], nn.Flatten) and parts[0][1].start_dim == 1:
        parts = parts[1:]
    elif task.data["train"].x.ndim != 2:
        return None
    layers: list[_Layer] = []
    for position, (name, part) in enumerate(parts):
        prefix = f"{name}." if name else ""
        if type(part) is nn.Linear and (position == 0 or layers[-1].activation):
            weight, bias = f"{prefix}weight", f"{prefix}bias" if part.bias is not None else None
            if weight not in places or (bias is not None and bias not in places):  # shared with another layer
                return None
            layers.append(_Layer(places[weight], places[bias] if bias else None, (part.out_features, part.in_features), ""))
        elif type(part) in (nn.ReLU, nn.Tanh) and layers and not layers[-1].activation:
            last = layers.pop()
            layers.append(_Layer(last.weight, last.bias, last.shape, "relu" if type(part) is nn.ReLU else "tanh"))
        else:
            return None
    return layers if layers and not layers[-1].activation else None


class DenseKernel:
    """Kernel for a chain of linear layers with cross-entropy or squared error, with a hand-written gradient.

    With several objectives, torch.func computes only the gradient with respect to the outputs.
    """

    random = False
    chunk = 2**21

    def __init__(self, task: TorchProblem, layers: list[_Layer]) -> None:
        self._layers = layers
        self._cross_entropy = task.loss is cross_entropy
        self._several = None if task.objectives is None else vmap(grad(task.batch_loss))
        self.independent = task.objectives is None
        self._grad = torch.empty(0)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        # Samples are columns, so that layers with few outputs, and losses of few classes, use whole vector registers.
        k, n = x.shape[:2]
        columns = x.flatten(2).mT
        if not x.stride(0):  # all models have the same samples
            columns = columns[0].contiguous().expand(k, -1, n)
        part = max(2, HIDDEN // (n * max(layer.shape[0] for layer in self._layers)))
        parts = zip(torch.split(flat, part), torch.split(columns, part), strict=True)
        return torch.cat([self._columns(*pair) for pair in parts]).mT

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if len(self._grad) < len(flat) or self._grad.device != flat.device:
            self._grad = torch.empty_like(flat)
        grad = self._grad[: len(flat)]
        inputs = [x.flatten(2)]
        for layer in self._layers:
            inputs.append(self._forward(layer, flat, inputs[-1]))
        delta = self._loss_gradient(inputs[-1], y, weights)
        for depth in reversed(range(len(self._layers))):
            layer, z = self._layers[depth], inputs[depth]
            self._weight(layer, grad).copy_(torch.bmm(delta.mT, z))  # a third faster than out=
            if layer.bias is not None:
                torch.sum(delta, 1, out=grad[:, slice(*layer.bias)])
            if depth:
                delta = torch.bmm(delta, self._weight(layer, flat))
                if self._layers[depth - 1].activation == "relu":
                    delta = torch.ops.aten.threshold_backward(delta, z, 0)
                else:
                    delta.mul_(1 - z.square())
        return grad

    @staticmethod
    def _weight(layer: _Layer, flat: Tensor) -> Tensor:
        return flat[:, slice(*layer.weight)].view(len(flat), *layer.shape)

    def _columns(self, flat: Tensor, z: Tensor) -> Tensor:
        """Return the outputs for inputs of [K, inputs, n]: [K, outputs, n]."""
        for layer in self._layers:
            weight = self._weight(layer, flat)
            if layer.bias is None:
                z = torch.bmm(weight, z)
            else:
                z = torch.baddbmm(flat[:, slice(*layer.bias)].unsqueeze(2), weight, z)
            z = _activate(layer, z)
        return z

    def _forward(self, layer: _Layer, flat: Tensor, z: Tensor) -> Tensor:
        weight = self._weight(layer, flat).mT
        if layer.bias is None:
            z = torch.bmm(z, weight)
        else:
            z = torch.baddbmm(flat[:, slice(*layer.bias)].unsqueeze(1), z, weight)
        return _activate(layer, z)

    def _loss_gradient(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the gradient of the mean loss of a batch with respect to the outputs, [K, b, outputs]."""
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


def _activate(layer: _Layer, z: Tensor) -> Tensor:
    """Return a layer's activation of z, computed in place."""
    if layer.activation:
        z = z.relu_() if layer.activation == "relu" else z.tanh_()
    return z
