"""Addresses in readable form, and the networks to which they belong."""

from __future__ import annotations

import ipaddress

from p2pfl.protocols.errors import AddressError


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
