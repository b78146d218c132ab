"""Answers to nodes that dial through a broker."""

from __future__ import annotations

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.mqtt.limits import HandshakeLimits
from p2pfl.protocols.mqtt.link import MqttLink
from p2pfl.protocols.mqtt.link_table import LinkTable
from p2pfl.protocols.transports.credentials import Credentials
from p2pfl.protocols.transports.handshake import Proven
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.system.printable import key_name


class LinkAcceptor:
    """Acceptor that begins the handshakes of accepted links, within limits."""

    def __init__(self, credentials: Credentials, limits: HandshakeLimits, table: LinkTable) -> None:
        self._credentials = credentials
        self._limits = limits
        self._table = table

    def accept(self, sender: bytes, packet: bytes) -> None:
        """Accept a link from the first packet of its handshake."""
        table = self._table
        if not self._limits.may_verify(sender):
            table.refused("too often", f"too many connections in the name of {key_name(sender)}")
            return

        def admit(proven: Proven) -> None:
            if proven.key != sender:
                raise ProtocolError("other sender", f"claims to be {key_name(sender)}")
            if not proven.joining and not self._limits.may_link(sender):
                raise ProtocolError("too often", f"{key_name(sender)} connects too often")

        link = MqttLink(table, sender, packet[1:17], TlsHandshake(self._credentials, admit=admit), dialled=False)
        link.begin()
        link.packet(packet)
