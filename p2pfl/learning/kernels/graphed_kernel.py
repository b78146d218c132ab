"""Gradients on a GPU that are recorded once for each size of a stack, as a CUDA graph, and then replayed.

A gradient of small networks starts a hundred short computations. Python takes longer to start them than the GPU to
compute them; a replay starts all of them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from p2pfl.learning.kernels.batched_gradient import BatchedGradient

SEEN = 4  # gradients of a size before it is recorded
LARGEST = 2**21  # values of models, 8 MiB: with more, copying them to where the graph reads them takes longer than starting
MOST = 2**24  # values of samples of all recorded sizes; the memory of their convolutions is some fifty times as large

Size = tuple[int, int]
"""Numbers of models and of samples for each."""


class GraphedKernel:
    """Kernel on a GPU that replays the gradients of another one, which draws no random numbers and has no objectives.

    Args:
        kernel: the other one.
        make: creates another of its kind. Each recorded size has its own, whose memory its graph reads and writes.
    """

    random = False

    def __init__(self, kernel: BatchedGradient, make: Callable[[], BatchedGradient | None]) -> None:
        self._kernel = kernel
        self._make = make
        self.alignment = kernel.alignment
        self.chunk = kernel.chunk
        self._seen: Counter[Size] = Counter()
        self._recordings: dict[Size, Recording] = {}
        self._recorded = 0  # values of their samples
        self._pool: Any = None  # memory of all graphs: they are never replayed at the same time

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if flat.numel() > LARGEST:
            return self._kernel.gradient(flat, x, y)
        size = len(flat), x.shape[1]
        recording = self._recordings.get(size)
        if recording is None:
            self._seen[size] += 1
            if self._seen[size] <= SEEN or self._recorded + x.numel() > MOST:
                return self._kernel.gradient(flat, x, y)
            self._recorded += x.numel()
            kernel = self._make()
            assert kernel is not None
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording = self._recordings[size] = Recording(kernel, flat, x, y, self._pool)
        return recording.gradient(flat, x, y)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._kernel.outputs(flat, x)


class Recording:
    """Recorded gradient of a stack of one size.

    Args:
        kernel: computes it. It must not be used elsewhere.
        flat, x, y: a stack of this size, on the GPU; see `BatchedGradient.gradient`.
        pool: handle of the memory for the graph's intermediate values.
    """

    def __init__(self, kernel: BatchedGradient, flat: Tensor, x: Tensor, y: Tensor, pool: Any) -> None:
        self._kernel = kernel  # keeps the memory that the graph uses
        self._inputs = flat.clone(), x.clone(), y.clone()
        here, aside = torch.cuda.current_stream(flat.device), torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            kernel.gradient(*self._inputs)  # allocates the kernel's memory and the libraries' own outside the graph
        here.wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._gradient = kernel.gradient(*self._inputs)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient; the next call overwrites it."""
        for own, given in zip(self._inputs, (flat, x, y), strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._gradient
