"""Sparse updates: public copies of models, and the differences between them that peers receive.

A node does not send its model but moves a public copy of it, w^, towards the model: each publication changes some entries
of w^. A peer with an earlier w^ receives the difference, while its sender remembers it; any other the whole of w^. All peers
that follow w^ have the same bits. Two codecs do this (`p2pfl.compression.codecs` says what they lose), each with its
`PublicCopy` here. The receiving node keeps what it has of its peers in `PeerCopies`.

A model is identified by its content, eight bytes of its hash (`tag`). If a peer requests the changes since a model that the
sender never had (for example because the sender lost its disk), the peer is treated as having none.

Codec `top-k`: entries with their values
    `PlainPublicCopy` copies the entries that are furthest from the model. A difference lists all entries that may differ
    between two publications, once each:

        entries = count (uint32) | which | values (float32)

    `which` is the smaller of two forms: the ascending indices, uint32 each, or a bitmap of the P entries.

Codec `sparse`: changes with quantised values
    `QuantisedPublicCopy` adds multiples of a unit to the entries. A difference is the sequence of the publications that the
    receiver lacks; only in their order do the rounded sums have the same bits:

        difference = count of messages (uint16) | messages
        message    = count (uint32) | unit (float32) | which | levels

    `which` is the smaller of two forms of the ascending indices: a bitmap of the P entries, or an Elias-Fano code. `levels`
    has `bits` bits for each entry: one less than the magnitude in units, then the sign. Packed numbers begin with the lowest
    bit of the first byte; unused bits are 0. The size of a message follows from its count.

    An Elias-Fano code (Elias, 1974) has l = floor(log2(P / count)) low bits of each index, packed, and then a bitmap of
    count + floor((P - 1) / 2**l) bits for the rest h = index >> l: bit h + k is 1 for the k-th index, k = 0, 1, ...
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2pfl.compression.codecs import Data, DecodeError, Sparse, decoded
from p2pfl.parameters import Parameters

Indices = NDArray[np.uint32]  # ascending
REMEMBERED = 8  # publications; a peer with an older model receives the whole one
TAG = 8  # bytes
MESSAGES = 64  # of one difference
COUNT = 2  # bytes of the number of messages
HEAD = 8  # bytes of a message before the indices
GREATEST = float(np.finfo(np.float32).max)


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


class Publication(NamedTuple):
    """A publication: the tag of the resulting model, and the change from the previous model.

    Attributes:
        changed: with `top-k` the indices of the changed entries, uint32; with `sparse` the whole message.
    """

    tag: bytes
    changed: bytes


class PublicCopy(Protocol):
    """Public copy of a node's model, of which peers receive differences.

    Attributes:
        params: the copy, float32 [P].
        publications: the latest ones.
    """

    params: Parameters
    publications: list[Publication]

    def publish(self, params: Parameters) -> Publication:
        """Move the copy towards `params`, float32 [P]."""

    def size(self, one: bytes, other: bytes) -> int | None:
        """Return the bytes of the difference between two published models; None if it is not known."""

    def encode(self, params: Parameters, one: bytes, other: bytes) -> bytes:
        """Return the difference of `params`, whose tag is `other`, from the model `one`."""

    def decode(self, data: Data, base: Parameters) -> tuple[Parameters, int]:
        """Return a peer's model, from its difference from `base`, and the number of bytes read."""

    def bound(self, publications: int) -> int | None:
        """Return the maximum bytes of the difference over some publications; None if it is not known."""

    def restore(self, publications: Sequence[Publication], params: Parameters) -> None:
        """Restore the publications of an earlier run; `params` is the last model."""


class PeerCopy(NamedTuple):
    """The last received model of a peer."""

    tag: bytes
    params: Parameters
    round: int


