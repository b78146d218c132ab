"""Signed envelope, the only function that turns bytes into messages, and the proofs that signed envelopes make.

    frame = header (256 bytes) | signature (64 bytes) | payload

The header is a msgpack array, padded with zeros in its last field. Its width never depends on the numbers in it, so the
size of a frame is known without building it. The signature covers a label, the hash of the header as received, and the
hash of the payload.

A link has one wire version, on which both ends agree before its first frame (see p2pfl.protocols.transport.Link):

- In version 6 every frame is signed.
- In version 7 only the frames are signed that can be shown to a third party, or on which the result of a round or an
  election depends: those of the kinds `p2pfl.protocols.wire.messages.Signed`. The others have zeros in place of the
  signature. That they are from the owner of `sender`, whole, for this node and of this link follows from the link: both
  ends have proven their keys, and TLS or the seal of a link through a broker protects each byte and its order. So they
  are accepted only over a link that has proven the sender's key. Signatures took most of the processor time of a round.

Repeated frames are refused without a clock, by the sender's incarnation and a window of sequence numbers. An unsigned
frame cannot be recorded and sent again, because links do not repeat data, but two processes that use one key are still
found by the numbers of all their frames.

The signature of a frame covers the hash of its payload, so the header of a model's frame and its signature (320 bytes)
show what the sender has published (`SignedModel`). Two such headers are a proof of equivocation if they are of one sender,
incarnation, generation, round and stage, but of different models. Everyone who knows the member's key can verify a proof,
without a network. The same holds for the parts of a model, each of which has a frame of its own: the header names the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, NamedTuple, get_args

import msgspec
from blake3 import blake3
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, Verifier, verify
from p2pfl.protocols.transport import NO_SESSION
from p2pfl.protocols.wire.messages import (
    Carried,
    FragmentUpdate,
    Message,
    ModelUpdate,
    Name,
    Receipts,
    Signed,
    Stage,
    UInt32,
    UInt63,
    WithPayload,
)

VERSION = 7
EARLIER = 6  # the version before, in which every frame is signed; a link has it if one of its ends knows no other
HEADER_SIZE = 256
OVERHEAD = HEADER_SIZE + SIGNATURE_SIZE
UNSIGNED = bytes(SIGNATURE_SIZE)
_LABELS = {EARLIER: b"p2pfl envelope 6\0", VERSION: b"p2pfl envelope 7\0"}
_DRAW = b"p2pfl draw 1\0"
_SIGNED = frozenset(get_args(Signed))
_WITH_PAYLOAD = frozenset(get_args(WithPayload))
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
SESSIONS = 4096  # number of latest links whose sessions are kept
WIDTH = 1024
PROOF_SIZE = 2 * OVERHEAD


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of a frame: sender, recipient and message.

    Attributes:
        federation: 16 bytes, equal for all members of the federation.
        sender, recipient: public keys.
        session: session of the link over which the frame is sent; see p2pfl.protocols.transport.Link.
        incarnation: number of the sender's starts; it is on disk before the sender's first frame.
        sequence: number of the frame since the sender's start.
        generation: random at the sender's start, and one more each time that the sender goes back to an earlier round. In
            one generation of one incarnation a node publishes one model of a round and a stage.
        layout: the sender's layout fingerprint.
        digest: BLAKE3 of the payload (SHA-256 would take longer than the encryption on most machines).
        body: the message.
    """

    version: UInt32
    federation: Bytes16
    sender: Bytes32
    recipient: Bytes32
    session: Bytes16
    incarnation: UInt32
    sequence: UInt63
    generation: UInt32
    layout: Bytes16
    payload_size: UInt32
    digest: Bytes32
    body: Message
    padding: bytes


class Opened(NamedTuple):
    """Verified message.

    Attributes:
        sender: name of its sender.
        payload: a view of the frame.
        incarnation: the sender's incarnation.
        model: what the header and the signature show of a whole model or a fragment; None for another message, for a
            difference of models, whose bytes depend on the recipient, and for a message that did not come in a frame.
    """

    sender: str
    message: Message
    payload: memoryview
    incarnation: int
    model: SignedModel | None = None


class Payload(NamedTuple):
    """Payload with its hash, which is computed once for all recipients."""

    parts: tuple[bytes | memoryview, ...]
    size: int
    digest: bytes

    @classmethod
    def of(cls, *parts: bytes | memoryview) -> Payload:
        digest = blake3()
        for part in parts:
            digest.update(part)
        return cls(parts, sum(memoryview(part).nbytes for part in parts), digest.digest())


