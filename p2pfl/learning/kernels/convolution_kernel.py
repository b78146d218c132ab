"""Kernel for chains of convolutions, then of linear layers.

It computes blocks of a convolution, maximum pooling and an activation for k models at once, in memory that it keeps.

Samples are the last dimension of all values, [k, channels, height, width, b]: a pixel of all samples is contiguous, and so
is a row of pixels. Copies and products then work on long contiguous runs. The input is copied once for each column of the
kernel, and not for each of its places, because the copies for its rows are parts of the same memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache

import msgspec
import torch
from torch import Tensor

from p2pfl.learning.kernels.batched_gradient import values_at_once
from p2pfl.learning.kernels.dense_kernel import Layer, LossGradient, backward, forward, to_inputs
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


class Block(msgspec.Struct, frozen=True):
    """A convolution, then maximum pooling, then an activation, the last two optional.

    ReLU and tanh never decrease. A block therefore also describes layers with the activation before the pooling.

    Attributes:
        weight, bias: their places in the flat vector of a model.
        shape: (output channels, input channels, kernel height, kernel width).
        size: height and width of the input.
        stride, padding: vertical and horizontal.
        pool: height and width of the pooling windows, which do not overlap.
        activation: "", "relu" or "tanh".
    """

    weight: tuple[int, int]
    bias: tuple[int, int] | None
    shape: tuple[int, int, int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    pool: tuple[int, int] = (1, 1)
    activation: str = ""

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width after the convolution."""
        (height, width), (ph, pw), (sh, sw) = self.size, self.padding, self.stride
        _, _, kh, kw = self.shape
        return (height + 2 * ph - kh) // sh + 1, (width + 2 * pw - kw) // sw + 1

    @property
    def output(self) -> tuple[int, int]:
        """Height and width after the pooling."""
        (height, width), (qh, qw) = self.convolved, self.pool
        return height // qh, width // qw

    @property
    def values(self) -> int:
        """Number of values of the copied input for one sample."""
        (height, _), (ph, _), (_, channels, _, kw) = self.size, self.padding, self.shape
        return channels * kw * (height + 2 * ph) * self.convolved[1]


class BlockProgram:
    """Computation of a block for k models with b samples each.

    Args:
        block: the block.
        k: number of models.
        b: number of samples of each.
        device: device of the memory.
    """

    def __init__(self, block: Block, k: int, b: int, device: torch.device) -> None:
        self.block = block
        out, channels, kh, kw = block.shape
        self._columns = Columns(block, k, b, device)
        self._weights = torch.empty(kh, k, out, channels * kw, device=device)
        self._weight_rows = self._weights.unbind()
        self._kernel = self._weights.view(kh, k, out, channels, kw).permute(1, 2, 3, 0, 4)
        self._convolved = torch.empty(k, out, *block.convolved, b, device=device)
        self._matrix = self._convolved.view(k, out, -1)
        self._across = Pooling(self._convolved, 3, block.pool[1])
        self._down = Pooling(self._across.output, 2, block.pool[0])
        self.output = self._down.output

    def forward(self, flat: Tensor, values: Tensor) -> Tensor:
        """Return the output, [k, channels, height, width, b]; the next call overwrites it.

        Args:
            flat: models, [k, P].
            values: the input, [k, channels, height, width, b].
        """
        block = self.block
        self._columns.fill(values)
        self._kernel.copy_(flat[:, slice(*block.weight)].view(len(flat), *block.shape))
        beta = 0
        for weight, row in zip(self._weight_rows, self._columns.rows, strict=True):
            torch.baddbmm(self._matrix, weight, row, beta=beta, out=self._matrix)
            beta = 1
        self._across.forward()
        output = self._down.forward()
        if block.bias is not None:  # the same as before the pooling, on fewer values
            output.add_(flat[:, slice(*block.bias), None, None, None])
        if block.activation:
            output = output.relu_() if block.activation == "relu" else output.tanh_()
        return output

    @cached_property
    def _gradient(self) -> BlockGradient:
        return BlockGradient(self.block, self._columns)

    def backward(self, delta: Tensor, grad: Tensor) -> Tensor:
        """Write the gradient of the weights into `grad`, [k, P]. It belongs to the last call of `forward`.

        Args:
            delta: gradient of the output, [k, channels, height, width, b].

        Returns:
            The gradient after the convolution, [k, channels, height * width * b].
        """
        block = self.block
        if block.activation == "relu":
            delta = torch.ops.aten.threshold_backward(delta, self.output, 0)
        elif block.activation:
            delta = delta * (1 - self.output.square())
        if block.bias is not None:
            torch.sum(delta, (2, 3, 4), out=grad[:, slice(*block.bias)])
        convolved = self._across.backward(self._down.backward(delta)).reshape(self._matrix.shape)
        self._gradient.of_weights(convolved, grad)
        return convolved

    def to_input(self, convolved: Tensor) -> Tensor:
        """Return the gradient of the input, [k, channels, height, width, b], from what `backward` returns."""
        return self._gradient.of_input(self._weight_rows, convolved)


