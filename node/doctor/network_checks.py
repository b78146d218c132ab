"""Checks of a node's network: its port, multicast on the local network, a broker (see p2pfl.node.doctor.checks)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from p2pfl.node.doctor.checks import Finding
from p2pfl.protocols.addresses import is_loopback, split_address
from p2pfl.protocols.broker_address import PASSWORD, BrokerAddress
from p2pfl.protocols.errors import AddressError
from p2pfl.system.atomic_files import reason

NO_ANSWER = "start the broker, correct its address in node.toml, or open its port in the firewall"
ALL_SIZES = 30.0  # seconds for packets of all sizes to come back from the broker
GROUP = "224.0.0.251"  # group of multicast DNS, for which routers and firewalls have their rules


def check_port(listen: str, running: bool = False, configured: str = "") -> Finding:
    """Check whether the node can listen at its address, and whether others can reach it there.

    Args:
        listen: address at which the running node listens, or will listen.
        running: whether a process runs this node, which then holds the port.
        configured: address in node.toml, if an option can have replaced it.
    """
    other = f" (node.toml has {configured})" if configured not in ("", listen) else ""
    try:
        host, port = split_address(listen)
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        if not running:
            for family, _, _, _, address in found[:1]:
                with socket.create_server((address[0], address[1]), family=family):
                    pass
    except AddressError as error:
        return Finding("port", False, f"listen: {error}", "change listen in node.toml")
    except OSError as error:
        return Finding("port", False, f"cannot listen at {listen}: {_why(error)}", _port_mend(error))
    if all(is_loopback(str(address[0])) for *_, address in found):
        remedy = f'to accept connections from other machines, set listen = ":{port}" and open the port in the firewall'
        used = "is used by this node, and " if running else "is "
        return Finding("port", None, f"{listen} {used}reachable from this machine only{other}", remedy)
    return Finding("port", True, f"{listen} {'is used by this node' if running else 'is free'}{other}")


def _why(error: OSError) -> str:
    """Return the system's error text, without the address that socket.create_server adds."""
    number = error.errno or 0
    return os.strerror(number) if number in errno.errorcode else reason(error)  # other numbers come from getaddrinfo


def _port_mend(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program uses the port: stop it (ss -ltnp shows it), or change listen in node.toml"
    if error.errno == errno.EACCES:
        return "choose a port of 1024 or above"
    return "no interface has this address: use one that `ip addr` shows, or none to listen at all of them"


def check_multicast(addresses: Sequence[str] | None = None) -> Finding:
    """Check whether multicast DNS can find nodes on the local network; nothing leaves this machine.

    Args:
        addresses: IPv4 addresses of the interfaces to try; all by default.
    """
    problems = {address: _multicast_problem(address) for address in (own_addresses() if addresses is None else addresses)}
    works = [address for address, problem in problems.items() if not problem]
    failed = [f"{address}: {problem}" for address, problem in problems.items() if problem]
    remedy = "enable multicast for the interface and open UDP port 5353, or set [addresses] in node.toml"
    if not works:
        return Finding("multicast", False, f"does not work ({'; '.join(failed) or 'no interface has an address'})", remedy)
    if all(is_loopback(address) for address in works):
        result = "works on loopback only" + (f" ({'; '.join(failed)})" if failed else "")
        return Finding("multicast", None, f"{result}: only nodes of this machine find each other", remedy)
    if failed:
        return Finding("multicast", None, f"works at {', '.join(works)}, but not at {'; '.join(failed)}", remedy)
    return Finding("multicast", True, f"works at {', '.join(works)}")


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces."""
    import ifaddr

    return [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if isinstance(ip.ip, str)]


def _multicast_problem(address: str) -> str:
    """Send a datagram to the group at an interface; return why it did not come back, or ""."""
    interface, text = socket.inet_aton(address), os.urandom(16)
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("", 0))
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + interface)
            receiver.settimeout(1.0)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sender.sendto(text, (GROUP, receiver.getsockname()[1]))
            with suppress(TimeoutError):
                while receiver.recv(64) != text:
                    pass
                return ""
            return "no message returned"
    except OSError as error:
        return reason(error)


def check_broker(url: str, topic: str = "", password: str | None = None, seconds: float = 5.0) -> Finding:
    """Check that a broker answers, accepts this node's credentials, and delivers packets of the sizes that nodes use.

    Args:
        url: see p2pfl.protocols.broker_address; a password in it is never shown.
        topic: a topic that this node may publish to and subscribe to; by default a generated one.
        password: by default the one in the environment variable P2PFL_MQTT_PASSWORD, or in the URL.
        seconds: time to wait for the connection, and for the first message.
    """
    form = "set broker in node.toml to mqtt://host:1883 or mqtts://user@host:8883"
    try:
        address = BrokerAddress.parse(url)
    except AddressError:
        return Finding("broker", False, "its address is not a valid URL", form)
    where = address.name
    try:
        socket.create_connection((address.host, address.port), timeout=seconds).close()
    except OSError as error:
        return Finding("broker", False, f"{where} does not answer: {reason(error)}", NO_ANSWER)
    try:
        import aiomqtt  # noqa: F401

        from p2pfl.node.doctor.broker_trial import try_broker
        from p2pfl.protocols.mqtt.broker_client import AiomqttBus
    except ImportError:
        return Finding(
            "broker",
            None,
            f"{where} answers; access was not checked, because aiomqtt is missing",
            "pip install 'p2pfl-node[mqtt]'",
        )
    bus = AiomqttBus(url, environment=os.environ if password is None else os.environ | {PASSWORD: password})
    try:
        problem = asyncio.run(try_broker(bus, topic or f"p2pfl/doctor/{os.urandom(16).hex()}", seconds, ALL_SIZES))
    except TimeoutError:
        result = f"{where} delivers small messages; large ones have not come back within {ALL_SIZES:g} s"
        return Finding("broker", None, result, "expect long transfers, or use a faster network")
    return broker_problem(problem) if problem else Finding("broker", True, f"{where} delivers messages")


def broker_problem(problem: str) -> Finding:
    """Return the finding for a problem of the broker, which is one sentence, with the remedy after "; " if one is known."""
    result, _, remedy = problem.removeprefix("the broker at ").partition("; ")
    return Finding("broker", False, result, remedy or NO_ANSWER)
