"""Errors of communication, by cause."""

from __future__ import annotations

from p2pfl.errors import P2pflError


class ProtocolError(P2pflError):
    """Fault of a peer: the frame is counted under `cause` and dropped, and the node continues.

    Attributes:
        proof: what proves the cause to the peer; b"" for nothing.
    """

    def __init__(self, cause: str, detail: str = "", proof: bytes = b"") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause
        self.proof = proof


class TransportError(P2pflError):
    """Fault of the network: an address does not answer, or a connection broke. Try again later."""


class AddressInUseError(TransportError):
    """Address to listen on that another program uses."""


class RefusedError(TransportError):
    """Refusal of this node by the node that it dialled.

    Attributes:
        cause: reason in the words of docs/wire-protocol.md, such as "revoked" or "version".
        proof: proof of a revocation, not verified; b"" for none.
    """

    def __init__(self, text: str, cause: str = "", proof: bytes = b"") -> None:
        super().__init__(text)
        self.cause = cause
        self.proof = proof


class IdentityError(P2pflError):
    """Unusable key or key file: the text tells the user how to correct it."""


class PassphraseError(IdentityError):
    """Missing or wrong passphrase of an encrypted key file."""


class AddressError(P2pflError):
    """Unusable address: the text describes the correct form."""


class FederationError(P2pflError):
    """Unusable invitation, request or federation file: the text gives the reason, and never quotes a secret."""
