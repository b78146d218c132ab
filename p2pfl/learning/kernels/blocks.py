"""Blocks of a convolution, maximum pooling and an activation, computed for k models at once in memory that is kept.

Samples are the last dimension of all values, [k, channels, height, width, b]: a pixel of all samples is contiguous, and so
is a row of pixels. Copies and products then work on long contiguous runs. The input is copied once for each column of the
kernel, and not for each of its places, because the copies for its rows are parts of the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import torch
from torch import Tensor


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
