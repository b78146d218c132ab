"""Payloads of updates, submissions and assignments.

That of an update is the parameters, by default as raw little-endian float32, then the extras as msgpack.

The parameters come first. Both sides know their length from the layout, so they become an array without a copy (other
codecs: see p2pfl.node.exchange.model_encoding). An update without extras ends after the parameters.

    submission = model | model at the start of the round, if sent | msgpack [extras, previous], or nothing
    assignment = model | msgpack [weights, extras]

Models are raw little-endian float32. Extras are encoded as in an update. Weights are
a list of [name, weight] for each node whose model counted. The data after the models has at most EXTRAS_LIMIT bytes in
all. So a federation with a coordinator has a greatest size, 13,796 members with names of 64 letters and 49,931 with names of
ten: see `check_weights`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire.messages import Finite, Name, UInt32

T = TypeVar("T")
EXTRAS_LIMIT = 1 << 20  # bytes of extras in one update
DTYPES: dict[str, np.dtype[Any]] = {
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
    "i8": np.dtype("<i8"),
    "u8": np.dtype("<u8"),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_Arrays = Mapping[str, np.ndarray]
_MOST_WEIGHTS = 2**16
_Weights = Annotated[list[tuple[Name, Finite]], Meta(max_length=_MOST_WEIGHTS)]


class _Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    dtype: Literal["f4", "f8", "i8", "u8"]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**24)], ...], Meta(max_length=4)]
    data: bytes


Arrays = Annotated[list[_Array], Meta(max_length=16)]
_decoder = msgspec.msgpack.Decoder(Arrays)


def encode_extras(extras: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of small arrays by name.

    Raises:
        ValueError: a dtype other than float32, float64, int64 and uint64, or more bytes than EXTRAS_LIMIT.
    """
    return check_size(msgspec.msgpack.encode(pack(extras))) if extras else b""


def pack(extras: Mapping[str, np.ndarray]) -> Arrays:
    """Return small arrays by name as they are encoded.

    Raises:
        ValueError: a dtype other than float32, float64, int64 and uint64.
    """
    arrays = []
    for name, array in extras.items():
        dtype = DTYPE_NAMES.get(array.dtype)
        if dtype is None:
            raise ValueError(f"extra {name!r} must be float32, float64, int64 or uint64, got {array.dtype}")
        arrays.append(_Array(name, dtype, array.shape, array.tobytes()))  # type: ignore[arg-type]
    return arrays


def check_size(encoded: bytes) -> bytes:
    """Return the encoded data after the parameters, or raise ValueError if it exceeds EXTRAS_LIMIT bytes."""
    if len(encoded) > EXTRAS_LIMIT:
        raise ValueError(f"extras of {len(encoded)} bytes, at most {EXTRAS_LIMIT} are allowed")
    return encoded


