"""Frames over TLS 1.3: four bytes of length, then the frame. Both sides have proven their keys (protocols.handshake).

What a stranger can cost is bounded: connections that are not proven are few, short and small, and none of them reaches the
handler. A frame is received straight into memory of its length, taken once that is known and allowed. What is sent is handed
to TLS in small pieces, so that a large model does not keep a node from answering others meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from protocols import handshake
from protocols.addresses import join_address, split_address
from protocols.certificates import client_context, key_of, make_certificate, server_context
from protocols.envelope import OVERHEAD
from protocols.errors import ProtocolError, TransportError
from protocols.identity import Identity
from protocols.messages import Terms
from protocols.transport import NO_SESSION, Gate, Handler, Part

PREFIX = 4
GREETING = OVERHEAD + Terms.LIMIT  # the most bytes of a frame before a link is trusted
ANSWER = 8 << 20  # the most bytes of the answer to one who joins: the federation's file and its membership log
DIALLING = 3.0  # seconds for an address to answer
PATIENCE = 5.0  # seconds for a connection to prove itself, and for a link to become trusted
PARTING = 2.0  # seconds for the other side to agree that a connection ends
STRANGERS = 64  # connections that are not proven or not trusted yet; with more, the oldest of the busiest host is ended
LINKS_PER_KEY = 16  # that were accepted; with more, the oldest is ended (an honest peer may dial all its addresses at once)
CROWD, SLOWLY = STRANGERS // 2, 0.01  # with so many of them, seconds between connections that are accepted
NO_MORE = 1.0  # seconds until connections are accepted again where the system has no room for more
CLOSING = 0.5  # seconds for connections to end with a word of farewell
STALLED = 30.0  # seconds in which the other side must take PIECES of what it is sent
PIECE = 256 << 10  # bytes that are encrypted at once
PIECES = 4 * PIECE  # bytes that may wait for the network
BACKLOG_FRAMES = 4  # frames of the greatest size that may wait for a peer that does not read
SPARE_BUFFERS = 4  # of large frames, kept to be used again


class TlsTransport:
    """Listens at one address.

    Args:
        address: "host:port"; port 0 takes a free one, which `address` names after `listen`; without a host, on all
            addresses, IPv4 and IPv6.
        max_frame: the most bytes of a frame; a longer one ends its connection before memory is taken for it. Of a link that
            is not trusted yet they are GREETING.

    Raises:
        AddressError: the address is malformed.
    """

    def __init__(self, address: str, identity: Identity, gate: Gate, max_frame: int) -> None:
        self._host, self._port = split_address(address)
        self.address = address
        self.identity = identity
        self.gate = gate
        self.max_frame = max_frame
        self.certificate = make_certificate(identity)
        self.links: dict[TlsLink, None] = {}  # the oldest first
        self.connected: set[TlsLink] = set()  # with a connection that has not ended, closed or not
        self.strangers: dict[TlsLink, None] = {}  # those that are not trusted yet, the oldest first
        self.buffers = _Buffers()
        self._accepting = server_context(identity, self.certificate)
        self._dialling = client_context()
        self._handler: Handler | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def hosts(self) -> list[str]:
        """The IP addresses that are listened on; 0.0.0.0 and :: stand for all."""
        return [listening.getsockname()[0] for listening in self._sockets]

    @property
    def handler(self) -> Handler:
        if self._handler is None:
            raise TransportError("the transport does not listen yet")
        return self._handler

    def use(self, handler: Handler) -> None:
        """Allow dialling without being there to be dialled."""
        self._handler = handler

    async def listen(self, handler: Handler) -> None:
        self._handler = handler
        try:
            self._sockets = await _bound(self._host, self._port)
        except OSError as error:
            raise TransportError(f"cannot listen on {self.address}: {_words(error)}") from error
        self.address = join_address(self._host, self._sockets[0].getsockname()[1])
        for listening in self._sockets:
            self._begin(self._accept(listening))

    async def dial(self, address: str, key: bytes, joining: bool = False) -> TlsLink:
        host, port = split_address(address)
        self.handler  # noqa: B018 (raises)
        loop = asyncio.get_running_loop()
        link = TlsLink(self, key, joining)
        try:
            async with asyncio.timeout(DIALLING):
                await loop.create_connection(
                    lambda: link,
                    host,
                    port,
                    ssl=self._dialling,
                    ssl_handshake_timeout=DIALLING,
                    ssl_shutdown_timeout=PARTING,
                )
        except TimeoutError:
            link.close()
            raise TransportError(f"{join_address(host, port)} does not answer") from None
        except (OSError, UnicodeError) as error:  # a name that cannot be one
            link.close()
            raise TransportError(f"{join_address(host, port)}: {_words(error)}") from error
        try:
            await link.proven
        finally:
            if not link.session_made:
                link.close()
        return link

    async def close(self) -> None:
        for listening in self._sockets:
            listening.close()
        for link in [*self.links, *self.strangers]:
            link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)  # let the connections see that they are closed
        if self.connected:
            await asyncio.wait([link.ended for link in self.connected], timeout=CLOSING)
        for link in list(self.connected):
            link.abort()
        await asyncio.sleep(0)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno == errno.EBADF or listening.fileno() < 0:
                    return  # closed
                await asyncio.sleep(NO_MORE)  # too many open files
                continue
            link = TlsLink(self)
            link.accepted(join_address(*address[:2]), address[0], self._begin(self._begin_tls(link, connection)))
            # Where many wait, accepting one takes no turn of the loop; nor may a flood of them take most of its time.
            await asyncio.sleep(SLOWLY if len(self.strangers) > CROWD else 0)

    async def _begin_tls(self, link: TlsLink, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self._accepting,
                ssl_handshake_timeout=PATIENCE,
                ssl_shutdown_timeout=PARTING,
            )
        except ssl.SSLError as error:
            self.handler.refused("no TLS", f"{link.remote}: {_words(error)}")
            link.fail(_words(error))
        except (OSError, TimeoutError) as error:
            link.fail(_words(error))
        except asyncio.CancelledError:
            connection.close()
            raise

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class TlsLink(asyncio.BufferedProtocol):
    """One connection, from the first byte on.

    Args:
        key: that was dialled; None for a connection that was accepted.
    """

    def __init__(self, transport: TlsTransport, key: bytes | None = None, joining: bool = False) -> None:
        self.remote = "?"
        self.host = "?"
        self.key = key
        self.session = NO_SESSION
        self.session_made = False
        self.dialled = key is not None
        self.direct = True
        self.joining = joining
        self._owner = transport
        self._tls: asyncio.Transport | None = None
        self._closed = False
        self._challenge: handshake.Challenge | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Perhaps nobody waits for it any more. A dialling that was given up has cancelled it.
        self.proven.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._limit = handshake.LIMIT
        self._expiry: asyncio.TimerHandle | None = None
        self._prefix = bytearray(PREFIX)
        self._frame: memoryview | None = None
        self._view = memoryview(self._prefix)
        self._filled = 0
        self._pending: deque[memoryview] = deque()
        self._waiting = 0  # bytes in them
        self._paused = False
        self.progress = 0
        self._stall: asyncio.TimerHandle | None = None
        self._beginning: asyncio.Task[None] | None = None

    # What a handler may do

    @property
    def backlog(self) -> int:
        return self._waiting + (self._tls.get_write_buffer_size() if self._tls is not None else 0)

    def send(self, parts: Sequence[Part]) -> None:
        if self._tls is None or self._closed or self._tls.is_closing():
            raise TransportError(f"the connection to {self.remote} is closed")
        if self.backlog > BACKLOG_FRAMES * self._owner.max_frame:
            raise TransportError(f"{self.remote} does not read what it is sent")
        size = sum(len(part) for part in parts)
        head: list[Part] = [size.to_bytes(PREFIX, "big")]
        rest: list[Part] = []
        for part in parts:  # small ones together: every piece is a record of its own
            (rest if rest or len(part) > PIECE else head).append(part)
        for piece in (b"".join(head), *rest):
            if len(piece):
                self._pending.append(memoryview(piece).cast("B"))
        self._waiting += size + PREFIX
        self._pump()

    def trust(self) -> None:
        self._limit = self._owner.max_frame
        self._forget_expiry()

    def close(self) -> None:
        self._closed = True
        self._owner.links.pop(self, None)
        self._forget_expiry()
        if self._stall is not None:
            self._stall.cancel()
        if not self.proven.done():
            self.proven.set_exception(TransportError("closed"))
        if self._tls is None and self._beginning is not None:
            self._beginning.cancel()
        if self._tls is not None:
            if self._pending:
                self._tls.abort()
            else:
                self._tls.close()
        self._pending.clear()
        self._waiting = 0

    def abort(self) -> None:
        """End the connection without a word."""
        if self._tls is not None:
            self._tls.abort()

    def fail(self, reason: str) -> None:
        """End the connection for a reason that is not this side's wish."""
        if self._closed:
            return
        made = self.session_made
        if not self.proven.done():
            self.proven.set_exception(TransportError(f"{self.remote}: {reason}"))
        self.close()
        if made:
            self._owner.handler.lost(self, reason)

    # Proving the keys

    def accepted(self, remote: str, host: str, beginning: asyncio.Task[None]) -> None:
        """Somebody has dialled, and TLS begins."""
        self.remote, self.host, self._beginning = remote, host, beginning
        self._is_stranger()

    def _is_stranger(self) -> None:
        """Bound how long it may be one; and how many there are, at the cost of the host with most of them."""
        strangers = self._owner.strangers
        strangers[self] = None
        self._expiry = asyncio.get_running_loop().call_later(PATIENCE, self._send_away, "was not introduced in time")
        accepted = [link for link in strangers if not link.dialled]
        if len(accepted) > STRANGERS:
            host = Counter(link.host for link in accepted).most_common(1)[0][0]
            next(link for link in accepted if link.host == host)._send_away("made room for another one")

    def _send_away(self, reason: str) -> None:
        if not self.dialled and not self.session_made:
            self._owner.handler.refused("not proven", f"{self.remote} {reason}")
            if self._tls is not None:
                self._tls.abort()  # without waiting for its consent
        self.fail(reason)

    def _step(self, data: memoryview) -> None:
        try:
            step = handshake.decode(data)
            if self._challenge is None and isinstance(step, handshake.Challenge):
                self._prove(step)
            elif self.dialled and isinstance(step, handshake.Accepted) and self._challenge is not None:
                self._made(self.session)
            elif self.dialled and isinstance(step, handshake.Refused):
                detail = "".join(c if c.isprintable() else "?" for c in f"{step.cause}: {step.detail}")
                self.fail(f"keeps this node out: {detail}")
            elif not self.dialled and isinstance(step, handshake.Proof) and self._challenge is not None:
                self._check(step)
            else:
                raise ProtocolError("malformed", "a step of the handshake out of its order")
        except ProtocolError as error:
            self._owner.handler.refused(error.cause, f"{self.remote}: {error}")
            if not self.dialled and self._tls is not None:
                self._say(handshake.Refused(error.cause[:64], _without_cause(error)[:256]))
            self.fail(str(error))

    def _prove(self, challenge: handshake.Challenge) -> None:
        owner, server = self._owner, self.key
        assert server is not None
        proof, self.session = handshake.prove(
            owner.identity, owner.gate, challenge, server, self._certificate(), self.joining
        )
        self._challenge = challenge
        self._say(proof)

    def _check(self, proof: handshake.Proof) -> None:
        owner, challenge = self._owner, self._challenge
        assert challenge is not None
        proven = handshake.check(proof, owner.gate, challenge, owner.identity.public, owner.certificate)
        self.key, self.joining = proven.key, proven.joining
        self._say(handshake.Accepted())
        self._made(proven.session)

    def _made(self, session: bytes) -> None:
        self.session, self.session_made = session, True
        self._limit = min(GREETING, self._owner.max_frame)
        if self.joining:
            self._limit = ANSWER if self.dialled else handshake.LIMIT
        links = self._owner.links
        links[self] = None
        if not self.proven.done():
            self.proven.set_result(None)
        same = [link for link in links if link.key == self.key and not link.dialled]
        if len(same) > LINKS_PER_KEY:
            same[0].fail("made room for another one")

    def _certificate(self) -> bytes:
        assert self._tls is not None
        certificate = self._tls.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate or b""

    def _say(self, step: handshake.Challenge | handshake.Proof | handshake.Accepted | handshake.Refused) -> None:
        assert self._tls is not None
        data = handshake.encode(step)
        self._tls.write(len(data).to_bytes(PREFIX, "big") + data)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tls = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._owner.connected.add(self)
        self._tls.set_write_buffer_limits(high=PIECES)
        if self._closed:
            self._tls.abort()
            return
        try:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # what a slow network does not take, waits here, where it is seen
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2 * PIECE)
            if self.dialled:
                self.host, port = transport.get_extra_info("peername")[:2]
                self.remote = join_address(self.host, port)
        except (TypeError, OSError):  # the other side is gone already
            self.fail("closed by the other side")
            return
        if not self.dialled:
            self._challenge = handshake.challenge(self._owner.gate)
            self._say(self._challenge)
            return
        self._is_stranger()
        if key_of(self._certificate()) != self.key:
            self._owner.handler.refused("wrong key", f"{self.remote} has another key than the one that was dialled")
            self.fail("has another key than the one that was dialled")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.progress += 1
        self._filled += nbytes
        if self._filled < len(self._view) or self._closed:
            return
        if self._frame is None:
            size = int.from_bytes(self._prefix, "big")
            if not 0 < size <= self._limit:
                if not self.session_made:
                    self._owner.handler.refused("malformed", f"{self.remote} announced {size} bytes")
                self.fail(f"announced a frame of {size} bytes, at most {self._limit} are allowed")
                return
            self._frame = self._view = self._owner.buffers.take(size)
        else:
            frame, self._frame = self._frame, None
            self._view = memoryview(self._prefix)
            if self.session_made:
                self._owner.handler.received(self, frame)
            else:
                self._step(frame)
        self._filled = 0

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.connected.discard(self)
        self.ended.set_result(None)
        self.fail(_words(error) if error else "closed by the other side")

    def pause_writing(self) -> None:
        self._paused = True
        self._stall = asyncio.get_running_loop().call_later(STALLED, self.fail, "does not read what it is sent")

    def resume_writing(self) -> None:
        self.progress += 1
        self._paused = False
        if self._stall is not None:
            self._stall.cancel()
        self._pump()
        if not self._pending and self.session_made and not self._closed:
            self._owner.handler.drained(self)

    def _pump(self) -> None:
        pending, tls = self._pending, self._tls
        while pending and not self._paused and tls is not None:
            piece = pending[0]
            if len(piece) > PIECE:
                pending[0], piece = piece[PIECE:], piece[:PIECE]
            else:
                pending.popleft()
            self._waiting -= len(piece)
            tls.write(piece)

    def _forget_expiry(self) -> None:
        self._owner.strangers.pop(self, None)
        if self._expiry is not None:
            self._expiry.cancel()


