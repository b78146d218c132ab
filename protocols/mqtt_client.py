"""aiomqtt's client, such that a broker that goes away does not take the node with it.

aiomqtt asks the event loop a moment later to watch its socket for writing. In that moment the socket may be closed: then the
loop raises, or watches a file of somebody else that has the same number by now. And uvloop gives up a socket of which it saw
an error, tells at most one packet's reader so, and raises when it is asked again.
"""

from __future__ import annotations

from typing import Any

import aiomqtt


class Client(aiomqtt.Client):
    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # whatever it is, the connection is of no use
                lost(error)

        def lost(error: Exception) -> None:
            if not self._disconnected.done():
                self._disconnected.set_exception(error)

        def watch() -> None:
            if sock.fileno() < 0:
                return
            try:
                self._loop.add_writer(sock.fileno(), write)
            except RuntimeError as error:
                write()  # which finds out what is wrong, and closes the socket
                lost(error)

        self._loop.call_soon_threadsafe(watch)  # while it connects, this is another thread
