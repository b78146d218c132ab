"""How two members prove their keys to each other through a broker that they do not trust, and agree on keys for sealing.

    dialler -> listener   Opening: both keys, a fresh X25519 key, and the dialler's signature
    listener -> dialler   Accepting: another X25519 key, and the listener's signature over both messages; or Refusing

Each message is signed as it was sent: 64 bytes of signature, then the msgpack that is signed. A signature covers both
identities, so that nobody can pass a message on as meant for somebody else. The dialler believes in the listener when its
signature holds. The listener believes in the dialler only when the first packet opens that was sealed with the keys: an Opening
can be recorded and sent again. No I/O, no time: that is protocols.mqtt's business.
"""

from __future__ import annotations

import os
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocols.errors import IdentityError, ProtocolError
from protocols.handshake import ENTRIES_LIMIT, Bytes16, Bytes32, Proof, Refused, UInt32
from protocols.identity import SIGNATURE_SIZE, Identity, Verifier
from protocols.transport import Gate, Part

VERSION = 1
OPENING_LIMIT = 4096  # bytes of an Opening, signature included
ANSWER_LIMIT = 1024  # bytes of what answers it
TAG = 16  # bytes that sealing adds
DATA, CONTROL = 0, 1  # kinds of packets, each with its own numbers
_OPENING = b"p2pfl broker opening 1\0"
_ANSWER = b"p2pfl broker answer 1\0"
_KEYS = b"p2pfl broker keys 1\0"

Entries = Proof.__annotations__["entries"]
