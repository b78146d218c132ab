"""Links with other nodes through a broker: their handshakes, their frames, their limits and their ends.

See p2pfl.protocols.mqtt.transport for the topics. A handshake is TLS 1.3 in packets, each repeated until it is answered:

    handshake   7 | link 16 | number 1 | checksum 16 | bytes of TLS

The sides take turns, and the dialler begins. Each message travels in one packet, and is acknowledged by the next one of
the other side; the listener's last one by the first sealed packet. The numbers of each side count from 0. The checksum
detects damage, not forgery: like a direct connection, a handshake can be ended by those who carry or see it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from math import inf
from struct import Struct
from typing import Protocol

from p2pfl._util.printable import key_name
from p2pfl.protocols.errors import ProtocolError, RefusedError, TransportError
from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.packets import HandshakeLimits, Topics, reset_packet, sealing_of
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, ReliableStream, round_trip
from p2pfl.protocols.round_trip import RoundTrip
from p2pfl.protocols.transport import NO_SESSION, Handler, Part, Timer
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.frames import INCOMPLETE
from p2pfl.protocols.transports.handshake import Progress, Proven
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.protocols.wire.envelope import EARLIER

REQUEST = 4096  # maximum bytes of a frame from a newcomer
ANSWER = 8 << 20  # maximum bytes of the answer to a newcomer: the federation's file and its membership log
QUEUE = 512 << 10  # bytes waiting for the broker, above which links wait for their turn to send chunks
HANDSHAKE = 10.0  # seconds for a dialler's next message of the handshake
PATIENCE = 10.0  # seconds for a link to become trusted
BACKLOG_FRAMES = 4  # number of frames of maximum size that may wait for a peer that does not read
STRANGERS = 64  # maximum number of links that are not trusted; above it, the oldest link of the busiest key is closed
LINKS_PER_KEY = 4
ENDED = 256  # links that have ended and whose late packets are known
HANDSHAKE_PACKET = 7  # first byte of a packet
HEADER = Struct(">B16sB")
CHECKSUM = 16  # bytes
LIMIT = 8192  # maximum bytes of a packet
AGAIN = 1.0  # seconds before a message is repeated; doubled each time, because the other side may lack processor time
_CLIENT_HELLO = b"\x16\x01"  # the types of the record and of the message in it


class LinkOwner(Protocol):
    """Services of the transport for a link.

    Attributes:
        max_frame, greeting: maximum bytes of a frame on a trusted link, and on one that is not trusted yet.
        round_trip: estimate of the time through the broker, of all links.
    """

    bus: Bus
    round_trip: RoundTrip
    topics: Topics
    max_frame: int
    greeting: int

    @property
    def handler(self) -> Handler: ...

    def enter(self, link: MqttLink) -> None:
        """Add a link that is not proven yet."""

    def prove(self, link: MqttLink) -> None:
        """Record that both sides of a link have proven their keys."""

    def trust(self, link: MqttLink) -> None:
        """Record that a link is trusted."""

    def leave(self, link: MqttLink) -> None:
        """Remove a closed link."""

    def limit_incomplete(self, link: MqttLink) -> None:
        """Close other links of the same key if their incomplete frames, with the one of this link, are too large."""

    def queue(self, link: MqttLink) -> None:
        """Let a link wait for its turn to send chunks."""


class MqttLink:
    """Conversation with the owner of `key` through the broker: a handshake, then a stream of sealed frames.

    Attributes:
        session_made: whether both sides have proven their keys.
        proven: done when they have, or with the error that prevented it.
        advanced: time of the event loop at which the handshake began, or made its last step.
        stream: stream of sealed packets; None before the keys are proven.
    """

    direct = False
    payload_digest = b""

    def __init__(
        self, owner: LinkOwner, key: bytes, id: bytes, handshake: TlsHandshake, *, dialled: bool, joining: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.remote = f"{key_name(key)} through {owner.bus.name}"
        self.key: bytes | None = key
        self.id = id
        self.session = NO_SESSION
        self.version = EARLIER
        self.session_made = False
        self.dialled = dialled
        self.joining = joining
        self.proven: asyncio.Future[None] = loop.create_future()
        # Retrieve the error even if no task waits for it; a cancelled dial has cancelled the future.
        self.proven.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.advanced = loop.time()
        self.stream: ReliableStream | None = None
        self._handshake: LinkHandshake | None = LinkHandshake(handshake, id)
        self._owner = owner
        self._inbox = owner.topics.inbox(key)
        self._closed = False
        self._refused = False  # the other side is refused, and the reason is repeated for a while
        self._behind = False
        self._timer, self._expiry = Timer(), Timer()
        self._due = inf  # time at which the timer fires

    # Interface for the handler

    @property
    def backlog(self) -> int:
        return self.stream.backlog if self.stream is not None else 0

    @property
    def incomplete(self) -> int:
        """Size in bytes of the frame that has begun to arrive; 0 without one."""
        return self.stream.incomplete if self.stream is not None else 0

    @property
    def progress(self) -> int:
        return self.stream.heard if self.stream is not None else 0

    def send(self, parts: Sequence[Part]) -> None:
        if self._closed or self.stream is None:
            raise TransportError(f"the link with {self.remote} is closed")
        if self.backlog > BACKLOG_FRAMES * self._owner.max_frame:
            raise TransportError(f"{self.remote} does not read its messages")
        self.stream.send(parts)
        self._behind |= self.backlog > CHUNK
        self.pump()

    def trust(self) -> None:
        if self.stream is not None:
            self.stream.limit = self._owner.max_frame
        self._owner.trust(self)
        self._expiry.cancel()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._owner.leave(self)
        self._expiry.cancel()
        self._timer.cancel()
        if not self.proven.done():
            self.proven.set_exception(TransportError("closed"))
        if self.stream is None:
            if self.dialled:  # the listener would wait for the rest of the handshake
                self._owner.bus.publish(self._inbox, reset_packet(self.id))
        elif not self.stream.ended:  # otherwise the other side no longer knows the link
            self._owner.bus.publish(self._inbox, self.stream.closing())

    def fail(self, reason: str) -> None:
        """End the link for a reason that this side did not choose."""
        if self._closed:
            return
        if not self.proven.done():
            self.proven.set_exception(TransportError(f"{self.remote}: {reason}"))
        self.close()
        if self.session_made:
            self._owner.handler.lost(self, reason)
        elif not self.dialled and not self._refused:
            self._owner.handler.refused("not confirmed", f"{self.remote} {reason}")

    # Opening

    def begin(self) -> None:
        """Begin the handshake."""
        self._owner.enter(self)
        self._advance()
        if self._handshake is not None:
            self._handshake.begin(asyncio.get_running_loop().time())
        self.pump()

    def _advance(self) -> None:
        """Wait for the next step of the handshake. It has few, so a stranger cannot stay for long."""
        self.advanced = asyncio.get_running_loop().time()
        if not self.dialled:
            self._expire(HANDSHAKE, "did not prove its key in time")

    def _on_handshake_packet(self, content: bytes) -> None:
        """Process a packet of the handshake."""
        if self._handshake is None:  # the other side does not know yet that the handshake is complete
            if self.dialled and self.stream is not None:
                self.stream.acknowledge()
            return
        step = self._handshake.step
        try:
            progress = self._handshake.packet_in(content, asyncio.get_running_loop().time())
            if self._handshake.step != step:
                self._advance()
        except DamageError:
            raise
        except ProtocolError as error:
            self._refuse(error)
            return
        if progress.refusal:
            if not self.proven.done():
                cause = progress.refusal.partition(": ")[0]
                text = f"{self.remote} refuses this node: {progress.refusal}"
                self.proven.set_exception(RefusedError(text, cause, progress.proof))
            self.close()
        elif progress.proven is not None:
            self._stands(progress.proven)

    def _refuse(self, error: ProtocolError) -> None:
        """Refuse the other side; a dialler receives the reason."""
        self._owner.handler.refused(error.cause, f"{self.remote}: {error}")
        self._refused = True
        if self.dialled or self._handshake is None or self._handshake.due() == inf:
            self.fail(str(error))

    def _stands(self, proven: Proven) -> None:
        """Start the session after both sides have proven their keys."""
        self.joining, self.session, self.session_made = proven.joining, proven.session, True
        if self._handshake is not None:
            self.version = self._handshake.version
        limit = self._owner.greeting
        if self.joining:
            limit = ANSWER if self.dialled else REQUEST
        self.stream = ReliableStream(
            sealing_of(proven.secret, self.dialled),
            self.id,
            limit,
            asyncio.get_running_loop().time(),
            self._owner.round_trip,
        )
        self._expire(PATIENCE, "was not introduced in time")
        if self.dialled:  # the listener may repeat its last message until a sealed packet arrives
            self._handshake = None
            self.stream.acknowledge()
        if not self.proven.done():
            self.proven.set_result(None)
        self._owner.prove(self)

    def _expire(self, seconds: float, reason: str) -> None:
        self._expiry.start(seconds, partial(self.fail, reason))

    # Packets

    def packet(self, content: bytes) -> None:
        """Handle a packet that claims to belong to this link."""
        if self._closed:
            return
        before = self.backlog
        try:
            if content[0] == HANDSHAKE_PACKET:
                self._on_handshake_packet(content)
            elif self.stream is not None:  # otherwise it has overtaken the end of the handshake, and will be repeated
                self.stream.packet_in(content, asyncio.get_running_loop().time())
                if self.stream.heard:  # the dialler has opened the listener's last message
                    self._handshake = None
        except ProtocolError as error:
            self._owner.handler.refused(error.cause, f"{self.remote}: {error}")
            return
        while (frame := self._frame()) is not None:
            self._owner.handler.received(self, frame)
        if self.incomplete and not self._closed:
            self._owner.limit_incomplete(self)
        if self.stream is not None and self.stream.ended:
            self.fail("closed by the other side")
        self.pump()
        if (
            self._behind
            and self.backlog < before
            and self.stream is not None
            and not self.stream.unsent
            and not self._closed
        ):
            self._behind = self.backlog > 0
            self._owner.handler.drained(self)

    def _frame(self) -> memoryview | None:
        if self._closed or self.stream is None:
            return None
        try:
            return self.stream.frame()
        except ProtocolError as error:
            self.fail(str(error))
            return None

    def probe(self) -> None:
        """Check whether the other side still knows this link."""
        if self.stream is not None:
            self.stream.probe(asyncio.get_running_loop().time())
            self.pump()
        elif not self.dialled:  # the dialler has given its handshake up
            self.close()

    def resume(self) -> None:
        """Resume after a reconnection with the broker."""
        for part in (self._handshake, self.stream):
            if part is not None:
                part.resume(asyncio.get_running_loop().time())
        self.pump()

    def pump(self, most: float = inf) -> bool:
        """Publish up to `most` due packets; return whether there may be more."""
        bus = self._owner.bus
        if self._closed or not bus.connected:
            return False
        now = asyncio.get_running_loop().time()
        if self.stream is not None and (reason := self.stream.failure(now)):
            self.fail(reason)
            return False
        count = 0
        while count < most and (packet := self._packet_out(now)) is not None:
            bus.publish(self._inbox, packet)
            count += 1
        due = min(part.due() for part in (self._handshake, self.stream) if part is not None)
        if not self._timer.pending or not now < self._due <= due:
            self._timer.cancel()
            if due < inf:
                self._timer.start_at(due, self.pump)
                self._due = due
        return count == most

    def _packet_out(self, now: float) -> bytes | None:
        if self._handshake is not None and (packet := self._handshake.packet_out(now)) is not None:
            return packet
        if self.stream is None:
            return None
        room = self._owner.bus.queued < QUEUE
        packet = self.stream.packet_out(now, data=room)
        if packet is None and not room and self.stream.sendable:
            self._owner.queue(self)
        return packet

    def forget_timer(self) -> None:
        self._timer.cancel()


class LinkTable:
    """All links of a node through a broker, by id, and the limits on those of strangers.

    Args:
        max_frame: maximum bytes of a frame; on a link that is not trusted yet the maximum is `greeting`.
        on_proven: called with the key of the other side when a link is proven.

    Attributes:
        links: all links by id, including those that are not proven.
        strangers: accepted links that are not trusted yet, the oldest first.
    """

    def __init__(self, bus: Bus, topics: Topics, max_frame: int, greeting: int, on_proven: Callable[[bytes], None]) -> None:
        self.bus = bus
        self.topics = topics
        self.max_frame = max_frame
        self.greeting = min(greeting, max_frame)
        self.links: dict[bytes, MqttLink] = {}
        self.strangers: dict[MqttLink, None] = {}
        self.round_trip = round_trip()
        self._ended: dict[bytes, bytes | None] = {}  # keys of the links that have ended last, by id
        self._queue: dict[MqttLink, None] = {}  # links with chunks to send, in the order of their turns
        self._on_proven = on_proven
        self._handler: Handler | None = None

    @property
    def handler(self) -> Handler:
        if self._handler is None:
            raise TransportError("the transport is not listening yet")
        return self._handler

    def use(self, handler: Handler) -> None:
        """Set the handler of all links."""
        self._handler = handler

    def refused(self, cause: str, detail: str) -> None:
        self.handler.refused(cause, detail)

    # Services for links

    def enter(self, link: MqttLink) -> None:
        self.links[link.id] = link
        if link.dialled:
            return
        self.strangers[link] = None
        if len(self.strangers) > STRANGERS:
            busiest = Counter(other.key for other in self.strangers).most_common(1)[0][0]
            next(other for other in self.strangers if other.key == busiest).fail(
                "closed to make room for another connection"
            )

    def prove(self, link: MqttLink) -> None:
        self._on_proven(link.key or b"")
        if link.dialled:
            return
        same = [other for other in self.links.values() if other.key == link.key and other.session_made]
        if len(same) > LINKS_PER_KEY:
            same[0].fail("closed to make room for another connection")

    def limit_incomplete(self, link: MqttLink) -> None:
        same = [other for other in self.links.values() if other.key == link.key and other.incomplete]
        excess = sum(other.incomplete for other in same) - INCOMPLETE * self.max_frame
        for other in same:
            if excess > 0 and other is not link:
                excess -= other.incomplete
                other.fail("closed to make room for a frame over another connection")

    def queue(self, link: MqttLink) -> None:
        self._queue[link] = None

    def trust(self, link: MqttLink) -> None:
        self.strangers.pop(link, None)

    def leave(self, link: MqttLink) -> None:
        self.links.pop(link.id, None)
        self.strangers.pop(link, None)
        self._queue.pop(link, None)
        self._ended[link.id] = link.key
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]

    def has_ended(self, id: bytes, key: bytes) -> bool:
        """Return whether a link with the owner of `key` has ended lately, so that a packet of it may be late."""
        return self._ended.get(id) == key

    # Operations on all links

    @property
    def any_proven(self) -> bool:
        return any(link.session_made for link in self.links.values())

    def close(self, key: bytes | None = None) -> None:
        """Close all links, or only those with the owner of `key`."""
        for link in list(self.links.values()):
            if key is None or link.key == key:
                link.close()

    def resume(self) -> None:
        """Resume after a reconnection with the broker."""
        for link in list(self.links.values()):
            link.resume()

    def pause(self) -> None:
        """Wait for a new connection with the broker."""
        for link in self.links.values():
            link.forget_timer()

    def take_turns(self) -> None:
        """Publish due packets, one of each waiting link in turn, until enough data waits for the broker."""
        while self._queue and self.bus.queued < QUEUE:
            link = next(iter(self._queue))
            del self._queue[link]
            if link.pump(1):
                self._queue[link] = None


class LinkHandshake:
    """TLS handshake of one side in packets. The last one is repeated until it is answered, as a broker may lose packets.

    Args:
        id: id of the link.
    """

    def __init__(self, handshake: TlsHandshake, id: bytes) -> None:
        self._handshake = handshake
        self._id = id
        self._packet = b""  # the last message
        self._again = inf
        self._pause = AGAIN
        self._next_in = self._next_out = 0
        self._complete = False

    @property
    def version(self) -> int:
        """Wire version on which both sides have agreed."""
        return self._handshake.version

    @property
    def step(self) -> int:
        """Number of the messages that the other side has sent."""
        return self._next_in

    def begin(self, now: float) -> None:
        """Send the dialler's first message; the listener has none."""
        self._send(self._handshake.begin(), now)

    def packet_in(self, packet: bytes, now: float) -> Progress:
        """Process a packet, and send the answer; return the result if there is one.

        Repeated packets are ignored, and all packets after the handshake.

        Raises:
            DamageError: the packet was altered or forged, and is ignored.
            ProtocolError: the handshake cannot continue; see p2pfl.protocols.transports.tls_handshake. The listener
                sends the reason.
        """
        number, content = read_packet(packet)
        if number != self._next_in or self._complete:
            return Progress()
        self._next_in += 1
        try:
            progress = self._handshake.step(content)
            if not (progress.reply or progress.proven or progress.refusal):
                raise ProtocolError("malformed", "an incomplete message of the handshake")
        except ProtocolError as error:
            self._send(self._handshake.refuse(error), now)
            raise
        self._send(progress.reply, now)
        self._complete = progress.proven is not None
        return progress

    def packet_out(self, now: float) -> bytes | None:
        """Return the packet to send now, or None."""
        if now < self._again:
            return None
        self._again = now + self._pause
        self._pause *= 2
        return self._packet

    def due(self) -> float:
        """Return the time at which to call `packet_out` without a new packet; inf for never."""
        return self._again

    def resume(self, now: float) -> None:
        """Send the last message again after an interruption of the channel."""
        if self._packet:
            self._again, self._pause = now, AGAIN

    def _send(self, content: bytes, now: float) -> None:
        self._packet, self._again = b"", inf
        if content:
            self._packet, self._again = make_packet(self._id, self._next_out, content), now
            self._pause = AGAIN
            self._next_out += 1


