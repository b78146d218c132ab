"""Errors by whose fault they are."""

from __future__ import annotations


class ProtocolError(Exception):
    """A peer's fault: the frame is counted under `cause` and dropped, and the node goes on."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class TransportError(Exception):
    """The world's fault: an address that does not answer, a connection that broke. Try again later."""


class IdentityError(Exception):
    """The key file's fault, and so the user's: its text says what to do."""


class PassphraseError(IdentityError):
    """A key file is encrypted, and its passphrase is missing or wrong."""


class AddressError(Exception):
    """An address that cannot be used, and so the user's fault: its text says what would be right."""


class FederationError(Exception):
    """What was brought to become a member, or to make one, is no good: its text says why, and never quotes a secret."""