class Foreign(NamedTuple):
    """Frames that another process has signed with a node's key: its incarnation, and the last round of their models."""

    incarnation: int
    round: int


EMPTY = Payload.of()


class FrameSigner:
    """Frames of one node, numbered and signed.

    Args:
        incarnation: number of the node's starts.
        sequence: number of the frame before the first one.
        generation: first generation, from 0 to 2^31 - 1. A random one distinguishes copies of a folder that have the
            same incarnation.
    """

    def __init__(
        self,
        identity: Identity,
        federation: bytes,
        layout: bytes,
        incarnation: int,
        *,
        sequence: int = 0,
        generation: int = 0,
    ) -> None:
        self._identity = identity
        self._federation = federation
        self._layout = layout
        self._incarnation = incarnation
        self._sequence = sequence
        self._generation = generation
        self._sessions: dict[bytes, None] = {}  # the oldest first
        self._all_sessions = True  # false once a session has been dropped

    def seal(
        self,
        message: Message,
        recipient: bytes,
        payload: Payload = EMPTY,
        session: bytes = NO_SESSION,
        version: int = EARLIER,
    ) -> list[bytes | memoryview]:
        """Return the parts of the frame that carries `message` to the member with the key `recipient` over a link.

        Args:
            session, version: those of the link.
        """
        self._sequence += 1
        self._note(session)
        fields = (
            *(version, self._federation, self._identity.public, recipient, session),
            *(self._incarnation, self._sequence, self._generation, self._layout, payload.size, payload.digest, message),
        )
        header = _encode(Header(*fields, b""))
        # The padding is the last field: its length, and zeros. Up to 255 bytes, its length takes one byte.
        left = HEADER_SIZE - len(header)
        assert left >= 0, "the message does not fit into the header"
        header = b"".join((header[:-1], left.to_bytes(1, "big"), bytes(left)))
        signature = UNSIGNED
        if is_signed(message, version):
            signature = self._identity.sign(signed_content(header, payload.digest, version))
        return [header, signature, *payload.parts]

    def _note(self, session: bytes) -> None:
        if session not in self._sessions:
            self._sessions[session] = None
            if len(self._sessions) > SESSIONS:
                del self._sessions[next(iter(self._sessions))]
                self._all_sessions = False

    def draw(self, content: bytes) -> bytes:
        """Return 32 bytes that follow from this node's key and `content`, and that nobody else can foresee."""
        return sha256(self._identity.sign(_DRAW + content)).digest()

    def go_back(self) -> None:
        """Begin a new generation, because the node repeats rounds of which it has published models."""
        self._generation += 1

    def foreign(self, evidence: bytes | memoryview) -> Foreign | None:
        """Return what frames show that another process has signed with this node's key.

        Args:
            evidence: one or two headers, each with its signature.

        Returns:
            None if this process has made the frames, or the node has started since.

        Raises:
            ProtocolError: the evidence is malformed, or not signed with this node's key.
        """
        if len(evidence) not in (OVERHEAD, 2 * OVERHEAD):
            raise ProtocolError("wrong length", f"evidence of {len(evidence)} bytes")
        headers = []
        for at in range(0, len(evidence), OVERHEAD):
            envelope = evidence[at : at + OVERHEAD]
            headers.append(parse_header(envelope, self._federation))
            verify_header(self._identity.public, headers[-1].version, headers[-1].digest, envelope)
        if any(header.sender != self._identity.public for header in headers):
            raise ProtocolError("wrong signature", "evidence that this node has not signed")
        incarnation = max((header.incarnation for header in headers if self._is_foreign(header)), default=None)
        if incarnation is None:
            return None
        published = (h.body.round for h in headers if isinstance(h.body, ModelUpdate | FragmentUpdate))
        return Foreign(incarnation, max(published, default=0))

    def _is_foreign(self, header: Header) -> bool:
        if header.incarnation == self._incarnation:
            return header.session not in self._sessions and self._all_sessions
        return header.incarnation > self._incarnation


