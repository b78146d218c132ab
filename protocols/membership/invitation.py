"""Messages of admission: a token and the request that goes with it, or a manual request and its admission."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity, is_weak, verify
from p2pfl.protocols.membership.checkpoint import LIMIT as CHECKPOINT_LIMIT
from p2pfl.protocols.membership.federation_file import LIMIT as FILE_LIMIT
from p2pfl.protocols.membership.federation_file import NAME
from p2pfl.protocols.membership.log import LIMIT as LOG_LIMIT

Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]

INVITATION, REQUEST, ADMISSION = "p2pfl-invite-", "p2pfl-request-", "p2pfl-admission-"
JOIN_LIMIT = 4096  # maximum bytes of a join request
ANSWER_LIMIT = FILE_LIMIT + LOG_LIMIT + 64
MOST_ADDRESSES, LONGEST_ADDRESS = 8, 256
_LABEL = b"p2pfl request 1\0"
T = TypeVar("T")


class _Invitation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    federation: Bytes16
    name: Name
    admission: Bytes32
    inviter: Bytes32
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=LONGEST_ADDRESS)], ...], Meta(max_length=MOST_ADDRESSES)]
    secret: Bytes16
    expires: Annotated[int, Meta(ge=0, le=2**53)]
    member: Name


@dataclass(frozen=True)
class Invitation:
    """Token that lets one node with one name join once, until it expires. Anyone who holds the token can use it.

    Attributes:
        federation: the federation's id, 16 bytes.
        name: the federation's name.
        admission: the federation's admission key when the token was created.
        inviter: the key of the node that admits the newcomer.
        addresses: addresses of that node.
        secret: 16 bytes.
        expires: seconds since 1970, by the inviter's clock.
        member: the name that the new member must have.
    """

    federation: bytes
    name: str
    admission: bytes
    inviter: bytes
    addresses: tuple[str, ...]
    secret: bytes = field(repr=False)
    expires: int
    member: str

    def encode(self) -> str:
        """Return the token as one word."""
        fields = _Invitation(**vars(self))
        return INVITATION + pack_word(msgspec.msgpack.encode(fields))

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """Read a token.

        Raises:
            FederationError: the text is not a token, or has a typing error. The error does not quote it.
        """
        fields = _decode(_unpack(text, INVITATION, "an invitation"), _Invitation, "an invitation")
        if not NAME.fullmatch(fields.member):
            raise FederationError(f"name {fields.member!r} must have at most 64 letters, digits, '.', '_' and '-'")
        if is_weak(fields.admission) or is_weak(fields.inviter):
            raise FederationError("the invitation has a weak key, for which signatures can be forged")
        return cls(*msgspec.structs.astuple(fields))


def new_secret() -> bytes:
    return os.urandom(16)


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="join"):
    """Request of a newcomer to the node that invited it, over a link on which both have proven their keys."""

    secret: Bytes16
    name: Name

    def __repr__(self) -> str:
        return f"Join({self.name!r})"


class Begin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin"):
    """`Join` of a newcomer that can begin with a checkpoint of the log; it is answered by `Begun` or `Joined`."""

    secret: Bytes16
    name: Name

    def __repr__(self) -> str:
        return f"Begin({self.name!r})"


class Rest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="rest"):
    """Request of a newcomer that has joined for the entries of the log that did not fit into the answer before.

    Attributes:
        known: number of the entries that it has.
    """

    secret: Bytes16
    name: Name
    known: Annotated[int, Meta(ge=1, le=2**32 - 1)]

    def __repr__(self) -> str:
        return f"Rest({self.name!r}, {self.known})"


class Look(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="look"):
    """Question of a newcomer for the federation's file, before it asks to be admitted; over the same kind of link."""

    secret: Bytes16
    name: Name

    def __repr__(self) -> str:
        return f"Look({self.name!r})"


class Offered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="offered"):
    """Answer to `Look`: the federation's file, and its number of rounds with the extensions."""

    file: Annotated[bytes, Meta(max_length=FILE_LIMIT)]
    rounds: Annotated[int, Meta(ge=0, le=2**53)]


class Joined(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="joined"):
    """Answer to a newcomer: the federation's file, and its membership log, which contains the newcomer.

    Attributes:
        log: the entries from the first on, or in an answer to `Rest` those that it lacks; as many as fit.
    """

    file: Annotated[bytes, Meta(max_length=FILE_LIMIT)]
    log: Annotated[bytes, Meta(max_length=LOG_LIMIT)]


