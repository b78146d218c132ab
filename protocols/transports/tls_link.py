"""One connection of p2pfl.protocols.transports.tls: its handshake, its frames, its limits and its end.

A link is a stranger's until both keys are proven, then a member's with small frames until the member is introduced
(`trust`), then one with frames of full size. Outgoing data is cut into small pieces, so that the encryption of a large
model does not block the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol, cast

from p2pfl.protocols.addresses import join_address
from p2pfl.protocols.errors import ProtocolError, RefusedError, TransportError
from p2pfl.protocols.transport import NO_SESSION, Handler, Part, Timer
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import Credentials, key_of, wire_version
from p2pfl.protocols.transports.frames import PREFIX, Buffers, FrameReader, Reception
from p2pfl.protocols.transports.handshake import ClientProof, ServerProof, refusal_of
from p2pfl.protocols.wire.envelope import EARLIER, OVERHEAD
from p2pfl.protocols.wire.messages import HelloParameters

GREETING = OVERHEAD + HelloParameters.LIMIT  # maximum bytes of a frame before a link is trusted
ANSWER = 8 << 20  # maximum bytes of the answer to a newcomer: the federation's file and its membership log
PATIENCE = 5.0  # seconds for each step until a link is trusted: TLS, the proofs, the introduction
STALLED = 30.0  # seconds within which the other side must accept PIECES of sent data
PIECE = 256 << 10  # bytes that are encrypted at once
PIECES = 4 * PIECE  # bytes that may wait for the network
BACKLOG_FRAMES = 4  # number of frames of maximum size that may wait for a peer that does not read


class LinkOwner(Protocol):
    """Services of the transport for a link.

    Attributes:
        max_frame: maximum bytes of a frame on a trusted link.
        credentials: make the proofs of this node's key.
        connected: links whose connection has not ended, closed or not; they must be ended with the transport.
    """

    max_frame: int
    buffers: Buffers
    credentials: Credentials
    connected: set[TlsLink]

    @property
    def handler(self) -> Handler: ...

    def meet(self, stranger: TlsLink) -> None:
        """Add a link that is not proven yet."""

    def enter(self, link: TlsLink) -> None:
        """Add a proven link."""

    def trust(self, link: TlsLink) -> None:
        """Record that the link is trusted and no longer a stranger's."""

    def leave(self, link: TlsLink) -> None:
        """Remove a closed link."""

    def reception(self, key: bytes) -> Reception[TlsLink]:
        """Return the reception limits of a member, for all its links."""

    def watch(self) -> None:
        """Schedule a check of the incomplete frames."""


