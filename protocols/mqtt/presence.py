"""Presence of members at a broker: a signed announcement of a member, which the broker retains for later subscribers.

The signature prevents the broker from forging a presence, but not from withholding it or sending an old one. Addresses
are hints: a node proves its key when it is dialled. A packet is 64 bytes of signature and the signed msgpack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import AddressError, ProtocolError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, Verifier
from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.connection import DeliveryMonitor
from p2pfl.protocols.mqtt.packets import ADDRESS, HandshakeLimits, Topics
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.handshake import Bytes16, Bytes32, UInt32

LIMIT = 4096  # maximum bytes of a packet
ADDRESSES = 8
_LABEL = b"p2pfl presence 1\0"


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
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=ADDRESSES)]
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
        if not SIGNATURE_SIZE < len(packet) <= LIMIT:
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
        topics: Topics,
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
            addresses=tuple(self._addresses())[:ADDRESSES] if online else (),
            online=online,
        )
        self._newest = sign(self._identity, said)
        self._delivery.awaited.add(self._topics.presence)
        self._bus.publish(self._topics.presence, self._newest, retain=True)


class PresenceObserver:
    """Observer that processes the announcements of other members, within limits.

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
        limits: HandshakeLimits,
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

    def online(self, key: bytes) -> bool:
        """Return whether a member was online at its last announcement."""
        return self._directory.online(key)

    def presence(self, key: bytes, content: bytes) -> None:
        """Process a packet that was published as the presence of `key`.

        Those of other nodes than members are expected, and ignored: the broker retains them when a membership has ended,
        and a new member may announce itself before this node has its entry of the membership log.
        """
        if self._access.refusal(key) or not self._limits.may_verify(key):
            return
        try:
            said = self._directory.read(key, content)
        except ProtocolError as error:
            self._refused(error.cause, f"its announcement at the broker: {error}")
            return
        if not self._presences.take(key, asyncio.get_running_loop().time()):
            return
        if not said.online:
            self._hinted(key)
            return
        for address in said.addresses:
            with suppress(AddressError):
                split_address(address)
                self._found(key, address)
        self._found(key, ADDRESS)

    def will(self, key: bytes) -> None:
        """Process the broker's message that the owner of `key` is gone."""
        known = key != self._own and not self._access.refusal(key)
        if known and self._hints.take(key, asyncio.get_running_loop().time()):
            self._directory.mark_gone(key)
            self._hinted(key)
