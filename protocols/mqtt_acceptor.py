"""Answers to members who dial through a broker."""

from __future__ import annotations

from protocols import session
from protocols.errors import ProtocolError
from protocols.identity import Identity
from protocols.mqtt_limits import OpeningLimits
from protocols.mqtt_link import MqttLink
from protocols.mqtt_links import LinkTable
from protocols.mqtt_packets import ANSWER_PACKET
from protocols.printable import key_name
from protocols.transport import Gate


class LinkAcceptor:
    """Accepts or refuses openings, within limits."""

    def __init__(self, identity: Identity, gate: Gate, limits: OpeningLimits, table: LinkTable) -> None:
        self._identity = identity
        self._gate = gate
        self._limits = limits
        self._table = table

    def accept(self, sender: bytes, packet: bytes) -> None:
        """Answer the opening that a packet claims to be."""
        table = self._table
        try:
            opening = session.decode_opening(packet)
        except ProtocolError as error:
            table.refused(error.cause, f"{key_name(sender)}: {error}")
            return
        link = table.links.get(opening.id)
        if link is not None:
            link.opened_again(packet)
            return
        if not self._limits.may_verify(sender):
            table.refused("too often", f"too many dials in the name of {key_name(sender)}")
            return
        try:
            if opening.dialler != sender:
                raise ProtocolError("other sender", f"says that it is {key_name(opening.dialler)}")
            accepted = session.accept(packet, opening, self._identity, self._gate)
        except ProtocolError as error:
            table.refused(error.cause, f"{key_name(sender)}: {error}")
            if self._limits.may_refuse():
                answer = session.refuse(packet, opening, self._identity, self._gate, error)
                table.bus.publish(table.topics.inbox(sender), bytes([ANSWER_PACKET]) + answer)
            return
        if not self._limits.charge(sender, opening.id):
            table.refused("too often", f"{key_name(sender)} dials too often")
            return
        link = MqttLink(table, sender, opening.id, accepted.sealing, dialled=False, joining=opening.joining)
        link.half_open(packet, bytes([ANSWER_PACKET]) + accepted.packet)
