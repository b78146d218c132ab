"""Connectivity of a node according to its configuration: its transports, and the search for members."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.log import LOG
from p2pfl.node.peering.discovery import Discovery
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.runtime.supervisor import Supervisor
from p2pfl.protocols.addresses import is_loopback, join_address, needs_scope, split_address
from p2pfl.protocols.broker_address import BrokerAddress
from p2pfl.protocols.discovery.mdns import MdnsFinder, interface_hosts
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl, Transport
from p2pfl.protocols.transports.multi import MultiTransport
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.system.event_log import EventLogger

if TYPE_CHECKING:
    from p2pfl.protocols.mqtt.transport import MqttTransport

REPORTING = 5.0  # seconds between checks of the problems of discovery
BROKER = "mqtt:"  # address of every member, through the broker


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

    async def search(self, contacts: PeerManager) -> None:
        """Search for peers on the local network without end; return at once if the configuration disables this."""
        await contacts.listening.wait()
        _, port = split_address(self._tls.address)
        if self._config.mdns and self._config.direct:
            mdns = MdnsFinder(self._key, self._federation, port, self._tls.hosts, expected=contacts.knows)
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
    return [join_address(each, port) for each in interface_hosts() if not (is_loopback(each) or needs_scope(each))]
