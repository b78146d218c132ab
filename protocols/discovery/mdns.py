"""Discovery of nodes of a federation on the local network by multicast DNS (RFC 6762, RFC 6763).

What is found is a hint: whom an address belongs to is proven when it is dialled. Anybody on the network can announce
anything, so that all of it is capped, and a goodbye ends nothing but the hint. An address that is on no network of this
machine is not taken: a stranger must not choose whom a node dials elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import Semaphore, Task, TaskGroup
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import ifaddr
from zeroconf import Error, InterfaceChoice, IPVersion, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from p2pfl.protocols.addresses import is_loopback, join_address

SERVICE = "_p2pfl._tcp.local."
MAX_SERVICES = 256  # of the federation, on the network
MAX_ADDRESSES = 8  # of one service
MAX_TEXT = 512  # bytes
LOOK_UPS = 8  # at once
PATIENCE = 3000  # milliseconds for one of them
# Seconds between searches. Who was missed while the network was cut is found by the next one; a new address of one who was
# known before, by the first one after 120 s, when the old one's record has expired.
AGAIN = 60.0
RETRY = 30.0  # seconds

Found = Callable[[bytes, str], object]
Network = IPv4Network | IPv6Network
LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def read_text(text: bytes) -> tuple[bytes, bytes] | None:
    """Return the key (32 bytes) and the federation (16 bytes) that a TXT record names; None if it is not a node's."""
    if len(text) > MAX_TEXT:
        return None
    values: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        end = position + 1 + text[position]
        if end > len(text):
            return None
        name, _, value = text[position + 1 : end].partition(b"=")
        values.setdefault(name.lower(), value)  # of several the first one counts (RFC 6763, section 6.4)
        position = end
    key, federation = _unhex(values.get(b"id", b""), 32), _unhex(values.get(b"fed", b""), 16)
    return (key, federation) if key and federation else None


def _unhex(text: bytes, size: int) -> bytes:
    """Return `size` bytes, or b"" if `text` is not their hexadecimal form."""
    try:
        value = bytes.fromhex(text.decode("ascii")) if len(text) == 2 * size else b""
    except ValueError:
        return b""
    return value if len(value) == size else b""  # fromhex skips white space


def service_name(key: bytes, federation: bytes) -> str:
    """Return the name under which a node is announced; its label has at most 63 bytes."""
    return f"{key.hex()[:32]}-{federation.hex()[:16]}.{SERVICE}"


def dialable(hosts: Iterable[str], port: int, networks: Sequence[Network]) -> list[str]:
    """Return the addresses, 8 at most, at which somebody may be reached who announces these IP addresses and this port.

    Left out is what is on none of the networks, and an IPv6 address of one link without a scope that names the link.
    """
    addresses = []
    for host in hosts:
        ip = ip_address(host)
        homeless = isinstance(ip, IPv6Address) and ip.is_link_local and ip.scope_id is None
        nobody = ip.is_unspecified or ip.is_multicast or (ip.is_reserved and not ip.is_loopback)
        if port and not homeless and not nobody and any(ip in network for network in networks):
            addresses.append("tcp://" + join_address(host, port))
    return addresses[:MAX_ADDRESSES]


def interface_hosts() -> list[str]:
    """Return the IP addresses of this machine, in a fixed order."""
    found = [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips]
    return sorted({ip if isinstance(ip, str) else ip[0] for ip in found})


def interface_networks() -> list[Network]:
    """Return the networks that this machine is on, without loopback."""
    found = []
    for ip in (ip for adapter in ifaddr.get_adapters() for ip in adapter.ips):
        host = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
        if not is_loopback(host):
            found.append(ip_network(f"{host}/{ip.network_prefix}", strict=False))
    return found


def addresses_to_announce(listening: Iterable[str], local: Iterable[str]) -> list[str]:
    """Return the IP addresses to announce of a machine that has `local`.

    "0.0.0.0" and "::" are all of their kind but loopback. Scopes are left out: they mean nothing elsewhere.
    """
    hosts = []
    for host in listening:
        ip = ip_address(host)
        own = [other for other in local if not is_loopback(other) and (":" in other) == (ip.version == 6)]
        hosts += own if ip.is_unspecified else [host.partition("%")[0]]
    return hosts


