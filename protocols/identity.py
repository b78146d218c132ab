"""Identity of a node: an Ed25519 key in a file that only its owner can read (p2pfl.protocols.key_files), and its
signatures.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2pfl._util.disk import SYSTEM
from p2pfl.protocols import key_files
from p2pfl.protocols.errors import IdentityError

KEY_SIZE = 32
SIGNATURE_SIZE = 64


class Identity:
    """Private key of a node. Its `public` half, 32 bytes, identifies the node to others."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()})"

    @classmethod
    def create(cls, path: Path, passphrase: bytes | None = None) -> Identity:
        """Create a new key and write it to a new file of mode 0600. The file is on disk when this returns.

        Args:
            passphrase: encrypts the file.

        Raises:
            IdentityError: the file exists already, or the passphrase is too short.
            OSError: the file cannot be written; it does not exist then.
        """
        private = Ed25519PrivateKey.generate()
        content = key_files.encode(private, passphrase)
        try:
            key_files.write_new(path, content)
        except FileExistsError as error:
            raise IdentityError(f"{path} exists; move it away first, because keys are not overwritten") from error
        return cls(private)

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> Identity:
        """Read a key file.

        Args:
            passphrase: the passphrase of an encrypted file.

        Raises:
            PassphraseError: the file is encrypted, and the passphrase is missing or wrong.
            IdentityError: the file is missing, is readable by others, is damaged, or holds no Ed25519 key.
        """
        try:
            mode = path.stat().st_mode
            content = SYSTEM.read(path)
        except OSError as error:
            raise IdentityError(f"{path}: {error.strerror}") from error
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise IdentityError(
                f"{path} is accessible to other users (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}"
            )
        return cls(key_files.decode(path, content, passphrase))

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Derive the key from 32 given bytes, for simulations and tests, where a key protects nothing."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def private_pem(self) -> bytes:
        """Return the private key as PEM (PKCS #8, not encrypted). It is secret: never log, send or show it."""
        return key_files.plain_pem(self._private)

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of `data`."""
        return self._private.sign(data)


# Keys for which no signature is valid. A point whose order divides 8 belongs to no secret: anyone can find signatures
# that a library accepts for it. An encoding whose y is not reduced is a second encoding of a point.
_PRIME = 2**255 - 19
_SIGN = 2**255
_ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8})  # y, for both signs of x


def is_weak(public: bytes) -> bool:
    """Return whether a public key is a point of small order, or not the canonical encoding of a point."""
    y = int.from_bytes(public, "little") % _SIGN
    return y >= _PRIME or y in _SMALL_ORDER


class Verifier:
    """Verifier of the signatures of one public key. Reuse it: parsing a key costs as much as a hash of 20 kB.

    Raises:
        IdentityError: the key is not a public key, or it is weak (see `is_weak`).
    """

    def __init__(self, public: bytes) -> None:
        try:
            self._key = Ed25519PublicKey.from_public_bytes(public)
        except ValueError as error:
            raise IdentityError(f"{public.hex()} is not a public key") from error
        if is_weak(public):
            raise IdentityError(f"{public.hex()} is a weak key, for which signatures can be forged")

    def valid(self, signature: bytes, data: bytes) -> bool:
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether a signature is valid; it never is for an invalid or weak key."""
    try:
        return _verifier(public).valid(signature, data)
    except IdentityError:
        return False


_verifier = lru_cache(maxsize=4096)(Verifier)
