"""Every random draw comes from (federation seed, admitted name, round, purpose), and from nothing else.

So neither keys, nor the order in which nodes run, nor what a node drew before can change a result, and any part of a
run can be computed again alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Digest(ISeedSequence):
    """Hands a digest to PCG64 as its seed: 2 us a generator, where NumPy's own seeding takes 8."""

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return np.frombuffer(self._digest, dtype=np.dtype(dtype), count=n_words)  # type: ignore[call-overload]


class RandomStreams:
    """The random draws of one name (a node's, or the federation's own) under one seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name
        self._prefix = hashlib.blake2b(f"p2pfl draws\0{seed}\0{name}\0".encode(), digest_size=32)

    def digest(self, round: int, purpose: str) -> bytes:
        """Return the 32 bytes from which the draws of (round, purpose) are made."""
        state = self._prefix.copy()
        state.update(f"{round}\0{purpose}".encode())
        return state.digest()

    def generator(self, round: int, purpose: str) -> np.random.Generator:
        """Return a new generator for (round, purpose): the same one however often it is asked for."""
        return np.random.Generator(np.random.PCG64(_Digest(self.digest(round, purpose))))  # type: ignore[arg-type]

    def torch_seed(self, round: int, purpose: str) -> int:
        """Return a seed below 2**63 for torch's own generator."""
        return int.from_bytes(self.digest(round, purpose)[:8], "little") >> 1


def federation_draws(seed: int) -> RandomStreams:
    """Return the draws that all nodes of a federation have in common (the initial model, the order of a round)."""
    return RandomStreams(seed, "")


@lru_cache(maxsize=4)
def common_order(seed: int, round: int, names: tuple[str, ...]) -> Mapping[str, int]:
    """Return each name's place in an order that is drawn for the round.

    It is the same between any two names, whoever else is in `names`, so that nodes that know different others do not wait
    for each other in a circle.
    """
    keys = {name: RandomStreams(seed, name).digest(round, "order") for name in names}
    return {name: place for place, name in enumerate(sorted(names, key=keys.__getitem__))}