class MdnsFinder:
    """
    Args:
        key: this node's public key, 32 bytes.
        federation: its 16 bytes.
        port: where this node listens.
        addresses: the IP addresses on which it listens; None for all, as ["0.0.0.0", "::"].
        interfaces: the IP addresses of the network interfaces to use; by default all, or loopback alone for a node that
            listens nowhere else.
        expected: whether a key that begins with these 16 bytes may be of a member; others are not looked up.

    Attributes:
        problem: why nobody can be found now, in one line; "" if all is well.
    """

    def __init__(
        self,
        key: bytes,
        federation: bytes,
        port: int,
        addresses: Sequence[str] | None = None,
        *,
        interfaces: Sequence[str] | None = None,
        expected: Callable[[bytes], bool] = lambda beginning: True,
    ) -> None:
        self.problem = ""
        self._key = key
        self._federation = federation
        self._port = port
        self._addresses = ("0.0.0.0", "::") if addresses is None else addresses
        self._interfaces = interfaces
        self._expected = expected
        self._own_name = service_name(key, federation)
        self._names = re.compile(rf"([0-9a-f]{{32}})-{federation.hex()[:16]}\.{re.escape(SERVICE)}")
        self._services: dict[str, Task[None]] = {}  # by name: its newest look-up
        self._turns = Semaphore(LOOK_UPS)
        self._found: Found
        self._networks: Sequence[Network] = LOOPBACK
        self._task: Task[None] | None = None

    async def start(self, found: Found) -> None:
        """Begin to announce this node and to look for others. Without a network it is tried again every 30 s.

        `found(key, address)` is called for the addresses of every other node of the federation, more than once for each:
        "tcp://192.168.1.5:4100", "tcp://[2001:db8::1]:4100" or, with a scope, "tcp://[fe80::1%2]:4100". It must not raise.
        """
        self._found = found
        self._task = asyncio.create_task(self._keep_on(), name="looks for nodes on the local network")

    async def wait_until_failed(self) -> None:
        """Wait until the search has ended with an error that is none of the network, and raise it."""
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task.result()

    async def close(self) -> None:
        """Say goodbye and stop. Closing twice does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _keep_on(self) -> None:
        while True:
            try:
                await self._take_part()
            except* (OSError, Error) as errors:
                error = errors.exceptions[0]
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self.problem = f"cannot look for nodes on the local network: {reason}"
                await asyncio.sleep(RETRY)

    async def _take_part(self) -> None:
        """Announce and search until this machine's addresses change.

        Raises:
            OSError, zeroconf.Error: there is no network, or none with multicast.
        """
        local = interface_hosts()
        hosts = addresses_to_announce(self._addresses, local)
        if not hosts:
            raise OSError("no network is connected")
        loopback = all(map(is_loopback, hosts))
        self._networks = LOOPBACK if loopback else interface_networks()
        zeroconf = self._open(local, loopback)
        try:
            await zeroconf.zeroconf.async_wait_for_start()
            self.problem = ""
            async with TaskGroup() as tasks:
                tasks.create_task(self._announce(zeroconf, hosts))
                while interface_hosts() == local:
                    await self._search(zeroconf.zeroconf, tasks)
        finally:
            self._services.clear()
            await zeroconf.async_close()

    def _open(self, local: list[str], loopback: bool) -> AsyncZeroconf:
        interfaces = self._interfaces or (["127.0.0.1"] if loopback else [])
        present = [interface for interface in interfaces if interface in local]
        if interfaces and not present:
            raise OSError(f"no network interface has the address {' or '.join(interfaces)}")
        version = IPVersion.All if any(":" in host for host in local) else IPVersion.V4Only
        try:
            return AsyncZeroconf(present) if present else AsyncZeroconf(InterfaceChoice.All, ip_version=version)
        except RuntimeError as error:  # an address went away meanwhile
            raise OSError(str(error)) from error

    async def _announce(self, zeroconf: AsyncZeroconf, hosts: list[str]) -> None:
        text = {"id": self._key.hex(), "fed": self._federation.hex()}
        info = ServiceInfo(
            SERVICE,
            self._own_name,
            self._port,
            properties=text,
            server=self._own_name.replace(SERVICE, "local."),
            parsed_addresses=hosts,
        )
        # A name that is unique by construction need not be probed for (RFC 6762, section 8.1), and nobody can occupy it.
        await (await zeroconf.async_register_service(info, cooperating_responders=True))

    async def _search(self, zeroconf: Zeroconf, look_ups: TaskGroup) -> None:
        """Ask who is there, with a browser that is told first what was heard before, and is done after a minute."""

        def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            self._on_service_change(zeroconf, look_ups, name, state_change is ServiceStateChange.Removed)

        browser = AsyncServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        try:
            await asyncio.sleep(AGAIN)
        finally:
            await browser.async_cancel()

    def _on_service_change(self, zeroconf: Zeroconf, look_ups: TaskGroup, name: str, removed: bool) -> None:
        """A service has come, changed or gone."""
        if removed:
            task = self._services.pop(name, None)
            if task is not None:
                task.cancel()
        elif not self._may_be_member(name) or (name not in self._services and len(self._services) >= MAX_SERVICES):
            # zeroconf repeats what it has cached in each of its questions. These would make them long; and one name that
            # cannot be sent again, as those that are not valid UTF-8, would silence it.
            pointers = [
                record for record in zeroconf.cache.entries_with_name(SERVICE) if getattr(record, "alias", "") == name
            ]
            zeroconf.cache.async_remove_records(pointers)
        elif name != self._own_name:
            task = self._services.get(name)
            if task is None or task.done():
                self._services[name] = look_ups.create_task(self._look_up(zeroconf, name))

    def _may_be_member(self, name: str) -> bool:
        """Return whether a service may be a member of the federation."""
        node = self._names.fullmatch(name)
        return node is not None and (name == self._own_name or self._expected(bytes.fromhex(node[1])))

    async def _look_up(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE, name)
        try:
            async with self._turns:
                known = await info.async_request(zeroconf, PATIENCE)
        except Error:  # an answer that cannot be asked about
            return
        if known:
            self._read(name, info.text, info.port or 0, info.parsed_scoped_addresses())

    def _read(self, name: str, text: bytes, port: int, hosts: list[str]) -> None:
        """Tell of a service, if it is another node of the federation, under its own name."""
        node = read_text(text)
        if node is not None and node[0] != self._key and node[1] == self._federation and name == service_name(*node):
            for address in dialable(hosts, port, self._networks):
                self._found(node[0], address)