class PeerCopies:
    """Models of the peers that a node requested last.

    Args:
        most: maximum number of models.
        start: the common initial model.
    """

    def __init__(self, most: int, start: Parameters) -> None:
        self._most = most
        self._start = PeerCopy(tag(start), start, 0)
        self._kept: dict[str, PeerCopy] = {}  # the most recently requested peer is last

    def of(self, id: str) -> PeerCopy:
        """Return the last kept model of a peer, or the common initial model."""
        return self._kept.get(id, self._start)

    def ask(self, ids: Sequence[str]) -> None:
        """Record that peers are about to be requested, in this order, and drop the least recently requested ones."""
        for id in ids:
            self._kept[id] = self._kept.pop(id, self._start)
        for id in list(self._kept)[: max(0, len(self._kept) - self._most)]:
            del self._kept[id]

    def keep(self, id: str, copy: PeerCopy) -> None:
        """Keep a received model, unless its peer has been dropped since."""
        if id in self._kept:
            self._kept[id] = copy


# The codec top-k: entries with their values


class PlainPublicCopy:
    """Public copy w^ of a node's model, as peers know it.

    Args:
        k: maximum number of entries that change with a publication.
        start: the common initial model.

    Attributes:
        params: w^, float32 [P].
        publications: the last ones, initially only the start. The changed entries of the first one are not used.
    """

    def __init__(self, k: int, start: Parameters) -> None:
        self.k = k
        self.params = start
        self.publications = [Publication(tag(start), b"")]
        self._between: dict[tuple[bytes, bytes], Indices] = {}  # cache: many peers request the same

    def publish(self, params: Parameters) -> Publication:
        """Set the entries of w^ that are furthest from `params`, float32 [P], to their values."""
        with np.errstate(over="ignore"):
            changed = largest(params - self.params, self.k)
        public = self.params.copy()
        public[changed] = params[changed]
        self.params = public
        self.publications = [*self.publications[-REMEMBERED:], Publication(tag(public), changed.tobytes())]
        self._between = {}
        return self.publications[-1]

    def between(self, one: bytes, other: bytes) -> Indices | None:
        """Return the indices that may differ between two published models; None if one is not remembered."""
        if (one, other) in self._between:
            return self._between[one, other]
        places = {each.tag: place for place, each in enumerate(self.publications)}
        if one not in places or other not in places:
            return None  # not cached: peers can send any number of tags
        first, last = sorted((places[one], places[other]))
        changed = [np.frombuffer(each.changed, np.uint32) for each in self.publications[first + 1 : last + 1]]
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

    def restore(self, publications: Sequence[Publication], params: Parameters) -> None:
        """Restore the publications of an earlier run; `params` is the last model."""
        self.publications = list(publications)
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


# The codec sparse: changes with quantised values


class QuantisedPublicCopy:
    """Public copy w^ of a node's model under the codec `sparse`, and the messages that have changed it.

    Args:
        start: the common initial model.

    Attributes:
        params: w^, float32 [P].
        publications: the latest ones with their messages, initially only the start. The message of the first one is not
            used. Together the others have fewer bytes than a model.
    """

    def __init__(self, codec: Sparse, k: int, start: Parameters) -> None:
        self._k = k
        self._bits = codec.bits
        self.params = start
        self.publications = [Publication(tag(start), b"")]

    def publish(self, params: Parameters) -> Publication:
        """Move w^ towards `params`, float32 [P]."""
        with np.errstate(over="ignore"):
            difference = np.clip(params - self.params, -GREATEST, GREATEST)
        change = quantise(difference, self._k, self._bits)
        public = change.apply(self.params)
        fits = np.isfinite(public[change.indices])
        if not fits.all():  # rounded beyond the greatest float32
            change = change.part(fits)
            public = change.apply(self.params)
        self.params = public
        self.publications.append(Publication(tag(public), encode_change(change, len(public), self._bits)))
        while len(self.publications) > MESSAGES + 1 or self._length(0, len(self.publications) - 1) >= 4 * len(public):
            del self.publications[0]
        return self.publications[-1]

    def size(self, one: bytes, other: bytes) -> int | None:
        """Return the bytes of the difference between two published models; None if it is not known."""
        span = self._span(one, other)
        return None if span is None else self._length(*span)

    def encode(self, params: Parameters, one: bytes, other: bytes) -> bytes:
        """Return the difference of `params`, whose tag is `other`, from the model `one`.

        Raises:
            KeyError: `size` returns None for these.
        """
        span = self._span(one, other)
        if span is None:
            raise KeyError(one)
        messages = [each.changed for each in self.publications[span[0] + 1 : span[1] + 1]]
        return len(messages).to_bytes(COUNT, "little") + b"".join(messages)

    def decode(self, data: Data, base: Parameters) -> tuple[Parameters, int]:
        """Return a peer's model, from its difference from `base`; see decode_changes."""
        return decode_changes(data, base, self._bits)

    def bound(self, publications: int) -> int | None:
        """Return the maximum bytes of the difference over some publications; None if it is not known."""
        rounding = 2  # bytes; a message with fewer entries may have as many more
        each = change_size(self._k, len(self.params), self._bits) + rounding
        return COUNT + publications * each if publications <= MESSAGES else None

    def restore(self, publications: Sequence[Publication], params: Parameters) -> None:
        """Restore the publications of an earlier run; `params` is the last model."""
        self.publications = list(publications)
        self.params = params

    def _span(self, one: bytes, other: bytes) -> tuple[int, int] | None:
        places = {each.tag: place for place, each in enumerate(self.publications)}
        first, last = places.get(one), places.get(other)
        return None if first is None or last is None or first > last else (first, last)

    def _length(self, first: int, last: int) -> int:
        return COUNT + sum(len(each.changed) for each in self.publications[first + 1 : last + 1])


