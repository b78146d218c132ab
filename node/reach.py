"""How a node is found and reached: its transports, and those who look for members, as its configuration says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from node import admission
from node.config import NodeConfig
from node.contact import Contacts
from node.wiring import max_frame
from protocols.addresses import split_address
from protocols.identity import Identity
from protocols.mdns import MdnsFinder
from protocols.membership import Membership
from protocols.tls import TlsTransport
from protocols.transport import Transport

BROKER = "mqtt:"  # the address of every member, through the broker


class Reach:
    """
    Args:
        size: P, the number of parameters.
        boot: how often the node has started.
        say: is told what is wrong.

    Attributes:
        addresses: those that are the same for every member.
    """

    def __init__(
        self, config: NodeConfig, identity: Identity, log: Membership, size: int, boot: int, say: Callable[[str], None]
    ) -> None:
        self._config = config
        self._identity = identity
        self._log = log
        self._say = say
        self._boot = boot
        self._tls = TlsTransport(config.listen, identity, log, max_frame(size))
        self.transport: Transport = self._tls
        self.addresses: tuple[str, ...] = ()
        self._contacts: Contacts
        self._mdns: MdnsFinder | None = None

    def serve(self, contacts: Contacts, folder: Path) -> None:
        """Tell the contacts what is found, and let in those whom this node has invited."""
        self._contacts = contacts
        contacts.on_refused = self._refused
        if admission.may_admit(folder):
            self._log.invites = True
            desk = admission.Desk(folder, self._log, time.time)
            desk.refused = contacts.refused
            contacts.on_join = desk.answer

    async def run(self) -> None:
        """Look for members, for ever."""
        await self._contacts.listening.wait()
        _, port = split_address(self._tls.address)
        if self._config.mdns:
            self._mdns = MdnsFinder(self._identity.public, self._log.federation, port, self._tls.hosts)
            await self._mdns.start(lambda key, address: self._contacts.found(key, address, "mdns"))
        await asyncio.Event().wait()

    async def close(self) -> None:
        if self._mdns is not None:
            await self._mdns.close()

    def _refused(self, cause: str, detail: str) -> None:
        if self._contacts.rejected[cause] == 1:  # the status counts the rest
            self._say(f"refused, {detail}")
