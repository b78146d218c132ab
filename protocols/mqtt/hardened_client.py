"""aiomqtt's client, such that a broker that goes away does not take the node with it.

aiomqtt asks the event loop a moment later to watch its socket for writing. In that moment the socket may be closed: then the
loop raises, or watches a file of somebody else that has the same number by now. And uvloop gives up a socket of which it saw
an error, tells at most one packet's reader so, and raises when it is asked again.

The errors of a connection are in two futures. aiomqtt replaces them, or leaves before they are done. The event loop then
takes an error that nobody looked at for one of the program. aiomqtt also keeps the socket of a connection that failed.
"""

from __future__ import annotations

from asyncio import Future
from contextlib import suppress
from typing import Any

import aiomqtt


class Client(aiomqtt.Client):
    @property
    def _connected(self) -> Future[None]:
        return self.__connected

    @_connected.setter
    def _connected(self, future: Future[None]) -> None:
        future.add_done_callback(_retrieve)
        self.__connected = future

    @property
    def _disconnected(self) -> Future[None]:
        return self.__disconnected

    @_disconnected.setter
    def _disconnected(self, future: Future[None]) -> None:
        future.add_done_callback(_retrieve)
        self.__disconnected = future

    def abandon(self) -> None:
        """Close the socket, whatever state the connection is in."""
        if self._misc_task is not None:
            self._misc_task.cancel()
        with suppress(Exception):  # an error here is of no use to anybody, and would mask the first one
            self._client._sock_close()

    def _lost(self, error: Exception) -> None:
        if not self._disconnected.done():
            self._disconnected.set_exception(error)

    async def _misc_loop(self) -> None:
        try:
            await super()._misc_loop()
        except Exception as error:  # nobody waits for this task
            self._lost(error)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # whatever it is, the connection is of no use
                self._lost(error)

        def watch() -> None:
            if sock.fileno() < 0:
                return
            try:
                self._loop.add_writer(sock.fileno(), write)
            except RuntimeError as error:
                write()  # which finds out what is wrong, and closes the socket
                self._lost(error)

        self._loop.call_soon_threadsafe(watch)  # while it connects, this is another thread


def _retrieve(future: Future[None]) -> None:
    """Look at the error of a future, so that the event loop does not report it as lost."""
    if not future.cancelled():
        future.exception()
