"""Credentials of a node for TLS: a self-signed certificate of its key, the contexts with it, and the proofs of its key.

There are no certificate authorities: the key in a certificate is compared with the expected one.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.handshake import ClientProof, ServerProof
from p2pfl.protocols.wire.envelope import EARLIER, VERSION

# Names of application protocols (RFC 7301), the best first: a listener chooses the first one that the dialler offers, too.
# The choice is the wire version of the link; TLS protects it like all of the handshake. Nodes of version 6 offer only the
# second name. Without a choice the version is 6.
ALPN = {"p2pfl/7": VERSION, "p2pfl/1": EARLIER}


def make_certificate(identity: Identity) -> bytes:
    """Return a self-signed certificate of a node's key, DER.

    The name contains the key, because OpenSSL confuses certificates of equal names. The certificate is valid even if a
    clock is wrong.
    """
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.public.hex()[:60])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(Ed25519PublicKey.from_public_bytes(identity.public))
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 12, 31, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    private = serialization.load_pem_private_key(identity.private_pem(), password=None)
    assert isinstance(private, Ed25519PrivateKey)
    return builder.sign(private, algorithm=None).public_bytes(serialization.Encoding.DER)


def wire_version(tls: ssl.SSLObject | ssl.SSLSocket | None) -> int:
    """Return the wire version on which both sides of a TLS connection have agreed in its handshake."""
    return ALPN.get((tls.selected_alpn_protocol() if tls is not None else None) or "", EARLIER)


def key_of(certificate: bytes | None) -> bytes | None:
    """Return the Ed25519 key in a certificate, DER; None if there is none."""
    if not certificate:
        return None
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


def server_context(identity: Identity, certificate: bytes) -> ssl.SSLContext:
    """Return the TLS context of the dialled side: TLS 1.3 only, no session tickets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.set_alpn_protocols([*ALPN])
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
    _load(context, identity.private_pem() + pem)
    return context


def client_context() -> ssl.SSLContext:
    """Return the TLS context of the dialler. It trusts no certificate: `transports.tls` compares the key itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([*ALPN])
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load key and certificate into a context, which reads only files: from memory if the system supports that."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        path = Path(folder) / "certificate"
        path.write_bytes(pem)
        context.load_cert_chain(path)


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
