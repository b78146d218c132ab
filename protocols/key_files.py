"""Key files: an Ed25519 private key as PEM, which other tools can read, and a line with the SHA-256 of that text.

With this line a damaged key is never accepted as another one. A key may be encrypted with a passphrase (PKCS #8, PBES2:
PBKDF2 with HMAC-SHA-256, then AES-256-CBC).
"""

from __future__ import annotations

import base64
import os
import textwrap
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from p2pfl.protocols.errors import IdentityError, PassphraseError

ITERATIONS = 600_000  # of PBKDF2; with the 2,048 of `cryptography` a GPU can try millions of passphrases a second
SHORTEST = 8  # minimum bytes of a passphrase
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


def encode(private: Ed25519PrivateKey, passphrase: bytes | None = None) -> bytes:
    """Return the content of a key file.

    Raises:
        IdentityError: the passphrase is too short.
    """
    pem = plain_pem(private) if passphrase is None else _encrypted_pem(private, passphrase)
    return pem + _checksum(pem)


def decode(path: Path, content: bytes, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Return the key in the content of a key file. If the key is not encrypted, the passphrase is ignored.

    Args:
        path: path of the file, for the error message.

    Raises:
        PassphraseError: the key is encrypted, and the passphrase is missing or wrong.
        IdentityError: the content is damaged, or holds no Ed25519 key.
    """
    pem = content[: -len(_checksum(b""))]
    if content != pem + _checksum(pem):
        raise IdentityError(f"{path} is damaged, or not a key file of p2pfl")
    encrypted = pem.startswith(_ENCRYPTED)
    if encrypted and passphrase is None:
        raise PassphraseError(f"{path} is encrypted and needs its passphrase")
    try:
        private = serialization.load_pem_private_key(pem, passphrase if encrypted else None)
    except (ValueError, TypeError):  # without the cause, which may quote the file
        if encrypted:
            raise PassphraseError(f"the passphrase of {path} is wrong") from None
        raise IdentityError(f"{path} is not a key file") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise IdentityError(f"{path} has a key of another kind than Ed25519")
    return private


def is_encrypted(path: Path) -> bool:
    """Return whether a key file is encrypted.

    Raises:
        IdentityError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_ENCRYPTED)) == _ENCRYPTED
    except OSError as error:
        raise IdentityError(f"{path}: {error.strerror}") from error


def write_new(path: Path, content: bytes) -> None:
    """Create a file of mode 0600. It is on disk when this returns; a power failure may leave a part of it.

    Raises:
        FileExistsError: the file exists already.
        OSError: the file cannot be written; it does not exist then.
    """
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


def plain_pem(private: Ed25519PrivateKey) -> bytes:
    """Return a key as PEM (PKCS #8, not encrypted)."""
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _encrypted_pem(private: Ed25519PrivateKey, passphrase: bytes) -> bytes:
    if len(passphrase) < SHORTEST:
        raise IdentityError(f"the passphrase must have at least {SHORTEST} characters; use several random words")
    plain = private.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    salt, start = os.urandom(16), os.urandom(16)
    padder, cipher = PKCS7(AES.block_size).padder(), Cipher(AES(_derive(passphrase, salt)), CBC(start)).encryptor()
    sealed = cipher.update(padder.update(plain) + padder.finalize()) + cipher.finalize()
    der = _sequence(_algorithm(salt, start), _octets(sealed))
    lines = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"{_ENCRYPTED.decode()}\n{lines}\n{_ENCRYPTED.decode().replace('BEGIN', 'END')}\n".encode()


def _derive(passphrase: bytes, salt: bytes) -> bytes:
    return pbkdf2_hmac("sha256", passphrase, salt, ITERATIONS, 32)


# DER, as far as RFC 8018 (PBES2) needs it

_PBES2, _PBKDF2, _HMAC_SHA256, _AES_256_CBC = (
    bytes.fromhex(oid)
    for oid in ("06092a864886f70d01050d", "06092a864886f70d01050c", "06082a864886f70d0209", "060960864801650304012a")
)
_NULL = b"\5\0"


def _algorithm(salt: bytes, start: bytes) -> bytes:
    iterations = _encode_der(2, ITERATIONS.to_bytes(4, "big").lstrip(b"\0"))
    derivation = _sequence(_PBKDF2, _sequence(_octets(salt), iterations, _sequence(_HMAC_SHA256, _NULL)))
    return _sequence(_PBES2, _sequence(derivation, _sequence(_AES_256_CBC, _octets(start))))


def _sequence(*parts: bytes) -> bytes:
    return _encode_der(0x30, b"".join(parts))


def _octets(content: bytes) -> bytes:
    return _encode_der(4, content)


def _encode_der(tag: int, content: bytes) -> bytes:
    """Return content of less than 256 bytes with its tag and length."""
    length = [len(content)] if len(content) < 128 else [0x81, len(content)]
    return bytes([tag, *length]) + content


def _checksum(pem: bytes) -> bytes:
    return f"# sha256: {sha256(pem).hexdigest()}\n".encode()
