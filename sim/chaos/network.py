"""Network in one process whose links lose, delay, repeat and reorder frames, and that can be cut in any direction.

A link proves the keys of its ends and has a session, as one over TLS; both sides ask their access control first. The
faults in force are read at the moment when a frame is sent, not when it arrives, so a frame in transit survives the
beginning of a partition. Frames of a link keep their order unless a fault reorders them. The fate of a frame is a hash of
the seed, the two machines and the number of the frame between them: leaving out a fault changes the fate of as few frames
as possible, which a search for a short schedule needs.

A process that ends lets its machine close its links, and the other sides learn of it. After a power failure they do not:
their ends stay open until the machine has started again and refuses the first frame, or until the failure detector of
p2pfl.node gives up.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import NamedTuple

from p2pfl.protocols.errors import ProtocolError, RefusedError, TransportError
from p2pfl.protocols.transport import AccessControl, Handler, Link, Part
from p2pfl.protocols.wire.envelope import VERSION
from p2pfl.sim.chaos.hardware import MachineLoop, ProcessEnd
from p2pfl.sim.chaos.schedule import Fault
from p2pfl.sim.scenario.network import Links

DIALLING = 5.0  # seconds until a dial without an answer fails
HANDSHAKE = 3  # times that a handshake crosses the link
LEAST = 0.001  # seconds that a frame takes at least
ENTRIES = 1 << 16  # bytes of the membership log in a handshake


class Host(NamedTuple):
    """Process in the network.

    Attributes:
        address: the address at which it listens.
        key: public key of its node.
        context: the context in which its callbacks run.
    """

    name: str
    address: str
    key: bytes
    context: Context


class FaultyNetwork:
    """Carrier of frames between machines in virtual time, with the faults in force.

    Args:
        links: delays of frames without faults.
        seed: decides the fate of single frames.
        observe: receives each sent frame, with the names of its sender and its recipient.

    Attributes:
        faults: the faults in force, also those of machines.
        names: names of the machines by address.
        transports: the transports that listen, by the name of the machine.
    """

    def __init__(
        self, loop: MachineLoop, links: Links, seed: int, observe: Callable[[str, str, bytes], None] = lambda *sent: None
    ) -> None:
        self.loop = loop
        self.faults: list[Fault] = []
        self.observe = observe
        self.names: dict[str, str] = {}
        self.transports: dict[str, FaultyTransport] = {}
        self._links = links
        self._seed = seed
        self._counts: dict[tuple[str, str], int] = {}

    def transport(self, host: Host, access: AccessControl) -> FaultyTransport:
        """Return the transport of a new process on a machine."""
        self.names[host.address] = host.name
        return FaultyTransport(self, host, access)

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether no frame gets from one machine to another."""
        for fault in self.faults:
            if fault.kind == "partition" and (source in fault.others) != (target in fault.others):
                return True
            if fault.kind == "one-way" and source == fault.node and target in fault.others:
                return True
        return False

    def delay(self, source: str, target: str) -> float:
        """Return the seconds that a frame takes if nothing else happens to it."""
        late = sum(fault.amount for fault in self.faults if fault.kind == "delay" and _concerns(fault, source, target))
        return max(LEAST, self._links.latency(source, target)) + late

    def transmit(self, link: FaultyLink, frame: bytes | None) -> None:
        """Bring a frame to the other end of a link; None reports that the link was closed."""
        source, target = link.host.name, link.far.host.name
        if self.is_cut(source, target):
            return
        arrival = self._links.arrival(source, target, len(frame or b""), self.loop.time())
        if arrival is None:
            return
        self._counts[source, target] = count = self._counts.get((source, target), 0) + 1
        lost, repeated, reordered, when = self._fate(source, target, count)
        when += max(LEAST, arrival - self.loop.time())
        if lost and frame is not None:
            return
        for copy in range(1 + (repeated and frame is not None)):
            at = self.loop.time() + when * (1 + copy)
            if not reordered:
                at = link.newest_arrival = max(link.newest_arrival, at)
            self.loop.call_at(at, link.far.receive, frame, context=link.far.host.context)

    def _fate(self, source: str, target: str, count: int) -> tuple[bool, bool, bool, float]:
        """Return whether a frame is lost, repeated and reordered, and its additional delay."""
        late, chances = 0.0, {"loss": False, "duplicate": False, "reorder": False}
        for fault in self.faults:
            if not _concerns(fault, source, target):
                continue
            if fault.kind == "delay":
                late += fault.amount
            elif fault.kind in chances:
                number = self._number(fault.kind, source, target, count)
                chances[fault.kind] |= number < fault.amount
        if chances["reorder"]:
            late += 0.2 * self._number("later", source, target, count)
        return chances["loss"], chances["duplicate"], chances["reorder"], late

    def _number(self, purpose: str, source: str, target: str, count: int) -> float:
        """Return a number from 0 to 1 for one frame of a link."""
        text = f"{self._seed}\0{purpose}\0{source}\0{target}\0{count}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64

    def session(self, source: str, target: str) -> bytes:
        """Return the session of a new link."""
        self._counts["", source] = count = self._counts.get(("", source), 0) + 1
        return hashlib.blake2b(f"{self._seed}\0{source}\0{target}\0{count}".encode(), digest_size=16).digest()


