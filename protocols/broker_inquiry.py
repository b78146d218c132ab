"""Inquiry at a broker that refuses or closes connections: what answers at its address, and which limits it announces.

Nodes use MQTT 3.1.1, in which a broker closes a connection without a reason. MQTT 5 states reasons and limits, so the
inquiry connects once in that version. It sends the account only to a broker that has shown the expected certificate, as
a node does, and nothing else of the node.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from struct import pack
from typing import NamedTuple

from p2pfl.protocols.broker_address import PORTS, BrokerAddress
from p2pfl.system.printable import plural

ADVISED = 300 << 10  # bytes; the limit of packets to set at the broker, with room for topics and headers
ANSWERING = 3.0  # seconds for each step of an inquiry
REFUSING = 0.5  # seconds for a refusal after the handshake of TLS
MOST = 4096  # bytes of an answer
CONNACK = b"\x20"  # first byte of the answer to a connection


class Limits(NamedTuple):
    """Limits that a broker announces.

    Attributes:
        packet: maximum bytes of a packet; 0 for no limit.
        keepalive: maximum seconds; 0 for no limit.
        retains: whether it keeps retained messages.
    """

    packet: int = 0
    keepalive: int = 0
    retains: bool = True


def explain_silence(address: BrokerAddress, password: str | None, context: ssl.SSLContext | None, needs: Limits) -> str:
    """Return why a broker does not accept connections, with the remedy; "" if that remains unknown.

    The text is the predicate of a sentence about the broker. This function waits for the network.

    Args:
        context: the TLS context of the node; None without TLS.
        needs: what nodes need.
    """
    answer, closed = b"", False
    try:
        answer = _ask(address, context, address.user, password)
        closed = not answer
    except ssl.SSLCertVerificationError as error:
        return describe_certificate(str(error))
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error):
            return CLIENT_CERTIFICATE
        closed = isinstance(error, ssl.SSLEOFError)
    except ConnectionError as error:
        closed = not isinstance(error, ConnectionRefusedError)
    except OSError:
        pass
    if answer[:1] == CONNACK:
        return _describe_limits(read_limits(answer), needs)
    if answer:
        return _describe_other(answer, address)
    if address.scheme == "mqtts" and _answers_without_tls(address):
        return (
            f"does not use TLS at this port; name its port for TLS, usually {PORTS['mqtts']}, or use mqtt://{address.name},"
            " which does not encrypt the account"
        )
    if address.scheme == "mqtt" and _uses_tls(address):
        return f"expects TLS at this port; write mqtts:// instead of mqtt:// in its address: mqtts://{address.name}"
    return _try_http(address) or (CLOSED if closed else "")


def explain_limits(address: BrokerAddress, password: str | None, context: ssl.SSLContext | None, needs: Limits) -> str:
    """Return which limit that a broker announces nodes exceed, with the remedy; "" if none.

    See `explain_silence`.
    """
    try:
        return _describe_limits(read_limits(_ask(address, context, address.user, password)), needs)
    except OSError:
        return ""


def read_limits(answer: bytes) -> Limits:
    """Return the limits in a broker's answer to a connection in MQTT 5; none if it has another form."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    found = Properties(PacketTypes.CONNACK)  # type: ignore[no-untyped-call]
    with suppress(Exception):  # paho raises many kinds for an invalid answer
        if answer[:1] == CONNACK:
            found.unpack(answer[4:])  # type: ignore[no-untyped-call]
    packet, keepalive, retains = (
        getattr(found, name, None) for name in ("MaximumPacketSize", "ServerKeepAlive", "RetainAvailable")
    )
    return Limits(packet or 0, keepalive or 0, retains is None or bool(retains))


def _describe_limits(limits: Limits, needs: Limits) -> str:
    if not limits.retains:
        return "does not retain messages, by which nodes find each other; set retain_available true at the broker"
    if 0 < limits.packet < needs.packet:
        return (
            f"accepts packets of at most {limits.packet} bytes, but nodes use {describe_size(needs.packet)};"
            f" raise max_packet_size of the broker to {ADVISED} bytes"
        )
    if 0 < limits.keepalive < needs.keepalive:
        return (
            f"accepts a keepalive of at most {limits.keepalive} s, but nodes use {needs.keepalive} s; raise its"
            " max_keepalive"
        )
    return ""


