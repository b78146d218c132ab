"""Python's, NumPy's and torch's global random generators, from which a user's code may draw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch in this block, and put them back afterwards.

    Args:
        seed: 0 or more; NumPy takes its last 32 bits.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
