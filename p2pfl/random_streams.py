"""Random streams: every draw depends only on (federation seed, admitted name, round, purpose).

Results therefore do not depend on keys, on the order in which nodes run, or on earlier draws. Any part of a run can be
computed again on its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Digest(ISeedSequence):
    """Seed of PCG64 from a digest: 2 us per generator; NumPy's own seeding takes 8 us."""

    __slots__ = ("_digest",)

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return np.frombuffer(self._digest, dtype, n_words)  # type: ignore[call-overload,no-any-return]


class RandomStreams:
    """The random draws of one name (a node's, or the federation's own) under one seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name
        self._prefix = hashlib.blake2b(f"p2pfl draws\0{seed}\0{name}\0".encode(), digest_size=32)

    def digest(self, round: int, purpose: str) -> bytes:
        """Return the 32 bytes that seed the draws of (round, purpose)."""
        state = self._prefix.copy()
        state.update(f"{round}\0{purpose}".encode())
        return state.digest()

    def generator(self, round: int, purpose: str) -> np.random.Generator:
        """Return a new generator for (round, purpose); every call returns an equal one."""
        return np.random.Generator(np.random.PCG64(_Digest(self.digest(round, purpose))))  # type: ignore[arg-type]

    def torch_seed(self, round: int, purpose: str) -> int:
        """Return a seed below 2**63 for torch's own generator."""
        return int.from_bytes(self.digest(round, purpose)[:8], "little") >> 1


def federation_streams(seed: int) -> RandomStreams:
    """Return the random streams common to all nodes of a federation (the initial model, the order of a round)."""
    return RandomStreams(seed, "")


@lru_cache(maxsize=4)
def common_order(seed: int, round: int, names: tuple[str, ...]) -> Mapping[str, int]:
    """Return each name's position in a random order of the round.

    The relative order of two names does not depend on the other `names`. Nodes that know different peers therefore
    cannot wait for each other in a circle.
    """
    keys = {name: RandomStreams(seed, name).digest(round, "order") for name in names}
    return {name: place for place, name in enumerate(sorted(names, key=keys.__getitem__))}
