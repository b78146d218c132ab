"""Reader of the noise of edges, written from docs/wire-protocol.md alone."""

import hashlib
from math import cos, inf, log1p, pi, sin, sqrt

import msgpack
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PART = 2**16


def claim(info):
    """Return key and sizes of a valid claim, else None."""
    key, *sizes = (info.get(f"privacy.{name}") for name in ("noise_key", "own_noise", "edge_noise"))
    right = isinstance(key, str) and len(key) == 64 and all(letter in "0123456789abcdef" for letter in key)
    right = right and all(isinstance(size, float) and 0 < size < inf for size in sizes)
    return (bytes.fromhex(key), *sizes) if right else None


def normals(key, step, values):
    stream_key = hashlib.blake2b(b"noise", key=key, digest_size=32).digest()
    nonce = bytes(8) + step.to_bytes(8, "little")
    stream = Cipher(algorithms.ChaCha20(stream_key, nonce), mode=None).encryptor()
    found = []
    while len(found) < values:
        size = min(PART, values - len(found))
        half = (size + 1) // 2
        words = [int.from_bytes(stream.update(bytes(8)), "little") >> 11 for _ in range(2 * half)]
        uniform = [word / 2**53 for word in words]
        pairs = [(sqrt(-2 * log1p(-u)), 2 * pi * w) for u, w in zip(uniform[:half], uniform[half:], strict=True)]
        found += ([radius * cos(angle) for radius, angle in pairs] + [radius * sin(angle) for radius, angle in pairs])[:size]
    return found


def check_edge(given):
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(given["private"]))
    sizes = given["own_noise"], given["edge_noise"]
    mine = (given["me"], bytes.fromhex(given["key"]), private.public_key().public_bytes_raw(), *sizes)
    told = claim(given["public_info"])
    if told is None:
        return None
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(told[0]))
    except ValueError:
        return None
    theirs = (given["peer"], bytes.fromhex(given["peer_key"]), *told)
    ends = sorted([mine, theirs])
    info = msgpack.packb(["p2pfl noise of edge 1", bytes.fromhex(given["federation"]), given["round"], *map(list, ends)])
    key = HKDF(SHA256(), 32, None, info).derive(secret)
    return {
        "key": key.hex(),
        "adds": ends[0] is mine,
        "deviation": round(min(sizes[1], told[2]), 9),
        "normals": [round(value, 5) for value in normals(key, 1, given["values"])],
    }


CHECKS = {"noise of an edge": check_edge}
