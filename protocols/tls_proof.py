"""The steps by which both sides of a TLS connection prove their keys, over that connection. See protocols.handshake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import handshake
from protocols.errors import ProtocolError
from protocols.printable import printable

if TYPE_CHECKING:
    from protocols.tls_link import TlsLink


class Proof:
    """One side of it."""

    def __init__(self, link: TlsLink) -> None:
        self._link = link
        self._owner = link.owner
        self._challenge: handshake.Challenge | None = None
        self._session = b""

    def begin(self) -> None:
        """Challenge the one who has dialled."""
        self._challenge = handshake.challenge(self._owner.gate)
        self._link.say(handshake.encode(self._challenge))

    def step(self, data: memoryview) -> None:
        """Take in what the other side has said."""
        link = self._link
        try:
            step, challenge = handshake.decode(data), self._challenge
            if link.dialled:
                self._as_client(step, challenge)
            elif isinstance(step, handshake.Proof) and challenge is not None:
                self._check(step, challenge)
            else:
                raise ProtocolError("malformed", "a step of the handshake out of its order")
        except ProtocolError as error:
            self._owner.handler.refused(error.cause, f"{link.remote}: {error}")
            if not link.dialled:
                link.say(handshake.encode(handshake.Refused(error.cause[:64], _without_cause(error)[:256])))
            link.fail(str(error))

    def _as_client(self, step: object, challenge: handshake.Challenge | None) -> None:
        link = self._link
        if challenge is None and isinstance(step, handshake.Challenge) and link.key is not None:
            owner = self._owner
            proof, self._session = handshake.prove(
                owner.identity, owner.gate, step, link.key, link.certificate(), link.joining
            )
            self._challenge = step
            link.say(handshake.encode(proof))
        elif challenge is not None and isinstance(step, handshake.Accepted):
            link.stands(self._session)
        elif isinstance(step, handshake.Refused):
            link.fail(f"keeps this node out: {printable(f'{step.cause}: {step.detail}')}")
        else:
            raise ProtocolError("malformed", "a step of the handshake out of its order")

    def _check(self, proof: handshake.Proof, challenge: handshake.Challenge) -> None:
        link, owner = self._link, self._owner
        proven = handshake.check(proof, owner.gate, challenge, owner.identity.public, owner.certificate)
        link.key, link.joining = proven.key, proven.joining
        link.say(handshake.encode(handshake.Accepted()))
        link.stands(proven.session)


def _without_cause(error: ProtocolError) -> str:
    return str(error).removeprefix(error.cause).removeprefix(": ")
