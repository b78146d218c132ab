"""Codecs: parameters as bytes for peers. They send all values, rounded values, or the values that changed most.

A peer receives decode(encode(w)). Each codec states its maximum difference from w. Except with `top-k`, encoding the
result again gives the same bytes, so nothing is lost twice. Results are bit-identical on every platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np

from p2pfl._util.binding import build
from p2pfl.errors import P2pflError, unknown
from p2pfl.parameters import Layout, Parameters, norm

Data = bytes | memoryview
_BLOCK = 1 << 16  # values


class DecodeError(P2pflError, ValueError):
    """Error for bytes that are not a valid model.

    Attributes:
        cause: `wrong length`, `malformed` or `not finite`.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


class Decoded(NamedTuple):
    """Values that a codec has read from bytes and found valid, and their norm, which the check has computed.

    Attributes:
        params: float32, shape [P], all values finite. It may be a view of the encoded bytes.
        norm: its Euclidean norm.
    """

    params: Parameters
    norm: float


class Codec(Protocol):
    """Conversion of whole models to bytes and back."""

    @property
    def words(self) -> str:
        """Description of the codec that peers receive."""

    def size(self, layout: Layout) -> int:
        """Return the exact number of bytes of a model."""

    def encode(self, params: Parameters, layout: Layout) -> Data:
        """Return the bytes of a model; all of its values must be finite."""

    def decode(self, data: Data, layout: Layout) -> Decoded:
        """Return the model in some bytes.

        Raises:
            DecodeError: the bytes are not a valid model. At most the memory of one model is allocated.
        """


@dataclass(frozen=True)
class Float32:
    """Unchanged float32 values, little-endian. No loss; 4 P bytes."""

    @property
    def words(self) -> str:
        return "all parameters, float32, not compressed"

    def size(self, layout: Layout) -> int:
        return 4 * layout.size

    def encode(self, params: Parameters, layout: Layout) -> Data:
        return params.astype("<f4", copy=False).data.cast("B")

    def decode(self, data: Data, layout: Layout) -> Decoded:
        _check_length(data, self.size(layout))
        return decoded(np.frombuffer(data, "<f4"))


@dataclass(frozen=True)
class Float16:
    """IEEE half precision, rounded to nearest even; 2 P bytes.

    Loss: at most 2**-11 of a value, or 2**-25 if it is less than 2**-14. Values beyond 65504 are clipped to it.
    """

    @property
    def words(self) -> str:
        return "all parameters, float16"

    def size(self, layout: Layout) -> int:
        return 2 * layout.size

    def encode(self, params: Parameters, layout: Layout) -> Data:
        return np.clip(params, -65504.0, 65504.0).astype("<f2").data.cast("B")

    def decode(self, data: Data, layout: Layout) -> Decoded:
        _check_length(data, self.size(layout))
        return decoded(np.frombuffer(data, "<f2").astype(np.float32))


@dataclass(frozen=True)
class BFloat16:
    """The upper half of a float32, rounded to nearest even; 2 P bytes.

    Loss: at most 2**-8 of a value, or 2**-134 if it is less than 2**-126. Values that would round to infinity (beyond
    3.39e38) are clipped to the greatest finite value.
    """

    @property
    def words(self) -> str:
        return "all parameters, bfloat16"

    def size(self, layout: Layout) -> int:
        return 2 * layout.size

    def encode(self, params: Parameters, layout: Layout) -> Data:
        bits = params.view(np.uint32)
        half = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        half -= (half & 0x7FFF) == 0x7F80
        return half.astype("<u2", copy=False).data.cast("B")

    def decode(self, data: Data, layout: Layout) -> Decoded:
        _check_length(data, self.size(layout))
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return decoded(bits.view(np.float32))


