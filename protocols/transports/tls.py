"""Frames over TLS 1.3: four bytes of length, then the frame.

Both sides have proven their keys (p2pfl.protocols.transports.handshake).

The cost that a stranger can cause is limited. Unproven connections are few for each host and in total, short and small,
and none of them reaches the handler. A connection beyond the limit is reset before TLS, which is cheap and keeps the
queue of the operating system free for others. An IPv6 host counts by its /64.

A handshake costs both sides some milliseconds of a core, and all of it is lost if one side gives up half-way. When many
nodes start at the same time, their cores are short, and patience measured by the clock turns this into a storm: handshakes
end unfinished, are begun again, and none is completed. Therefore a handshake ends only when it stands still, that is, when
its next step does not come for some seconds. The connection comes first: the other side's operating system accepts it
without a turn of its process, so it needs little patience. And a listener has few handshakes in progress (BEGUN); the
connections beyond them wait, those of a host with few before those of a host with many. A handshake that waits for the
other side for a second no longer counts, so those who connect and then say nothing cannot keep others out.

The cost of a member is limited as well (p2pfl.protocols.transports.frames). A frame is received directly into memory of its
length, which is allocated once the length is known and allowed (p2pfl.protocols.transports.tls_link).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from p2pfl.protocols.addresses import join_address, network, split_address
from p2pfl.protocols.errors import AddressInUseError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.rate_limit import Slots, TokenBucket
from p2pfl.protocols.transport import AccessControl, Handler, Timer
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.frames import RATE, Buffers, Reception
from p2pfl.protocols.transports.tls_link import PATIENCE, TlsLink, words

DIALLING = 3.0  # seconds for an address to accept a connection
ANSWERING = 10.0  # seconds for the other side's next message of TLS
BEGUN, SETTLING = 16, 1.0  # accepted handshakes in progress, and seconds for which one counts
PARTING = 2.0  # seconds for the other side to confirm the end of a connection
STRANGERS = 64  # maximum connections that are not trusted yet; above it, the oldest of the busiest host is ended
LINKS_PER_KEY = 4  # accepted links
CLOSING = 0.5  # seconds for connections to end cleanly
LOOKING = 5.0  # seconds between checks of incomplete frames
HOST_RATE, HOST_BURST = 20.0, 64  # connections of one host per second, and at once
CONNECTION_RATE, CONNECTION_BURST = 100.0, 192  # connections of all hosts per second, and at once
BACKLOG = 512  # connections that wait in the operating system
BATCH, PAUSE = 256, 0.02  # connections processed in a row; seconds of pause after a batch with drops
NO_MORE = 1.0  # seconds until connections are accepted again after the system ran out of resources
_RESET = struct.pack("ii", 1, 0)  # reset at once, without keeping state of the connection
_OLD_VERSION = bytes([21, 3, 1, 0, 2, 2, 70])  # fatal alert protocol_version, in a record that every version reads


class TlsTransport:
    """Accepted and dialled TLS connections of a node, with limits on what strangers and members may cost.

    Args:
        address: "host:port". Port 0 selects a free port, which `address` contains after `listen`. Without a host, the
            transport listens on all IPv4 and IPv6 addresses.
        max_frame: maximum bytes of a frame; a longer one ends its connection before memory is allocated for it. On a
            link that is not trusted yet the maximum is p2pfl.protocols.transports.tls_link.GREETING.
        rate: frames per second that are received from one member over all its links.
        clock: returns seconds and never goes back.

    Raises:
        AddressError: the address is malformed.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        access: AccessControl,
        max_frame: int,
        *,
        rate: float = RATE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._port = split_address(address)
        self.address = address
        self.max_frame = max_frame
        self.credentials = Credentials(identity, access)
        self.links: dict[TlsLink, None] = {}  # the oldest first
        self.connected: set[TlsLink] = set()  # links whose connection has not ended, closed or not
        self.strangers: dict[TlsLink, None] = {}  # links that are not trusted yet, the oldest first
        self.buffers = Buffers()
        self._rate = rate
        self._clock = clock
        self._receptions: dict[bytes, Reception[TlsLink]] = {}
        self._look = Timer()
        self._listener = Listener(self._accept, self._count_dropped, clock)
        self._handler: Handler | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = Slots(BEGUN, SETTLING)
        self._hosts: Counter[bytes] = Counter()  # handshakes of TLS that are in progress, or wait for their turn

    @property
    def hosts(self) -> list[str]:
        """The IP addresses on which the transport listens; 0.0.0.0 and :: stand for all."""
        return [listening.getsockname()[0] for listening in self._listener.sockets]

    @property
    def handler(self) -> Handler:
        if self._handler is None:
            raise TransportError("the transport is not listening yet")
        return self._handler

    def use(self, handler: Handler) -> None:
        """Set the handler, so that the node can dial without listening."""
        self._handler = handler

    async def listen(self, handler: Handler) -> None:
        self._handler = handler
        try:
            await self._listener.bind(self._host, self._port)
        except OSError as error:
            kind = AddressInUseError if error.errno == errno.EADDRINUSE else TransportError
            raise kind(f"cannot listen on {self.address}: {words(error)}") from error
        self.address = join_address(self._host, self._listener.sockets[0].getsockname()[1])
        for listening in self._listener.sockets:
            self._begin(self._listener.accept(listening))

    async def dial(self, address: str, key: bytes, joining: bool = False) -> TlsLink:
        host, port = split_address(address)
        self.handler  # noqa: B018 (raises)
        named = join_address(host, port)
        link = TlsLink(self, key, joining)
        try:
            async with asyncio.timeout(DIALLING):
                connection, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
            await self._dial_tls(link, connection, host)
            await link.proven
        except (TimeoutError, ConnectionAbortedError):
            raise TransportError(f"{named} does not answer") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise TransportError(f"{named}: {words(error)}") from error
        finally:
            if not link.session_made:
                link.close()
        return link

    async def _dial_tls(self, link: TlsLink, connection: asyncio.Transport, host: str) -> None:
        """Begin TLS on a new connection. A dial may be cancelled here, which it may not in create_connection with TLS.

        If that is cancelled in the turn of the loop in which the other side ends the connection, uvloop reports the end as
        an error that nobody has retrieved; with a socket of the caller, it may close the file of another connection.

        Raises:
            OSError: the other side ends the connection, or is not a TLS server; ConnectionAbortedError if it is silent.
        """
        if connection.is_closing():
            raise ConnectionResetError("closed by the other side")
        try:
            tls = await asyncio.get_running_loop().start_tls(
                connection,
                link,
                self.credentials.dialling,
                server_hostname=host,
                ssl_handshake_timeout=ANSWERING,
                ssl_shutdown_timeout=PARTING,
            )
        except BaseException:
            connection.abort()
            raise
        if tls is None or link.ended.done():
            raise ConnectionResetError("closed by the other side")
        link.connection_made(tls)

    def expel(self, key: bytes) -> None:
        for link in [*self.links, *self.strangers]:
            if link.key == key:
                link.close()
        self._receptions.pop(key, None)

    async def close(self) -> None:
        self._look.cancel()
        for link in [*self.links, *self.strangers]:
            link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)  # let the tasks end, and the connections notice that they are closed
        self._listener.close()  # after its tasks, because a new socket could get its number
        if self.connected:
            await asyncio.wait([link.ended for link in self.connected], timeout=CLOSING)
        for link in list(self.connected):
            link.abort()
        await asyncio.sleep(0)

    # Accepting connections

    def _accept(self, connection: socket.socket, remote: str, host: str) -> None:
        link = TlsLink(self)
        beginning = self._begin(self._begin_in_turn(link, connection, network(host)))
        # Close the connection even if the task is cancelled before its first step. Later the event loop owns it.
        beginning.add_done_callback(lambda task: connection.close() if task.cancelled() and not link.connection else None)
        link.accepted(remote, host, beginning)

    def _count_dropped(self, remote: str) -> None:
        self.handler.refused("too many connections", f"{remote} connects too often")

    async def _begin_in_turn(self, link: TlsLink, connection: socket.socket, host: bytes) -> None:
        self._hosts[host] += 1
        try:
            async with self._begun.slot(self._hosts[host]):
                link.take_step()
                await self._begin_tls(link, connection)
                await asyncio.wait([link.proven])  # the proofs are a part of the handshake
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    async def _begin_tls(self, link: TlsLink, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            with connection.dup() as spare:  # the event loop closes a failed connection before OpenSSL's alert is sent
                try:
                    await loop.connect_accepted_socket(
                        lambda: link,
                        connection,
                        ssl=self.credentials.accepting,
                        ssl_handshake_timeout=PATIENCE,
                        ssl_shutdown_timeout=PARTING,
                    )
                except ssl.SSLError as error:
                    if error.reason == "UNSUPPORTED_PROTOCOL":
                        with suppress(OSError):  # the dialler is gone, or does not read
                            spare.send(_OLD_VERSION)
                    raise
        except ssl.SSLError as error:
            self.handler.refused("no TLS", f"{link.remote}: {words(error)}")
            link.fail(words(error))
        except (OSError, TimeoutError) as error:
            link.fail(words(error))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Services for links

    def trust(self, link: TlsLink) -> None:
        self.strangers.pop(link, None)

    def leave(self, link: TlsLink) -> None:
        self.links.pop(link, None)
        self.strangers.pop(link, None)

    def meet(self, stranger: TlsLink) -> None:
        """Add a stranger; if there are too many, end the oldest connection of the host with most of them."""
        self.strangers[stranger] = None
        accepted = [link for link in self.strangers if not link.dialled]
        if len(accepted) > STRANGERS:
            host = Counter(link.host for link in accepted).most_common(1)[0][0]
            next(link for link in accepted if link.host == host).send_away("closed to make room for another connection")

    def enter(self, link: TlsLink) -> None:
        """Add a link whose other side has proven its key. If the key has too many, end the oldest trusted one.

        If none of them is trusted, end the new one: a peer that dials several addresses at once uses the first that
        answers.
        """
        self.links[link] = None
        same = [other for other in self.links if other.key == link.key and not other.dialled]
        if len(same) > LINKS_PER_KEY:
            next((other for other in same if other.trusted), link).fail("closed to make room for another connection")

    def reception(self, key: bytes) -> Reception[TlsLink]:
        """Return the reception limits of a member, for all its links."""
        if key not in self._receptions:
            self._receptions[key] = Reception(self.max_frame, self._clock, self._rate)
        return self._receptions[key]

    def watch(self) -> None:
        """Schedule a check of the incomplete frames."""
        if not self._look.pending:
            self._look.start(LOOKING, self._end_overdue)

    def _end_overdue(self) -> None:
        for reception in list(self._receptions.values()):
            for link in reception.overdue():
                link.refuse("incomplete", "did not complete a frame in time")
        if not all(reception.idle for reception in self._receptions.values()):
            self.watch()


class Listener:
    """Listener that accepts connections within the limits of this module.

    Args:
        take: receives a connection, its address and its host.
        dropped: receives the address of a dropped connection.
        clock: returns seconds and never goes back.
    """

    def __init__(
        self,
        take: Callable[[socket.socket, str, str], None],
        dropped: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._take = take
        self._dropped = dropped
        self._clock = clock
        self._hosts, self._all = TokenBucket(HOST_RATE, HOST_BURST), TokenBucket(CONNECTION_RATE, CONNECTION_BURST)

    async def bind(self, host: str, port: int) -> None:
        """Listen at one address or, without a host, at all IPv4 and IPv6 addresses.

        Raises:
            OSError: the address cannot be bound.
        """
        self.sockets = await _bind(host, port)

    def close(self) -> None:
        for listening in self.sockets:
            listening.close()

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until the socket is closed."""
        while True:
            try:
                connection, address = await accept_from(listening)
            except OSError as error:
                if error.errno == errno.EBADF or listening.fileno() < 0:
                    return  # closed
                await asyncio.sleep(NO_MORE)  # too many open files
                continue
            dropped = self.meet(connection, address)
            for _ in range(BATCH):
                try:
                    connection, address = listening.accept()
                except OSError:  # no connection waits; any other error recurs above
                    break
                connection.setblocking(False)
                dropped |= self.meet(connection, address)
            # If many wait, accepting one takes no turn of the loop. A flood must not take most of the loop's time
            # either.
            await asyncio.sleep(PAUSE if dropped else 0)

    def meet(self, connection: socket.socket, address: tuple[str, int] | tuple[str, int, int, int]) -> bool:
        """Pass a connection on, or drop it; return whether it was dropped.

        The event loop reports an unexpected error, and the connection ends. The node continues to listen.
        """
        try:
            return self._admit(connection, address)
        except Exception as error:
            connection.close()
            context = {"message": "an accepted connection could not be handled", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return True

    def _admit(self, connection: socket.socket, address: tuple[str, int] | tuple[str, int, int, int]) -> bool:
        host, now = address[0], self._clock()
        if self._hosts.take(network(host), now) and self._all.take(b"", now):
            self._take(connection, join_address(address[0], address[1]), host)
            return False
        with suppress(OSError):  # it is gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()
        self._dropped(join_address(address[0], address[1]))
        return True


async def accept_from(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Return the next connection of a listening socket, and its address.

    This may be cancelled while a connection arrives. In asyncio's `sock_accept` that raises an error in a callback.

    Raises:
        OSError: there is no more room for a connection, or the socket is closed.
    """
    loop = asyncio.get_running_loop()
    while True:
        readable = asyncio.Event()
        try:
            loop.add_reader(listening, readable.set)
        except NotImplementedError:  # Windows
            return await loop.sock_accept(listening)
        except ValueError as error:
            raise OSError(errno.EBADF, "closed") from error
        try:
            await readable.wait()
        finally:
            loop.remove_reader(listening)
        with suppress(BlockingIOError, InterruptedError):  # the dialler is gone already
            connection, address = listening.accept()
            connection.setblocking(False)
            return connection, address


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets: one for a host; without a host, one each for IPv4 and IPv6, if supported."""
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
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            if sockets and error.errno != errno.EADDRINUSE:
                break
            for other in sockets:
                other.close()
            raise
        sockets.append(listening)
        port = listening.getsockname()[1]  # the same port for both
    return sockets