def decode_changes(data: Data, base: Parameters, bits: int) -> tuple[Parameters, int]:
    """Return `base`, float32 [P], after the changes of a difference, and the number of bytes read.

    Raises:
        DecodeError: the difference is not valid.
    """
    messages, end = int.from_bytes(data[:COUNT], "little"), COUNT
    if len(data) < COUNT:
        raise DecodeError("wrong length", f"{len(data)} bytes of a difference")
    if messages > MESSAGES:
        raise DecodeError("malformed", f"{messages} messages, at most {MESSAGES} are allowed")
    params = base
    for _ in range(messages):
        change, length = decode_change(data[end:], len(base), bits)
        params, end = change.apply(params), end + length
    return decoded(params).params, end


class Change(NamedTuple):
    """Entries by which one publication moves a public copy, in whole units.

    Attributes:
        indices: of the entries that change, ascending.
        levels: their changes in units, int16, from -2**(bits - 1) to 2**(bits - 1), without 0.
        unit: float32.
    """

    indices: Indices
    levels: NDArray[np.int16]
    unit: np.float32

    def apply(self, params: Parameters) -> Parameters:
        """Return a changed copy of a model: each entry plus level * unit, both operations in float32."""
        changed = params.copy()
        with np.errstate(over="ignore"):
            changed[self.indices] += self.levels.astype(np.float32) * self.unit
        return changed

    def part(self, chosen: NDArray[np.bool_]) -> Change:
        """Return the change of some of the entries; `chosen` is bool, one for each."""
        return Change(self.indices[chosen], self.levels[chosen], self.unit) if chosen.any() else NOTHING


NOTHING = Change(np.zeros(0, np.uint32), np.zeros(0, np.int16), np.float32(0))


def quantise(difference: Parameters, k: int, bits: int) -> Change:
    """Return the k entries of largest magnitude, rounded to multiples of a unit; those that round to 0 are left out.

    The greatest level is twice the median of the k magnitudes, but at least a quarter of the greatest one, and at most
    the greatest one. So a few large entries do not make the unit coarse for all others; they follow with the next
    publications.
    """
    indices = largest(difference, k)
    values = difference[indices].astype(np.float64)
    if not len(values):
        return NOTHING
    magnitudes, most = np.abs(values), 1 << (bits - 1)
    greatest = magnitudes.max()
    unit = np.float32(np.clip(2 * np.median(magnitudes), greatest / 4, greatest) / most)
    if unit == 0:  # below the least float32
        return NOTHING
    levels = np.clip(np.rint(values / np.float64(unit)), -most, most).astype(np.int16)
    return Change(indices, levels, unit).part(levels != 0)


def encode_change(change: Change, size: int, bits: int) -> bytes:
    """Return the message of a change of a model of P = `size` values."""
    indices, levels, unit = change
    codes = np.abs(levels).astype(np.uint32) - np.uint32(1) + (levels < 0).astype(np.uint32) * np.uint32(1 << (bits - 1))
    head = len(indices).to_bytes(4, "little") + struct.pack("<f", unit)
    return head + encode_indices(indices, size) + _pack(codes, bits)


