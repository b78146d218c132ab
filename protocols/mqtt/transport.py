"""Links through an MQTT broker, which is trusted only to carry packets.

Every link begins with the TLS 1.3 handshake and the proofs of direct links (p2pfl.protocols.mqtt.link), from
which its keys follow. Frames are cut, sealed, acknowledged and repeated (p2pfl.protocols.mqtt.reliable_stream). The
broker sees which members communicate, when, and how much. It
may lose, repeat, reorder, alter and forge packets: frames arrive complete, in order and once, or the link ends.

    p2pfl/<federation>/<recipient>/<sender>    packets; a node subscribes to p2pfl/<federation>/<its own key>/+
    p2pfl/<federation>/presence/<key>          signed and retained presence of a member, for later subscribers
    p2pfl/<federation>/will/<key>              published by the broker when a node is gone; only a hint

Federations and keys are in hexadecimal digits. A broker that authenticates its users can restrict each of them to its
own topics, so that others cannot waste its time. For Mosquitto, with every node's key as its user name:

    pattern write p2pfl/<federation>/presence/%u
    pattern write p2pfl/<federation>/will/%u
    pattern write p2pfl/<federation>/<key>/%u    (for the key of each member)
    pattern read p2pfl/<federation>/%u/+
    pattern read p2pfl/<federation>/presence/+
    pattern read p2pfl/<federation>/will/+

A broker may acknowledge packets that it does not deliver. A node therefore publishes messages to itself, a small one
periodically and the largest size on a connection, and reports what does not arrive.

The signature of a presence prevents the broker from forging it, but not from withholding it or sending an old one. Its
addresses are hints: a node proves its key when it is dialled. The packet is 64 bytes of signature and the signed msgpack.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl._util.printable import key_name
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import AddressError, ProtocolError, TransportError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, Verifier
from p2pfl.protocols.mqtt import packets
from p2pfl.protocols.mqtt.broker_client import Bus, Message
from p2pfl.protocols.mqtt.connection import BrokerConnection, DeliveryMonitor, Keep, ProblemReport
from p2pfl.protocols.mqtt.link import (
    HANDSHAKE_PACKET,
    LINKS_PER_KEY,
    DamageError,
    LinkAcceptor,
    LinkTable,
    MqttLink,
    begins_handshake,
)
from p2pfl.protocols.mqtt.reliable_stream import CONTROL_PACKET, DATA_PACKET
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl, Handler, Timer
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.handshake import Bytes16, Bytes32, UInt32
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.messages import HelloParameters

GREETING = OVERHEAD + HelloParameters.LIMIT  # maximum bytes of a frame before a link is trusted
LARGEST = 300 << 10  # maximum bytes of a packet; larger ones are ignored
DIALLING = 10.0  # seconds for the broker, and for a member's next message of the handshake
ABSENT = 3.0  # seconds for a member that has not announced that it is present
LARGEST_PRESENCE, MOST_ADDRESSES = 4096, 8  # maximum bytes of a presence, and maximum number of its addresses
TURN = 0.1  # seconds between verifications of presences that have waited
_LABEL = b"p2pfl presence 1\0"


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class MqttTransport:
    """Transport through an MQTT broker.

    Args:
        max_frame: maximum bytes of a frame; on a link that is not trusted yet the maximum is `greeting`.
        incarnation: number of this node's starts.
        addresses: returns the addresses at which this node can be reached without the broker; see `announce`.
        found: called with a member's key and a possible address of it.
        hinted: called with the key of a member that may be gone.
        on_problem: called with `problem` when it changes.
        on_connected: called when a connection to the broker is open.
        keep: runs the work that stays connected with the broker, and may run it again after an error.
        on_fault: called with an internal error in the handling of one packet, which ends the packet's link; None: the
            error is raised.
        uniform: draws a number between two others, for the pauses between attempts to connect.
    """

    address = packets.ADDRESS

    def __init__(
        self,
        bus: Bus,
        identity: Identity,
        access: AccessControl,
        max_frame: int,
        *,
        greeting: int = GREETING,
        incarnation: int = 0,
        addresses: Callable[[], Sequence[str]] = tuple,
        found: Callable[[bytes, str], None] = lambda key, address: None,
        hinted: Callable[[bytes], None] = lambda key: None,
        on_problem: Callable[[str], None] = lambda problem: None,
        on_connected: Callable[[], None] = lambda: None,
        keep: Keep = _once,
        on_fault: Callable[[Exception], None] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.bus = bus
        self.topics = topics = packets.Topics(access.federation, identity.public)
        self._keep = keep
        self._on_fault = on_fault
        self._problem = ProblemReport(on_problem)
        self._on_connected = on_connected
        self._delivery = DeliveryMonitor(bus, topics.echo, self._problem)
        self._connection = BrokerConnection(bus, Message(topics.will, b"gone"), topics.subscriptions, self._problem, uniform)
        self._table = LinkTable(bus, topics, max_frame, greeting, self._on_proven)
        limits = packets.HandshakeLimits(access)
        self.credentials = Credentials(identity, access)
        self._acceptor = LinkAcceptor(self.credentials, limits, self._table)
        self._outdated: set[bytes] = set()  # members that have dialled with an earlier version
        self._announcer = Announcer(
            bus, topics, identity, access, incarnation=incarnation, addresses=addresses, delivery=self._delivery
        )
        self._observer = PresenceObserver(
            identity.public, access, limits, found=found, hinted=hinted, refused=self._table.refused
        )
        self._resets = TokenBucket(0.5, LINKS_PER_KEY)

    @property
    def problem(self) -> str:
        """The problem with the broker, in one sentence; "" if no problem is known."""
        return self._problem.text

    @property
    def links(self) -> dict[bytes, MqttLink]:
        """All links by id, including those that are not proven."""
        return self._table.links

    @property
    def strangers(self) -> dict[MqttLink, None]:
        """Accepted links that are not trusted yet, the oldest first."""
        return self._table.strangers

    async def listen(self, handler: Handler) -> None:
        """Start to connect with the broker and to accept links. `problem` tells whether the broker answers."""
        self._table.use(handler)
        self._connection.start(self, self._on_disconnect, self._keep)

    async def dial(self, address: str, key: bytes, joining: bool = False) -> MqttLink:
        self._table.handler  # noqa: B018 (raises)
        try:
            async with asyncio.timeout(DIALLING):
                await self._connection.wait()
            return await self._dial(key, joining)
        except TimeoutError:
            reason = self._why_silent(key)
            if self.bus.connected and self._observer.online(key) and not self._table.any_proven and not self.problem:
                self._delivery.deny(reason)
            raise TransportError(reason) from None

    async def _dial(self, key: bytes, joining: bool) -> MqttLink:
        handshake = TlsHandshake(self.credentials, key, joining)
        link = MqttLink(self._table, key, os.urandom(16), handshake, dialled=True, joining=joining)
        link.begin()
        try:
            await self._wait_for_proof(link)
        finally:
            if not link.session_made:
                link.close()
        return link

    async def _wait_for_proof(self, link: MqttLink) -> None:
        """Wait as long as the handshake makes progress: where cores are short, ending it half-way would repeat its work.

        Raises:
            TimeoutError: the other side has not sent its next message.
        """
        while True:
            there = link.joining or self._observer.online(link.key or b"")
            begun, patience = link.advanced, DIALLING if there else min(DIALLING, ABSENT)
            try:
                async with asyncio.timeout_at(begun + patience):
                    await asyncio.shield(link.proven)
                return
            except TimeoutError:
                if link.advanced == begun:
                    raise

    def expel(self, key: bytes) -> None:
        self._table.close(key)

    def announce(self) -> None:
        """Publish this node's addresses. Call this when they have changed."""
        self._announcer.announce()

    async def close(self) -> None:
        self._table.close()
        self._announcer.leave()
        self._observer.close()
        self._delivery.stop()
        await self._connection.close()

    # Events of the bus

    def connected(self) -> None:
        self._connection.opened()
        self._on_connected()
        self._announcer.reset()
        self._delivery.start(self._announcer.refresh)
        self._table.resume()

    def _on_disconnect(self) -> str | None:
        """Pause the links; return why the broker closes connections, as p2pfl.protocols.mqtt.connection needs it."""
        self._table.pause()
        return self._delivery.stop()

    def writable(self) -> None:
        self._table.take_turns()

    def came(self, topic: str, content: bytes) -> None:
        named = self.topics.parse(topic)
        if named is None or not 0 < len(content) <= LARGEST:
            return
        place, key = named
        try:
            self._look_at(topic, place, key, content)
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault(error)
            link = self.links.get(content[1:17])
            if link is not None and link.key == key:
                link.fail("one of its packets could not be handled")

    def _look_at(self, topic: str, place: str, key: bytes, content: bytes) -> None:
        if place == packets.PRESENCE and key == self.topics.own:
            if self._announcer.is_newest(content) and self._delivery.record_arrival(topic):
                self._report_delivery()
        elif place == packets.PRESENCE:
            self._observer.presence(key, content)
        elif place == packets.WILL:
            self._observer.will(key)
        elif place == self.topics.own.hex():
            self._packet(key, content)

    def _packet(self, sender: bytes, content: bytes) -> None:
        kind = content[0]
        if sender == self.topics.own:
            if kind == packets.ECHO_PACKET and self._delivery.echo_came(content[1:]):
                self._report_delivery()
        elif kind in (DATA_PACKET, CONTROL_PACKET, HANDSHAKE_PACKET):
            self._on_link_packet(sender, content)
        elif kind == packets.RESET_PACKET:
            link = self.links.get(content[1:])
            if link is not None and link.key == sender:
                link.probe()
        elif kind in (packets.FORMER_OPENING, packets.FORMER_ANSWER):
            self._on_former_packet(sender)
        else:
            self._table.refused("malformed", f"{key_name(sender)}: a packet of kind {kind}")

    def _on_link_packet(self, sender: bytes, content: bytes) -> None:
        id = content[1:17]
        link = self.links.get(id)
        if link is not None and link.key == sender:
            link.packet(content)
            return
        late = link is None and self._table.has_ended(id, sender)
        if link is None and content[0] == HANDSHAKE_PACKET and not late:
            try:
                if begins_handshake(content):
                    self._acceptor.accept(sender, content)
                    return
            except DamageError as error:
                self._table.refused(error.cause, f"{key_name(sender)}: {error}")
                return
        if not late:
            cause = "unknown session" if link is None else "other sender"
            self._table.refused(cause, f"a message of {key_name(sender)} for a connection that has ended or is not its own")
        if link is None and self._resets.take(self._share(sender), asyncio.get_running_loop().time()):
            self.bus.publish(self.topics.inbox(sender), packets.reset_packet(id))

    def _share(self, sender: bytes) -> bytes:
        """Return whose share of a limit a packet of `sender` takes: all strangers have one in common."""
        return b"" if self.credentials.access.refusal(sender) else sender

    def _on_former_packet(self, sender: bytes) -> None:
        if not self.credentials.access.refusal(sender):
            self._outdated.add(sender)
        self._table.refused("version", f"{_outdated(sender)}, which this node does not support: update both")

    def _on_proven(self, key: bytes) -> None:
        self._outdated.discard(key)
        self._delivery.permit()

    def _report_delivery(self) -> None:
        """Report what the broker delivers, after the arrival of the messages that this node published."""
        if self._connection.confirm():
            self._problem.set(self._delivery.complaint)

    def _why_silent(self, key: bytes) -> str:
        """Return the reason why a member has not answered."""
        if not self.bus.connected:
            return self._connection.failure or f"the broker at {self.bus.name} does not answer"
        if key in self._outdated:
            return f"version: {_outdated(key)}, which this node does not support: update both"
        if self.problem not in ("", self._delivery.denied):
            announced = f"{key_name(key)} is announced at the broker, but its messages do not arrive"
            return announced if self._observer.online(key) else self.problem
        if self._observer.online(key):
            return (
                f"{key_name(key)} is present at the broker at {self.bus.name}, but does not answer; "
                f"check the access rules for publishing to {self.topics.inbox(key)}"
            )
        return f"{key_name(key)} is not present at the broker at {self.bus.name}"


