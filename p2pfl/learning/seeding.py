"""Seeds of the generators from which a module draws: torch's own, and the global ones of NumPy and Python.

The generators of a process are shared by everything in it. A block that seeds them therefore restores them at its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU, *, beyond_torch: bool = True) -> Iterator[None]:
    """Seed the generators in this block, and restore them afterwards.

    A generator of a GPU is seeded too, but not restored.

    Args:
        seed: from 0 to 2**63 - 1.
        device: device from whose generator torch draws.
        beyond_torch: whether to seed the generators of NumPy and Python as well, which takes some 50 us.
    """
    before = torch.default_generator.get_state()
    others = (np.random.get_state(), random.getstate()) if beyond_torch else None
    try:
        if device.type == "cpu":  # torch.manual_seed formats the caller's stack for each kind of accelerator, which is slow
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        if others is not None:
            np.random.seed(np.frombuffer(seed.to_bytes(8, "little"), np.uint32))
            random.seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if others is not None:
            np.random.set_state(others[0])
            random.setstate(others[1])


def generator_states() -> dict[str, bytes]:
    """Return the states of the generators by the name of their library, to compare them."""
    numbers: Any = np.random.get_state()
    return {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "NumPy": numbers[1].tobytes() + repr(numbers[2:]).encode(),
        "Python": repr(random.getstate()).encode(),
    }
