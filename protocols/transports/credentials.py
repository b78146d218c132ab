"""Credentials of a node for TLS: its certificate, its contexts, and the proofs of its key."""

from __future__ import annotations

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.certificates import client_context, make_certificate, server_context
from p2pfl.protocols.transports.tls_proof import ClientProof, ServerProof


class Credentials:
    """Credentials of one node in one federation, the same for direct links and for links through a broker.

    Attributes:
        identity, access: the node's key, and the members that it knows.
        certificate: the node's own certificate, DER.
        accepting, dialling: TLS contexts of the dialled side and of the dialler.
    """

    def __init__(self, identity: Identity, access: AccessControl) -> None:
        self.identity = identity
        self.access = access
        self.certificate = make_certificate(identity)
        self.accepting = server_context(identity, self.certificate)
        self.dialling = client_context()

    def server_proof(self) -> ServerProof:
        """Return a new proof for an accepted connection."""
        return ServerProof(self.identity, self.access, self.certificate)

    def client_proof(self, key: bytes, certificate: bytes, joining: bool) -> ClientProof:
        """Return a new proof for a connection with the owner of `key`.

        Args:
            certificate: the certificate that the owner has shown, DER.
        """
        return ClientProof(self.identity, self.access, key, certificate, joining)