def decode_change(data: Data, size: int, bits: int) -> tuple[Change, int]:
    """Return the change in the message at the start of `data`, and the number of bytes read.

    Raises:
        DecodeError: the message is not valid.
    """
    count = int.from_bytes(data[:4], "little")
    if len(data) < HEAD or count > size or len(data) < change_size(count, size, bits):
        raise DecodeError("wrong length", f"{len(data)} bytes for {count} of {size} entries")
    end = change_size(count, size, bits)
    start = end - _packed_size(count, bits)
    unit = np.float32(struct.unpack("<f", data[4:HEAD])[0])
    if not isfinite(unit):
        raise DecodeError("not finite", "the unit of a message is not finite")
    if (unit > 0) != (count > 0):
        raise DecodeError("malformed", f"the unit {unit} with {count} entries")
    indices = decode_indices(data[HEAD:start], count, size)
    codes = _unpack(data[start:end], count, bits)
    magnitudes = (codes & ((1 << (bits - 1)) - 1)).astype(np.int16) + np.int16(1)
    return Change(indices, np.where(codes >> (bits - 1), -magnitudes, magnitudes), unit), end


def change_size(count: int, size: int, bits: int) -> int:
    """Return the bytes of the message of `count` entries of a model of P = `size` values."""
    return HEAD + _indices_size(count, size) + _packed_size(count, bits)


# Indices of a change


def encode_indices(indices: Indices, size: int) -> bytes:
    """Return the bytes of ascending indices below P = `size`, in the smaller form."""
    count = len(indices)
    if not _uses_elias_fano(count, size):
        return _bitmap(indices, -(-size // 8))
    low = _low_bits(count, size)
    high = ((indices >> np.uint32(low)) + np.arange(count, dtype=np.uint32)).astype(np.uint32)
    return _pack(indices & np.uint32((1 << low) - 1), low) + _bitmap(high, _high_size(count, size))


def decode_indices(data: Data, count: int, size: int) -> Indices:
    """Return `count` ascending indices below P = `size` from exactly their bytes.

    Raises:
        DecodeError: they are not valid.
    """
    if not _uses_elias_fano(count, size):
        indices = _marked(data, count)
    else:
        low = _low_bits(count, size)
        start = _packed_size(count, low)
        high = _marked(data[start:], count) - np.arange(count)
        indices = (high << low) + _unpack(data[:start], count, low)
    if count and (indices[-1] >= size or (indices[1:] <= indices[:-1]).any()):
        raise DecodeError("malformed", "indices that are not ascending, or are beyond the model")
    return indices.astype(np.uint32)


def _indices_size(count: int, size: int) -> int:
    """Return the bytes of the smaller form of `count` indices."""
    return min(_elias_fano_size(count, size), -(-size // 8))


def _uses_elias_fano(count: int, size: int) -> bool:
    return _elias_fano_size(count, size) < -(-size // 8)


def _elias_fano_size(count: int, size: int) -> int:
    return _packed_size(count, _low_bits(count, size)) + _high_size(count, size)


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1 if count else 0


def _high_size(count: int, size: int) -> int:
    return -(-(count + ((size - 1) >> _low_bits(count, size))) // 8) if count else 0


def _bitmap(places: Indices, length: int) -> bytes:
    bits = np.zeros(8 * length, bool)
    bits[places] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _marked(data: Data, count: int) -> NDArray[np.int64]:
    places = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    if len(places) != count:
        raise DecodeError("malformed", f"{len(places)} entries are marked, but {count} were announced")
    return places


# Packed numbers


def _packed_size(count: int, width: int) -> int:
    return -(-count * width // 8)


def _pack(numbers: NDArray[np.uint32], width: int) -> bytes:
    bits = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        bits[:, place] = (numbers >> np.uint32(place)) & np.uint32(1)
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def _unpack(data: Data, count: int, width: int) -> NDArray[np.uint32]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count * width :].any():
        raise DecodeError("malformed", "unused bits that are not 0")
    numbers = np.zeros(count, np.uint32)
    for place in range(width):
        numbers |= bits[place : count * width : width].astype(np.uint32) << np.uint32(place)
    return numbers