class Begun(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begun"):
    """Answer to a newcomer: the federation's file, and a checkpoint of its log (p2pfl.protocols.membership.checkpoint)."""

    file: Annotated[bytes, Meta(max_length=FILE_LIMIT)]
    checkpoint: Annotated[bytes, Meta(min_length=1, max_length=CHECKPOINT_LIMIT)]


class _Bundle(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="joined"):
    """`Joined` in a file that its owner brings: the log is whole, however long it is."""

    file: Annotated[bytes, Meta(max_length=FILE_LIMIT)]
    log: bytes


class JoinRefused(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="refused"):
    reason: Annotated[str, Meta(max_length=256)]


def encode_join(message: Join | Begin | Look | Rest | Joined | Begun | Offered | JoinRefused) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_join(data: bytes) -> Join | Begin | Look | Rest:
    """Read a newcomer's request.

    Raises:
        ProtocolError: the data is not a newcomer's request.
    """
    if len(data) > JOIN_LIMIT:
        raise ProtocolError("malformed", f"a request to join of {len(data)} bytes")
    try:
        return msgspec.msgpack.decode(data, type=Join | Begin | Look | Rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", "not a request to join") from error


def decode_answer(data: bytes) -> Joined | Begun | Offered | JoinRefused:
    """Read the answer to a newcomer's request.

    Raises:
        FederationError: the data is not an answer.
    """
    if len(data) > ANSWER_LIMIT:
        raise FederationError(f"the answer of the inviting node is too large: {len(data)} bytes")
    try:
        return msgspec.msgpack.decode(data, type=Joined | Begun | Offered | JoinRefused)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FederationError(f"the answer of the inviting node is invalid: {error}") from error


class _Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: Name
    key: Bytes32
    replaces: Bytes32 | None
    signature: Bytes64
    old_signature: Bytes64 | None


@dataclass(frozen=True)
class Request:
    """Manual request for admission; it contains no secret.

    Attributes:
        replaces: the member's current key, if `key` is to replace it.
    """

    name: str
    key: bytes
    replaces: bytes | None

    @staticmethod
    def make(identity: Identity, name: str, old: Identity | None = None) -> str:
        """Return a request as one word, signed with the new key and also with the old one if that is to be replaced."""
        replaces = None if old is None else old.public
        content = _content(name, identity.public, replaces)
        old_signature = None if old is None else old.sign(content)
        fields = _Request(name, identity.public, replaces, identity.sign(content), old_signature)
        return REQUEST + pack_word(msgspec.msgpack.encode(fields))

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read a request.

        Raises:
            FederationError: the text is not a request, has a typing error, or is not signed with the keys in it.
        """
        fields = _decode(_unpack(text, REQUEST, "a request"), _Request, "a request")
        if not NAME.fullmatch(fields.name):
            raise FederationError(f"name {fields.name!r} must have at most 64 letters, digits, '.', '_' and '-'")
        content = _content(fields.name, fields.key, fields.replaces)
        signatures = [(fields.key, fields.signature)]
        if fields.replaces is not None:
            signatures.append((fields.replaces, fields.old_signature or b""))
        if not all(verify(key, signature, content) for key, signature in signatures):
            raise FederationError("the request has an invalid signature")
        return cls(fields.name, fields.key, fields.replaces)


def encode_admission(joined: Joined) -> str:
    """Return an admission as one line, which a manually admitted node needs to join."""
    return ADMISSION + pack_word(msgspec.msgpack.encode(joined)) + "\n"


def decode_admission(text: str) -> Joined:
    """Read an admission.

    Raises:
        FederationError: the text is not an admission, or it is damaged.
    """
    found = _decode(_unpack(text, ADMISSION, "an admission"), _Bundle, "an admission")
    return Joined(found.file, found.log)


def _content(name: str, key: bytes, replaces: bytes | None) -> bytes:
    return _LABEL + key + (replaces or bytes(32)) + name.encode()


def pack_word(data: bytes) -> str:
    """Return bytes and their checksum as one word to copy, without its prefix."""
    return base64.urlsafe_b64encode(data + sha256(data).digest()[:4]).decode().rstrip("=")


def _unpack(text: str, prefix: str, what: str) -> bytes:
    text = "".join(text.split())  # a mail program may have broken the line
    if not text.startswith(prefix):
        raise FederationError(f"not {what}: it must begin with {prefix}")
    word = text[len(prefix) :]
    try:
        data = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except ValueError:
        data = b""
    content, check = data[:-4], data[-4:]
    if not content or sha256(content).digest()[:4] != check:
        raise FederationError(f"{what} was not copied correctly: a part is missing or changed")
    return content


def _decode(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FederationError(f"{what} from another version of p2pfl") from None
