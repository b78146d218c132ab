"""Kernel for chains of convolutions, then of linear layers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from p2pfl.learning.kernels.blocks import Block, BlockProgram
from p2pfl.learning.kernels.dense_kernel import Layer, LossGradient, backward, forward, to_inputs
from p2pfl.learning.kernels.sizes import values_at_once
from p2pfl.learning.torch_problem import TorchProblem

CACHED = 2**18  # values of the largest copied input for models that are computed together: 1 MiB, which fits into the cache
LARGEST = 2**21  # values of it for the samples of one model: 8 MiB; larger batches are computed in parts
SAMPLES = 16  # for which outputs are computed at once
KEPT = 4  # numbers of models and samples whose memory is kept
KEPT_ON_GPU = 8  # the same on a GPU, for each kernel


class ConvolutionKernel:
    """Kernel with a hand-written gradient, on a CPU faster than torch with one model after another.

    Stacks are computed in parts. On some processors the number of models in a part changes the last bits of the results.

    Args:
        task: a task with cross-entropy or squared error.
        blocks: the convolutions of its module.
        layers: the linear layers after them.
        device: device of the stacks.
    """

    random = False
    alignment = 1
    chunk = 2**21

    def __init__(self, task: TorchProblem, blocks: Sequence[Block], layers: Sequence[Layer], device: torch.device) -> None:
        self._device = device
        self._blocks = tuple(blocks)
        self._layers = layers
        self._largest = largest_input(blocks)
        self._most = values_at_once(LARGEST, device) // self._largest
        self._loss_gradient = LossGradient(task)
        self._programs = _kept_programs if device.type == "cpu" else lru_cache(KEPT_ON_GPU)(_make_programs)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        count, device = x.shape[1], self._device
        samples = min(SAMPLES if device.type == "cpu" else count, count, self._most)
        size = self.models_at_once(samples)
        starts = [*range(0, count - samples, samples), count - samples]  # the last ones may be computed twice
        parts = []
        for first in range(0, len(flat), size):
            models, inputs = flat[first : first + size], x[first : first + size]
            features = torch.empty(len(models), count, self._layers[0].shape[1], device=device)
            for start in starts:
                some = slice(start, start + samples)
                features[:, some] = _features(
                    self._programs(self._blocks, len(models), samples, device), models, inputs[:, some]
                )
            parts.append(forward(self._layers, models, features)[-1])
        return torch.cat(parts)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        grad = torch.empty_like(flat)
        size, parts = self.models_at_once(x.shape[1]), -(-x.shape[1] // self._most)
        for first in range(0, len(flat), size):
            rows = slice(first, first + size)
            if parts == 1:
                self._gradient(flat[rows], x[rows], y[rows], grad[rows])
            else:
                self._gradient_in_parts(flat[rows], x[rows], y[rows], grad[rows], parts)
        return grad

    def models_at_once(self, samples: int) -> int:
        """Return the number of models that are computed together, with so many samples each."""
        return max(1, values_at_once(CACHED, self._device) // (self._largest * samples))

    def _gradient_in_parts(self, flat: Tensor, x: Tensor, y: Tensor, grad: Tensor, parts: int) -> None:
        """Write the gradient of the mean loss into `grad`, computed for some samples at a time."""
        grad.zero_()
        own = torch.empty_like(grad)
        for samples, targets in zip(x.tensor_split(parts, 1), y.tensor_split(parts, 1), strict=True):
            self._gradient(flat, samples, targets, own)
            grad.add_(own, alpha=samples.shape[1] / x.shape[1])

    def _gradient(self, flat: Tensor, x: Tensor, y: Tensor, grad: Tensor) -> None:
        programs = self._programs(self._blocks, len(flat), x.shape[1], self._device)
        values = forward(self._layers, flat, _features(programs, flat, x))
        delta = backward(self._layers, flat, values, self._loss_gradient(values[-1], y, None), grad)
        delta = to_inputs(self._layers, flat, delta).mT.reshape(programs[-1].output.shape)
        for program in reversed(programs):
            convolved = program.backward(delta, grad)
            if program is not programs[0]:
                delta = program.to_input(convolved)


def largest_input(blocks: Sequence[Block]) -> int:
    """Return the number of values of the largest copied input for one sample."""
    return max(block.values for block in blocks)


def _features(programs: Sequence[BlockProgram], flat: Tensor, x: Tensor) -> Tensor:
    """Return the values before the linear layers, [k, b, features], for samples of [k, b, channels, height, width]."""
    values = x.permute(0, 2, 3, 4, 1)
    for program in programs:
        values = program.forward(flat, values)
    return values.flatten(1, 3).mT.contiguous()


def _make_programs(blocks: Sequence[Block], models: int, samples: int, device: torch.device) -> list[BlockProgram]:
    return [BlockProgram(block, models, samples, device) for block in blocks]


class _Kept(threading.local):
    """Programs of the last few sizes, for each thread. Kernels of equal blocks share them."""

    def __init__(self) -> None:
        self.programs = lru_cache(KEPT)(_make_programs)


_kept = _Kept()


def _kept_programs(blocks: tuple[Block, ...], models: int, samples: int, device: torch.device) -> list[BlockProgram]:
    return _kept.programs(blocks, models, samples, device)
