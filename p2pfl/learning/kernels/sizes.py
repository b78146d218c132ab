"""Number of values that are computed at once."""

from __future__ import annotations

import torch

ON_GPU = 2**25  # values, 128 MiB: enough to occupy it, and little of its memory


def values_at_once(cached: int, device: torch.device) -> int:
    """Return the number of values to compute at once on a device.

    Args:
        cached: number of values that fit into the cache of a CPU. A GPU has no such limit, and needs many values at once.
    """
    return cached if device.type == "cpu" else max(cached, ON_GPU)
