"""Seal of the packets of a proven link through a broker.

Its keys follow from the handshake's secret, which only TLS has carried. A packet that the broker or another of its
users has altered or forged does not open, and is dropped. TLS records instead of sealed packets would end the link
then.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Part

DATA, CONTROL = 0, 1  # kinds of sealed packets, with separate numbers
SEAL = 16  # bytes by which sealed content is longer
_KEYS = b"p2pfl broker keys 2\0"


class Sealing:
    """Cipher of the packets of a proven link. A packet's number is its nonce."""

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending = ChaCha20Poly1305(sending)
        self._receiving = ChaCha20Poly1305(receiving)
        self._newest = {DATA: -1, CONTROL: -1}

    def seal(self, kind: int, number: int, content: Part, header: bytes) -> bytes:
        """Return `content` encrypted, 16 bytes longer. The receiver needs the same header to open it.

        Raises:
            ValueError: the number is not greater than the last one; a nonce must never be used twice.
        """
        if number <= self._newest[kind]:
            raise ValueError(f"number {number} after {self._newest[kind]}")
        self._newest[kind] = number
        return self._sending.encrypt(_nonce(kind, number), content, header)

    def open(self, kind: int, number: int, sealed: Part, header: Part) -> bytes:
        """Return content that the other side has sealed.

        Raises:
            ProtocolError("wrong seal"): the other side did not seal it with this kind, number and header.
        """
        try:
            return self._receiving.decrypt(_nonce(kind, number), sealed, header)
        except InvalidTag:
            raise ProtocolError("wrong seal") from None


def sealing_keys(secret: bytes) -> tuple[bytes, bytes]:
    """Return the key for packets of the dialler, and the key for packets of the listener, 32 bytes each.

    Args:
        secret: the handshake's secret; see p2pfl.protocols.transports.handshake.Proven.
    """
    keys = HKDF(SHA256(), 64, None, _KEYS).derive(secret)
    return keys[:32], keys[32:]


def sealing_of(secret: bytes, dialled: bool) -> Sealing:
    """Return the seal of one side after a handshake; `dialled`: whether this side is the dialler."""
    there, back = sealing_keys(secret)
    return Sealing(there, back) if dialled else Sealing(back, there)


def _nonce(kind: int, number: int) -> bytes:
    return kind.to_bytes(4, "big") + number.to_bytes(8, "big")
