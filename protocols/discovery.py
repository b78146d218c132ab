"""Discovery of a federation's nodes on the local network by multicast DNS (RFC 6762, RFC 6763).

All results are hints: a node proves its key when it is dialled. Any machine on the network can announce anything.
Therefore the number of results is limited, and a goodbye ends only the hint. Addresses outside this machine's networks
are ignored, so that a stranger cannot make a node dial other networks.
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
MAX_SERVICES = 256  # services of the federation on the network
MAX_ADDRESSES = 8  # addresses of one service
MAX_TEXT = 512  # bytes
LOOK_UPS = 8  # look-ups in parallel
PATIENCE = 3000  # timeout of a look-up in milliseconds
# Seconds between searches. The next search finds a node that was missed while the network was down. A new address of a
# known node is found by the first search after 120 s, when the old address's record has expired.
AGAIN = 60.0
RETRY = 30.0  # seconds
Found = Callable[[bytes, str], object]
Network = IPv4Network | IPv6Network
LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def read_text(text: bytes) -> tuple[bytes, bytes] | None:
    """Return the key (32 bytes) and the federation (16 bytes) in a TXT record; None if it is not a node's."""
    if len(text) > MAX_TEXT:
        return None
    values: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        end = position + 1 + text[position]
        if end > len(text):
            return None
        name, _, value = text[position + 1 : end].partition(b"=")
        values.setdefault(name.lower(), value)  # the first of several values counts (RFC 6763, section 6.4)
        position = end
    key, federation = _unhex(values.get(b"id", b""), 32), _unhex(values.get(b"fed", b""), 16)
    return (key, federation) if key and federation else None


def _unhex(text: bytes, size: int) -> bytes:
    """Return `size` bytes, or b"" if `text` is not their hexadecimal form."""
    try:
        value = bytes.fromhex(text.decode("ascii")) if len(text) == 2 * size else b""
    except ValueError:
        return b""
    return value if len(value) == size else b""  # fromhex ignores white space


def service_name(key: bytes, federation: bytes) -> str:
    """Return the service name of a node; its label has at most 63 bytes."""
    return f"{key.hex()[:32]}-{federation.hex()[:16]}.{SERVICE}"


def dialable(hosts: Iterable[str], port: int, networks: Sequence[Network]) -> list[str]:
    """Return up to 8 dialable addresses from announced IP addresses and a port.

    Addresses outside the given networks are omitted, and so are link-local IPv6 addresses without a scope.
    """
    addresses = []
    for host in hosts:
        ip = ip_address(host)
        unscoped = isinstance(ip, IPv6Address) and ip.is_link_local and ip.scope_id is None
        mapped = isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None  # reserved until Python 3.12 only
        unusable = ip.is_unspecified or ip.is_multicast or mapped or (ip.is_reserved and not ip.is_loopback)
        if port and not unscoped and not unusable and any(ip in network for network in networks):
            addresses.append("tcp://" + join_address(host, port))
    return addresses[:MAX_ADDRESSES]


def interface_hosts() -> list[str]:
    """Return the IP addresses of this machine, in a fixed order."""
    found = [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips]
    return sorted({ip if isinstance(ip, str) else ip[0] for ip in found})


def interface_networks() -> list[Network]:
    """Return the networks to which this machine is connected, without loopback."""
    found = []
    for ip in (ip for adapter in ifaddr.get_adapters() for ip in adapter.ips):
        host = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
        if not is_loopback(host):
            found.append(ip_network(f"{host}/{ip.network_prefix}", strict=False))
    return found


def addresses_to_announce(listening: Iterable[str], local: Iterable[str]) -> list[str]:
    """Return the IP addresses to announce for a machine with the addresses `local`.

    "0.0.0.0" and "::" stand for all IPv4 or IPv6 addresses except loopback. Scopes are omitted, because they have no
    meaning on other machines.
    """
    hosts = []
    for host in listening:
        ip = ip_address(host)
        own = [other for other in local if not is_loopback(other) and (":" in other) == (ip.version == 6)]
        hosts += own if ip.is_unspecified else [host.partition("%")[0]]
    return hosts