class _Buffers:
    """Memory for large frames, used again once nobody looks at it: fresh memory costs more than what is written into it."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        if size < PIECE:
            return memoryview(bytearray(size))
        for buffer in self._spare:
            # Held by the list, this variable and the call: no view of it, nor an array made of one, is left.
            if len(buffer) >= size and sys.getrefcount(buffer) == 3:
                return memoryview(buffer)[:size]
        buffer = bytearray(size)
        self._spare = [*self._spare, buffer][-SPARE_BUFFERS:]
        return memoryview(buffer)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets: one for a host, and for none one for each of IPv4 and IPv6, if the machine has it."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    for name in (host,) if host else ("0.0.0.0", "::"):
        try:
            family, kind, number, _, address = (
                await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            )[0]
            listening = socket.socket(family, kind, number)
        except OSError:
            if sockets:  # a machine without IPv6
                break
            raise
        try:
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(128)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            if sockets and error.errno != errno.EADDRINUSE:
                break
            for other in sockets:
                other.close()
            raise
        sockets.append(listening)
        port = listening.getsockname()[1]  # the same for both
    return sockets


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return "no TLS: " + (error.reason or "handshake failed").lower().replace("_", " ")
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _without_cause(error: ProtocolError) -> str:
    return str(error).removeprefix(error.cause).removeprefix(": ")
