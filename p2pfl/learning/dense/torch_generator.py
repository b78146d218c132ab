"""Initial values of `torch.nn.Linear`, drawn without torch.

PyTorch's generator for CPUs is MT19937 with the seeding of Matsumoto and Nishimura (2002); NumPy has it as well.
"""

from __future__ import annotations

import math

import numpy as np

_BITS = 24  # of a draw that become a float32


class TorchGenerator:
    """Draws of torch's generator on a CPU after `torch.manual_seed(seed)`.

    Args:
        seed: from 0 to 2**64 - 1; the generator uses its lower 32 bits.
    """

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed & 0xFFFFFFFF)

    def linear(self, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the initial weight [outputs, inputs] and bias [outputs] of `torch.nn.Linear(inputs, outputs)`; float32."""
        deviation = math.sqrt(2.0 / (1 + math.sqrt(5) ** 2)) / math.sqrt(inputs)  # kaiming_uniform_ with a = sqrt(5)
        weight = self._uniform(outputs * inputs, math.sqrt(3.0) * deviation).reshape(outputs, inputs)
        return weight, self._uniform(outputs, 1 / math.sqrt(inputs))

    def _uniform(self, n: int, bound: float) -> np.ndarray:
        """Return n values from -bound to bound, float32."""
        low, high = np.float32(-bound), np.float32(bound)
        draws = (self._twister.randint(0, 2**32, n, np.uint32) & np.uint32(2**_BITS - 1)) * 2.0**-_BITS
        # float64 holds the product exactly, as the fused multiply-add in torch's kernel does: only the sum is rounded.
        values: np.ndarray = (draws * float(high - low) + float(low)).astype(np.float32)
        return values
