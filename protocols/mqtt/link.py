"""Link with another node through a broker: its frames, its limits and its end. See p2pfl.protocols.mqtt.transport."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Protocol

from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.mqtt import key_exchange
from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.packets import Topics
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, ReliableStream
from p2pfl.protocols.timer import Timer
from p2pfl.protocols.transport import Handler, Part
from p2pfl.system.printable import key_name

REQUEST = 4096  # maximum bytes of a frame from a newcomer
ANSWER = 8 << 20  # maximum bytes of the answer to a newcomer: the federation's file and its membership log
QUEUE = 512 << 10  # bytes waiting for the network, above which no more chunks are sealed
CONFIRMATION = 5.0  # seconds for a dialler to prove that it has the keys
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
        """Add a new link; a dialled link is proven already."""

    def prove(self, link: MqttLink) -> None:
        """Record that the other side of an accepted link has proven its key."""

    def trust(self, link: MqttLink) -> None:
        """Record that a link is trusted."""

    def leave(self, link: MqttLink) -> None:
        """Remove a closed link."""


class MqttLink:
    """Link with the owner of `key`. An accepted link is `proven` when the first sealed packet has been opened."""

    direct = False

    def __init__(
        self, owner: LinkOwner, key: bytes, id: bytes, sealing: key_exchange.Sealing, *, dialled: bool, joining: bool
    ) -> None:
        self.remote = f"{key_name(key)} through {owner.bus.name}"
        self.key: bytes | None = key
        self.id = id
        self.session = sealing.session
        self.dialled = dialled
        self.joining = joining
        self.proven = dialled
        limit = owner.greeting
        if joining:
            limit = ANSWER if dialled else REQUEST
        self.stream = ReliableStream(sealing, id, limit, asyncio.get_running_loop().time())
        self._owner = owner
        self._inbox = owner.topics.inbox(key)
        self._closed = False
        self._behind = False
        self._timer, self._expiry = Timer(), Timer()
        self._due = inf  # time at which the timer fires
        self._opening = self._answer = b""

    # Interface for the handler

    @property
    def backlog(self) -> int:
        return self.stream.backlog

    @property
    def progress(self) -> int:
        return self.stream.heard

    def send(self, parts: Sequence[Part]) -> None:
        if self._closed:
            raise TransportError(f"the link with {self.remote} is closed")
        if self.backlog > BACKLOG_FRAMES * self._owner.max_frame:
            raise TransportError(f"{self.remote} does not read its messages")
        self.stream.send(parts)
        self._behind |= self.backlog > CHUNK
        self.pump()

    def trust(self) -> None:
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
        if self.proven:
            self._owner.bus.publish(self._inbox, self.stream.closing())

    def fail(self, reason: str) -> None:
        """End the link for a reason that this side did not choose."""
        if self._closed:
            return
        self.close()
        if self.proven:
            self._owner.handler.lost(self, reason)
        else:
            self._owner.handler.refused("not confirmed", f"{self.remote} {reason}")

    # Opening

    def half_open(self, opening: bytes, answer: bytes) -> None:
        """Answer the dialler, and wait for its proof that it has the keys."""
        self._opening, self._answer = opening, answer
        self._expire(CONFIRMATION, "did not confirm its connection in time")
        self._owner.enter(self)
        self.repeat_answer(opening)

    def repeat_answer(self, opening: bytes) -> None:
        """Repeat the answer if it belongs to this opening, because the first one may have been lost."""
        if opening == self._opening and not self.proven:
            self._owner.bus.publish(self._inbox, self._answer)

    def begin(self) -> None:
        """Prove to the dialled side that this side has the keys."""
        self._expire(PATIENCE, "was not introduced in time")
        self._owner.enter(self)
        self.stream.acknowledge()
        self.pump()

    def _prove(self) -> None:
        self.proven = True
        self._opening = self._answer = b""
        self._expire(PATIENCE, "was not introduced in time")
        self._owner.prove(self)

    def _expire(self, seconds: float, reason: str) -> None:
        self._expiry.start(seconds, partial(self.fail, reason))

    # Packets

    def packet(self, content: bytes) -> None:
        """Handle a packet that claims to belong to this link."""
        before = self.backlog
        try:
            self.stream.packet_in(content, asyncio.get_running_loop().time())
        except ProtocolError as error:
            self._owner.handler.refused(error.cause, f"{self.remote}: {error}")
            return
        if not self.proven:
            if not self.stream.heard:
                return
            self._prove()
        while (frame := self._frame()) is not None:
            self._owner.handler.received(self, frame)
        if self.stream.ended:
            self.fail("closed by the other side")
        self.pump()
        if self._behind and self.backlog < before and not self.stream.unsent and not self._closed:
            self._behind = self.backlog > 0
            self._owner.handler.drained(self)

    def _frame(self) -> memoryview | None:
        if self._closed:
            return None
        try:
            return self.stream.frame()
        except ProtocolError as error:
            self.fail(str(error))
            return None

    def probe(self) -> None:
        """Check whether the other side still knows this link."""
        self.stream.probe(asyncio.get_running_loop().time())
        self.pump()

    def pump(self, most: float = inf) -> bool:
        """Publish up to `most` due packets; return whether there may be more."""
        bus = self._owner.bus
        if self._closed or not self.proven or not bus.connected:
            return False
        now = asyncio.get_running_loop().time()
        if reason := self.stream.failure(now):
            self.fail(reason)
            return False
        count = 0
        while count < most and (packet := self.stream.packet_out(now, data=bus.queued < QUEUE)) is not None:
            bus.publish(self._inbox, packet)
            count += 1
        due = self.stream.due()
        if not self._timer.pending or not now < self._due <= due:
            self._timer.cancel()
            if due < inf:
                self._timer.start_at(due, self.pump)
                self._due = due
        return count == most

    def forget_timer(self) -> None:
        self._timer.cancel()
