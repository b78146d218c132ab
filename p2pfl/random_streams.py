"""Random streams: every draw depends only on (federation seed, admitted name, round, purpose).

Results therefore do not depend on keys, on the order in which nodes run, or on earlier draws. Any part of a run can be
computed again on its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import overload

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Digest(ISeedSequence):
    """Seed of PCG64 from a digest, uint64 [4]: 2 us per generator; NumPy's own seeding takes 8 us."""

    __slots__ = ("words",)

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self.words


class RandomStreams:
    """The random draws of one name (a node's, or the federation's own) under one seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name
        self._prefix = hashlib.blake2b(f"p2pfl draws\0{seed}\0{name}\0".encode(), digest_size=32)

    def digest(self, round: int, purpose: str) -> bytes:
        """Return the 32 bytes that seed the draws of (round, purpose)."""
        return self._digest(f"{round}\0{purpose}".encode())

    def _digest(self, what: bytes) -> bytes:
        state = self._prefix.copy()
        state.update(what)
        return state.digest()

    def generator(self, round: int, purpose: str) -> np.random.Generator:
        """Return a new generator for (round, purpose); every call returns an equal one."""
        return _generator(self.digest(round, purpose))

    def torch_seed(self, round: int, purpose: str) -> int:
        """Return a seed below 2**63 for torch's own generator."""
        return int.from_bytes(self.digest(round, purpose)[:8], "little") >> 1


def _generator(digest: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(_Digest(np.frombuffer(digest, np.uint64))))  # type: ignore[arg-type]


class StreamsOfEach(Sequence[RandomStreams]):
    """Random streams of many names under one seed. Each is made when it is used, because a million take half a GiB."""

    def __init__(self, seed: int, names: Sequence[str]) -> None:
        self.seed, self.names = seed, names

    def of(self, nodes: Sequence[int]) -> StreamsOfEach:
        """Return the streams of some names, by their places."""
        return StreamsOfEach(self.seed, [self.names[node] for node in nodes])

    @overload
    def __getitem__(self, index: int) -> RandomStreams: ...

    @overload
    def __getitem__(self, index: slice) -> StreamsOfEach: ...

    def __getitem__(self, index: int | slice) -> RandomStreams | StreamsOfEach:
        names = self.names[index]
        return RandomStreams(self.seed, names) if isinstance(names, str) else StreamsOfEach(self.seed, names)

    def __len__(self) -> int:
        return len(self.names)

    def digests(self, round: int, purpose: str) -> list[bytes]:
        """Return what `RandomStreams.digest` returns for each name, without making its streams."""
        before, after, hash = f"p2pfl draws\0{self.seed}\0", f"\0{round}\0{purpose}", hashlib.blake2b
        return [hash(f"{before}{name}{after}".encode(), digest_size=32).digest() for name in self.names]


def digests(streams: Sequence[RandomStreams], round: int, purpose: str) -> np.ndarray:
    """Return the digest of (round, purpose) of each stream, as four words; uint64 [N, 4]."""
    return np.frombuffer(b"".join(_digests(streams, round, purpose)), np.uint64).reshape(-1, 4)


def _digests(streams: Sequence[RandomStreams], round: int, purpose: str) -> list[bytes]:
    if isinstance(streams, StreamsOfEach):
        return streams.digests(round, purpose)
    return [stream.digest(round, purpose) for stream in streams]


def generators(streams: Sequence[RandomStreams], round: int, purpose: str) -> Iterator[np.random.Generator]:
    """Yield `generator(round, purpose)` of each stream."""
    return map(_generator, _digests(streams, round, purpose))


def permutations(streams: Sequence[RandomStreams], round: int, purpose: str, n: int, count: int = 1) -> np.ndarray:
    """Return the first `count` permutations of n of `generator(round, purpose)` of each stream; int64 [N, count, n].

    NumPy shuffles with draws that it may reject, so that the place of a draw in the stream depends on all before it. To do
    this for all streams at once is slower for fewer than thousands of them.
    """
    found = np.empty((len(streams), count, n), np.int64)
    found[:] = np.arange(n)
    seeds = digests(streams, round, purpose)
    seed, generator, pcg64 = _Digest(seeds), np.random.Generator, np.random.PCG64
    rows = iter(found.reshape(len(streams) * count, n))
    for seed.words in seeds:
        shuffle = generator(pcg64(seed)).shuffle  # type: ignore[arg-type]
        for row in islice(rows, count):
            shuffle(row)
    return found


def uniform_draws(seeds: np.ndarray, count: int) -> np.ndarray:
    """Return the first draws of `generator(...).random()` of each seed, float64 [N, count], all at once.

    NumPy's PCG64 is a linear congruential generator of 128 bits (O'Neill 2014, PCG XSL-RR): the state after k steps from
    s is a^k s + (1 + a + ... + a^(k - 1)) c, which is s + (1 + a + ... + a^(k - 1)) ((a - 1) s + c), so that all draws of
    all nodes are one product of 128-bit numbers.

    Args:
        seeds: as `digests` returns them; uint64 [N, 4].
    """
    high, low, inc_high, inc_low = (seeds[:, k, None] for k in range(4))
    inc = (inc_high << _ONE | inc_low >> np.uint64(63), inc_low << _ONE | _ONE)
    start = _add128(inc, (high, low))
    step = _add128(_multiply128(start, _LESS_ONE), inc)
    high, low = _add128(start, _multiply128(step, _factors(count)))
    mixed, turn = high ^ low, high >> np.uint64(58)
    words = mixed >> turn | mixed << (np.uint64(64) - turn & np.uint64(63))
    draws: np.ndarray = (words >> np.uint64(11)) * 2.0**-53
    return draws


_MULTIPLIER = 47026247687942121848144207491837523525  # of PCG64
_ONE, _HALF, _32 = np.uint64(1), np.uint64(2**32 - 1), np.uint64(32)
Words = tuple[np.ndarray, np.ndarray]  # the high and the low half of 128-bit numbers, uint64


def _words(numbers: Sequence[int]) -> Words:
    return np.array([n >> 64 for n in numbers], np.uint64), np.array([n & 2**64 - 1 for n in numbers], np.uint64)


_LESS_ONE = _words([_MULTIPLIER - 1])


def _add128(one: Words, other: Words) -> Words:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < other[1]), low


@lru_cache(maxsize=64)
def _factors(count: int) -> Words:
    """Return 1 + a + ... + a^(k - 1) for the states before `count` draws, [count]."""
    total, found = 1, []
    for _ in range(count):  # one step follows the seed, and one precedes each draw
        total = (total * _MULTIPLIER + 1) % 2**128
        found.append(total)
    return _words(found)


def _multiply128(one: Words, other: Words) -> Words:
    """Return the products of numbers, [N, 1], and K factors, modulo 2**128; [N, K]."""
    (high, low), (other_high, other_low) = one, other
    a, b, c, d = low >> _32, low & _HALF, other_low >> _32, other_low & _HALF
    middle = a * d + (b * d >> _32)
    carried = b * c + (middle & _HALF)
    return a * c + (middle >> _32) + (carried >> _32) + low * other_high + high * other_low, low * other_low


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
