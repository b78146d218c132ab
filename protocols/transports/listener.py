"""Listening sockets with limits on connections per host and in total.

A connection beyond the limit is reset before TLS. This is cheap and keeps the queue of the operating system free for
others. An IPv6 host counts by its /64.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from p2pfl.protocols.addresses import join_address, network
from p2pfl.protocols.rate_limit import TokenBucket

HOST_RATE, HOST_BURST = 20.0, 64  # connections of one host per second, and at once
RATE, BURST = 100.0, 192  # connections of all hosts per second, and at once
BACKLOG = 512  # connections that wait in the operating system
BATCH, PAUSE = 256, 0.02  # connections processed in a row; seconds of pause after a batch with drops
NO_MORE = 1.0  # seconds until connections are accepted again after the system ran out of resources
_RESET = struct.pack("ii", 1, 0)  # reset at once, without keeping state of the connection


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
        self._hosts, self._all = TokenBucket(HOST_RATE, HOST_BURST), TokenBucket(RATE, BURST)

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