@dataclass(frozen=True)
class Int8:
    """Integers from -127 to 127 with one scale for each tensor; P + 4 T bytes for T tensors.

    The greatest magnitude of each tensor (float32) is sent first. The scale is 1/127 of it, so the greatest value is
    exact. Rounding is half to even, in float64.

    Loss: at most half a scale, max|tensor| / 254, plus 2**-24 of the value.
    """

    @property
    def words(self) -> str:
        return "all parameters, int8 with a scale for each tensor"

    def size(self, layout: Layout) -> int:
        return 4 * len(layout.shapes) + layout.size

    def encode(self, params: Parameters, layout: Layout) -> Data:
        greatest = np.zeros(len(layout.shapes), "<f4")
        numbers = np.zeros(layout.size, np.int8)
        for k, (_, start, stop, _) in enumerate(layout.places):
            tensor = params[start:stop]
            greatest[k] = max(abs(tensor.max(initial=0.0)), abs(tensor.min(initial=0.0)))
            if greatest[k] > 0:
                for part in blocks(start, stop):
                    numbers[part] = np.rint(params[part].astype(np.float64) * 127 / np.float64(greatest[k]))
        return greatest.tobytes() + numbers.tobytes()

    def decode(self, data: Data, layout: Layout) -> Decoded:
        _check_length(data, self.size(layout))
        count = len(layout.shapes)
        greatest = decoded(np.frombuffer(data[: 4 * count], "<f4")).params
        numbers = np.frombuffer(data[4 * count :], np.int8)
        if (greatest < 0).any() or (numbers == -128).any():
            raise DecodeError("malformed", "a scale below 0, or a number below -127")
        params = np.empty(layout.size, np.float32)
        for k, (_, start, stop, _) in enumerate(layout.places):
            for part in blocks(start, stop):
                params[part] = numbers[part].astype(np.float64) * np.float64(greatest[k]) / 127
        return decoded(params)


@dataclass(frozen=True)
class Differential(Float32):
    """Codec that sends differences from a model that the receiver has, and otherwise the whole model as float32.

    Attributes:
        share: maximum fraction of the entries that one publication changes.
        copies: number of peers' models that are kept as a base for updates.
    """

    share: float
    copies: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be more than 0 and at most 1, got {self.share}")
        if self.copies < 0:
            raise ValueError(f"copies must be 0 or more, got {self.copies}")

    def count(self, layout: Layout) -> int:
        """Return k, the maximum number of entries that one publication changes."""
        return ceil(self.share * layout.size)


@dataclass(frozen=True)
class TopK(Differential):
    """The values that changed most; the others follow when their change is large enough. These are q and w^ of
    CHOCO-SGD (Koloskova et al., 2019, "Decentralized stochastic optimization and gossip algorithms with compressed
    communication", algorithm 2, lines 4 to 6).

    A node has a public copy w^ of its model w, which starts as the common initial model. With each publication, the k =
    ceil(share * P) entries with the largest `|w - w^|` are copied exactly from w to w^. The other differences remain
    for later publications (error feedback). Peers have w^, never w. A peer with an earlier w^ receives the entries that
    have changed since; any other peer receives the whole w^ as float32 (see p2pfl.compression.sparse_updates). The
    policy decides how models are averaged: the consensus step of the paper (line 9) is not used.

    Loss: unbounded in one publication. An entry that is left out long enough becomes the largest: if w does not change,
    w^ is equal to it after ceil(1 / share) publications.

    Memory: a node keeps a model of each of the `copies` peers that it requested last (4 P bytes each); `budget.held`
    does not count them. If the kept model is missing or more than 8 publications old, the next one is sent whole.

    Attributes:
        share: fraction of the entries that one publication changes.
        copies: number of peers' models that are kept as a base for updates.
    """

    share: float = 0.1
    copies: int = 32

    @property
    def words(self) -> str:
        return f"the {self.share:g} of the parameters that have changed most, float32"


