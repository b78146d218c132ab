"""Payloads of a submission and of an assignment.

    submission = model | model at the start of the round, if sent | msgpack [extras, previous], or nothing
    assignment = model | msgpack [weights, extras]

Models are raw little-endian float32. Extras are encoded as in an update (see p2pfl.protocols.wire.payload). Weights are
a list of [name, weight] for each node whose model counted. The data after the models has at most EXTRAS_LIMIT bytes in
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire.messages import Finite, Name
from p2pfl.protocols.wire.payload import Arrays, check_finite, check_size, decode_model, decode_rest, pack, unpack

_Arrays = Mapping[str, np.ndarray]
_Weights = Annotated[list[tuple[Name, Finite]], Meta(max_length=2**16)]
_submission = msgspec.msgpack.Decoder(tuple[Arrays, Arrays])
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
