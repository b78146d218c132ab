"""Sparse updates: differences between models, their encoding, and a record of which peer has which model.

A model is identified by its content, eight bytes of its hash. If a peer requests the changes since a model that the
sender never had (for example because it lost its disk), the peer is treated as having none.

    entries = count (uint32) | which | values (float32)

`which` is the smaller of two forms: the ascending indices, uint32 each, or a bitmap of the P entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2pfl.compression.codecs import Data, DecodeError, decoded
from p2pfl.parameters import Parameters

Indices = NDArray[np.uint32]  # ascending

REMEMBERED = 8  # publications; a peer with an older model receives the whole one
TAG = 8  # bytes


def tag(params: Parameters) -> bytes:
    """Return the 8 bytes that identify a model: the start of its BLAKE3 hash."""
    return blake3(params.astype("<f4", copy=False).data.cast("B")).digest(TAG)


def largest(difference: Parameters, k: int) -> Indices:
    """Return the indices of the k entries of largest magnitude, without zeros; on a tie the first."""
    magnitudes = np.abs(difference)
    least = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    if least == 0:
        return np.flatnonzero(magnitudes).astype(np.uint32)
    chosen = magnitudes > least
    chosen[np.flatnonzero(magnitudes == least)[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen).astype(np.uint32)


class Step(NamedTuple):
    """A publication: the tag of the resulting model, and the change from the previous model.

    Attributes:
        changed: the indices of the changed entries, uint32; with quantised values the whole message, see
            p2pfl.compression.quantised_updates.
    """

    tag: bytes
    changed: bytes


class PublicModel(Protocol):
    """Public copy of a node's model, of which peers receive differences.

    Attributes:
        params: the copy, float32 [P].
        steps: the latest publications.
    """

    params: Parameters
    steps: list[Step]

    def publish(self, params: Parameters) -> Step:
        """Move the copy towards `params`, float32 [P]."""

    def size(self, one: bytes, other: bytes) -> int | None:
        """Return the bytes of the difference between two published models; None if it is not known."""

    def encode(self, params: Parameters, one: bytes, other: bytes) -> bytes:
        """Return the difference of `params`, whose tag is `other`, from the model `one`."""

    def decode(self, data: Data, base: Parameters) -> tuple[Parameters, int]:
        """Return a peer's model, from its difference from `base`, and the number of bytes read."""

    def bound(self, publications: int) -> int | None:
        """Return the maximum bytes of the difference over some publications; None if it is not known."""

    def restore(self, steps: Sequence[Step], params: Parameters) -> None:
        """Restore the steps of an earlier run; `params` is the last model."""


class Public:
    """Public copy w^ of a node's model, as peers know it.

    Args:
        k: maximum number of entries that change with a publication.
        start: the common initial model.

    Attributes:
        params: w^, float32 [P].
        steps: the last publications, initially only the start. The changed entries of the first one are not used.
    """

    def __init__(self, k: int, start: Parameters) -> None:
        self.k = k
        self.params = start
        self.steps = [Step(tag(start), b"")]
        self._between: dict[tuple[bytes, bytes], Indices] = {}  # cache: many peers request the same

    def publish(self, params: Parameters) -> Step:
        """Set the entries of w^ that are furthest from `params`, float32 [P], to their values."""
        with np.errstate(over="ignore"):
            changed = largest(params - self.params, self.k)
        public = self.params.copy()
        public[changed] = params[changed]
        self.params = public
        self.steps = [*self.steps[-REMEMBERED:], Step(tag(public), changed.tobytes())]
        self._between = {}
        return self.steps[-1]

    def between(self, one: bytes, other: bytes) -> Indices | None:
        """Return the indices that may differ between two published models; None if one is not remembered."""
        if (one, other) in self._between:
            return self._between[one, other]
        places = {step.tag: place for place, step in enumerate(self.steps)}
        if one not in places or other not in places:
            return None  # not cached: peers can send any number of tags
        first, last = sorted((places[one], places[other]))
        changed = [np.frombuffer(step.changed, np.uint32) for step in self.steps[first + 1 : last + 1]]
        self._between[one, other] = np.unique(np.concatenate(changed)) if changed else np.zeros(0, np.uint32)
        return self._between[one, other]

    def size(self, one: bytes, other: bytes) -> int | None:
        """Return the bytes of the difference between two published models; None if it is not known."""
        changed = self.between(one, other)
        return None if changed is None else entries_size(len(changed), len(self.params))

    def encode(self, params: Parameters, one: bytes, other: bytes) -> bytes:
        """Return the difference of `params`, whose tag is `other`, from the model `one`.

        Raises:
            KeyError: `size` returns None for these.
        """
        changed = self.between(one, other)
        if changed is None:
            raise KeyError(one)
        return encode_entries(params, changed)

    def decode(self, data: Data, base: Parameters) -> tuple[Parameters, int]:
        """Return a peer's model, from its difference from `base`; see decode_entries."""
        return decode_entries(data, base)

    def bound(self, publications: int) -> int | None:
        """Return the maximum bytes of the difference over some publications; None if it is not known."""
        count, size = self.k * publications, len(self.params)
        return entries_size(count, size) if publications <= REMEMBERED and count < size else None

    def restore(self, steps: Sequence[Step], params: Parameters) -> None:
        """Restore the steps of an earlier run; `params` is the last model."""
        self.steps = list(steps)
        self.params = params
        self._between = {}


