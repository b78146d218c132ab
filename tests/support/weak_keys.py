"""Weak Ed25519 public keys, for which no signature may be valid, and forgeries that a library accepts for them."""

from itertools import count

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PRIME = 2**255 - 19
_ONE_OF_ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")


def encoded(y, sign=0):
    return (y + (sign << 255)).to_bytes(32, "little")


# Points of order 1 and 2, with x = 0, and of order 4 and 8, with both signs of x.
_TWO_SIGNS = [encoded(y, sign) for y in (0, _ONE_OF_ORDER_8, PRIME - _ONE_OF_ORDER_8) for sign in (0, 1)]
SMALL_ORDER = [encoded(1), encoded(PRIME - 1), *_TWO_SIGNS]
NOT_CANONICAL = [encoded(y, sign) for y in range(PRIME, 2**255) for sign in (0, 1)] + [encoded(1, 1), encoded(PRIME - 1, 1)]
# Encodings that are not canonical, of points of small order.
TWINS = [encoded(y, sign) for y in (PRIME, PRIME + 1) for sign in (0, 1)] + [encoded(1, 1), encoded(PRIME - 1, 1)]
WEAK = SMALL_ORDER + NOT_CANONICAL


def forged(public, make=lambda k: b"message %d" % k):
    """Return data and a signature that a library accepts for a key of small order; no secret is needed.

    Args:
        make: returns the k-th candidate. For one in eight of them, with the right R, the equation holds.
    """
    key = Ed25519PublicKey.from_public_bytes(public)
    for k in count():
        data = make(k)
        for point in SMALL_ORDER:
            try:
                key.verify(point + bytes(32), data)
            except InvalidSignature:
                continue
            return data, point + bytes(32)
    raise AssertionError
