"""Mutual proof of keys over a TLS connection, direct or through a broker.

    server  -> client   its certificate, which holds its key; compared with the dialled key before anything is sent
    server  -> client   Challenge
    client  -> server   Proof: a signature over both nonces, both keys, the federation and the server's certificate
    server  -> client   Accepted, Refused, or Revoked

The client proves itself inside the connection, because Python's ssl cannot accept a client certificate that it does not
know in advance. The signature covers the server's key and certificate, so that a member cannot pass on a proof that it
received.

ClientProof and ServerProof are the two sides as state machines, which take steps and return answers. They do no I/O:
p2pfl.protocols.transports.tls and p2pfl.protocols.mqtt.transport handle the connection and its time limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from p2pfl._util.printable import printable
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity, verify
from p2pfl.protocols.membership.log import PROOF_LIMIT as PROOF_LIMIT
from p2pfl.protocols.transport import AccessControl

VERSION = 1
LIMIT = 4096  # maximum bytes of a message before the other side is known
ENTRIES_LIMIT = 3500  # maximum bytes of the membership log in a proof
_LABEL = b"p2pfl proof 1\0"
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class _Step(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Challenge(_Step, frozen=True, tag="challenge"):
    """First step, of the server: a nonce for this connection alone, so that a recorded proof is worth nothing.

    Attributes:
        membership_version: version of the server's membership log, so that the client can send the entries after it.
    """

    version: UInt32
    nonce: Bytes32
    membership_version: UInt32


class Proof(_Step, frozen=True, tag="proof"):
    """Second step, of the client: its key, its federation, and the answer to the challenge.

    Attributes:
        joining: whether the client is a newcomer that wants to become a member.
        entries: the entries of the membership log that the server does not know.
    """

    version: UInt32
    federation: Bytes16
    key: Bytes32
    nonce: Bytes32
    joining: bool
    entries: Annotated[bytes, Meta(max_length=ENTRIES_LIMIT)]
    signature: Bytes64


class Accepted(_Step, frozen=True, tag="accepted"):
    pass


class Refused(_Step, frozen=True, tag="refused"):
    cause: Annotated[str, Meta(max_length=64)]
    detail: Annotated[str, Meta(max_length=256)]


class Revoked(_Step, frozen=True, tag="revoked"):
    """Refusal of a former member.

    Attributes:
        proof: proof of its revocation (see p2pfl.protocols.membership.log).
    """

    detail: Annotated[str, Meta(max_length=256)]
    proof: Annotated[bytes, Meta(max_length=PROOF_LIMIT)]


class Proven(NamedTuple):
    """Result of a proof.

    Attributes:
        key: the other side.
        session: 16 bytes that identify the session at both ends.
        secret: 32 bytes that only both ends know, because they depend on nonces that TLS has encrypted.
    """

    key: bytes
    joining: bool
    session: bytes
    secret: bytes


Steps = Challenge | Proof | Accepted | Refused | Revoked
_decoder: msgspec.msgpack.Decoder[Steps] = msgspec.msgpack.Decoder(Steps)


def decode(data: bytes | memoryview) -> Steps:
    """Read one step.

    Raises:
        ProtocolError: the data is not a step, or is longer than LIMIT.
    """
    if len(data) > LIMIT:
        raise ProtocolError("malformed", f"{len(data)} bytes before the peer is known")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def encode(step: _Step) -> bytes:
    return msgspec.msgpack.encode(step)


def challenge(access: AccessControl) -> Challenge:
    return Challenge(VERSION, os.urandom(32), access.membership_version)


def prove(
    identity: Identity, access: AccessControl, challenge: Challenge, server: bytes, certificate: bytes, *, joining: bool
) -> tuple[Proof, Proven]:
    """Answer a challenge; return the proof, and its result if the server accepts it.

    Args:
        server: the dialled key, which the certificate holds.
        certificate: the server's certificate, DER.

    Raises:
        ProtocolError: the server uses another version.
    """
    _same_version(challenge.version)
    nonce = os.urandom(32)
    content = _content(access.federation, server, certificate, challenge.nonce, nonce, key=identity.public, joining=joining)
    entries = (
        access.after(challenge.membership_version, ENTRIES_LIMIT)
        if challenge.membership_version < access.membership_version
        else b""
    )
    signature = identity.sign(_LABEL + content)
    proof = Proof(VERSION, access.federation, identity.public, nonce, joining, entries, signature)
    return proof, Proven(server, joining, _session(content), content)


def check(proof: Proof, access: AccessControl, challenge: Challenge, server: bytes, certificate: bytes) -> Proven:
    """Check a proof; return its author and the session.

    Raises:
        ProtocolError: its `cause` is one of version, other federation, not inviting, stranger, revoked, wrong proof, or
            the error in the membership entries.
    """
    _same_version(proof.version)
    if proof.federation != access.federation:
        raise ProtocolError(
            "other federation", f"the peer has {proof.federation.hex()}, this node {access.federation.hex()}"
        )
    content = _content(
        access.federation, server, certificate, challenge.nonce, proof.nonce, key=proof.key, joining=proof.joining
    )
    check_dialler(access, proof.key, proof.joining, proof.entries, lambda: _is_signed(proof, content))
    if not _is_signed(proof, content):
        raise ProtocolError("wrong proof", f"claims to be {proof.key.hex()}")
    return Proven(proof.key, proof.joining, _session(content), content)


def check_dialler(access: AccessControl, key: bytes, joining: bool, entries: bytes, is_signed: Callable[[], bool]) -> None:
    """Check that the owner of a key may have a link.

    Args:
        entries: the entries of the membership log that it sent.
        is_signed: returns whether it has proven its key. Only then is its revocation proven to it.

    Raises:
        ProtocolError: not inviting, stranger, revoked, or the error in the entries.
    """
    if joining:
        if not access.invites:
            raise ProtocolError("not inviting", "it has no admission key, or runs without the passphrase of the key")
        return
    if access.refusal(key) == "stranger" and entries:
        access.extend(entries)
    if cause := access.refusal(key):
        detail = f"{key.hex()} is not a member (membership version {access.membership_version})"
        raise ProtocolError(cause, detail, access.revocation(key) if cause == "revoked" and is_signed() else b"")


def _is_signed(proof: Proof, content: bytes) -> bool:
    return verify(proof.key, proof.signature, _LABEL + content)


def _same_version(theirs: int) -> None:
    if theirs != VERSION:
        raise ProtocolError("version", f"the peer has version {theirs}, this node {VERSION}")


def _content(
    federation: bytes, server: bytes, certificate: bytes, theirs: bytes, nonce: bytes, *, key: bytes, joining: bool
) -> bytes:
    """Return the hash of all data that a proof covers. Every part has a fixed length."""
    return sha256(
        federation + server + sha256(certificate).digest() + theirs + nonce + key + (b"\1" if joining else b"\0")
    ).digest()


def _session(content: bytes) -> bytes:
    return sha256(b"p2pfl session 1\0" + content).digest()[:16]


class Progress(NamedTuple):
    """Result of one step.

    Attributes:
        reply: step to send; b"" for none.
        proven: the other side and the session, once both sides have proven their keys.
        refusal: why the other side refuses this one; "" if it does not.
        proof: proof of a revocation, not verified; b"" for none.
    """

    reply: bytes = b""
    proven: Proven | None = None
    refusal: str = ""
    proof: bytes = b""


class ServerProof:
    """Proof of the dialled side, which challenges the other one.

    Args:
        certificate: its own certificate, DER.
    """

    def __init__(self, identity: Identity, access: AccessControl, certificate: bytes) -> None:
        self._identity = identity
        self._access = access
        self._certificate = certificate
        self._challenge = challenge(access)

    def begin(self) -> bytes:
        """Return the first step to send."""
        return encode(self._challenge)

    def step(self, data: memoryview) -> Progress:
        """Check the proof of the other side.

        Raises:
            ProtocolError: the proof is invalid; see p2pfl.protocols.transports.handshake.check.
        """
        step = decode(data)
        if not isinstance(step, Proof):
            raise _out_of_order()
        proven = check(step, self._access, self._challenge, self._identity.public, self._certificate)
        return Progress(encode(Accepted()), proven)


class ClientProof:
    """Proof of the dialler, which answers a challenge.

    Args:
        server: the dialled key, which the certificate holds.
        certificate: the server's certificate, DER.
        joining: whether this node is a newcomer that wants to become a member.
    """

    def __init__(self, identity: Identity, access: AccessControl, server: bytes, certificate: bytes, joining: bool) -> None:
        self._identity = identity
        self._access = access
        self._server = server
        self._certificate = certificate
        self._joining = joining
        self._proven: Proven | None = None  # set once the challenge is answered

    def step(self, data: memoryview) -> Progress:
        """Answer the challenge, or handle the server's decision.

        Raises:
            ProtocolError: the step is malformed, out of order or of another version.
        """
        step = decode(data)
        if self._proven is None and isinstance(step, Challenge):
            proof, self._proven = prove(
                self._identity, self._access, step, self._server, self._certificate, joining=self._joining
            )
            return Progress(encode(proof))
        if self._proven is not None and isinstance(step, Accepted):
            return Progress(proven=self._proven)
        if isinstance(step, Refused):
            return Progress(refusal=printable(f"{step.cause}: {step.detail}"))
        if isinstance(step, Revoked):
            return Progress(refusal=printable(f"revoked: {step.detail}"), proof=step.proof)
        raise _out_of_order()


def refusal_of(error: ProtocolError) -> bytes:
    """Return the step that tells the other side why it is refused."""
    detail = str(error).removeprefix(error.cause).removeprefix(": ")[:256]
    if error.proof:
        return encode(Revoked(detail, error.proof))
    return encode(Refused(error.cause[:64], detail))


def _out_of_order() -> ProtocolError:
    return ProtocolError("malformed", "a step of the handshake in the wrong order")
