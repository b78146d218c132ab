"""How a node is found and reached: its transports, and those who look for members, as its configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from node import admission
from node.config import NodeConfig
from node.contact import Contacts
from node.wiring import max_frame
from protocols.addresses import is_loopback, split_address
from protocols.identity import Identity
from protocols.mdns import MdnsFinder
from protocols.membership import Membership
from protocols.several import Several
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
