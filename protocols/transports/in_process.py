"""Links within one process, for tests and for simulations that send real frames.

A `Model` of the network gives the time at which a frame arrives; without one it arrives at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Protocol

from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import NO_SESSION, Handler, Link, Part
from p2pfl.protocols.wire.envelope import EARLIER, VERSION


class Model(Protocol):
    """Delays and losses of a network."""

    def arrival(self, source: str, target: str, size: int, now: float) -> float | None:
        """Return the arrival time of a frame of `size` bytes that is sent at `now`; None if the frame is lost."""


class InProcessNetwork:
    """Factory of transports that reach each other by name.

    Args:
        keys: public key of each node, by name. Links then have sessions and know the keys of their ends, as over TLS: they
            carry the frames of the two transports that were made for these names, and no others.
        earlier: names of the nodes that know only the earlier wire version.
    """

    def __init__(
        self,
        model: Model | None = None,
        keys: Mapping[str, bytes] = MappingProxyType({}),
        earlier: Collection[str] = (),
    ) -> None:
        self.keys = keys
        self.earlier = frozenset(earlier)
        self._model = model
        self._transports: dict[str, MemoryTransport] = {}
        self._sessions = count(1)

    def transport(self, name: str) -> MemoryTransport:
        """Return a new transport with the address "memory:<name>"."""
        return MemoryTransport(self, name)

    def register(self, transport: MemoryTransport) -> None:
        """Make a transport reachable.

        Raises:
            TransportError: its address is in use.
        """
        if transport.name in self._transports:
            raise TransportError(f"{transport.address} is in use")
        self._transports[transport.name] = transport

    def unregister(self, transport: MemoryTransport) -> None:
        """Make a transport unreachable."""
        if self._transports.get(transport.name) is transport:
            del self._transports[transport.name]

    def find(self, address: str) -> MemoryTransport:
        """Return the transport with an address.

        Raises:
            TransportError: there is none.
        """
        try:
            return self._transports[address.removeprefix("memory:")]
        except KeyError:
            raise TransportError(f"no node listens at {address}") from None

    def next_session(self) -> bytes:
        """Return the session of a new link."""
        return next(self._sessions).to_bytes(16, "big") if self.keys else NO_SESSION

    def deliver(self, link: MemoryLink, frame: memoryview | None) -> None:
        """Deliver a frame to the other end of a link; None reports that the link was closed."""
        loop = asyncio.get_running_loop()
        if self._model is None:
            loop.call_soon(link.arrive, frame)
            return
        when = self._model.arrival(link.local, link.far, len(frame or b""), loop.time())
        if when is not None:
            link.newest_arrival = max(link.newest_arrival, when)  # a link keeps the order of its frames
            loop.call_at(link.newest_arrival, link.arrive, frame)


class MemoryTransport:
    """Transport of one node, made by InProcessNetwork.transport. See p2pfl.protocols.transport.Transport."""

    def __init__(self, network: InProcessNetwork, name: str) -> None:
        self.name = name
        self.address = f"memory:{name}"
        self.network = network
        self.handler: Handler | None = None
        self.links: set[MemoryLink] = set()

    async def listen(self, handler: Handler) -> None:
        self.network.register(self)
        self.handler = handler

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        other = self.network.find(address)
        if self.network.keys.get(other.name, key) != key:
            raise TransportError(f"{address} has another key than expected")
        session = self.network.next_session()
        near, far = MemoryLink(self, other.name, session, dialled=True), MemoryLink(other, self.name, session, dialled=False)
        near.peer, far.peer = far, near
        self.links.add(near)
        other.links.add(far)
        return near

    def expel(self, key: bytes) -> None:
        """Do nothing: keys are not proven here, so no link belongs to a key."""

    async def close(self) -> None:
        self.network.unregister(self)
        for link in list(self.links):
            link.close()


class MemoryLink:
    """One end of a connection.

    If the network knows the keys of its nodes, nobody else can send over the link, and a frame arrives once, whole and in
    order. Otherwise only signatures prove who has sent a frame, so the link has the version in which all frames are signed.
    """

    direct = True
    payload_digest = b""
    joining = False
    backlog = progress = 0

    def __init__(self, transport: MemoryTransport, far: str, session: bytes, dialled: bool) -> None:
        self.session = session
        self.local, self.far = transport.name, far
        network = transport.network
        self.key = network.keys.get(far)
        known = {transport.name, far} <= network.keys.keys() and not {transport.name, far} & network.earlier
        self.version = VERSION if known else EARLIER
        self.remote = f"memory:{far}"
        self.dialled = dialled
        self.peer: MemoryLink
        self.newest_arrival = 0.0
        self._transport = transport
        self._open = True

    def send(self, parts: Sequence[Part]) -> None:
        if not self._open:
            raise TransportError(f"the link to {self.remote} is closed")
        self._transport.network.deliver(self, memoryview(b"".join(parts)))

    def arrive(self, frame: memoryview | None) -> None:
        """Deliver a frame from this end to the other end."""
        self.peer.receive(frame)

    def receive(self, frame: memoryview | None) -> None:
        """Receive a frame from the other end; None reports that the link was closed."""
        if frame is None:
            self._on_loss()
        elif self._open and self._transport.handler is not None:
            self._transport.handler.received(self, frame)

    def trust(self) -> None:
        """Do nothing: there are no strangers within a process."""

    def close(self) -> None:
        if self._open:
            self._end()
            # The other side learns of it after the frames in transit, as with a socket.
            self._transport.network.deliver(self, None)

    def _on_loss(self) -> None:
        if self._open:
            self._end()
            if self._transport.handler is not None:
                self._transport.handler.lost(self, "closed by the other side")

    def _end(self) -> None:
        self._open = False
        self._transport.links.discard(self)
