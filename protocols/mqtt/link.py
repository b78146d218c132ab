"""Link with another node through a broker: its frames, its limits and its end. See p2pfl.protocols.mqtt.transport."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Protocol

from p2pfl.protocols.errors import ProtocolError, RefusedError, TransportError
from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.link_handshake import HANDSHAKE_PACKET, DamageError, LinkHandshake
from p2pfl.protocols.mqtt.packet_seal import sealing_of
from p2pfl.protocols.mqtt.packets import Topics
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, ReliableStream
from p2pfl.protocols.timer import Timer
from p2pfl.protocols.transport import NO_SESSION, Handler, Part
from p2pfl.protocols.transports.handshake import Proven
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.system.printable import key_name

REQUEST = 4096  # maximum bytes of a frame from a newcomer
ANSWER = 8 << 20  # maximum bytes of the answer to a newcomer: the federation's file and its membership log
QUEUE = 512 << 10  # bytes waiting for the network, above which no more chunks are sealed
HANDSHAKE = 5.0  # seconds for a dialler to prove its key
PATIENCE = 10.0  # seconds for a link to become trusted
BACKLOG_FRAMES = 4  # number of frames of maximum size that may wait for a peer that does not read


class LinkOwner(Protocol):
    """Services of the transport for a link.

    Attributes:
        max_frame, greeting: maximum bytes of a frame on a trusted link, and on one that is not trusted yet.
    """

    bus: Bus
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


class MqttLink:
    """Link with the owner of `key`.

    Attributes:
        session_made: whether both sides have proven their keys.
        proven: done when they have, or with the error that prevented it.
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
        self.session_made = False
        self.dialled = dialled
        self.joining = joining
        self.proven: asyncio.Future[None] = loop.create_future()
        # Retrieve the error even if no task waits for it; a cancelled dial has cancelled the future.
        self.proven.add_done_callback(lambda future: future.cancelled() or future.exception())
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
        if self.stream is not None and not self.stream.ended:  # otherwise the other side no longer knows the link
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
        if not self.dialled:
            self._expire(HANDSHAKE, "did not prove its key in time")
        if self._handshake is not None:
            self._handshake.begin(asyncio.get_running_loop().time())
        self.pump()

    def _on_handshake_packet(self, content: bytes) -> None:
        """Process a packet of the handshake."""
        if self._handshake is None:  # the other side does not know yet that the handshake is complete
            if self.dialled and self.stream is not None:
                self.stream.acknowledge()
            return
        try:
            progress = self._handshake.packet_in(content, asyncio.get_running_loop().time())
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
        limit = self._owner.greeting
        if self.joining:
            limit = ANSWER if self.dialled else REQUEST
        self.stream = ReliableStream(
            sealing_of(proven.secret, self.dialled), self.id, limit, asyncio.get_running_loop().time()
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
        elif self._refused:
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
        return self.stream.packet_out(now, data=self._owner.bus.queued < QUEUE) if self.stream is not None else None

    def forget_timer(self) -> None:
        self._timer.cancel()