class DamageError(ProtocolError):
    """Packet that is not as the other side has sent it."""


def make_packet(id: bytes, number: int, content: bytes) -> bytes:
    """Return a packet with bytes of TLS."""
    header = HEADER.pack(HANDSHAKE_PACKET, id, number)
    return header + _checksum(header, content) + content


def read_packet(packet: bytes) -> tuple[int, bytes]:
    """Return the number and the content of a packet.

    Raises:
        DamageError: "malformed" for a wrong length; "wrong seal" for a wrong checksum.
    """
    if not HEADER.size + CHECKSUM < len(packet) <= LIMIT:
        raise DamageError("malformed", f"a packet of {len(packet)} bytes before the peer is known")
    header, content = packet[: HEADER.size], packet[HEADER.size + CHECKSUM :]
    if packet[HEADER.size : HEADER.size + CHECKSUM] != _checksum(header, content):
        raise DamageError("wrong seal", "a damaged packet")
    return header[-1], content


def begins_handshake(packet: bytes) -> bool:
    """Return whether a packet is the first one of a dialler.

    Raises:
        DamageError: as `read_packet`.
    """
    number, content = read_packet(packet)
    return number == 0 and content[:1] + content[5:6] == _CLIENT_HELLO


def _checksum(header: bytes, content: bytes) -> bytes:
    return sha256(header + content).digest()[:CHECKSUM]


class LinkAcceptor:
    """Acceptor that begins the handshakes of accepted links, within limits."""

    def __init__(self, credentials: Credentials, limits: HandshakeLimits, table: LinkTable) -> None:
        self._credentials = credentials
        self._limits = limits
        self._table = table

    def accept(self, sender: bytes, packet: bytes) -> None:
        """Accept a link from the first packet of its handshake."""
        table = self._table
        if not self._limits.may_begin(sender):
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
