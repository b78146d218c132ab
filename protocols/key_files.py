"""Key files: an Ed25519 private key as PEM, which other tools can read, and a line with the SHA-256 of that text.

With this line a damaged key is never accepted as another one. A plain key has the format PKCS #8. A key may be encrypted
with a passphrase, in the format of OpenSSH (bcrypt, then AES-256-CTR). Encrypted PKCS #8 is read, too.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2pfl._util.disk import SYSTEM
from p2pfl.protocols.errors import IdentityError, PassphraseError

ROUNDS = 64  # of bcrypt: half a second; ssh-keygen has 24
SHORTEST = 8  # minimum bytes of a passphrase
_OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_ENCRYPTED = _OPENSSH, b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


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
        load = serialization.load_ssh_private_key if pem.startswith(_OPENSSH) else serialization.load_pem_private_key
        private = load(pem, passphrase if encrypted else None)
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
        return SYSTEM.read(path, max(map(len, _ENCRYPTED))).startswith(_ENCRYPTED)
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
    encryption = serialization.PrivateFormat.OpenSSH.encryption_builder().kdf_rounds(ROUNDS).build(passphrase)
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, encryption)


def _checksum(pem: bytes) -> bytes:
    return f"# sha256: {sha256(pem).hexdigest()}\n".encode()