def parse_header(envelope: bytes | memoryview, federation: bytes) -> Header:
    """Return the header of a frame of a federation, from the header and its signature, which is not verified.

    Raises:
        ProtocolError: its `cause` is one of wrong length, malformed, version, other federation.
    """
    if len(envelope) != OVERHEAD:
        raise ProtocolError("wrong length", f"an envelope of {len(envelope)} bytes")
    header = _decode(envelope[:HEADER_SIZE])
    if header.version not in _LABELS:
        raise _other_version(header.version)
    if header.federation != federation:
        raise ProtocolError("other federation")
    return header


def verify_header(sender: bytes, version: int, digest: bytes, envelope: bytes | memoryview) -> None:
    """Verify the signature of a header. Neither the payload nor the sender's membership is needed.

    Raises:
        ProtocolError: the signature does not hold.
    """
    if not verify(sender, bytes(envelope[HEADER_SIZE:]), signed_content(envelope[:HEADER_SIZE], digest, version)):
        raise ProtocolError("wrong signature", "a header that its sender has not signed")


def is_readable(envelope: bytes | memoryview, version: int) -> bool:
    """Return whether a node that knows no later version than this one can read a header, as `seal` has made it."""
    return envelope[1] <= version


def is_signed(message: Message, version: int) -> bool:
    """Return whether the frame of a message is signed over a link of this version."""
    return version < VERSION or type(message) in _SIGNED


_header = msgspec.msgpack.Decoder(Header)
_encode = msgspec.msgpack.Encoder().encode


class FrameVerifier:
    """Verifier of frames that returns messages of members, or raises.

    Args:
        members: public keys by name.
        me: this node's public key.
        limit: maximum bytes of a payload.
    """

    def __init__(self, members: Mapping[str, bytes], me: bytes, federation: bytes, limit: int) -> None:
        self._names: dict[bytes, str] = {}
        self._verifiers: dict[bytes, Verifier] = {}
        self._windows: dict[bytes, ReplayWindow] = {}
        self._newest: dict[bytes, bytes] = {}  # by sender: the header and signature of its newest frame
        self._models: dict[bytes, bytes] = {}  # by sender: the same of the frame of its newest model
        self._me = me
        self._federation = federation
        self._limit = limit
        for name, key in members.items():
            self.admit(name, key)

    def admit(self, name: str, key: bytes) -> None:
        """Accept a member's frames from now on."""
        self._names[key] = name
        self._verifiers[key] = Verifier(key)
        self._windows.setdefault(key, ReplayWindow())

    def expel(self, key: bytes) -> None:
        """Refuse a key from now on. Its replay window is kept."""
        self._names.pop(key, None)

    def open(
        self,
        frame: bytes | bytearray | memoryview,
        session: bytes = NO_SESSION,
        key: bytes | None = None,
        digest: bytes = b"",
        version: int = EARLIER,
    ) -> Opened:
        """Return the message of a frame.

        Args:
            session, version: those of the link over which the frame came.
            key: the proven key of the other end of the link; None if keys are not proven.
            digest: hash of the payload, if it was computed while the frame arrived.

        Raises:
            ProtocolError: its `cause` is one of malformed, version, other federation, other recipient, stranger, other
                sender, other session, replay, not signed, wrong signature, wrong length.
        """
        view = memoryview(frame)
        if len(view) < OVERHEAD or len(view) > OVERHEAD + self._limit:
            raise ProtocolError("wrong length", f"a frame of {len(view)} bytes")
        header_bytes, payload = view[:HEADER_SIZE], view[OVERHEAD:]
        header = _decode_version(header_bytes, version)
        self._expect_addressed(header, session, key)
        if header.payload_size != len(payload):
            raise ProtocolError("wrong length", f"a payload of {len(payload)} bytes, {header.payload_size} announced")
        if len(payload) and type(header.body) not in _WITH_PAYLOAD:
            raise ProtocolError("wrong length", f"a payload of {len(payload)} bytes after a message without one")
        window = self._windows[header.sender]
        window.check(header.incarnation, header.sequence)
        signed = is_signed(header.body, version)
        self._expect_signature(header, view, signed, version, key)
        if (digest or (blake3(payload).digest() if len(payload) else EMPTY.digest)) != header.digest:
            raise ProtocolError("wrong signature", "the payload differs from the signed one")
        # Only after verification: a forger must not use up the sequence numbers of an honest peer.
        if window.commit(header.incarnation, header.sequence) and signed:
            self._newest[header.sender] = bytes(view[:OVERHEAD])
            if isinstance(header.body, ModelUpdate | FragmentUpdate):
                self.note_model(header.sender, view[:OVERHEAD])
        model = signed_model(header, view[:OVERHEAD]) if signed else None
        return Opened(self._names[header.sender], header.body, payload, header.incarnation, model)

    def _expect_signature(self, header: Header, frame: memoryview, signed: bool, version: int, key: bytes | None) -> None:
        """Refuse a frame whose author neither a signature nor the link proves."""
        signature = bytes(frame[HEADER_SIZE:OVERHEAD])
        if not signed:
            if key is None:
                raise ProtocolError("not signed", "a frame without a signature over a link that proves no key")
            if signature != UNSIGNED:
                raise ProtocolError("malformed", "a signature of a message that has none")
            return
        if version >= VERSION and signature == UNSIGNED:
            raise ProtocolError("not signed", f"a message of {self._names[header.sender]} that must be signed")
        content = signed_content(frame[:HEADER_SIZE], header.digest, version)
        if not self._verifiers[header.sender].valid(signature, content):
            raise ProtocolError("wrong signature", f"claims to be {self._names[header.sender]}")

    def _expect_addressed(self, header: Header, session: bytes, key: bytes | None) -> None:
        """Refuse a header that is not from a member to this node over this link."""
        if header.federation != self._federation:
            raise ProtocolError("other federation")
        if header.recipient != self._me:
            raise ProtocolError("other recipient")
        if header.sender not in self._names:
            raise ProtocolError("stranger", header.sender.hex())
        if key is not None and header.sender != key:
            raise ProtocolError("other sender", f"a message of {self._names[header.sender]} from another member")
        if header.session != session:
            raise ProtocolError("other session", f"a message of {self._names[header.sender]} from another link")

    @property
    def federation(self) -> bytes:
        return self._federation

    def newest(self, key: bytes) -> bytes:
        """Return the header and the signature of the newest signed frame of a sender; b"" before the first."""
        return self._newest.get(key, b"")

    def newest_model(self, key: bytes) -> bytes:
        """Return the header and the signature of the newest model of a sender; b"" before the first."""
        return self._models.get(key, b"")

    def note_model(self, sender: bytes, envelope: bytes | memoryview) -> None:
        """Keep the header and the valid signature of a model as the newest one of its sender."""
        self._models[sender] = bytes(envelope)


