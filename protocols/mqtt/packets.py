"""Packets of links through a broker: their topics and kinds, their seal, and the limits on unverified ones.

The keys of the seal follow from the handshake's secret, which only TLS has carried. A packet that the broker or another
of its users has altered or forged does not open, and is dropped. TLS records instead of sealed packets would end the
link then.

Handshakes and presences cost work before they are verified; this work is limited.
"""

from __future__ import annotations

import asyncio

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import KEY_SIZE
from p2pfl.protocols.rate_limit import Shares, TokenBucket
from p2pfl.protocols.transport import AccessControl, Part

ADDRESS = "mqtt:"  # the same for every member; its key identifies it
# First byte of a packet; p2pfl.protocols.mqtt.reliable_stream has further types. 3 and 4 are those of version 1.
FORMER_OPENING, FORMER_ANSWER, RESET_PACKET, ECHO_PACKET = 3, 4, 5, 6
PRESENCE, WILL = "presence", "will"
DATA, CONTROL = 0, 1  # kinds of sealed packets, with separate numbers
SEAL = 16  # bytes by which sealed content is longer
_KEYS = b"p2pfl broker keys 2\0"
VERIFICATIONS = 100  # handshakes that are begun, and the same number of verified signatures of presences, per second


def reset_packet(link: bytes) -> bytes:
    """Return the packet which says that this node does not know a link; `link`: its id."""
    return bytes([RESET_PACKET]) + link


class Topics:
    """Names of the topics to which a node publishes and subscribes, and the parser of such names.

    Args:
        federation: 16 bytes.
        own: this node's public key.
    """

    def __init__(self, federation: bytes, own: bytes) -> None:
        self.own = own
        self._root = f"p2pfl/{federation.hex()}"

    def inbox(self, key: bytes) -> str:
        """Return the topic to which this node publishes for the owner of `key`."""
        return f"{self._root}/{key.hex()}/{self.own.hex()}"

    @property
    def echo(self) -> str:
        """The topic to which this node publishes for itself."""
        return self.inbox(self.own)

    @property
    def presence(self) -> str:
        """The topic of this node's presence."""
        return f"{self._root}/{PRESENCE}/{self.own.hex()}"

    @property
    def will(self) -> str:
        """The topic to which the broker publishes when this node is gone."""
        return f"{self._root}/{WILL}/{self.own.hex()}"

    @property
    def presences(self) -> str:
        """The filter for the presence of all members."""
        return f"{self._root}/{PRESENCE}/+"

    @property
    def subscriptions(self) -> list[str]:
        """The filters for all messages that concern this node."""
        return [f"{self._root}/{self.own.hex()}/+", self.presences, f"{self._root}/{WILL}/+"]

    def parse(self, topic: str) -> tuple[str, bytes] | None:
        """Return the place and the key in a topic; None if the topic has another form or federation.

        The place is `PRESENCE`, `WILL`, or a recipient's key in hexadecimal digits.
        """
        parts = topic.split("/")
        if len(parts) != 4 or f"{parts[0]}/{parts[1]}" != self._root:
            return None
        try:
            key = bytes.fromhex(parts[3])
        except ValueError:
            return None
        return (parts[2], key) if len(key) == KEY_SIZE else None


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


class HandshakeLimits:
    """Rate limits of handshakes, presences and accepted links.

    Handshakes and presences have separate limits, because a member usually announces itself just before it dials.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._handshakes, self._presences = Shares(VERIFICATIONS), Shares(VERIFICATIONS)
        self._links, self._strangers = TokenBucket(2, 10), TokenBucket(5, 20)

    def may_begin(self, sender: bytes) -> bool:
        """Return whether the rate limit permits to begin a handshake with one who claims to be `sender`."""
        now = asyncio.get_running_loop().time()
        if self._access.refusal(sender):  # all strangers share one limit, so many of them cost no more than one
            return self._strangers.take(b"", now) and self._handshakes.take(b"", now)
        return self._handshakes.take(sender, now)

    def may_verify(self, member: bytes) -> bool:
        """Return whether the rate limit permits to verify a presence that claims to be from `member`."""
        return self._presences.take(member, asyncio.get_running_loop().time())

    def may_link(self, key: bytes) -> bool:
        """Return whether the rate limit permits another link of a proven member."""
        return self._links.take(key, asyncio.get_running_loop().time())