def _concerns(fault: Fault, source: str, target: str) -> bool:
    return not fault.node or fault.node in (source, target)


class FaultyTransport:
    """Links of one process over a FaultyNetwork; see p2pfl.protocols.transport.Transport."""

    def __init__(self, network: FaultyNetwork, host: Host, access: AccessControl) -> None:
        self.network = network
        self.host = host
        self.name = host.name
        self.address = host.address
        self.access = access
        self.handler: Handler | None = None
        self.links: dict[FaultyLink, None] = {}

    async def listen(self, handler: Handler) -> None:
        self.handler = handler
        self.network.transports[self.name] = self

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        network = self.network
        name = network.names.get(address, "")
        if not self._reaches(name):
            await asyncio.sleep(DIALLING)
            raise TransportError(f"{address} does not answer")
        await asyncio.sleep(HANDSHAKE * network.delay(self.name, name))
        other = network.transports.get(name)
        if other is None or not self._reaches(name):
            raise TransportError(f"no node listens at {address}")
        if other.host.key != key:
            raise TransportError(f"another node listens at {address}")
        try:
            other.admit(self)
        except ProcessEnd:  # of the other process, which loses its power while it writes
            raise TransportError(f"{address} has closed the connection") from None
        session = network.session(self.name, name)
        near, far = FaultyLink(self, other, session, dialled=True), FaultyLink(other, self, session, dialled=False)
        near.far, far.far = far, near
        self.links[near] = other.links[far] = None
        return near

    def _reaches(self, name: str) -> bool:
        network = self.network
        cut = network.is_cut(self.name, name) or network.is_cut(name, self.name)
        return not cut and not network.loop.is_frozen(name)

    def admit(self, dialler: FaultyTransport) -> None:
        """Decide whether a dialler gets a link, as p2pfl.protocols.transports.handshake does.

        Raises:
            RefusedError: it is no member.
        """
        access, key = self.access, dialler.host.key
        try:
            if access.refusal(key) == "stranger":
                access.extend(dialler.access.after(access.membership_version, ENTRIES))
            if cause := access.refusal(key):
                raise ProtocolError(cause, f"{dialler.name} is not a member")
        except ProtocolError as error:
            if self.handler is not None:
                self.handler.refused(error.cause, str(error))
            raise RefusedError(str(error), error.cause) from error

    def expel(self, key: bytes) -> None:
        for link in list(self.links):
            if link.key == key:
                link.close()

    async def close(self) -> None:
        self.crash(silently=False)

    def crash(self, silently: bool) -> None:
        """End with the process. After a power failure (`silently`) no other machine learns of it."""
        if self.network.transports.get(self.name) is self:
            del self.network.transports[self.name]
        for link in list(self.links):
            if silently:
                link.end()
            else:
                link.close()


class FaultyLink:
    """One end of a link; see p2pfl.protocols.transport.Link."""

    direct = True
    payload_digest = b""
    joining = False
    backlog = progress = 0
    version = VERSION

    def __init__(self, transport: FaultyTransport, other: FaultyTransport, session: bytes, dialled: bool) -> None:
        self.host = transport.host
        self.key: bytes | None = other.host.key
        self.remote = other.address
        self.session = session
        self.dialled = dialled
        self.far: FaultyLink
        self.newest_arrival = 0.0
        self.is_open = True
        self._transport = transport

    def send(self, parts: Sequence[Part]) -> None:
        network = self._transport.network
        if not self.is_open:
            raise TransportError(f"the link to {self.remote} is closed")
        frame = b"".join(parts)
        network.observe(self.host.name, self.far.host.name, frame)
        if not self.far.is_open and self.far.host.name in network.transports:
            network.transmit(self.far, None)  # the other machine has started again, and knows no such link
            return
        network.transmit(self, frame)

    def receive(self, frame: bytes | None) -> None:
        """Receive a frame from the other end; None reports that the link was closed."""
        handler = self._transport.handler
        if not self.is_open or handler is None:
            return
        if frame is None:
            self.end()
            handler.lost(self, "closed by the other side")
        else:
            handler.received(self, memoryview(frame))

    def trust(self) -> None:
        """Do nothing: both keys are proven."""

    def close(self) -> None:
        if self.is_open:
            self.end()
            self._transport.network.transmit(self, None)

    def end(self) -> None:
        """Close this end only."""
        self.is_open = False
        self._transport.links.pop(self, None)
