"""Types of docs/wire-protocol.md and shared code of its readers, written from that page alone."""

from __future__ import annotations

from hashlib import sha256
from math import inf, isfinite

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MIB = 1 << 20


class RefusedError(Exception):
    def __init__(self, cause, membership_version=None):
        super().__init__(cause)
        self.cause = cause
        self.membership_version = membership_version  # the membership version after a refused log


def expect(holds, cause):
    if not holds:
        raise RefusedError(cause)


def digest(data):
    return sha256(data).digest()


PRIME = 2**255 - 19
Y_OF_ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
SMALL_ORDER = {0, 1, PRIME - 1, Y_OF_ORDER_8, PRIME - Y_OF_ORDER_8}


def is_weak(key):
    y = int.from_bytes(key, "little") % 2**255
    return y >= PRIME or y in SMALL_ORDER


def signed(key, signature, data):
    if is_weak(key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# msgpack: a type is a function that returns the value or refuses it as malformed


def integer(least, most):
    def check(value):
        expect(type(value) is int and least <= value <= most, "malformed")
        return value

    return check


def number(least=-inf, finite=False):
    def check(value):
        expect(type(value) in (int, float), "malformed")
        value = float(value)
        expect(not finite or (isfinite(value) and value >= least), "malformed")
        return value

    return check


def boolean(value):
    expect(type(value) is bool, "malformed")
    return value


def blob(most, least=None):
    def check(value):
        expect(type(value) is bytes and (most if least is None else least) <= len(value) <= most, "malformed")
        return value

    return check


def text(most, least=0):
    def check(value):
        expect(type(value) is str and least <= len(value) <= most, "malformed")
        return value

    return check


def one_of(*words):
    def check(value):
        expect(type(value) is str and value in words, "malformed")
        return value

    return check


def either(*kinds):
    def check(value):
        for kind in kinds:
            try:
                return kind(value)
            except RefusedError:
                continue
        raise RefusedError("malformed")

    return check


def nothing(value):
    expect(value is None, "malformed")


def array_of(kind, most):
    def check(value):
        expect(type(value) is list and len(value) <= most, "malformed")
        return [kind(each) for each in value]

    return check


def map_of(key, kind, most):
    def check(value):
        expect(type(value) is dict and len(value) <= most, "malformed")
        return {key(k): kind(v) for k, v in value.items()}

    return check


def structure(fields, optional=None):
    """Type of an array of fields in order; the last ones may have defaults."""
    optional = optional or {}
    needed = len(fields) - len(optional)

    def check(value):
        expect(type(value) is list and needed <= len(value) <= len(fields), "malformed")
        found = {name: kind(each) for (name, kind), each in zip(fields.items(), value, strict=False)}
        return optional | found

    return check


def kinds(table):
    """Type of an array whose first element selects the structure of the others."""

    def check(value):
        expect(type(value) is list and value and type(value[0]) is str and value[0] in table, "malformed")
        return {"kind": value[0]} | table[value[0]](value[1:])

    return check


def read(data, kind):
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RefusedError("malformed") from error
    return kind(value)


U32 = integer(0, 2**32 - 1)
B16, B32, B64 = blob(16), blob(32), blob(64)
WORD = text(64, 1)

# Values as in the vector files


def without_kind(fields):
    return {name: value for name, value in fields.items() if name != "kind"}


def plain(value):
    """Return a value as written in the vector files."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return to_text(value) if isinstance(value, float) else value


def to_text(value):
    return value if isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"
