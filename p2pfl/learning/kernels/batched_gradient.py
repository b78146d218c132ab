"""Interface of the kernels, `BatchedGradient`, and how many values one computes at once, `values_at_once`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

ON_GPU = 2**25  # values, 128 MiB: enough to occupy it, and little of its memory


class BatchedGradient(Protocol):
    """Kernel that computes gradients and outputs of K models: row k of `flat` is evaluated on row k of `x`.

    Attributes:
        random: whether gradients draw random numbers; see p2pfl.learning.row_randomness.
        alignment: a stack may be divided at each multiple of this number of models; 0 if it must not be divided.
        chunk: number of values of inputs for which outputs are best computed at once.
    """

    random: bool
    alignment: int
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


def values_at_once(cached: int, device: torch.device) -> int:
    """Return the number of values to compute at once on a device.

    Args:
        cached: number of values that fit into the cache of a CPU. A GPU has no such limit, and needs many values at once.
    """
    return cached if device.type == "cpu" else max(cached, ON_GPU)