@dataclass(frozen=True)
class Sparse(Differential):
    """The values that changed most, as differences of few bits; the others follow. This is CHOCO-SGD (Koloskova et al.,
    2019, algorithm 2, lines 4 to 6), with a quantised top-k operator as Q.

    Nodes of a federation start from the same model. Each has a public copy w^ of its model w, first the common one. In
    each publication t it computes

        e_t  = w_t - w^_(t-1)                  what peers lack, including the errors of all earlier publications
        q_t  = Q(e_t)                          sent
        w^_t = w^_(t-1) + q_t                  the model that peers receive

    Q(e) has the k = ceil(share * P) entries of largest magnitude, rounded to multiples of a unit u from -L u to L u, with
    L = 2**(bits - 1). L u is twice the median of the k magnitudes, but at least max|e| / 4 and at most max|e|. Entries that
    round to 0 are left out. No entry is then further from e than 0 is, and the greatest is cut by a quarter or more. So Q
    is a contraction, ||Q(e) - e||^2 <= (1 - 7 / (16 P)) ||e||^2, as the error feedback of Stich et al. (2018, "Sparsified
    SGD with memory", m = e - Q(e)) and Karimireddy et al. (2019, "Error feedback fixes SignSGD") requires. The memory m
    needs no vector of its own: e_(t+1) = (w_(t+1) - w_t) + (e_t - q_t).

    The memory belongs to the sender, not to each pair of nodes: a model is published once and served to many, so all peers
    follow the same sequence q_1, q_2, ... A peer that missed publications receives the q_t that it lacks, in order, and
    then has the same bits as all others. No peer can have an unknown state: a request names the model that the peer has
    by its hash (p2pfl.compression.sparse_updates.tag). A peer with a model that is not remembered, because it is new, was
    restarted, or missed too much, receives all of w^ as float32. A sender restores w^ and the messages from its
    checkpoint. A lost message changes nothing: the next request names the older model.
    The policy averages w^; the consensus step of the paper (line 9) is not used.

    A message of k entries has 8 bytes, bits * k / 8 bytes of values, and the indices. These take the smaller of two forms:
    a bit for each of the P entries, or an Elias-Fano code of about k * (2 + log2(1 / share)) / 8 bytes. See
    p2pfl.compression.sparse_updates. A difference has at most 64 messages and fewer bytes than the whole model.

    Loss: unbounded in one publication; if w does not change, w^ converges to it.

    Memory: a node keeps a model of each of the `copies` peers that it requested last (4 P bytes each), and messages of its
    own of at most 4 P bytes. `budget.held` does not count them.

    Attributes:
        share: maximum fraction of the entries that one publication changes.
        bits: bits of each value, 2 to 8, including the sign.
        copies: number of peers' models that are kept as a base for updates.
    """

    share: float = 0.03
    bits: int = 3
    copies: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.bits <= 8:
            raise ValueError(f"bits must be from 2 to 8, got {self.bits}")

    @property
    def words(self) -> str:
        return f"differences of the {self.share:g} of the parameters that have changed most, {self.bits} bits"


CODECS: Mapping[str, Callable[..., Codec]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
    "top-k": TopK,
    "sparse": Sparse,
}


def make_codec(name: str, options: Mapping[str, Any]) -> Codec:
    """Return the codec with this name in a configuration.

    Raises:
        ConfigurationError: the codec or one of its options is unknown.
    """
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    codec: Codec = build("codec", CODECS[name], options)
    return codec


def decoded(params: Parameters) -> Decoded:
    """Return a model, float32 [P], and its norm, if all of its values are finite. Both take one pass.

    Raises:
        DecodeError: a value is not finite.
    """
    size = norm(params)
    if not isfinite(size):
        raise DecodeError("not finite", "the model has values that are not finite")
    return Decoded(params, size)


def blocks(start: int, stop: int) -> Iterator[slice]:
    """Yield slices of at most 2**16 values from `start` to `stop`, so that float64 copies of large models stay small."""
    return (slice(at, min(at + _BLOCK, stop)) for at in range(start, stop, _BLOCK))


def _check_length(data: Data, size: int) -> None:
    if len(data) != size:
        raise DecodeError("wrong length", f"{len(data)} bytes for a model of {size}")
