"""Who a node is: an Ed25519 key in a file that only its owner can read.

The file is PEM, which other tools read too, and a line with its SHA-256, so that a damaged key is not taken for another one.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.errors import IdentityError

KEY_SIZE = 32
SIGNATURE_SIZE = 64


class Identity:
    """A private key. Its `public` half, 32 bytes, is how others know the node."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()})"

    @classmethod
    def create(cls, path: Path) -> Identity:
        """Make a new key and write it to a new file of mode 0600; when this returns it is on the disk.

        Raises:
            IdentityError: the file exists already.
            OSError: it cannot be written; there is no file then.
        """
        identity = cls(Ed25519PrivateKey.generate())
        pem = identity.private_pem()
        try:
            _write_new(path, pem + _checksum(pem))
        except FileExistsError as error:
            raise IdentityError(f"{path} exists; a key is never overwritten, move it away first") from error
        return identity

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file.

        Raises:
            IdentityError: the file is missing, is readable by others, is damaged, or holds no Ed25519 key.
        """
        try:
            mode = path.stat().st_mode
            content = path.read_bytes()
        except OSError as error:
            raise IdentityError(f"{path}: {error.strerror}") from error
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise IdentityError(f"{path} is readable by others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}")
        pem = content[: -len(_checksum(b""))]
        if content != pem + _checksum(pem):
            raise IdentityError(f"{path} is damaged, or not a key file that p2pfl has made")
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            raise IdentityError(f"{path} is not a key file") from None  # without the cause: it may quote the file
        if not isinstance(private, Ed25519PrivateKey):
            raise IdentityError(f"{path} holds a key of another kind than Ed25519")
        return cls(private)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Make the key of 32 given bytes: for simulations and tests, where a key protects nothing."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def private_pem(self) -> bytes:
        """Return the private key as PEM (PKCS #8, not encrypted). It is secret: it must not be logged, sent, or shown."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of `data`."""
        return self._private.sign(data)


def _checksum(pem: bytes) -> bytes:
    return f"# sha256: {sha256(pem).hexdigest()}\n".encode()


def _write_new(path: Path, content: bytes) -> None:
    """Make a file of mode 0600. Where the power fails meanwhile it may be there in part, which its checksum tells."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Verifier:
    """Checks the signatures of one public key (made once: parsing a key costs as much as a hash of 20 kB)."""

    def __init__(self, public: bytes) -> None:
        try:
            self._key = Ed25519PublicKey.from_public_bytes(public)
        except ValueError as error:
            raise IdentityError(f"{public.hex()} is not a public key") from error

    def valid(self, signature: bytes, data: bytes) -> bool:
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


def read_public(text: str) -> bytes:
    """Read a public key written as 64 hexadecimal digits.

    Raises:
        IdentityError: it is not one.
    """
    try:
        public = bytes.fromhex(text)
    except ValueError:
        public = b""
    if len(public) != KEY_SIZE:
        raise IdentityError(f"{text!r} is not a public key: 64 hexadecimal digits are expected")
    Verifier(public)
    return public
