"""How a node is found and reached: its transports, and those who look for members, as its configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node import admission_key, passphrases
from node.admission import adding
from node.config import NodeConfig
from node.contact import Contacts
from node.invitations import InvitationService
from node.supervisor import Supervisor
from node.wiring import max_frame
from p2pfl.errors import ConfigurationError
from protocols.addresses import is_loopback, join_address, needs_scope, split_address
from protocols.identity import Identity
from protocols.mdns import MdnsFinder, interface_hosts
from protocols.membership import Membership
from protocols.several import Several
from protocols.tls import TlsTransport
from protocols.transport import Gate, Transport

if TYPE_CHECKING:
    from protocols.mqtt import MqttTransport

REPORTING = 5.0  # seconds between looks at what is wrong with finding members
BROKER = "mqtt:"  # the address of every member, through the broker


class Reach:
    """
    Args:
        size: P, the number of parameters.
        boot: how often the node has started.
        say: is told what is wrong.
        supervisor: runs the link with the broker.
        coordinated: see node.messaging.payload_limit.
        gate: decides whom the transports let in; by default the log.

    Attributes:
        addresses: those that are the same for every member.
    """

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        log: Membership,
        size: int,
        boot: int,
        say: Callable[[str], None],
        supervisor: Supervisor,
        coordinated: bool = False,
        gate: Gate | None = None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._log = log
        self._say = say
        self._contacts: Contacts
        self._tls = TlsTransport(config.listen, identity, gate or log, max_frame(size, coordinated))
        self.transport: Transport = self._tls
        self.addresses: tuple[str, ...] = ()
        if config.broker:
            broker = through_broker(
                *(config.broker, identity, gate or log, max_frame(size, coordinated)),
                boot=boot,
                addresses=self._own_addresses,
                found=lambda key, address: self._contacts.found(key, address, "broker"),
                hinted=lambda key: self._contacts.hinted(key),
                on_problem=self._on_broker,
                keep=partial(supervisor.run, "broker"),
                on_fault=partial(supervisor.fault, "links"),
            )
            self.transport = Several({"tcp": self._tls, "mqtt": broker}) if config.direct else Several({"mqtt": broker})
            self.addresses = (BROKER,)
        elif not config.direct:
            raise ConfigurationError("a node with direct = false needs a broker, or it reaches nobody")

    def _on_broker(self, problem: str) -> None:
        self._contacts.broker = problem
        self._say(problem or "the broker delivers again")
        self._contacts.roster.on_change()

    def _own_addresses(self) -> list[str]:
        """Where this node can be reached without the broker, for others who hear of it through the broker."""
        if not self._config.direct:
            return []
        return [f"tcp://{address}" for address in own_addresses(self._config, self._tls.address)]

    def serve(self, contacts: Contacts, folder: Path) -> None:
        """Tell the contacts what is found, and let in those whom this node has invited."""
        self._contacts = contacts
        contacts.on_refused = self._refused
        if admission_key.may_admit(folder):
            self._answer_tokens(contacts, folder)

    def _answer_tokens(self, contacts: Contacts, folder: Path) -> None:
        """Let newcomers in who bring a token; say so where that cannot be done, because the admission key is encrypted."""
        try:
            passphrase = None
            if admission_key.is_encrypted(folder):
                passphrase = passphrases.present(folder / admission_key.ADMISSION, self._config.passphrase_file)
                with adding(folder) as log:
                    admission_key.load(folder, log, passphrase)
        except ConfigurationError as error:
            self._say(f"this node cannot answer tokens: {error}; p2pfl-node admit still works")
            return
        service = InvitationService(folder, self._log, passphrase)
        service.refused = contacts.refused
        contacts.on_join = service.answer
        self._log.invites = True

    async def run(self) -> None:
        """Look for members, for ever."""
        await self._contacts.listening.wait()
        _, port = split_address(self._tls.address)
        if self._config.mdns and self._config.direct:
            mdns = MdnsFinder(
                self._identity.public, self._log.federation, port, self._tls.hosts, expected=self._contacts.knows
            )
            await mdns.start(lambda key, address: self._contacts.found(key, address, "mdns"))
            reporting = asyncio.create_task(self._report(mdns))
            try:
                await mdns.failed()
            finally:
                reporting.cancel()
                await mdns.close()

    async def _report(self, mdns: MdnsFinder) -> None:
        """Say when nobody can be found on the local network, and when that is over."""
        said = ""
        while True:
            await asyncio.sleep(REPORTING)
            if mdns.problem != said:
                said = mdns.problem
                self._say(f"local network: {said or 'members can be found again'}")

    def _refused(self, cause: str, detail: str) -> None:
        if self._contacts.rejected[cause] == 1:  # the status counts the rest
            self._say(f"refused, {detail}")


def through_broker(url: str, identity: Identity, gate: Gate, most: int, **options: Any) -> MqttTransport:
    """Return a transport through a broker; `options` are those of protocols.mqtt.MqttTransport.

    Raises:
        ConfigurationError: what it takes is not installed.
        AddressError: the URL is none of a broker.
    """
    try:
        from protocols.bus import AiomqttBus
        from protocols.mqtt import MqttTransport
    except ImportError as error:
        raise ConfigurationError("a broker needs aiomqtt: pip install 'p2pfl-node[mqtt]'") from error
    return MqttTransport(AiomqttBus(url), identity, gate, most, **options)


def own_addresses(config: NodeConfig, listening: str) -> list[str]:
    """Return where others may reach a node: as its owner says, or at the addresses of its machine."""
    if config.advertise:
        return list(config.advertise)
    host, port = split_address(listening)
    if host and host not in ("0.0.0.0", "::"):
        return [join_address(host, port)]
    return [join_address(each, port) for each in interface_hosts() if not (is_loopback(each) or needs_scope(each))]