CLOSED = (
    "closes new connections before it answers; see its log: it may have reached its limit of connections (max_connections),"
    " or refuse this machine"
)
CLIENT_CERTIFICATE = (
    "requires a certificate of its clients, which nodes do not have; set require_certificate false at the broker, and use"
    " accounts"
)


def describe_certificate(error: str) -> str:
    """Return why the certificate of a broker is not accepted, with the remedy.

    Args:
        error: the text of the error of its verification.
    """
    reason = error.partition("certificate verify failed: ")[2].partition(" (_ssl")[0].rstrip(".") or error
    lower = reason.lower()
    if "fingerprint" in lower:
        return f"shows another certificate: {reason}; correct #sha256= in its address if the broker has a new certificate"
    if "has expired" in lower:
        return "shows a certificate that has expired; renew it at the broker, or correct the clock of this machine"
    if "not yet valid" in lower:
        return "shows a certificate that is not valid yet; correct the clock of this machine, or of the one that made it"
    if "mismatch" in lower or "not valid for" in lower:
        return f"shows a certificate for another name: {reason}; use a name of the certificate as the host in its address"
    return (
        f"does not have a trusted certificate: certificate verify failed: {reason}; set SSL_CERT_FILE to the certificate"
        " of its authority, or add #sha256=FINGERPRINT to its address"
    )


def _ask(address: BrokerAddress, context: ssl.SSLContext | None, user: str | None, password: str | None) -> bytes:
    """Connect in MQTT 5; return the first bytes of the answer, b"" if the broker closes the connection.

    Raises:
        OSError: the connection or its encryption fails, or there is no answer in time.
    """
    flags = 0x02 | (0x80 if user is not None else 0) | (0x40 if user is not None and password is not None else 0)
    content = b"\x00\x04MQTT\x05" + pack(">BH", flags, 0) + b"\x00" + _text(f"p2pfl-{os.urandom(8).hex()}")
    if user is not None:
        content += _text(user) + (b"" if password is None else _text(password))
    length, left = bytearray(), len(content)
    while True:
        left, digit = left >> 7, left & 0x7F
        length.append(digit | (0x80 if left else 0))
        if not left:
            break
    return _exchange(address, context, b"\x10" + bytes(length) + content)


def _exchange(address: BrokerAddress, context: ssl.SSLContext | None, packet: bytes) -> bytes:
    with socket.create_connection((address.host, address.port), timeout=ANSWERING) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
        with connection:
            if context is not None:  # a broker that refuses the client says so before it reads anything
                connection.settimeout(REFUSING)
                with suppress(TimeoutError):
                    return connection.recv(MOST)
            connection.settimeout(ANSWERING)
            connection.sendall(packet)
            return connection.recv(MOST)


def _text(text: str) -> bytes:
    raw = text.encode()
    return pack(">H", len(raw)) + raw


def _answers_without_tls(address: BrokerAddress) -> bool:
    try:
        return _ask(address, None, None, None)[:1] == CONNACK
    except OSError:
        return False


def _uses_tls(address: BrokerAddress) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=ANSWERING) as plain,
            context.wrap_socket(plain, server_hostname=address.host),
        ):
            return True
    except ssl.SSLError as error:
        return any(word in str(error).upper() for word in ("ALERT", "CERTIFICATE_REQUIRED"))
    except OSError:
        return False


def _try_http(address: BrokerAddress) -> str:
    """Return what answers in plain text at an address where no broker does; "" if nothing does."""
    try:
        answer = _exchange(address, None, b"GET / HTTP/1.0\r\n\r\n")
    except OSError:
        return ""
    return _describe_other(answer, address) if answer else ""


def _describe_other(answer: bytes, address: BrokerAddress) -> str:
    protocol = "HTTP" if answer.startswith(b"HTTP") else "another protocol"
    usual = " or ".join(f"{port} for {scheme}://" for scheme, port in PORTS.items())
    return f"speaks {protocol} at this port, and not MQTT; name its port for MQTT, usually {usual}"


def describe_size(size: int) -> str:
    """Return the size of a packet in words: in bytes, or in whole KiB."""
    return plural(size, "byte") if size < 1 << 10 else f"{size >> 10} KiB"