class MdnsFinder:
    """Finder of nodes by multicast DNS.

    Args:
        key: this node's public key, 32 bytes.
        federation: the federation's id, 16 bytes.
        port: port on which this node listens.
        addresses: the IP addresses on which it listens; None for all, as ["0.0.0.0", "::"].
        interfaces: the IP addresses of the network interfaces to use; by default all, or only loopback for a node that
            listens only on loopback.
        expected: returns whether a key that begins with these 16 bytes may belong to a member; other keys are not
            looked up.

    Attributes:
        problem: why discovery does not work now, in one line; "" if it works.
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
        self._services: dict[str, Task[None]] = {}  # newest look-up, by name
        self._turns = Semaphore(LOOK_UPS)
        self._found: Found
        self._networks: Sequence[Network] = LOOPBACK
        self._task: Task[None] | None = None

    async def start(self, found: Found) -> None:
        """Start to announce this node and to look for others. Without a network, retry every 30 s.

        `found(key, address)` is called for the addresses of every other node of the federation, more than once for
        each: "tcp://192.168.1.5:4100", "tcp://[2001:db8::1]:4100" or, with a scope, "tcp://[fe80::1%2]:4100". It must
        not raise.
        """
        self._found = found
        self._task = asyncio.create_task(self._keep_on(), name="discovery on the local network")

    async def wait_until_failed(self) -> None:
        """Wait until the search ends with an error that is not a network error, and raise it."""
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task.result()

    async def close(self) -> None:
        """Send a goodbye and stop. Closing twice does nothing."""
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
                self.problem = f"cannot search for nodes: {reason}"
                await asyncio.sleep(RETRY)

    async def _take_part(self) -> None:
        """Announce and search until this machine's addresses change.

        Raises:
            OSError, zeroconf.Error: there is no network, or none with multicast.
        """
        local = interface_hosts()
        hosts = addresses_to_announce(self._addresses, local)
        if not hosts:
            raise OSError("this machine has no network")
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
        except RuntimeError as error:  # an address has disappeared since
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
        # The name is unique by construction, so it needs no probe (RFC 6762, section 8.1), and no other machine can
        # occupy it.
        await (await zeroconf.async_register_service(info, cooperating_responders=True))

    async def _search(self, zeroconf: Zeroconf, look_ups: TaskGroup) -> None:
        """Search for nodes with a browser that first receives the cached services and ends after a minute."""

        def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            self._on_service_change(zeroconf, look_ups, name, state_change is ServiceStateChange.Removed)

        browser = AsyncServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        try:
            await asyncio.sleep(AGAIN)
        finally:
            await browser.async_cancel()

    def _on_service_change(self, zeroconf: Zeroconf, look_ups: TaskGroup, name: str, removed: bool) -> None:
        """Handle a service that was added, changed or removed."""
        if removed:
            task = self._services.pop(name, None)
            if task is not None:
                task.cancel()
        elif not self._may_be_member(name) or (name not in self._services and len(self._services) >= MAX_SERVICES):
            # zeroconf repeats its cached pointers in each question, which makes the questions long. One name that
            # cannot be sent again, for example because it is not valid UTF-8, would prevent all questions.
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
        except Error:  # a service that cannot be queried
            return
        if known:
            self._read(name, info.text, info.port or 0, info.parsed_scoped_addresses())

    def _read(self, name: str, text: bytes, port: int, hosts: list[str]) -> None:
        """Report a service if it is another node of the federation, announced under its own name."""
        node = read_text(text)
        if node is not None and node[0] != self._key and node[1] == self._federation and name == service_name(*node):
            for address in dialable(hosts, port, self._networks):
                self._found(node[0], address)