class TlsLink(asyncio.BufferedProtocol):
    """Sender and receiver of frames over one TLS connection, from its handshake to its end.

    Args:
        key: the dialled key; None for an accepted connection.

    Attributes:
        connection: its asyncio transport; None before the connection exists.
    """

    def __init__(self, owner: LinkOwner, key: bytes | None = None, joining: bool = False) -> None:
        self.remote = "?"
        self.host = "?"
        self.key = key
        self.session = NO_SESSION
        self.version = EARLIER
        self.session_made = False
        self.trusted = False
        self.dialled = key is not None
        self.direct = True
        self.payload_digest = b""
        self.joining = joining
        self.owner = owner
        self.handler = owner.handler  # the transport has one before it makes a link
        self.connection: asyncio.Transport | None = None
        self._closed = False
        self._proof: ServerProof | ClientProof | None = None
        self._early: memoryview | None = None  # a step that arrived before the link had its connection
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.proven: asyncio.Future[None] = loop.create_future()
        # Retrieve the error even if no task waits for it; a cancelled dial has cancelled the future.
        self.proven.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._limit = handshake.LIMIT
        self._reception: Reception[TlsLink] | None = None
        self._reader = FrameReader()
        self._pieces = Pieces()
        self._paused = False
        self.progress = 0
        self._expiry, self._stall, self._rest = Timer(), Timer(), Timer()
        self._beginning: asyncio.Task[None] | None = None

    # Interface for the handler

    @property
    def backlog(self) -> int:
        if self.connection is None or self._closed:
            return self._pieces.waiting
        return self._pieces.waiting + self.connection.get_write_buffer_size()

    def send(self, parts: Sequence[Part]) -> None:
        if self.connection is None or self._closed or self.connection.is_closing():
            raise TransportError(f"the connection to {self.remote} is closed")
        if self.backlog > BACKLOG_FRAMES * self.owner.max_frame:
            raise TransportError(f"{self.remote} does not read its messages")
        size = sum(len(part) for part in parts)
        self._pieces.add([size.to_bytes(PREFIX, "big"), *parts])
        self._pump()

    def trust(self) -> None:
        self.trusted = True
        self._limit = self.owner.max_frame
        self._expiry.cancel()
        self.owner.trust(self)

    def close(self) -> None:
        self._closed = True
        self.owner.leave(self)
        for timer in (self._expiry, self._stall, self._rest):
            timer.cancel()
        if not self.proven.done():
            self.proven.set_exception(TransportError("closed"))
        if self.connection is None and self._beginning is not None:
            self._beginning.cancel()
        if self.connection is not None:
            if self._pieces:
                self.connection.abort()
            else:
                self.connection.close()
        self._pieces.clear()
        if self._reception is not None:
            self._reception.forget(self)
        self._reader.clear()

    def abort(self) -> None:
        """End the connection immediately, without a clean shutdown."""
        if self.connection is not None:
            self.connection.abort()

    def fail(self, reason: str) -> None:
        """End the connection for a reason that this side did not choose."""
        if self._closed:
            return
        made = self.session_made
        if not self.proven.done():
            self.proven.set_exception(TransportError(f"{self.remote}: {reason}"))
        self.close()
        if made:
            self.handler.lost(self, reason)

    def refuse(self, cause: str, reason: str) -> None:
        """End the connection because of a violation by the other side, and have it counted."""
        if not self._closed:
            self.handler.refused(cause, f"{self.remote} {reason}")
            self.fail(reason)

    # Opening

    def accepted(self, remote: str, host: str, beginning: asyncio.Task[None]) -> None:
        """Record the dialler of an accepted connection, whose TLS handshake begins."""
        self.remote, self.host, self._beginning = remote, host, beginning
        self._is_stranger()

    def _is_stranger(self) -> None:
        self.take_step()
        self.owner.meet(self)

    def take_step(self) -> None:
        """Wait for the next step of the way to a trusted link. There are few, so a stranger cannot stay for long."""
        if not self._closed:
            self._expiry.start(PATIENCE, partial(self.send_away, "was not introduced in time"))

    def send_away(self, reason: str) -> None:
        """End the connection of a stranger."""
        if not self.dialled and not self.session_made:
            self.handler.refused("not proven", f"{self.remote} {reason}")
            self.abort()  # without waiting for its consent
        self.fail(reason)

    def _send_step(self, step: bytes) -> None:
        """Send a step of the handshake."""
        if self.connection is not None:
            self.connection.write(len(step).to_bytes(PREFIX, "big") + step)

    def _prove(self, step: memoryview) -> None:
        """Process a step of the handshake."""
        if self._proof is None:
            self._early = step
            return
        try:
            progress = self._proof.step(step)
        except ProtocolError as error:
            self.handler.refused(error.cause, f"{self.remote}: {error}")
            if not self.dialled:
                self._send_step(refusal_of(error))
            self.fail(str(error))
            return
        if progress.refusal:
            reason = f"refuses this node: {progress.refusal}"
            if not self.proven.done():
                cause = progress.refusal.partition(": ")[0]
                self.proven.set_exception(RefusedError(f"{self.remote}: {reason}", cause, progress.proof))
            self.fail(reason)
            return
        if progress.reply:
            self._send_step(progress.reply)
        if progress.proven is not None:
            self._stands(progress.proven)

    def _stands(self, proven: handshake.Proven) -> None:
        """Start the session after both sides have proven their keys."""
        self.key, self.joining = proven.key, proven.joining
        self.session, self.session_made = proven.session, True
        if self.connection is not None:
            self.version = wire_version(self.connection.get_extra_info("ssl_object"))
        self.take_step()
        self._limit = min(GREETING, self.owner.max_frame)
        if self.joining:
            self._limit = ANSWER if self.dialled else handshake.LIMIT
        else:
            self._reception = self.owner.reception(proven.key)
        if not self.proven.done():
            self.proven.set_result(None)
        self.owner.enter(self)

    # Callbacks of asyncio. An error here must end this link only.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.owner.connected.add(self)
        self.connection.set_write_buffer_limits(high=PIECES)
        if self._closed:
            self.connection.abort()
            return
        try:
            self._set_up(self.connection)
        except (TypeError, OSError):  # the other side is gone already
            self.fail("closed by the other side")
        except Exception as error:
            self._fault(error)

    def _set_up(self, tls: asyncio.Transport) -> None:
        tcp = tls.get_extra_info("socket")
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # data for a slow network waits here, where it is counted
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2 * PIECE)
        if self.key is None:
            self.take_step()
            self._proof = proof = self.owner.credentials.server_proof()
            self._send_step(proof.begin())
            return
        self.host, port = tls.get_extra_info("peername")[:2]
        self.remote = join_address(self.host, port)
        self._is_stranger()
        certificate = _certificate(tls)
        if key_of(certificate) != self.key:
            self.refuse("wrong key", "has another key than expected")
            return
        self._proof = self.owner.credentials.client_proof(self.key, certificate, self.joining)
        if self._early is not None:
            self._prove(self._early)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.progress += 1
        if self._closed:
            return
        if self._reader.advance(nbytes):
            try:
                self._came()
            except Exception as error:
                self._fault(error)

    def _came(self) -> None:
        """Process a complete length or a complete frame."""
        if not self._reader.in_frame:
            self._begin(self._reader.size())
            return
        frame, self.payload_digest = self._reader.take(), self._reader.digest
        if not self.session_made:
            self._prove(frame)
            return
        if self._reception is not None and (seconds := self._reception.complete(self)) and self.connection is not None:
            self.connection.pause_reading()  # the other side then sends no more than fits into the buffers
            self._rest.start(seconds, self.connection.resume_reading)
        self.handler.received(self, frame)

    def _begin(self, size: int) -> None:
        if not 0 < size <= self._limit:
            if not self.session_made:
                self.handler.refused("malformed", f"{self.remote} announced {size} bytes")
            self.fail(f"announced a frame of {size} bytes, at most {self._limit} are allowed")
            return
        if self._reception is not None:
            for other in self._reception.begin(self, size):
                other.refuse("incomplete", "did not complete a frame before it began others")
            self.owner.watch()
        self._reader.begin(self.owner.buffers.take(size))

    def _fault(self, error: Exception) -> None:
        self.refuse("fault", f"internal error: {error!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self.owner.connected.discard(self)
        self.ended.set_result(None)
        self.fail(words(error) if error else "closed by the other side")

    def pause_writing(self) -> None:
        self._paused = True
        self._stall.start(STALLED, partial(self.fail, "does not read its messages"))

    def resume_writing(self) -> None:
        self.progress += 1
        self._paused = False
        self._stall.cancel()
        try:
            self._pump()
            if not self._pieces and self.session_made and not self._closed:
                self.handler.drained(self)
        except Exception as error:
            self._fault(error)

    def _pump(self) -> None:
        tls = self.connection
        while self._pieces and not self._paused and tls is not None:
            tls.write(self._pieces.next())


def _certificate(tls: asyncio.Transport) -> bytes:
    """Return the other side's certificate, DER; b"" for none."""
    shown = tls.get_extra_info("ssl_object")
    return (shown.getpeercert(binary_form=True) if shown is not None else None) or b""


def words(error: BaseException) -> str:
    """Return a short description of why there is no connection."""
    if isinstance(error, ssl.SSLError):
        return "no TLS: " + (error.reason or "handshake failed").lower().replace("_", " ")
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


class Pieces:
    """Queue of outgoing data.

    Attributes:
        waiting: number of queued bytes.
    """

    def __init__(self) -> None:
        self._pending: deque[memoryview] = deque()
        self.waiting = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, parts: Iterable[Part]) -> None:
        """Add the joined parts. Small parts at the beginning become one piece, because each piece is a TLS record."""
        head: list[Part] = []
        rest: list[Part] = []
        for part in parts:
            (rest if rest or len(part) > PIECE else head).append(part)
        for piece in (b"".join(head), *rest):
            if len(piece):
                view = memoryview(piece).cast("B")
                self.waiting += len(view)
                self._pending.append(view)

    def next(self) -> memoryview:
        """Remove and return the next piece, of at most PIECE bytes."""
        piece = self._pending[0]
        if len(piece) > PIECE:
            self._pending[0], piece = piece[PIECE:], piece[:PIECE]
        else:
            self._pending.popleft()
        self.waiting -= len(piece)
        return piece

    def clear(self) -> None:
        self._pending.clear()
        self.waiting = 0
