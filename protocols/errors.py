"""Errors by whose fault they are."""

from __future__ import annotations

from p2pfl.errors import P2pflError


class ProtocolError(P2pflError):
    """Fault of a peer: the frame is counted under `cause` and dropped, and the node goes on."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class TransportError(P2pflError):
    """Fault of the network: an address that does not answer, a connection that broke. Try again later."""


class IdentityError(P2pflError):
    """Unusable key or key file: the text tells the user what to do."""


class PassphraseError(IdentityError):
    """Missing or wrong passphrase of an encrypted key file."""


class AddressError(P2pflError):
    """Unusable address: the text says what would be right."""


class FederationError(P2pflError):
    """Unusable invitation, request or federation file: the text says why, and never quotes a secret."""