def _outdated(key: bytes) -> str:
    return f"{key_name(key)} opens links through the broker in version 1"


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Announcement of one member.

    Attributes:
        incarnation, sequence: number of the member's starts, and number of its announcements since the last start.
        addresses: addresses at which it can be dialled, for example "tcp://192.168.1.5:4100".
        online: False if the member has left on purpose.
    """

    federation: Bytes16
    key: Bytes32
    incarnation: UInt32
    sequence: UInt32
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=MOST_ADDRESSES)]
    online: bool


_decoder = msgspec.msgpack.Decoder(Presence)


def sign(identity: Identity, presence: Presence) -> bytes:
    """Return the signed packet of a presence."""
    content = msgspec.msgpack.encode(presence)
    return identity.sign(_LABEL + content) + content


class Directory:
    """Directory of the newest signed presence of each member."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._known: dict[bytes, Presence] = {}

    def online(self, key: bytes) -> bool:
        """Return whether a member was online at its last announcement."""
        known = self._known.get(key)
        return known is not None and known.online

    def mark_gone(self, key: bytes) -> None:
        """Mark a member as possibly offline until its next announcement."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = msgspec.structs.replace(known, online=False)

    def read(self, key: bytes, packet: bytes) -> Presence:
        """Read a packet that was published as the presence of `key`, and record it.

        Raises:
            ProtocolError: its `cause` is one of malformed, other federation, other sender, stranger, revoked, replay,
                wrong signature.
        """
        if not SIGNATURE_SIZE < len(packet) <= LARGEST_PRESENCE:
            raise ProtocolError("malformed", f"a presence of {len(packet)} bytes")
        try:
            presence = _decoder.decode(packet[SIGNATURE_SIZE:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", str(error)) from error
        if presence.federation != self._access.federation:
            raise ProtocolError("other federation", presence.federation.hex())
        if presence.key != key:
            raise ProtocolError("other sender", f"the presence of {presence.key.hex()} in the topic of another member")
        if cause := self._access.refusal(key):
            raise ProtocolError(cause, f"{key.hex()} is not a member")
        known = self._known.get(key)
        if known is not None and (presence.incarnation, presence.sequence) < (known.incarnation, known.sequence):
            raise ProtocolError("replay", f"an old presence of {key.hex()}")
        if not Verifier(key).valid(packet[:SIGNATURE_SIZE], _LABEL + packet[SIGNATURE_SIZE:]):
            raise ProtocolError("wrong signature", f"claims to be {key.hex()}")
        self._known[key] = presence
        return presence


class Announcer:
    """Announcer that publishes this node's addresses.

    Args:
        incarnation: number of this node's starts.
        addresses: returns the addresses at which this node can be reached without the broker.
    """

    def __init__(
        self,
        bus: Bus,
        topics: packets.Topics,
        identity: Identity,
        access: AccessControl,
        *,
        incarnation: int,
        addresses: Callable[[], Sequence[str]],
        delivery: DeliveryMonitor,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._identity = identity
        self._access = access
        self._incarnation = incarnation
        self._addresses = addresses
        self._delivery = delivery
        self._sequence = 0
        self._announced = False
        self._version_seen = access.membership_version
        self._newest = b""

    def announce(self) -> None:
        """Publish this node's addresses if the broker is connected and this node is a member."""
        if self._bus.connected and not self._access.refusal(self._identity.public):
            self._announced = True
            self._publish(online=True)

    def leave(self) -> None:
        """Publish that this node leaves, if it has announced itself."""
        if self._announced:
            self._publish(online=False)

    def reset(self) -> None:
        """Record that a new connection has no announcement of this node yet."""
        self._announced = False

    def refresh(self) -> None:
        """Announce pending changes, and request the presence of new members."""
        if not self._announced or self._delivery.awaited:
            self.announce()
        if self._version_seen != self._access.membership_version:
            self._version_seen = self._access.membership_version
            self._bus.subscribe(self._topics.presences)

    def is_newest(self, content: bytes) -> bool:
        """Return whether a packet is this node's latest announcement."""
        return content == self._newest

    def _publish(self, online: bool) -> None:
        self._sequence += 1
        said = Presence(
            federation=self._access.federation,
            key=self._identity.public,
            incarnation=self._incarnation,
            sequence=self._sequence,
            addresses=tuple(self._addresses())[:MOST_ADDRESSES] if online else (),
            online=online,
        )
        self._newest = sign(self._identity, said)
        self._delivery.awaited.add(self._topics.presence)
        self._bus.publish(self._topics.presence, self._newest, retain=True)