def _decode_version(header: memoryview, version: int) -> Header:
    """Read a header; refuse another version than that of the link, because its fields may differ."""
    if _is_array(header[0]) and header[1] < 128 and header[1] != version:
        raise _other_version(header[1])
    decoded = _decode(header)
    if decoded.version != version:
        raise _other_version(decoded.version)
    return decoded


def _other_version(theirs: int) -> ProtocolError:
    return ProtocolError("version", f"the peer has wire version {theirs}, this node {EARLIER} and {VERSION}")


def _decode(header: bytes | memoryview) -> Header:
    try:
        return _header.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def _is_array(first: int) -> bool:
    """Return whether msgpack with this first byte is a short array, as is the header of every version."""
    return first & 0xF0 == 0x90


def signed_content(header: bytes | memoryview, payload_digest: bytes, version: int) -> bytes:
    """Return the bytes that the signature of a frame covers."""
    return _LABELS[version] + sha256(header).digest() + payload_digest


class ReplayWindow:
    """Window of one sender's received frames: its newest incarnation and the last 1,024 sequence numbers in it."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._highest = 0
        self._seen = 0  # bit k: `_highest - k` was received

    def check(self, incarnation: int, sequence: int) -> None:
        """Raise ProtocolError("replay") if the frame is a repetition, too old, or of an earlier incarnation."""
        if incarnation < self._incarnation:
            raise ProtocolError("replay", f"incarnation {incarnation} after {self._incarnation}")
        if incarnation > self._incarnation:
            return
        behind = self._highest - sequence
        if behind >= WIDTH or (behind >= 0 and self._seen >> behind & 1):
            raise ProtocolError("replay", f"sequence {sequence} of incarnation {incarnation}")

    def commit(self, incarnation: int, sequence: int) -> bool:
        """Record a frame that was checked and has a valid signature; return whether it is the newest."""
        if incarnation > self._incarnation:
            self._incarnation, self._highest, self._seen = incarnation, sequence, 1
        elif sequence > self._highest:
            ahead = min(sequence - self._highest, WIDTH)  # limits the shift, because a peer chooses the number
            self._seen = (self._seen << ahead | 1) & ((1 << WIDTH) - 1)
            self._highest = sequence
        else:
            self._seen |= 1 << (self._highest - sequence)
            return False
        return True


class SignedModel(NamedTuple):
    """Header of the frame of a model, or of a part of one, that its sender has signed.

    Attributes:
        version: wire version of the frame.
        sender: public key.
        start: the sender's incarnation and generation.
        content: hash of the payload, and number of samples.
        envelope: the header and the signature.
        part: division, number of parts, and part; None for a whole model.
    """

    version: int
    sender: bytes
    start: tuple[int, int]
    round: int
    stage: Stage
    content: tuple[bytes, int]
    envelope: bytes
    part: tuple[str, int, int] | None = None

    def contradicts(self, other: SignedModel) -> bool:
        """Return whether both are of one round and part of one sender, but of different models."""
        one_round = (self.sender, self.start, self.round, self.stage, self.part) == (
            other.sender,
            other.start,
            other.round,
            other.stage,
            other.part,
        )
        return one_round and self.content != other.content

    def verify(self) -> None:
        """Verify the signature.

        Raises:
            ProtocolError: it does not hold.
        """
        verify_header(self.sender, self.version, self.content[0], self.envelope)


def signed_model(header: Header, envelope: bytes | memoryview) -> SignedModel | None:
    """Return the model that a header describes, with the header and its signature.

    Returns:
        None if it is neither of a whole model nor of a fragment.
    """
    body = header.body
    if not isinstance(body, ModelUpdate | FragmentUpdate) or (isinstance(body, ModelUpdate) and body.base):
        return None
    start, content = (header.incarnation, header.generation), (header.digest, body.n_samples)
    part = (body.division, body.parts, body.part) if isinstance(body, FragmentUpdate) else None
    return SignedModel(header.version, header.sender, start, body.round, body.stage, content, bytes(envelope), part)


def parse_signed_model(envelope: bytes | memoryview, federation: bytes) -> SignedModel:
    """Return the model that a header and its signature describe. The signature is not verified.

    Raises:
        ProtocolError: it is no header of this federation, or the frame carries neither a whole model nor a fragment. (The
            bytes of a difference depend on the recipient.)
    """
    if (model := signed_model(parse_header(envelope, federation), envelope)) is None:
        raise ProtocolError("malformed", "a header that is neither of a whole model nor of a fragment")
    return model


def parse_receipts(payload: bytes | memoryview, federation: bytes) -> list[SignedModel]:
    """Return the models of a report. Their signatures are not verified.

    Raises:
        ProtocolError: the payload is no report.
    """
    count, rest = divmod(len(payload), OVERHEAD)
    if rest or not 1 <= count <= Receipts.MOST:
        raise ProtocolError("wrong length", f"receipts of {len(payload)} bytes")
    return [parse_signed_model(payload[at : at + OVERHEAD], federation) for at in range(0, len(payload), OVERHEAD)]


_route = msgspec.msgpack.Decoder(Annotated[list[Name], Meta(max_length=Carried.MOST)])


def parse_carried(message: Carried, payload: bytes | memoryview) -> tuple[list[str], bytes | memoryview]:
    """Return the names on the rest of the way of a report that others carry, and the payload of the report, not read yet.

    Raises:
        ProtocolError: the payload has no way, or one that is too long.
    """
    try:
        return _route.decode(payload[: message.route]), payload[message.route :]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def make_route(names: Sequence[str]) -> bytes:
    """Return the bytes of a way over members."""
    return msgspec.msgpack.encode(list(names))


def make_proof(one: SignedModel, other: SignedModel) -> bytes:
    """Return the proof that two signed models make; it does not depend on their order."""
    return b"".join(sorted((one.envelope, other.envelope)))


def read_proof(proof: bytes | memoryview, federation: bytes) -> tuple[SignedModel, SignedModel]:
    """Return the two signed models of a proof, which is valid then. Whether their signer is a member is not checked.

    Raises:
        ProtocolError: the proof is not valid.
    """
    if len(proof) != PROOF_SIZE:
        raise ProtocolError("wrong length", f"a proof of {len(proof)} bytes")
    one, other = (parse_signed_model(half, federation) for half in (proof[:OVERHEAD], proof[OVERHEAD:]))
    if not one.contradicts(other):
        raise ProtocolError("malformed", "two headers that do not contradict each other")
    one.verify()
    other.verify()
    return one, other
