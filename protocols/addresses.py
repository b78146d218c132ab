"""Addresses in readable form, the networks to which they belong, and the addresses of MQTT brokers.

The address of a broker is its URL, with an account there, and the certificate that it must show:

    mqtt://[user[:password]@]host[:port]
    mqtts://[user[:password]@]host[:port][#sha256=fingerprint]

With a fingerprint, the SHA-256 of its certificate in 64 hexadecimal digits, the broker needs no certificate of an
authority that the system trusts, and its certificate is valid whatever host and time are in it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from p2pfl.protocols.errors import AddressError

PASSWORD = "P2PFL_MQTT_PASSWORD"  # environment variable with the password of the account
PORTS = {"mqtt": 1883, "mqtts": 8883}
FORM = "mqtt://host:1883 or mqtts://user@host:8883"
_PINNED = re.compile(r"sha256=([0-9a-f]{64})")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "tcp://host:port" or "host:port".

    An IPv6 host is in brackets; no host means all addresses.

    Raises:
        AddressError: the address has another form, or a port out of range.
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if (
        not (colon and port.isdecimal())
        or "[" in host
        or "]" in host
        or (":" in host and not bracketed)
        or not host.isprintable()  # it may come from a peer, and users see it
    ):
        raise AddressError(f"address {address!r} is not of the form 192.168.1.5:4100 or [fe80::1]:4100")
    if int(port) > 65535:
        raise AddressError(f"the port of address {address!r} must be from 0 to 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def needs_scope(host: str) -> bool:
    """Return whether a host is a link-local IPv6 address, which other machines cannot use without a scope."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return ip.version == 6 and ip.is_link_local


def network(host: str) -> bytes:
    """Return the network of a host, for limits per host: its IPv4 address, or the /64 of its IPv6 address.

    One machine usually has a whole /64. A text that is not an IP address is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.encode()
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:8]
    return address.packed


@dataclass(frozen=True)
class BrokerAddress:
    """URL of a broker, the account there, and the certificate that it must show.

    Attributes:
        scheme: "mqtt", or "mqtts" for TLS.
        user, password: the account; None for none.
        fingerprint: SHA-256 of the certificate that the broker must show, 32 bytes; empty if an authority that the
            system trusts must have signed it.
    """

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    fingerprint: bytes = b""

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Read a URL.

        Raises:
            AddressError: it has another form. The error does not quote it, because it may contain a password.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:  # without its text, which may quote the password
            raise AddressError(f"the address of a broker must be of the form {FORM}") from None
        if parts.scheme not in PORTS or not host or not port or parts.path.strip("/") or parts.query:
            raise AddressError(f"the address of a broker must be of the form {FORM}")
        pinned = _PINNED.fullmatch(parts.fragment.replace(":", "").lower())
        if parts.fragment and (pinned is None or parts.scheme != "mqtts"):
            raise AddressError(
                "the address of a broker may end with # and the fingerprint of its certificate, only as in"
                " mqtts://host:8883#sha256=FINGERPRINT with 64 hexadecimal digits"
            )
        user, password = (unquote(part) if part else None for part in (parts.username, parts.password))
        return cls(parts.scheme, host, port, user, password, bytes.fromhex(pinned.group(1)) if pinned else b"")

    @property
    def name(self) -> str:
        """Host and port, for messages to people."""
        return join_address(self.host, self.port)

    @property
    def short_url(self) -> str:
        """URL without the account and the fingerprint, for messages to people."""
        return f"{self.scheme}://{self.name}"

    @property
    def public_url(self) -> str:
        """URL without the account, for others, which have their own accounts."""
        pinned = f"#sha256={self.fingerprint.hex()}" if self.fingerprint else ""
        return f"{self.short_url}{pinned}"

    @property
    def url_without_password(self) -> str:
        """URL with the user name, for files that others may read."""
        return replace(self, password=None).url

    @property
    def url(self) -> str:
        """URL with the account."""
        account = ":".join(quote(part, safe="") for part in (self.user, self.password) if part is not None)
        return self.public_url.replace("://", f"://{account}@", 1) if account else self.public_url

    def is_same_place(self, other: BrokerAddress) -> bool:
        """Return whether another address names the same host and port."""
        return (self.host, self.port) == (other.host, other.port)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context for connections to the broker; None without TLS."""
        if self.scheme != "mqtts":
            return None
        if not self.fingerprint:
            return ssl.create_default_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint is stricter
        context.sslsocket_class = type("PinnedSocket", (_PinnedSocket,), {"fingerprint": self.fingerprint})
        return context

    def read_fingerprint(self, seconds: float) -> bytes:
        """Connect to the broker, and return the SHA-256 of the certificate that it shows, 32 bytes.

        Args:
            seconds: time for each step of the connection.

        Raises:
            OSError: the broker does not answer, or its certificate is not trusted (`ssl.SSLCertVerificationError`).
        """
        context = self.tls_context()
        assert context is not None
        with (
            socket.create_connection((self.host, self.port), timeout=seconds) as connection,
            context.wrap_socket(connection, server_hostname=self.host) as wrapped,
        ):
            return _fingerprint_of(wrapped)


class _PinnedSocket(ssl.SSLSocket):
    """Socket that accepts one certificate only. The handshake fails before anything is sent to another broker."""

    fingerprint = b""

    def do_handshake(self, *args: Any, **options: Any) -> None:
        super().do_handshake(*args, **options)
        shown = _fingerprint_of(self)
        if shown != self.fingerprint:
            self.close()  # the MQTT library would leave it to the garbage collector
            raise ssl.SSLCertVerificationError(
                f"certificate verify failed: its fingerprint is {shown.hex()}, expected {self.fingerprint.hex()}"
            )


def _fingerprint_of(connection: ssl.SSLSocket) -> bytes:
    return sha256(connection.getpeercert(binary_form=True) or b"").digest()