def entries_size(count: int, size: int) -> int:
    """Return the bytes of `count` entries of a model of P = `size` values."""
    return 4 + min(4 * count, -(-size // 8)) + 4 * count


def encode_entries(params: Parameters, indices: Indices) -> bytes:
    """Return the bytes of some entries of a model."""
    if _uses_list(len(indices), len(params)):
        which = indices.astype("<u4", copy=False).tobytes()
    else:
        bits = np.zeros(len(params), bool)
        bits[indices] = True
        which = np.packbits(bits, bitorder="little").tobytes()
    return len(indices).to_bytes(4, "little") + which + params[indices].astype("<f4", copy=False).tobytes()


def decode_entries(data: Data, base: Parameters) -> tuple[Parameters, int]:
    """Return `base`, float32 [P], with the entries at the start of `data`, and the number of bytes read.

    Raises:
        DecodeError: the entries are not valid.
    """
    size = len(base)
    count = int.from_bytes(data[:4], "little")
    if len(data) < 4 or count > size or len(data) < entries_size(count, size):
        raise DecodeError("wrong length", f"{len(data)} bytes for {count} of {size} entries")
    end = entries_size(count, size)
    which, values = data[4 : end - 4 * count], decoded(np.frombuffer(data[end - 4 * count : end], "<f4")).params
    params = base.copy()
    params[_indices_from_list(which, size) if _uses_list(count, size) else _indices_from_bitmap(which, count, size)] = values
    return params, end


def _uses_list(count: int, size: int) -> bool:
    return 4 * count <= -(-size // 8)


def _indices_from_list(data: Data, size: int) -> Indices:
    indices = np.frombuffer(data, "<u4")
    if len(indices) and (indices[-1] >= size or (indices[1:] <= indices[:-1]).any()):
        raise DecodeError("malformed", "indices that are not ascending, or are beyond the model")
    return indices


def _indices_from_bitmap(data: Data, count: int, size: int) -> NDArray[np.intp]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    indices = np.flatnonzero(bits)
    if len(indices) != count or indices[-1] >= size:
        raise DecodeError(
            "malformed", f"{len(indices)} entries are marked, or one beyond the model, but {count} were announced"
        )
    return indices


class Copy(NamedTuple):
    """The last received model of a peer."""

    tag: bytes
    params: Parameters
    round: int


class Copies:
    """Models of the peers that a node requested last.

    Args:
        most: maximum number of models.
        start: the common initial model.
    """

    def __init__(self, most: int, start: Parameters) -> None:
        self._most = most
        self._start = Copy(tag(start), start, 0)
        self._kept: dict[str, Copy] = {}  # the most recently requested peer is last

    def of(self, id: str) -> Copy:
        """Return the last kept model of a peer, or the common initial model."""
        return self._kept.get(id, self._start)

    def ask(self, ids: Sequence[str]) -> None:
        """Record that peers are about to be requested, in this order, and drop the least recently requested ones."""
        for id in ids:
            self._kept[id] = self._kept.pop(id, self._start)
        for id in list(self._kept)[: max(0, len(self._kept) - self._most)]:
            del self._kept[id]

    def keep(self, id: str, copy: Copy) -> None:
        """Keep a received model, unless its peer has been dropped since."""
        if id in self._kept:
            self._kept[id] = copy
