"""Connectivity of a node according to its configuration: its transports, and the search for members.

`Connectivity` listens, dials and searches as node.toml says. `MultiTransport` makes one transport of several: the scheme
of an address selects the one to dial with. `Supervisor` keeps the parts that talk to the outside running: an error in one
of them ends no other part; it is counted, logged, and the part starts again.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import PurePath
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from p2pfl._util.event_log import EventLogger
from p2pfl._util.printable import printable
from p2pfl.errors import ConfigurationError, first_error
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.log import LOG
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import Discovery
from p2pfl.protocols.addresses import BrokerAddress, is_loopback, join_address, needs_scope, split_address
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl, Handler, Link, Transport
from p2pfl.protocols.transports.tls import TlsTransport

if TYPE_CHECKING:
    from p2pfl.protocols.discovery import MdnsFinder
    from p2pfl.protocols.mqtt.transport import MqttTransport


REPORTING = 5.0  # seconds between checks of the problems of discovery
BROKER = "mqtt:"  # address of every member, through the broker
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a part starts again; doubled each time
STRAY = "callbacks"  # name of the part for errors of unawaited tasks and callbacks


class Connectivity:
    """Transports of a node, and the search for members.

    Args:
        access: decides which nodes the transports admit.
        most: maximum bytes of a frame.
        incarnation: number of the node's starts.
        discovery: receives reports about members and about the broker.
        supervisor: runs the link with the broker.
        log: receives an event about each problem, and when it is over.

    Attributes:
        addresses: the addresses that are the same for every member.

    Raises:
        ConfigurationError: no other node could reach this one.
    """

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        *,
        access: AccessControl,
        most: int,
        incarnation: int,
        discovery: Discovery,
        supervisor: Supervisor,
        log: EventLogger = LOG,
    ) -> None:
        check_connectivity(config)
        self._config = config
        self._key = identity.public
        self._federation = access.federation
        self._discovery = discovery
        self._log = log
        self._tls = TlsTransport(config.listen, identity, access, most)
        self.transport: Transport = self._tls
        self.addresses: tuple[str, ...] = ()
        self._was_connected = False  # to the broker
        if config.broker:
            broker = through_broker(
                config.broker,
                identity,
                access,
                most,
                incarnation=incarnation,
                addresses=self._own_addresses,
                found=lambda key, address: discovery.found(key, address, "broker"),
                hinted=discovery.hinted,
                on_problem=self._report_broker,
                on_connected=self._report_connection,
                keep=partial(supervisor.run, "broker"),
                on_fault=partial(supervisor.fault, "links"),
            )
            self.transport = (
                MultiTransport({"tcp": self._tls, "mqtt": broker}) if config.direct else MultiTransport({"mqtt": broker})
            )
            self.addresses = (BROKER,)

    def _report_broker(self, problem: str) -> None:
        if problem:
            self._log.warning(problem, kind="broker-lost", part="broker")
        else:
            self._log.info("broker: connected again", kind="broker-back", part="broker")
        self._discovery.broker_changed(problem)

    def _report_connection(self) -> None:
        """Log the first connection to the broker; later ones are logged if a problem was reported before."""
        if not self._was_connected:
            self._was_connected = True
            broker = without_password(self._config.broker).partition("#")[0]
            self._log.info(f"connected to the broker {broker}", kind="broker-connected", broker=broker)

    def _own_addresses(self) -> list[str]:
        """Return the addresses at which this node can be reached without the broker, for its presence at the broker."""
        if not self._config.direct:
            return []
        return [f"tcp://{address}" for address in own_addresses(self._config, self._tls.address)]

    def describe(self) -> dict[str, Any]:
        """Return how this node can be reached: its address, its broker, and whether it searches the local network.

        Call this once the transports listen. Without `direct`, the node listens at no address.
        """
        return network_of(self._config, self._tls.address)

    async def search(self, peering: PeerManager) -> None:
        """Search for peers on the local network without end; return at once if the configuration disables this."""
        await peering.listening.wait()
        _, port = split_address(self._tls.address)
        if self._config.mdns and self._config.direct:
            from p2pfl.protocols.discovery import MdnsFinder  # zeroconf takes 4 MiB

            mdns = MdnsFinder(self._key, self._federation, port, self._tls.hosts, expected=peering.knows)
            await mdns.start(lambda key, address: self._discovery.found(key, address, "mdns"))
            reporting = asyncio.create_task(self._report(mdns))
            try:
                await mdns.wait_until_failed()
            finally:
                reporting.cancel()
                await mdns.close()

    async def _report(self, mdns: MdnsFinder) -> None:
        """Log when discovery on the local network stops working, and when it works again."""
        reported = ""
        while True:
            await asyncio.sleep(REPORTING)
            if mdns.problem == reported:
                continue
            reported = mdns.problem
            if reported:
                self._log.warning(f"local network: {reported}", kind="discovery-lost", part="mdns")
            else:
                self._log.info("local network: discovery works again", kind="discovery-back", part="mdns")


def through_broker(url: str, identity: Identity, access: AccessControl, most: int, **options: Any) -> MqttTransport:
    """Return a transport through a broker; see p2pfl.protocols.mqtt.transport.MqttTransport for `options`.

    Raises:
        ConfigurationError: aiomqtt is not installed.
        AddressError: the URL is not that of a broker.
    """
    try:
        from p2pfl.protocols.mqtt.broker_client import AiomqttBus
        from p2pfl.protocols.mqtt.transport import MqttTransport
    except ImportError as error:
        raise ConfigurationError("a broker needs the package aiomqtt: pip install 'p2pfl-node[mqtt]'") from error
    return MqttTransport(AiomqttBus(url), identity, access, most, **options)


def network_of(config: NodeConfig, listening: str) -> dict[str, Any]:
    """Return how a node with this configuration can be reached; see `Connectivity.describe`.

    Args:
        listening: the address at which it listens, or will listen.
    """
    return {
        "listen": listening if config.direct else "",
        "broker": without_password(config.broker),
        "mdns": config.mdns and config.direct,
    }


def check_connectivity(config: NodeConfig) -> None:
    """Raise ConfigurationError if no other node could reach a node with this configuration."""
    if not (config.direct or config.broker):
        raise ConfigurationError('direct = false needs a broker; set broker = "mqtt://host:1883" in node.toml')


def without_password(broker: str) -> str:
    """Return a broker's URL without the password in it."""
    return BrokerAddress.parse(broker).url_without_password if broker else ""


