"""How two members prove their keys to each other through a broker that they do not trust, and agree on keys for sealing.

    dialler -> listener   Opening: both keys, a fresh X25519 key, and the dialler's signature
    listener -> dialler   Accepting: another X25519 key, and the listener's signature over both messages; or Refusing

Each message is sent as 64 bytes of signature and then the msgpack that is signed. A signature covers both identities, so
that nobody can pass a message on as meant for somebody else. The dialler believes in the listener when its signature holds.
The listener believes in the dialler only when the first packet opens that was sealed with the keys: an Opening can be
recorded and sent again. No I/O and no time: they are p2pfl.protocols.mqtt.transport's business.
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
from p2pfl.protocols.transport import AccessControl, Part
from p2pfl.protocols.transports.handshake import ENTRIES_LIMIT, Bytes16, Bytes32, UInt32

VERSION = 1
OPENING_LIMIT = 4096  # bytes of an Opening, signature included
ANSWER_LIMIT = 1024  # bytes of what answers it
DATA, CONTROL = 0, 1  # kinds of sealed packets; each counts its own numbers
OPENING_LABEL = b"p2pfl broker opening 1\0"
ANSWER_LABEL = b"p2pfl broker answer 1\0"
_KEYS = b"p2pfl broker keys 1\0"

T = TypeVar("T")


class Sealing:
    """Seals and opens the packets of one link, each with a number that is its nonce.

    Attributes:
        session: 16 bytes, the same at both ends of the link and other ones for every link.
    """

    def __init__(self, sending: bytes, receiving: bytes, session: bytes) -> None:
        self.session = session
        self._sending = ChaCha20Poly1305(sending)
        self._receiving = ChaCha20Poly1305(receiving)
        self._newest = {DATA: -1, CONTROL: -1}

    def seal(self, kind: int, number: int, content: Part, header: bytes) -> bytes:
        """Return `content` encrypted, 16 bytes longer; whoever opens it must have the same header.

        Raises:
            ValueError: a number that does not grow: a nonce must never be used twice.
        """
        if number <= self._newest[kind]:
            raise ValueError(f"number {number} after {self._newest[kind]}")
        self._newest[kind] = number
        return self._sending.encrypt(_nonce(kind, number), content, header)

    def open(self, kind: int, number: int, sealed: Part, header: Part) -> bytes:
        """Return what the other side has sealed.

        Raises:
            ProtocolError("wrong seal"): it has not, or not with this kind, number and header.
        """
        try:
            return self._receiving.decrypt(_nonce(kind, number), sealed, header)
        except InvalidTag:
            raise ProtocolError("wrong seal") from None


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Opening(_Message, frozen=True, tag="opening"):
    """Attributes:
    id: of the link that is to be, chosen by the dialler.
    ephemeral: X25519 key of this link only.
    joining: the dialler is no member and wants to become one.
    membership_version: the newest entry of the membership log that the dialler knows.
    entries: of the membership log, those that the listener does not know.
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
    """Attributes:
    opening: SHA-256 of the message that is answered.
    membership_version: the newest entry of the membership log that the listener knows.
    """

    id: Bytes16
    opening: Bytes32
    ephemeral: Bytes32
    membership_version: UInt32


class Refusing(_Message, frozen=True, tag="refusing"):
    """Attributes: as of Accepting; `cause` is that of a ProtocolError."""

    id: Bytes16
    opening: Bytes32
    membership_version: UInt32
    cause: Annotated[str, Meta(max_length=64)]
    detail: Annotated[str, Meta(max_length=256)]


_opening = msgspec.msgpack.Decoder(Opening)
_answer: msgspec.msgpack.Decoder[Accepting | Refusing] = msgspec.msgpack.Decoder(Accepting | Refusing)


def decode_opening(packet: Part) -> Opening:
    """Read an Opening whose signature is still to be checked.

    Raises:
        ProtocolError("malformed"): it is none, or too long.
    """
    return _decode(_opening, packet, OPENING_LIMIT)


def decode_answer(packet: Part) -> Accepting | Refusing:
    """Read what answers an Opening; its signature is still to be checked.

    Raises:
        ProtocolError("malformed"): it does not answer one, or is too long.
    """
    return _decode(_answer, packet, ANSWER_LIMIT)


