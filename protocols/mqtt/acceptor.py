"""Answers to members that dial through a broker."""

from __future__ import annotations

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt import key_exchange
from p2pfl.protocols.mqtt.limits import OpeningLimits
from p2pfl.protocols.mqtt.link import MqttLink
from p2pfl.protocols.mqtt.link_table import LinkTable
from p2pfl.protocols.mqtt.packets import ANSWER_PACKET
from p2pfl.protocols.transport import AccessControl
from p2pfl.system.printable import key_name


class LinkAcceptor:
    """Acceptor that accepts or refuses openings, within limits."""

    def __init__(self, identity: Identity, access: AccessControl, limits: OpeningLimits, table: LinkTable) -> None:
        self._identity = identity
        self._access = access
        self._limits = limits
        self._table = table

    def accept(self, sender: bytes, packet: bytes) -> None:
        """Answer the opening in a packet, if it is one."""
        table = self._table
        try:
            opening = key_exchange.decode_opening(packet)
        except ProtocolError as error:
            table.refused(error.cause, f"{key_name(sender)}: {error}")
            return
        link = table.links.get(opening.id)
        if link is not None:
            link.repeat_answer(packet)
            return
        if not self._limits.may_verify(sender):
            table.refused("too often", f"too many connections in the name of {key_name(sender)}")
            return
        try:
            if opening.dialler != sender:
                raise ProtocolError("other sender", f"claims to be {key_name(opening.dialler)}")
            accepted = key_exchange.accept(packet, opening, self._identity, self._access)
        except ProtocolError as error:
            table.refused(error.cause, f"{key_name(sender)}: {error}")
            if self._limits.may_refuse():
                answer = key_exchange.refuse(packet, opening, self._identity, self._access, error)
                table.bus.publish(table.topics.inbox(sender), bytes([ANSWER_PACKET]) + answer)
            return
        if not self._limits.charge(sender, opening.id):
            table.refused("too often", f"{key_name(sender)} connects too often")
            return
        link = MqttLink(table, sender, opening.id, accepted.sealing, dialled=False, joining=opening.joining)
        link.half_open(packet, bytes([ANSWER_PACKET]) + accepted.packet)