def decode(payload: bytes | memoryview, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read an update's payload without copying it.

    Args:
        size: P, the number of parameters in the layout.

    Returns:
        The parameters, float32 [P], read-only; and the extras by name, read-only.

    Raises:
        ProtocolError: a wrong length, malformed extras, or a parameter that is not finite.
    """
    params, rest = decode_model(payload, size)
    extras = decode_extras(rest)
    check_finite(params)
    return params, extras


def decode_model(payload: bytes | memoryview, size: int) -> tuple[np.ndarray, memoryview]:
    """Return the parameters at the start of a payload, float32 [P], read-only and unchecked; and the data after them.

    Raises:
        ProtocolError: the payload is too short.
    """
    view = memoryview(payload)
    if len(view) < 4 * size:
        raise ProtocolError("wrong length", f"{len(view)} bytes for a model of {size} values")
    return np.frombuffer(view[: 4 * size], np.dtype("<f4")), view[4 * size :]


def check_finite(params: np.ndarray) -> None:
    """Raise ProtocolError if a value is not finite.

    Args:
        params: float32, shape [P].
    """
    # One pass is almost always enough: a value that is not finite makes the sum not finite. So may very large values.
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.dot(params, params)
    if not np.isfinite(square) and not np.isfinite(params).all():
        raise ProtocolError("not finite", "the model has values that are not finite")


def decode_extras(data: memoryview) -> dict[str, np.ndarray]:
    """Read the data after the parameters of an update: small arrays by name, read-only.

    Raises:
        ProtocolError: the data is not extras.
    """
    return unpack(decode_rest(data, _decoder, "extras")) if len(data) else {}


def decode_rest(data: memoryview, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
    """Read the data after the parameters.

    Raises:
        ProtocolError: the data is too long, or the decoder does not accept it.
    """
    if len(data) > EXTRAS_LIMIT:
        raise ProtocolError("wrong length", f"{len(data)} bytes after the model")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("wrong length", f"invalid {what} after the model: {error}") from error


def unpack(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return decoded arrays by name, read-only.

    Raises:
        ProtocolError: two arrays have the same name, or the bytes of one do not match its shape.
    """
    extras: dict[str, np.ndarray] = {}
    for array in arrays:
        dtype = DTYPES[array.dtype]
        if array.name in extras:
            raise ProtocolError("malformed", f"two extras with the name {array.name!r}")
        if len(array.data) != prod(array.shape) * dtype.itemsize:
            raise ProtocolError("malformed", f"the length of extra {array.name!r} does not match its shape")
        try:
            extras[array.name] = np.frombuffer(array.data, dtype).reshape(array.shape)
        except ValueError as error:  # no values, but the product of its dimensions exceeds NumPy's limit
            raise ProtocolError("malformed", f"extra {array.name!r}: {error}") from error
    return extras


_submission = msgspec.msgpack.Decoder(tuple[Arrays, Arrays])
_group = msgspec.msgpack.Decoder(Annotated[list[tuple[Name, UInt32]], Meta(max_length=2**16)])
_assignment = msgspec.msgpack.Decoder(tuple[_Weights, Arrays])


class Submitted(NamedTuple):
    """Decoded payload of a submission; all arrays are read-only, the models float32 of shape [P]."""

    params: np.ndarray
    start: np.ndarray | None
    extras: dict[str, np.ndarray]
    previous: dict[str, np.ndarray]


class Given(NamedTuple):
    """Decoded payload of an assignment; all arrays are read-only, the model float32 of shape [P]."""

    params: np.ndarray
    weights: dict[str, float]
    extras: dict[str, np.ndarray]


def encode_submission(extras: _Arrays, previous: _Arrays) -> bytes:
    """Return the data after the models of a submission.

    Raises:
        ValueError: see p2pfl.protocols.wire.payload.encode_extras.
    """
    return check_size(msgspec.msgpack.encode((pack(extras), pack(previous)))) if extras or previous else b""


def encode_assignment(weights: Mapping[str, float], extras: _Arrays) -> bytes:
    """Return the data after the model of an assignment.

    Raises:
        ValueError: see p2pfl.protocols.wire.payload.encode_extras.
    """
    return check_size(msgspec.msgpack.encode(([(name, float(w)) for name, w in weights.items()], pack(extras))))


def check_weights(names: Collection[str]) -> None:
    """Raise ValueError if an assignment cannot contain the weights of so many nodes, even without extras."""
    size = len(msgspec.msgpack.encode(([(name, 1.0) for name in names], [])))
    if size > EXTRAS_LIMIT or len(names) > _MOST_WEIGHTS:
        raise ValueError(
            f"the weights of {len(names):,} nodes have {size:,} bytes; an answer of a coordinator has at most"
            f" {EXTRAS_LIMIT:,} bytes and {_MOST_WEIGHTS:,} weights"
        )


def encode_group(samples: Mapping[str, int]) -> bytes:
    """Return the data after the mean of a group: the number of samples of each member.

    Raises:
        ValueError: see p2pfl.protocols.wire.payload.encode_extras.
    """
    return check_size(msgspec.msgpack.encode(list(samples.items())))


def decode_group(payload: bytes | memoryview, size: int) -> tuple[np.ndarray, dict[str, int]]:
    """Read the payload of a group's mean without copying it: the mean, and the samples by name.

    Raises:
        ProtocolError: `wrong length`, `malformed`, or `not finite`.
    """
    params, rest = decode_model(payload, size)
    pairs = decode_rest(rest, _group, "group")
    samples = dict(pairs)
    if len(samples) < len(pairs):
        raise ProtocolError("malformed", "the same member twice in a group")
    check_finite(params)
    return params, samples


def decode_submission(payload: bytes | memoryview, size: int, start: bool) -> Submitted:
    """Read the payload of a submission without copying it.

    Args:
        size: P, the number of parameters in the layout.
        start: whether the payload contains the model at the start of the round.

    Raises:
        ProtocolError: `wrong length`, `malformed`, or `not finite`.
    """
    params, rest = decode_model(payload, size)
    begun, rest = decode_model(rest, size) if start else (None, rest)
    extras, previous = decode_rest(rest, _submission, "submission") if len(rest) else ([], [])
    submitted = Submitted(params, begun, unpack(extras), unpack(previous))
    for model in (params, begun):
        if model is not None:
            check_finite(model)
    return submitted


def decode_assignment(payload: bytes | memoryview, size: int) -> Given:
    """Read the payload of an assignment without copying it.

    Raises:
        ProtocolError: `wrong length`, `malformed`, or `not finite`.
    """
    params, rest = decode_model(payload, size)
    pairs, extras = decode_rest(rest, _assignment, "assignment")
    weights = dict(pairs)
    if len(weights) < len(pairs):
        raise ProtocolError("malformed", "two weights for the same sender")
    given = Given(params, weights, unpack(extras))
    check_finite(params)
    return given
