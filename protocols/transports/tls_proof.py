"""Proofs of both sides' keys as state machines that take steps and return answers.

See p2pfl.protocols.transports.handshake.
"""

from __future__ import annotations

from typing import NamedTuple

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports import handshake
from p2pfl.system.printable import printable


class Progress(NamedTuple):
    """Result of one step.

    Attributes:
        reply: step to send; b"" for none.
        proven: the other side and the session, once both sides have proven their keys.
        refusal: why the other side refuses this one; "" if it does not.
        proof: proof of a revocation, not verified; b"" for none.
    """

    reply: bytes = b""
    proven: handshake.Proven | None = None
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
        self._challenge = handshake.challenge(access)

    def begin(self) -> bytes:
        """Return the first step to send."""
        return handshake.encode(self._challenge)

    def step(self, data: memoryview) -> Progress:
        """Check the proof of the other side.

        Raises:
            ProtocolError: the proof is invalid; see p2pfl.protocols.transports.handshake.check.
        """
        step = handshake.decode(data)
        if not isinstance(step, handshake.Proof):
            raise _out_of_order()
        proven = handshake.check(step, self._access, self._challenge, self._identity.public, self._certificate)
        return Progress(handshake.encode(handshake.Accepted()), proven)


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
        self._proven: handshake.Proven | None = None  # set once the challenge is answered

    def step(self, data: memoryview) -> Progress:
        """Answer the challenge, or handle the server's decision.

        Raises:
            ProtocolError: the step is malformed, out of order or of another version.
        """
        step = handshake.decode(data)
        if self._proven is None and isinstance(step, handshake.Challenge):
            proof, self._proven = handshake.prove(
                self._identity, self._access, step, self._server, self._certificate, joining=self._joining
            )
            return Progress(handshake.encode(proof))
        if self._proven is not None and isinstance(step, handshake.Accepted):
            return Progress(proven=self._proven)
        if isinstance(step, handshake.Refused):
            return Progress(refusal=printable(f"{step.cause}: {step.detail}"))
        if isinstance(step, handshake.Revoked):
            return Progress(refusal=printable(f"revoked: {step.detail}"), proof=step.proof)
        raise _out_of_order()


def refusal_of(error: ProtocolError) -> bytes:
    """Return the step that tells the other side why it is refused."""
    detail = str(error).removeprefix(error.cause).removeprefix(": ")[:256]
    if error.proof:
        return handshake.encode(handshake.Revoked(detail, error.proof))
    return handshake.encode(handshake.Refused(error.cause[:64], detail))


def _out_of_order() -> ProtocolError:
    return ProtocolError("malformed", "a step of the handshake in the wrong order")
