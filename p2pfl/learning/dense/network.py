"""Dense networks on flat vectors: outputs and exact gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from p2pfl.learning.dense.torch_generator import TorchGenerator
from p2pfl.parameters import Layout, Parameters
from p2pfl.random_streams import federation_draws

Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(outputs [n, k], targets [n, ...]) -> the loss of each sample [n], and its gradient by the outputs [n, k]."""


@dataclass(frozen=True)
class DenseNetwork:
    """Linear layers with ReLU between them, as `torch.nn.Sequential(Linear, ReLU, ..., Linear)`; float32.

    Attributes:
        sizes: numbers of inputs, of the units of each hidden layer, and of outputs; without hidden layers the network is
            linear.
        alone: whether the tensors have the names of a single `torch.nn.Linear`, which is in no Sequential.
        private: layers that stay on their node, by their place in the Sequential, such as "2".
    """

    sizes: tuple[int, ...]
    alone: bool = False
    private: Sequence[str] = ()

    @cached_property
    def layout(self) -> Layout:
        shapes: list[tuple[str, tuple[int, ...]]] = []
        private: list[str] = []
        for k, (before, after) in enumerate(pairwise(self.sizes)):
            layer = str(2 * k)
            names = [name if self.alone else f"{layer}.{name}" for name in ("weight", "bias")]
            shapes += zip(names, ((after, before), (after,)), strict=True)
            private += names if layer in self.private else ()
        return Layout(tuple(shapes), sum(after * (before + 1) for before, after in pairwise(self.sizes)), tuple(private))

    def initial(self, seed: int) -> Parameters:
        """Return the common initial model of a federation: the same bits as torch's."""
        draws = TorchGenerator(federation_draws(seed).torch_seed(0, "initial model"))
        tensors = [tensor for before, after in pairwise(self.sizes) for tensor in draws.linear(before, after)]
        return self.layout.flatten(dict(zip([name for name, _ in self.layout.shapes], tensors, strict=True)))

    def outputs(self, params: Parameters, x: np.ndarray) -> np.ndarray:
        """Return the outputs [n, k] of a model [P] for inputs [n, ...]."""
        return self._forward(self._layers(params), x)[-1]

    def gradient(self, params: Parameters, x: np.ndarray, y: np.ndarray, loss: Loss) -> Parameters:
        """Return the gradient of the mean loss of a batch at a model, [P]."""
        layers = self._layers(params)
        activations = self._forward(layers, x)
        _, slope = loss(activations.pop(), y)
        slope /= np.float32(len(x))
        gradient = np.empty_like(params)
        own = self._layers(gradient)
        for k in reversed(range(len(layers))):
            np.matmul(slope.T, activations[k], out=own[k][0])
            slope.sum(axis=0, out=own[k][1])
            if k:
                slope = slope @ layers[k][0]
                slope *= activations[k] > 0
        return gradient

    def _layers(self, params: Parameters) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return views of the weight and the bias of each layer."""
        tensors = list(self.layout.unflatten(params).values())
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _forward(self, layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of each layer, and the outputs of the last one."""
        found = [x.reshape(len(x), -1)]
        for k, (weight, bias) in enumerate(layers):
            if k:
                np.maximum(found[-1], 0, out=found[-1])
            found.append(found[-1] @ weight.T + bias)
        return found


def cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of logits [n, classes] with class numbers [n], and its gradient; see Loss."""
    rows = np.arange(len(outputs))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    gradient = np.exp(shifted)
    total = gradient.sum(axis=1, keepdims=True)
    gradient /= total
    gradient[rows, targets] -= 1
    return np.log(total[:, 0]) - shifted[rows, targets], gradient


def squared_error(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared error, averaged over the outputs of a sample, and its gradient; see Loss."""
    away = outputs - targets.reshape(outputs.shape)
    return np.square(away).mean(axis=1), away * np.float32(2 / outputs.shape[1])