class Dialler:
    """The side that begins.

    Args:
        key: that is dialled.
        after: the entries of the membership log that follow this membership version are brought along.
        id: 16 bytes that name the link; random ones by default.
        private: X25519 key of this link; a fresh one by default.

    Attributes:
        id: of the link that is to be.
        packet: to be sent, as often as it takes.
    """

    def __init__(
        self,
        identity: Identity,
        gate: AccessControl,
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
        entries = b"" if after is None else gate.after(after, ENTRIES_LIMIT)
        opening = Opening(
            *(VERSION, self.id, gate.federation, identity.public, key, public, joining, gate.membership_version, entries)
        )
        self.packet = sign(identity, OPENING_LABEL, opening)

    def finish(self, packet: Part) -> Sealing | Refusing:
        """Return the keys that were agreed on, or why the other side keeps this one out.

        Raises:
            ProtocolError: "malformed", "other session" for an answer to something else, or "wrong proof": it does not come
                from the one who was dialled.
        """
        return finish_exchange(packet, self.packet, self._key, self._private)


def finish_exchange(packet: Part, opening: Part, key: bytes, private: X25519PrivateKey) -> Sealing | Refusing:
    """Read what answers an Opening; see `Dialler.finish`.

    Args:
        opening: the packet that is answered.
        key: that was dialled.
        private: X25519 key of the Opening.
    """
    answer = decode_answer(packet)
    if answer.id != decode_opening(opening).id or answer.opening != sha256(opening).digest():
        raise ProtocolError("other session", "answers something else")
    _check(key, ANSWER_LABEL, packet)
    if isinstance(answer, Refusing):
        return answer
    there, back, session = agree_on_keys(private, answer.ephemeral, opening, packet)
    return Sealing(there, back, session)


class Accepted(NamedTuple):
    """An Opening that is answered with `packet`. Who has sent it is known when something opens that was sealed."""

    packet: bytes
    sealing: Sealing


def accept(packet: Part, opening: Opening, identity: Identity, gate: AccessControl) -> Accepted:
    """Answer an Opening.

    Raises:
        ProtocolError: its `cause` is one of version, other federation, other recipient, not inviting, stranger, revoked,
            wrong proof, malformed, or what is wrong with the membership entries.
    """
    if opening.version != VERSION:
        raise ProtocolError("version", f"theirs is {opening.version}, ours {VERSION}")
    if opening.federation != gate.federation:
        raise ProtocolError("other federation", f"theirs is {opening.federation.hex()}, ours {gate.federation.hex()}")
    if opening.listener != identity.public:
        raise ProtocolError("other recipient", f"it was meant for {opening.listener.hex()}")
    if opening.joining:
        if not gate.invites:
            raise ProtocolError("not inviting", "this node cannot let anyone in")
    else:
        if gate.refusal(opening.dialler) == "stranger" and opening.entries:
            gate.extend(opening.entries)
        if cause := gate.refusal(opening.dialler):
            raise ProtocolError(
                cause, f"{opening.dialler.hex()} is no member at membership version {gate.membership_version}"
            )
    _check(opening.dialler, OPENING_LABEL, packet)
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    answer = sign(identity, ANSWER_LABEL, Accepting(opening.id, sha256(packet).digest(), public, gate.membership_version))
    there, back, session = agree_on_keys(private, opening.ephemeral, packet, answer)
    return Accepted(answer, Sealing(back, there, session))


def refuse(packet: Part, opening: Opening, identity: Identity, gate: AccessControl, error: ProtocolError) -> bytes:
    """Return the packet that says why an Opening is not accepted."""
    detail = str(error).removeprefix(error.cause).removeprefix(": ")
    return sign(
        identity,
        ANSWER_LABEL,
        Refusing(opening.id, sha256(packet).digest(), gate.membership_version, error.cause[:64], detail[:256]),
    )


def agree_on_keys(private: X25519PrivateKey, public: bytes, opening: Part, answer: Part) -> tuple[bytes, bytes, bytes]:
    """Return the key for what the dialler sends, the key for what the listener sends, and the session.

    Args:
        private: the own X25519 key of this link.
        public: the other side's.
        opening, answer: the packets of the exchange, signatures included.

    Raises:
        ProtocolError("malformed"): the other side's key is unusable.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of which the secret would be known to everyone
        raise ProtocolError("malformed", "an unusable key") from error
    transcript = sha256(sha256(opening).digest() + sha256(answer).digest()).digest()
    keys = HKDF(SHA256(), 80, transcript, _KEYS).derive(secret)
    return keys[:32], keys[32:64], keys[64:]


def sign(identity: Identity, label: bytes, message: Opening | Accepting | Refusing) -> bytes:
    """Return a message as a packet: the signature, which covers the label of its kind as well, and the message."""
    content = msgspec.msgpack.encode(message)
    return identity.sign(label + content) + content


def _check(key: bytes, label: bytes, packet: Part) -> None:
    signature, content = bytes(packet[:SIGNATURE_SIZE]), bytes(packet[SIGNATURE_SIZE:])
    if not verify(key, signature, label + content):  # of one who joins, the key may be anything
        raise ProtocolError("wrong proof", f"claims to be {key.hex()}")


def _decode(decoder: msgspec.msgpack.Decoder[T], packet: Part, limit: int) -> T:
    if not SIGNATURE_SIZE < len(packet) <= limit:
        raise ProtocolError("malformed", f"{len(packet)} bytes before the other side is known")
    try:
        return decoder.decode(packet[SIGNATURE_SIZE:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def _nonce(kind: int, number: int) -> bytes:
    return kind.to_bytes(4, "big") + number.to_bytes(8, "big")
