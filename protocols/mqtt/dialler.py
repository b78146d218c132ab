"""Dialling of members through a broker."""

from __future__ import annotations

import asyncio

from p2pfl.protocols.errors import ProtocolError, RefusedError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt import key_exchange
from p2pfl.protocols.mqtt.link import MqttLink
from p2pfl.protocols.mqtt.link_table import LinkTable
from p2pfl.protocols.mqtt.packets import OPENING_PACKET
from p2pfl.protocols.transport import AccessControl
from p2pfl.system.printable import key_name, printable

AGAIN = 1.0  # seconds between attempts until the member answers

Answer = key_exchange.Sealing | key_exchange.Refusing | key_exchange.Revoking


class LinkDialler:
    """Dialler that repeats openings until they are answered."""

    def __init__(self, identity: Identity, access: AccessControl, table: LinkTable) -> None:
        self._identity = identity
        self._access = access
        self._table = table
        self._dials: dict[bytes, _Dial] = {}

    async def dial(self, key: bytes, joining: bool) -> MqttLink:
        """Open a link with the owner of `key`. The broker must be connected. The caller limits the time.

        Raises:
            RefusedError: the member refuses this node.
            TransportError: the transport was closed.
        """
        dialler = key_exchange.Dialler(self._identity, self._access, key, joining)
        answer = await self._ask(dialler, key)
        if (
            isinstance(answer, key_exchange.Refusing)
            and answer.cause == "stranger"
            and answer.membership_version < self._access.membership_version
        ):
            dialler = key_exchange.Dialler(self._identity, self._access, key, joining, after=answer.membership_version)
            answer = await self._ask(dialler, key)
        if not isinstance(answer, key_exchange.Sealing):
            cause, proof = (answer.cause, b"") if isinstance(answer, key_exchange.Refusing) else ("revoked", answer.proof)
            reason = printable(f"{cause}: {answer.detail}")
            raise RefusedError(f"{key_name(key)} refuses this node: {reason}", cause, proof)
        link = MqttLink(self._table, key, dialler.id, answer, dialled=True, joining=joining)
        link.begin()
        return link

    def answer(self, sender: bytes, packet: bytes) -> None:
        """Accept the answer to an opening from a packet."""
        try:
            dial = self._dials.get(key_exchange.decode_answer(packet).id)
            if dial is None or dial.answer.done() or dial.key != sender:
                return  # late or repeated
            dial.answer.set_result(dial.dialler.finish(packet))
        except ProtocolError as error:  # it may be forged: the genuine one may still arrive
            self._table.refused(error.cause, f"{key_name(sender)}: {error}")

    def close(self) -> None:
        """Let all pending dials fail."""
        for dial in self._dials.values():
            if not dial.answer.done():
                dial.answer.set_exception(TransportError("closed"))

    async def _ask(self, dialler: key_exchange.Dialler, key: bytes) -> Answer:
        dial = self._dials[dialler.id] = _Dial(dialler, key)
        table = self._table
        try:
            while True:
                table.bus.publish(table.topics.inbox(key), bytes([OPENING_PACKET]) + dialler.packet)
                await asyncio.wait([dial.answer], timeout=AGAIN)
                if dial.answer.done():
                    return dial.answer.result()
        finally:
            del self._dials[dialler.id]


class _Dial:
    def __init__(self, dialler: key_exchange.Dialler, key: bytes) -> None:
        self.dialler = dialler
        self.key = key
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
