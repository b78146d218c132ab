"""aiomqtt's client, with one fault of it mended.

It asks the event loop a moment later to watch its socket for writing. If the broker has gone away in that moment, the socket
is closed: the loop raises, or watches a file of somebody else that has the same number by then.
"""

from __future__ import annotations

from typing import Any

import aiomqtt


class Client(aiomqtt.Client):
    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # as aiomqtt does: whatever it is, the connection is of no use
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def watch() -> None:
            if sock.fileno() >= 0:
                self._loop.add_writer(sock.fileno(), write)

        self._loop.call_soon_threadsafe(watch)  # while it connects, this is another thread