class Columns:
    """Input of a convolution, copied for each column of the kernel.

    Args:
        block: the block.
        k: number of models.
        b: number of samples of each.
        device: device of the memory.

    Attributes:
        values: [k, channels, kw, sh, height / sh, convolved width, b] with the vertical stride sh.
        rows: for each row of the kernel, the part of `values` that is multiplied with its weights, as matrices of
            [k, channels * kw, convolved height * convolved width * b].
    """

    def __init__(self, block: Block, k: int, b: int, device: torch.device) -> None:
        _, channels, _, kw = block.shape
        (height, width), (ph, pw), (sh, sw) = block.size, block.padding, block.stride
        tall, wide = -(-(height + 2 * ph) // sh), width + 2 * pw
        padded = torch.zeros(k, channels, tall * sh, wide, b, device=device)
        self._inner = padded[:, :, ph : ph + height, pw : pw + width]
        line, image = wide * b, tall * sh * wide * b
        shape = (k, channels, kw, sh, tall, block.convolved[1], b)
        self._spread = padded.as_strided(shape, (channels * image, image, b, line, sh * line, sw * b, 1))
        self.values = torch.empty(shape, device=device)
        self.rows = rows_of(block, self.values)

    def fill(self, values: Tensor) -> None:
        """Copy an input, [k, channels, height, width, b]."""
        self._inner.copy_(values)
        self.values.copy_(self._spread)


def sums_by_line(device: torch.device) -> bool:
    """Return whether a device computes a few long sums faster in parts: a GPU computes each sum of a product serially."""
    return device.type != "cpu"


def rows_of(block: Block, columns: Tensor) -> list[Tensor]:
    """Return the rows of columns; see `Columns`."""
    k, channels, kw, sh, tall, width, b = columns.shape
    line, count = width * b, channels * kw
    shape, strides = (k, count, block.convolved[0] * line), (count * sh * tall * line, sh * tall * line, 1)
    return [columns.as_strided(shape, strides, (i % sh * tall + i // sh) * line) for i in range(block.shape[2])]


class BlockGradient:
    """Memory for the gradient of a convolution.

    Args:
        block: the block.
        columns: its input.
    """

    def __init__(self, block: Block, columns: Columns) -> None:
        k, channels, kw, *_, b = columns.values.shape
        out, _, kh, _ = block.shape
        self._block = block
        self._weights = torch.empty(kh, k, channels * kw, out, device=columns.values.device)
        self._rows = columns.rows
        self._kernel = self._weights.view(kh, k, channels, kw, out).permute(1, 4, 2, 0, 3)
        self._columns = torch.empty_like(columns.values)
        self._column_rows = rows_of(block, self._columns)
        (height, width), (ph, pw), (sh, sw) = block.size, block.padding, block.stride
        tall, wide, after = columns.values.shape[4], width + 2 * pw, block.convolved[1]
        self._padded = torch.empty(k, channels, tall * sh, wide, b, device=columns.values.device)
        self._input = self._padded[:, :, ph : ph + height, pw : pw + width]
        lines = self._padded.view(k, channels, tall, sh, wide, b).transpose(2, 3)
        targets = [lines[..., j : j + sw * (after - 1) + 1 : sw, :] for j in range(kw)]
        self._folds = list(zip(targets, self._columns.unbind(2), strict=True))

    def of_weights(self, delta: Tensor, grad: Tensor) -> None:
        """Write the gradient of the weights into `grad`, [k, P].

        Args:
            delta: gradient after the convolution, [k, output channels, height * width * b].
        """
        if sums_by_line(delta.device):
            self._of_weights_by_line(delta)
        else:
            transposed = delta.mT
            for row, weight in zip(self._rows, self._weights, strict=True):
                torch.bmm(row, transposed, out=weight)
        grad[:, slice(*self._block.weight)].view(len(grad), *self._block.shape).copy_(self._kernel)

    def _of_weights_by_line(self, delta: Tensor) -> None:
        """Compute the gradient of the weights as the sum of the gradients of each line of the output."""
        height, (kh, k, count, out) = self._block.convolved[0], self._weights.shape
        lines = torch.stack([row.view(k, count, height, -1).transpose(1, 2) for row in self._rows], 2)
        deltas = delta.view(k, out, height, -1).transpose(1, 2)
        products = torch.bmm(lines.view(k * height, kh * count, -1), deltas.reshape(k * height, out, -1).mT)
        torch.sum(products.view(k, height, kh, count, out), 1, out=self._weights.transpose(0, 1))

    def of_input(self, weights: Sequence[Tensor], delta: Tensor) -> Tensor:
        """Return the gradient of the input; the next call overwrites it.

        Args:
            weights: of each row of the kernel, [k, output channels, channels * kw].
            delta: gradient after the convolution, [k, output channels, height * width * b].
        """
        self._columns.zero_()
        for weight, row in zip(weights, self._column_rows, strict=True):
            row.baddbmm_(weight.mT, delta)
        self._padded.zero_()
        for target, part in self._folds:
            target.add_(part)
        return self._input


class Pooling:
    """Maxima over windows of one dimension; a rest that fills no window is left out.

    Args:
        values: the values, which change between calls.
        dim: the dimension.
        size: length of the windows.

    Attributes:
        output: the maxima, shape of `values` except for `dim`; `values` itself for a length of 1.
    """

    def __init__(self, values: Tensor, dim: int, size: int) -> None:
        self._values, self._dim, self._size = values, dim, size
        self._parts = _windows(values, dim, size)
        maxima = [torch.empty(part.shape, device=values.device) for part in self._parts[1:]]
        self._maxima = [self._parts[0], *maxima]  # of the first values of each window
        self.output = maxima[-1] if maxima else values
        self._result: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the maxima."""
        for before, part, after in zip(self._maxima, self._parts[1:], self._maxima[1:], strict=False):
            torch.maximum(before, part, out=after)
        return self.output

    def backward(self, delta: Tensor) -> Tensor:
        """Return the gradient of the values from that of the maxima; the first of equal values gets it, as in torch."""
        if self._size == 1:
            return delta
        if self._result is None:
            self._result = torch.zeros_like(self._values)
            self._targets = _windows(self._result, self._dim, self._size)
        for j in range(self._size - 1, 0, -1):
            above = self._parts[j] - self._maxima[j - 1]
            torch.ops.aten.threshold_backward.grad_input(delta, above, 0, grad_input=self._targets[j])
            delta = torch.sub(delta, self._targets[j], out=self._targets[0] if j == 1 else None)
        return self._result


def _windows(values: Tensor, dim: int, size: int) -> Sequence[Tensor]:
    """Return the first value of each window of a dimension, the second, and so on."""
    count = values.shape[dim] // size
    shape = (*values.shape[:dim], count, size, *values.shape[dim + 1 :])
    return values.narrow(dim, 0, count * size).view(shape).unbind(dim + 1)
