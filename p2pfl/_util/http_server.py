"""Read-only HTTP server on this machine: pages, their assets, and a program's status.

Pages of other sites cannot read the answers: no answer allows it (no CORS). A request must use an address of this
machine, so that other host names that resolve to it (DNS rebinding) are refused. Each connection serves one answer. The
program's status is computed at most a few times a second, so clients hardly slow the program down.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import threading
from asyncio import AbstractServer, Task
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from p2pfl.errors import ConfigurationError

if TYPE_CHECKING:
    from aiohttp import web


ASSETS = Path(__file__).parent / "assets"  # shared by several pages
CONNECTIONS = 64  # at the same time; further ones are closed
LONGEST = 30.0  # minimum life of a connection in seconds; the maximum is twice as long
CLOSING = 1.0  # seconds that a new connection has to finish when the server stops
FRESH = 0.2  # seconds for which an answer is cached
EXTRA = "the page needs aiohttp and prometheus-client: pip install 'p2pfl-node[status]'"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "p2pfl",
}


class Resource(NamedTuple):
    """Answer of the server for one path.

    Attributes:
        kind: content type.
        make: function that returns the current content.
    """

    kind: str
    make: Callable[[], bytes]


def asset(path: Path) -> Resource:
    """Return a file as a resource. The file is read once, now."""
    content = path.read_bytes()
    return Resource(f"{TYPES[path.suffix]}; charset=utf-8", lambda: content)


class PageServer:
    """Serves pages and their assets to browsers on this machine.

    Args:
        shown: resources by path, for example "/"; a path may have a query.
        host: an address of this machine.
        port: port to listen on; 0 selects a free one.
    """

    def __init__(self, shown: Mapping[str, Resource], host: str, port: int) -> None:
        self._shown = shown
        self._host = host
        self._port = port
        self._made: dict[str, tuple[float, bytes]] = {}
        self._handler: web.Server
        self._runner: web.ServerRunner
        self._server: AbstractServer
        self._sweeper: Task[None]

    async def start(self) -> str:
        """Start the server and return the address of "/".

        Raises:
            ConfigurationError: aiohttp is not installed, or the server cannot listen on the port.
        """
        try:
            from aiohttp import web
        except ImportError as error:
            raise ConfigurationError(EXTRA) from error
        loop = asyncio.get_running_loop()
        handler = web.Server(self._answer, access_log=None, lingering_time=0.0, logger=_faults_only())
        self._runner = web.ServerRunner(handler, shutdown_timeout=CLOSING)
        await self._runner.setup()
        try:
            self._server = await loop.create_server(
                lambda: handler() if len(handler.connections) < CONNECTIONS else _Closed(), self._host, self._port
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            await self._runner.cleanup()
            where = self._authority(self._port)
            raise ConfigurationError(f"cannot serve the page at {where}: {_words(error)}") from error
        self._handler = handler
        self._sweeper = loop.create_task(self._sweep())
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{self._authority(port)}/"

    def _authority(self, port: int) -> str:
        """Return "host:port", with an IPv6 host in brackets."""
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    @property
    def connections(self) -> int:
        """Number of open connections, while the server runs."""
        return len(self._handler.connections)

    async def wait_until_failed(self) -> None:
        """Wait until the server fails, and raise its error."""
        await asyncio.wait([self._sweeper])
        self._sweeper.result()

    async def close(self) -> None:
        self._sweeper.cancel()
        await asyncio.wait([self._sweeper])
        self._server.close()
        _abort(self._handler.connections)  # slow readers must not delay the end of the program
        await self._runner.cleanup()

    async def _sweep(self) -> None:
        """Close connections that last too long, because they block other clients."""
        before: set[web.RequestHandler] = set()
        while True:
            await asyncio.sleep(LONGEST)
            now = set(self._handler.connections)
            _abort(now & before)
            before = now - before

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        if not self._is_here(request.headers.get("Host", "")):
            status, kind, content = 421, "text/plain", b"ask for this page by this machine's address\n"
        elif request.method not in ("GET", "HEAD"):
            status, kind, content = 405, "text/plain", b"this page is only to be read\n"
        elif (shown := self._shown.get(request.rel_url.raw_path_qs)) is None:
            status, kind, content = 404, "text/plain", b"there is nothing here\n"
        else:
            status, kind, content = 200, shown.kind, self._fresh(request.rel_url.raw_path_qs, shown)
        headers = {**HEADERS, "Content-Type": kind} | ({"Allow": "GET, HEAD"} if status == 405 else {})
        answer = web.Response(status=status, body=content, headers=headers)
        answer.force_close()
        return answer

    def _fresh(self, path: str, shown: Resource) -> bytes:
        """Return the content of a path, at most FRESH seconds old."""
        now = asyncio.get_running_loop().time()
        made, content = self._made.get(path, (-FRESH, b""))
        if now - made >= FRESH:
            content = shown.make()
            self._made[path] = now, content
        return content

    def _is_here(self, host: str) -> bool:
        """Return whether a Host header names this machine by an address, or by a name that DNS rebinding cannot use."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self._host.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


@contextmanager
def in_thread(page: PageServer) -> Iterator[str]:
    """Serve a page from a thread with its own event loop, for a program without one; yield its address.

    The content is computed in that thread.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="page", daemon=True)
    thread.start()

    def call(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        address = call(page.start())
        try:
            yield address
        finally:
            call(page.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _abort(connections: Iterable[web.RequestHandler]) -> None:
    """Abort connections: a normal close would wait until the client has read everything."""
    for connection in connections:
        if connection.transport is not None:
            connection.transport.abort()


class _Closed(asyncio.Protocol):
    """Handler of connections beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's transport is not a subclass


def _faults_only() -> logging.Logger:
    """Return a logger that ignores malformed requests: clients could fill a node's log with them."""
    from aiohttp.http_exceptions import HttpProcessingError

    logger = logging.Logger("page")
    logger.parent = logging.getLogger()
    logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return logger


def _words(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "not a valid host name"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error.strerror or error)
