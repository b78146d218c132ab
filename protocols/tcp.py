"""Frames over TCP: four bytes of length, then the frame.

Without TLS yet, so nothing but loopback is listened on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import cast

from protocols.envelope import OVERHEAD
from protocols.errors import AddressError, TransportError
from protocols.messages import Terms
from protocols.transport import Handler, Part

PREFIX = 4
GREETING = OVERHEAD + Terms.LIMIT  # the most bytes of a frame before a link is trusted
PATIENCE = 5.0  # seconds for a link to become trusted
STRANGERS = 64  # links that are not trusted yet; with more, the oldest is ended
BACKLOG_FRAMES = 4  # frames of the greatest size that may wait for a peer that does not read


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "tcp://host:port" or "host:port".

    Raises:
        AddressError: it has another form.
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not (colon and host and port.isdecimal() and int(port) < 65536) or "[" in host or "]" in host:
        raise AddressError(f"address {address!r} is not of the form 127.0.0.1:4100")
    return host, int(port)


def check_loopback(address: str) -> None:
    """Raise AddressError unless an address is on this machine."""
    host, _ = split_address(address)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise AddressError(
            f"{address} is not a loopback address; connections are not encrypted yet, so nodes use 127.0.0.1 only"
        )


class TcpTransport:
    """Listens at one address.

    Args:
        address: "host:port"; port 0 takes a free one, which `address` names after `listen`.
        max_frame: the most bytes of a frame; a longer one ends its connection before memory is taken for it. Of a link that
            is not trusted yet they are GREETING.

    Raises:
        AddressError: the address is malformed, or not on loopback.
    """

    def __init__(self, address: str, max_frame: int) -> None:
        check_loopback(address)
        self._host, self._port = split_address(address)
        self.address = address
        self.max_frame = max_frame
        self.links: set[TcpLink] = set()
        self.strangers: dict[TcpLink, None] = {}  # links that are not trusted yet, the oldest first
        self._handler: Handler | None = None
        self._server: asyncio.Server | None = None

    async def listen(self, handler: Handler) -> None:
        self._handler = handler
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: TcpLink(self, handler), self._host, self._port)
        except OSError as error:
            raise TransportError(f"cannot listen on {self._host}:{self._port}: {_words(error)}") from error
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{self._host}:{port}"

    async def dial(self, address: str) -> TcpLink:
        host, port = split_address(address)
        check_loopback(address)
        handler = self._handler
        if handler is None:
            raise TransportError("the transport does not listen yet")
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_connection(lambda: TcpLink(self, handler), host, port)
        except (OSError, UnicodeError) as error:  # a name that cannot be one
            raise TransportError(f"{host}:{port}: {_words(error)}") from error
        return link

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.close()
        await asyncio.sleep(0)  # let the connections see that they are closed


class TcpLink(asyncio.BufferedProtocol):
    """One connection. A frame is received straight into memory of its own, taken once its length is known and allowed."""

    def __init__(self, transport: TcpTransport, handler: Handler) -> None:
        self.remote = "?"
        self._owner = transport
        self._handler = handler
        self._tcp: asyncio.Transport | None = None
        self._closed = False
        self._limit = min(GREETING, transport.max_frame)
        self._expiry: asyncio.TimerHandle | None = None
        self._prefix = bytearray(PREFIX)
        self._frame: bytearray | None = None
        self._view = memoryview(self._prefix)
        self._filled = 0

    def send(self, parts: Sequence[Part]) -> None:
        if self._tcp is None or self._closed or self._tcp.is_closing():
            raise TransportError(f"the connection to {self.remote} is closed")
        size = sum(len(part) for part in parts)
        if self._tcp.get_write_buffer_size() > BACKLOG_FRAMES * self._owner.max_frame:
            raise TransportError(f"{self.remote} does not read what it is sent")
        self._tcp.writelines([size.to_bytes(PREFIX, "big"), *parts])

    def trust(self) -> None:
        self._limit = self._owner.max_frame
        self._forget_expiry()

    def close(self) -> None:
        self._closed = True
        self._owner.links.discard(self)
        self._forget_expiry()
        if self._tcp is not None:
            self._tcp.close()

    def _forget_expiry(self) -> None:
        self._owner.strangers.pop(self, None)
        if self._expiry is not None:
            self._expiry.cancel()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        try:
            host, port = transport.get_extra_info("peername")[:2]
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (TypeError, OSError):  # the other side is gone already
            self._closed = True
            self._tcp.abort()
            return
        self.remote = f"{host}:{port}"
        strangers = self._owner.strangers
        if len(strangers) >= STRANGERS:
            next(iter(strangers)).close()
        strangers[self] = None
        self._owner.links.add(self)
        self._expiry = asyncio.get_running_loop().call_later(PATIENCE, self._fail, "was not introduced in time")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._view):
            return
        if self._frame is None:
            size = int.from_bytes(self._prefix, "big")
            if not 0 < size <= self._limit:
                self._fail(f"announced a frame of {size} bytes, at most {self._limit} are allowed")
                return
            self._frame = bytearray(size)
            self._view = memoryview(self._frame)
        else:
            frame, self._frame = self._view, None
            self._view = memoryview(self._prefix)
            self._handler.received(self, frame)
        self._filled = 0

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.links.discard(self)
        self._forget_expiry()
        if not self._closed:
            self._closed = True
            self._handler.lost(self, _words(error) if error else "closed by the other side")

    def _fail(self, reason: str) -> None:
        self.close()
        self._handler.lost(self, reason)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
