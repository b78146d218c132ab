"""Presence at a broker: announcement of this node, and what others announce. See p2pfl.protocols.mqtt.presence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import AddressError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt import presence
from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.delivery import DeliveryMonitor
from p2pfl.protocols.mqtt.limits import OpeningLimits
from p2pfl.protocols.mqtt.packets import ADDRESS, Topics
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl


class Announcer:
    """Publishes where this node is.

    Args:
        incarnation: how often this node has started.
        addresses: returns where this node can be reached without the broker.
    """

    def __init__(
        self,
        bus: Bus,
        topics: Topics,
        identity: Identity,
        gate: AccessControl,
        *,
        incarnation: int,
        addresses: Callable[[], Sequence[str]],
        delivery: DeliveryMonitor,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._identity = identity
        self._gate = gate
        self._incarnation = incarnation
        self._addresses = addresses
        self._delivery = delivery
        self._sequence = 0
        self._announced = False
        self._version_seen = gate.membership_version
        self._newest = b""

    def announce(self) -> None:
        """Publish where this node is, if the broker is connected and this node is a member."""
        if self._bus.connected and not self._gate.refusal(self._identity.public):
            self._announced = True
            self._publish(online=True)

    def leave(self) -> None:
        """Publish that this node leaves, if others know that it is there."""
        if self._announced:
            self._publish(online=False)

    def reset(self) -> None:
        """Note that a new connection knows nothing of this node."""
        self._announced = False

    def refresh(self) -> None:
        """Announce what could not be announced before, and ask for the presence of new members."""
        if not self._announced or self._delivery.awaited:
            self.announce()
        if self._version_seen != self._gate.membership_version:
            self._version_seen = self._gate.membership_version
            self._bus.subscribe(self._topics.presences)

    def is_newest(self, content: bytes) -> bool:
        """Return whether a packet is what this node has published last."""
        return content == self._newest

    def _publish(self, online: bool) -> None:
        self._sequence += 1
        said = presence.Presence(
            federation=self._gate.federation,
            key=self._identity.public,
            incarnation=self._incarnation,
            sequence=self._sequence,
            addresses=tuple(self._addresses())[: presence.ADDRESSES] if online else (),
            online=online,
        )
        self._newest = presence.sign(self._identity, said)
        self._delivery.awaited.add(self._topics.presence)
        self._bus.publish(self._topics.presence, self._newest, retain=True)


class PresenceObserver:
    """Takes in what other members announce, within limits.

    Args:
        own: this node's public key.
        found: called with a member's key and an address where it may be.
        hinted: called with the key of a member that may be gone.
        refused: called with the cause and the detail of an announcement that was not accepted.
    """

    def __init__(
        self,
        own: bytes,
        gate: AccessControl,
        limits: OpeningLimits,
        *,
        found: Callable[[bytes, str], None],
        hinted: Callable[[bytes], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self._own = own
        self._gate = gate
        self._limits = limits
        self._found = found
        self._hinted = hinted
        self._refused = refused
        self._directory = presence.Directory(gate)
        self._hints, self._presences = TokenBucket(0.5, 3), TokenBucket(1, 10)

    def online(self, key: bytes) -> bool:
        """Return whether a member was last known to be there."""
        return self._directory.online(key)

    def presence(self, key: bytes, content: bytes) -> None:
        """Take in a packet that was published as the presence of `key`."""
        if not self._limits.may_verify(key):
            return
        try:
            said = self._directory.read(key, content)
        except ProtocolError as error:
            self._refused(error.cause, f"presence: {error}")
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
        """Take in that the broker takes the one who has `key` for gone."""
        known = key != self._own and not self._gate.refusal(key)
        if known and self._hints.take(key, asyncio.get_running_loop().time()):
            self._directory.mark_gone(key)
            self._hinted(key)