class PresenceObserver:
    """Observer that processes the announcements of other members, within limits.

    A broker sends all retained presences at once, and once only. Those beyond the limit of verified signatures wait for
    their turn, the newest of each member, so that the memory is bounded by the number of members. They are verified at half
    of the limit, which leaves the other half to new presences.

    Args:
        own: this node's public key.
        found: called with a member's key and a possible address of it.
        hinted: called with the key of a member that may be gone.
        refused: called with the cause and the detail of a refused announcement.
    """

    def __init__(
        self,
        own: bytes,
        access: AccessControl,
        limits: packets.HandshakeLimits,
        *,
        found: Callable[[bytes, str], None],
        hinted: Callable[[bytes], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self._own = own
        self._access = access
        self._limits = limits
        self._found = found
        self._hinted = hinted
        self._refused = refused
        self._directory = Directory(access)
        self._hints, self._presences = TokenBucket(0.5, 3), TokenBucket(1, 10)
        self._waiting: dict[bytes, bytes] = {}
        self._turn = Timer()

    def close(self) -> None:
        """Forget the presences that wait."""
        self._turn.cancel()
        self._waiting.clear()

    def online(self, key: bytes) -> bool:
        """Return whether a member was online at its last announcement."""
        return self._directory.online(key)

    def presence(self, key: bytes, content: bytes) -> None:
        """Process a packet that was published as the presence of `key`.

        Those of other nodes than members are expected, and ignored: the broker retains them when a membership has ended,
        and a new member may announce itself before this node has its entry of the membership log.
        """
        if self._access.refusal(key):
            return
        if self._limits.may_verify(key):
            self._verify(key, content)
        elif len(content) <= LARGEST_PRESENCE:
            self._waiting[key] = content
            if not self._turn.pending:
                self._turn.start(TURN, self._verify_waiting)

    def _verify_waiting(self) -> None:
        """Verify some of the presences that wait, those that have waited longest first."""
        for key in list(islice(self._waiting, int(packets.VERIFICATIONS / 2 * TURN))):
            if self._access.refusal(key):  # since then
                del self._waiting[key]
            elif self._limits.may_verify(key):
                self._verify(key, self._waiting.pop(key))
        if self._waiting:
            self._turn.start(TURN, self._verify_waiting)

    def _verify(self, key: bytes, content: bytes) -> None:
        try:
            said = self._directory.read(key, content)
        except ProtocolError as error:
            self._refused(error.cause, f"its announcement at the broker: {error}")
            return
        self._waiting.pop(key, None)  # one that came earlier
        if not self._presences.take(key, asyncio.get_running_loop().time()):
            return
        if not said.online:
            self._hinted(key)
            return
        for address in said.addresses:
            with suppress(AddressError):
                split_address(address)
                self._found(key, address)
        self._found(key, packets.ADDRESS)

    def will(self, key: bytes) -> None:
        """Process the broker's message that the owner of `key` is gone."""
        known = key != self._own and not self._access.refusal(key)
        if known and self._hints.take(key, asyncio.get_running_loop().time()):
            self._directory.mark_gone(key)
            self._hinted(key)