def own_addresses(config: NodeConfig, listening: str) -> list[str]:
    """Return the addresses at which others may reach a node: the configured ones, or those of its machine."""
    if config.advertise:
        return list(config.advertise)
    host, port = split_address(listening)
    if host and host not in ("0.0.0.0", "::"):
        return [join_address(host, port)]
    from p2pfl.protocols.discovery import interface_hosts

    return [join_address(each, port) for each in interface_hosts() if not (is_loopback(each) or needs_scope(each))]


class MultiTransport:
    """Combination of several transports.

    Args:
        transports: transports by the scheme of their addresses, for example "tcp" and "mqtt". The first one handles
            addresses without a scheme.
    """

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self._transports = dict(transports)
        self._first = next(iter(self._transports))

    @property
    def address(self) -> str:
        """The address of the first transport."""
        return self._transports[self._first].address

    async def listen(self, handler: Handler) -> None:
        for transport in self._transports.values():
            await transport.listen(handler)

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        scheme, colon, _ = address.partition(":")
        transport = self._transports.get(scheme if colon and scheme in ("tcp", "mqtt", "memory") else self._first)
        if transport is None:
            raise TransportError(f"this node has no transport for {address}")
        return await transport.dial(address, key, joining)

    def expel(self, key: bytes) -> None:
        for transport in self._transports.values():
            transport.expel(key)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()


class Supervisor:
    """Restarts failed parts, and counts their errors.

    Args:
        log: receives the first error of each kind.

    Attributes:
        faults: number of errors that escaped a part, by the part's name.
    """

    def __init__(self, log: EventLogger = LOG) -> None:
        self.faults: Counter[str] = Counter()
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    async def run(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work of a part, and run it again after a growing pause as long as it ends with an error.

        The pauses start again when the part has worked for longer than the longest of them. Time is that of the event
        loop.
        """
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE
        while True:
            begun = clock()
            try:
                await work()
                return
            except Exception as error:
                self.fault(part, error)
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the clean-up has failed
                    raise asyncio.CancelledError from None
            if clock() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def clean_up(self, part: str, work: Awaitable[None]) -> None:
        """Run the final work of a part; an error in it is counted and hides no other error."""
        try:
            await work
        except Exception as error:
            self.fault(part, error)

    def fault(self, part: str, error: BaseException, origin: str = "") -> None:
        """Count an error that escaped a part; log it if it is the first of its kind.

        Args:
            origin: describes where the error was found, if that is not its place in the code.
        """
        self.faults[part] += 1
        error = first_error(error)
        kind = type(error).__name__
        if (part, kind) not in self._logged:
            self._logged.add((part, kind))
            found = f"; {printable(origin)}" if origin else ""
            event = f"error in {part}, the node continues: {kind}: {printable(str(error))}{_place(error)}{found}"
            self._log.error(event, kind="fault", part=part, error=kind)

    def stray(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an error that the event loop would only log (see asyncio's set_exception_handler)."""
        origin = context["message"]
        if (pending := context.get("task") or context.get("future")) is not None:
            origin += f": {pending!r}"
        self.fault(STRAY, context.get("exception") or RuntimeError("an error without exception"), origin)


def _place(error: BaseException) -> str:
    """Return the file and line that raised an error."""
    frames = extract_tb(error.__traceback__)
    return f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
