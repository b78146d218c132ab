"""Signed headers of models, and proofs that a member has signed two different models of one round.

The signature of a frame covers the hash of its payload, so the header of a model's frame and its signature (320 bytes)
show what the sender has published. Two such headers are a proof if they are of one sender, incarnation, generation,
round and stage, but of different models. Everyone who knows the member's key can verify a proof, without a network.
"""

from __future__ import annotations

from typing import NamedTuple

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire.envelope import OVERHEAD, parse_header, verify_header
from p2pfl.protocols.wire.messages import ModelUpdate, Receipts, Stage

PROOF_SIZE = 2 * OVERHEAD


class SignedModel(NamedTuple):
    """Header of a model's frame that its sender has signed.

    Attributes:
        sender: public key.
        start: the sender's incarnation and generation.
        content: hash of the payload, and number of samples.
        envelope: the header and the signature.
    """

    sender: bytes
    start: tuple[int, int]
    round: int
    stage: Stage
    content: tuple[bytes, int]
    envelope: bytes

    def contradicts(self, other: SignedModel) -> bool:
        """Return whether both are of one round of one sender, but of different models."""
        one_round = (self.sender, self.start, self.round, self.stage) == (
            other.sender,
            other.start,
            other.round,
            other.stage,
        )
        return one_round and self.content != other.content


def parse_signed_model(envelope: bytes | memoryview, federation: bytes) -> SignedModel:
    """Return the model that a header and its signature describe. The signature is not verified.

    Raises:
        ProtocolError: it is no header of this federation, or the frame does not carry a whole model. (The bytes of a
            difference depend on the recipient.)
    """
    header = parse_header(envelope, federation)
    body = header.body
    if not isinstance(body, ModelUpdate) or body.base:
        raise ProtocolError("malformed", "a header that is not of a whole model")
    start, content = (header.incarnation, header.generation), (header.digest, body.n_samples)
    return SignedModel(header.sender, start, body.round, body.stage, content, bytes(envelope))


def verify(model: SignedModel) -> None:
    """Verify the signature of a model.

    Raises:
        ProtocolError: it does not hold.
    """
    verify_header(model.sender, model.content[0], model.envelope)


def parse_receipts(payload: bytes | memoryview, federation: bytes) -> list[SignedModel]:
    """Return the models of a report. Their signatures are not verified.

    Raises:
        ProtocolError: the payload is no report.
    """
    count, rest = divmod(len(payload), OVERHEAD)
    if rest or not 1 <= count <= Receipts.MOST:
        raise ProtocolError("wrong length", f"receipts of {len(payload)} bytes")
    return [parse_signed_model(payload[at : at + OVERHEAD], federation) for at in range(0, len(payload), OVERHEAD)]


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
    verify(one)
    verify(other)
    return one, other
