"""Key exchange of two members through an untrusted broker: both prove their keys and agree on keys for sealing.

    dialler -> listener   Opening: both keys, a fresh X25519 key, and the dialler's signature
    listener -> dialler   Accepting: another X25519 key, and the listener's signature over both messages; Refusing;
                          or Revoking

Each message is sent as 64 bytes of signature, followed by the signed msgpack. A signature covers both identities, so
that no one can pass a message on to a different recipient. The dialler trusts the listener when the listener's
signature is valid. The listener trusts the dialler only after the first packet that was sealed with the keys, because
an Opening can be recorded and sent again. This module uses neither I/O nor time; p2pfl.protocols.mqtt.transport does.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, verify
from p2pfl.protocols.membership.revocation_proof import LIMIT as PROOF_LIMIT
from p2pfl.protocols.transport import AccessControl, Part
from p2pfl.protocols.transports.handshake import ENTRIES_LIMIT, Bytes16, Bytes32, UInt32, check_dialler

VERSION = 1
OPENING_LIMIT = 4096  # bytes of an Opening, signature included
ANSWER_LIMIT = 4096  # maximum bytes of an answer
DATA, CONTROL = 0, 1  # kinds of sealed packets, with separate numbers
OPENING_LABEL = b"p2pfl broker opening 1\0"
ANSWER_LABEL = b"p2pfl broker answer 1\0"
_KEYS = b"p2pfl broker keys 1\0"

T = TypeVar("T")


class Sealing:
    """Cipher that seals and opens the packets of one link, each with a number that is its nonce.

    Attributes:
        session: 16 bytes, equal at both ends of the link and different for every link.
    """

    def __init__(self, sending: bytes, receiving: bytes, session: bytes) -> None:
        self.session = session
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


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Opening(_Message, frozen=True, tag="opening"):
    """First message of the key exchange, from the dialler.

    Attributes:
        id: id of the new link, chosen by the dialler.
        ephemeral: X25519 key of this link only.
        joining: whether the dialler is a newcomer that wants to become a member.
        membership_version: the newest entry of the membership log that the dialler knows.
        entries: the entries of the membership log that the listener does not know.
    """

    version: UInt32
    id: Bytes16
    federation: Bytes16
    dialler: Bytes32
    listener: Bytes32
    ephemeral: Bytes32
    joining: bool
    membership_version: UInt32
    entries: Annotated[bytes, Meta(max_length=ENTRIES_LIMIT)]


class Accepting(_Message, frozen=True, tag="accepting"):
    """Answer of a listener that accepts the link.

    Attributes:
        opening: SHA-256 of the Opening.
        membership_version: the newest entry of the membership log that the listener knows.
    """

    id: Bytes16
    opening: Bytes32
    ephemeral: Bytes32
    membership_version: UInt32


class Refusing(_Message, frozen=True, tag="refusing"):
    """Answer of a listener that refuses the link. `cause` is that of a ProtocolError; the rest is as in Accepting."""

    id: Bytes16
    opening: Bytes32
    membership_version: UInt32
    cause: Annotated[str, Meta(max_length=64)]
    detail: Annotated[str, Meta(max_length=256)]


class Revoking(_Message, frozen=True, tag="revoking"):
    """Answer of a listener to a former member. The first fields are as in Accepting.

    Attributes:
        proof: proof of its revocation (see p2pfl.protocols.membership.revocation_proof).
    """

    id: Bytes16
    opening: Bytes32
    membership_version: UInt32
    detail: Annotated[str, Meta(max_length=256)]
    proof: Annotated[bytes, Meta(max_length=PROOF_LIMIT)]


Answer = Accepting | Refusing | Revoking
_opening = msgspec.msgpack.Decoder(Opening)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def decode_opening(packet: Part) -> Opening:
    """Read an Opening without checking its signature.

    Raises:
        ProtocolError("malformed"): the packet is not an Opening, or is too long.
    """
    return _decode(_opening, packet, OPENING_LIMIT)


def decode_answer(packet: Part) -> Answer:
    """Read the answer to an Opening without checking its signature.

    Raises:
        ProtocolError("malformed"): the packet is not an answer, or is too long.
    """
    return _decode(_answer, packet, ANSWER_LIMIT)


class Dialler:
    """Side that starts the key exchange.

    Args:
        key: the dialled key.
        after: membership version; the Opening contains the entries of the membership log that follow it.
        id: 16 bytes that name the link; random by default.
        private: X25519 key of this link; a fresh one by default.

    Attributes:
        id: id of the new link.
        packet: the packet to send, repeatedly if necessary.
    """

    def __init__(
        self,
        identity: Identity,
        access: AccessControl,
        key: bytes,
        joining: bool = False,
        after: int | None = None,
        *,
        id: bytes | None = None,
        private: X25519PrivateKey | None = None,
    ) -> None:
        self.id = id or os.urandom(16)
        self._key = key
        self._private = private or X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        entries = b"" if after is None else access.after(after, ENTRIES_LIMIT)
        opening = Opening(
            *(VERSION, self.id, access.federation, identity.public, key, public, joining, access.membership_version, entries)
        )
        self.packet = sign(identity, OPENING_LABEL, opening)

    def finish(self, packet: Part) -> Sealing | Refusing | Revoking:
        """Return the agreed keys, or the refusal of the other side.

        Raises:
            ProtocolError: "malformed"; "other session" for an answer to another Opening; or "wrong proof" if the answer
                does not come from the dialled node.
        """
        return finish_exchange(packet, self.packet, self._key, self._private)


def finish_exchange(packet: Part, opening: Part, key: bytes, private: X25519PrivateKey) -> Sealing | Refusing | Revoking:
    """Read the answer to an Opening; see `Dialler.finish`.

    Args:
        opening: the packet with the Opening.
        key: the dialled key.
        private: X25519 key of the Opening.
    """
    answer = decode_answer(packet)
    if answer.id != decode_opening(opening).id or answer.opening != sha256(opening).digest():
        raise ProtocolError("other session", "an answer to another opening")
    _check(key, ANSWER_LABEL, packet)
    if not isinstance(answer, Accepting):
        return answer
    there, back, session = agree_on_keys(private, answer.ephemeral, opening, packet)
    return Sealing(there, back, session)


class Accepted(NamedTuple):
    """Opening that is answered with `packet`. The sender is proven only when a sealed packet opens."""

    packet: bytes
    sealing: Sealing


def accept(packet: Part, opening: Opening, identity: Identity, access: AccessControl) -> Accepted:
    """Answer an Opening.

    Raises:
        ProtocolError: its `cause` is one of version, other federation, other recipient, not inviting, stranger,
            revoked, wrong proof, malformed, or the error in the membership entries.
    """
    if opening.version != VERSION:
        raise ProtocolError("version", f"the peer has version {opening.version}, this node {VERSION}")
    if opening.federation != access.federation:
        raise ProtocolError(
            "other federation", f"the peer has {opening.federation.hex()}, this node {access.federation.hex()}"
        )
    if opening.listener != identity.public:
        raise ProtocolError("other recipient", f"it is for {opening.listener.hex()}")
    check_dialler(
        access, opening.dialler, opening.joining, opening.entries, lambda: _is_signed(opening.dialler, OPENING_LABEL, packet)
    )
    _check(opening.dialler, OPENING_LABEL, packet)
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    answer = sign(identity, ANSWER_LABEL, Accepting(opening.id, sha256(packet).digest(), public, access.membership_version))
    there, back, session = agree_on_keys(private, opening.ephemeral, packet, answer)
    return Accepted(answer, Sealing(back, there, session))


def refuse(packet: Part, opening: Opening, identity: Identity, access: AccessControl, error: ProtocolError) -> bytes:
    """Return the packet with the reason why an Opening is refused."""
    detail = str(error).removeprefix(error.cause).removeprefix(": ")[:256]
    start = opening.id, sha256(packet).digest(), access.membership_version
    answer = Revoking(*start, detail, error.proof) if error.proof else Refusing(*start, error.cause[:64], detail)
    return sign(identity, ANSWER_LABEL, answer)


def agree_on_keys(private: X25519PrivateKey, public: bytes, opening: Part, answer: Part) -> tuple[bytes, bytes, bytes]:
    """Return the key for packets of the dialler, the key for packets of the listener, and the session.

    Args:
        private: this side's X25519 key of this link.
        public: the other side's X25519 key.
        opening, answer: the packets of the exchange, signatures included.

    Raises:
        ProtocolError("malformed"): the other side's key is unusable.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point whose shared secret anyone would know
        raise ProtocolError("malformed", "an unusable key") from error
    transcript = sha256(sha256(opening).digest() + sha256(answer).digest()).digest()
    keys = HKDF(SHA256(), 80, transcript, _KEYS).derive(secret)
    return keys[:32], keys[32:64], keys[64:]


def sign(identity: Identity, label: bytes, message: Opening | Answer) -> bytes:
    """Return a message as a packet: its signature, which also covers the label of its kind, and the message."""
    content = msgspec.msgpack.encode(message)
    return identity.sign(label + content) + content


def _check(key: bytes, label: bytes, packet: Part) -> None:
    if not _is_signed(key, label, packet):  # a newcomer may have any key
        raise ProtocolError("wrong proof", f"claims to be {key.hex()}")


def _is_signed(key: bytes, label: bytes, packet: Part) -> bool:
    return verify(key, bytes(packet[:SIGNATURE_SIZE]), label + bytes(packet[SIGNATURE_SIZE:]))


def _decode(decoder: msgspec.msgpack.Decoder[T], packet: Part, limit: int) -> T:
    if not SIGNATURE_SIZE < len(packet) <= limit:
        raise ProtocolError("malformed", f"{len(packet)} bytes before the peer is known")
    try:
        return decoder.decode(packet[SIGNATURE_SIZE:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def _nonce(kind: int, number: int) -> bytes:
    return kind.to_bytes(4, "big") + number.to_bytes(8, "big")
