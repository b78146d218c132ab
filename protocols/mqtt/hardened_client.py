"""aiomqtt's client, hardened so that a broker that goes away does not crash the node.

aiomqtt asks the event loop with a short delay to watch its socket. During this delay the socket may be closed. Then the
loop raises, or watches an unrelated file that has the same number by now. After an error on a socket, uvloop gives the
socket up, reports this to at most one packet's reader, and raises when it is asked again. A thread opens the socket, and
may do so after the connection was abandoned.

The errors of a connection are in two futures. aiomqtt replaces them, or leaves before they are done. The event loop
then treats an error that was never retrieved as an error of the program. aiomqtt also keeps the socket of a connection
that failed.

The client keeps a packet until it is complete, and a packet of MQTT may have 256 MiB. Here it keeps the beginning only.
It also keeps each message of quality of service 2 until the broker releases it. All subscriptions have quality 0, so a
message of another quality ends the connection.

paho reads each packet in three or more calls of the system, and one packet per turn of the event loop; aiomqtt needs
further turns to pass it on, and drops packets when its queue is full. Here one call reads what has arrived, one turn
handles it, and what the queue has no room for stays in the socket.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from contextlib import suppress
from typing import Any

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode

KEPT = 512 << 10  # bytes of an incoming packet; longer ones are cut, and are then too long for their receiver, too
PIECE = 64 << 10  # bytes to read at once
MARK = "p2pfl/mark"  # topic without a subscription
QUALITY = 0b110  # bits of a PUBLISH packet's first byte with its quality of service


class Client(aiomqtt.Client):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        client, receive = self._client, self._client._sock_recv
        self._unread = memoryview(b"")  # bytes of the socket that paho has not asked for yet

        def receive_piece(size: int) -> memoryview:
            del client._in_packet["packet"][KEPT:]
            if not self._unread:
                self._unread = memoryview(receive(PIECE))
            piece, self._unread = self._unread[:size], self._unread[size:]
            return piece

        handle = client._handle_publish

        def handle_publish() -> MQTTErrorCode:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL if client._in_packet["command"] & QUALITY else handle()

        client._sock_recv = receive_piece  # type: ignore[method-assign, assignment]
        client._handle_publish = handle_publish  # type: ignore[method-assign]
        self._abandoned = False

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

    def post(self, topic: str, content: bytes, retain: bool) -> None:
        """Publish a message without waiting for the network.

        Raises:
            MqttError: the connection has ended.
        """
        info = self._client.publish(topic, content, 0, retain)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise aiomqtt.MqttCodeError(info.rc, "Could not publish message")

    def mark(self) -> asyncio.Event:
        """Return an event that is set when the broker has read all that was posted before.

        The mark is the end of a subscription that does not exist, which a broker must confirm (MQTT 3.1.1, section
        3.10.4). A message of quality of service 1 would be one, too, but some brokers admit quality 0 only.

        Raises:
            MqttError: the connection has ended.
        """
        rc, mid = self._client.unsubscribe(MARK)
        if rc != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise aiomqtt.MqttCodeError(rc, "Could not unsubscribe")
        done = self._pending_unsubscribes[mid] = asyncio.Event()
        return done

    def next_message(self) -> aiomqtt.Message | None:
        """Return the next message if it has arrived; `messages` would need some turns of the event loop for it."""
        return None if self._queue.empty() else self._queue.get_nowait()

    def abandon(self) -> None:
        """Close the socket, in any state of the connection; also one that a thread opens later."""
        self._abandoned = True
        if self._misc_task is not None:
            self._misc_task.cancel()
        with suppress(Exception):  # an error here is useless and would hide the first one
            self._client._sock_close()

    def _lost(self, error: Exception) -> None:
        if not self._disconnected.done():
            self._disconnected.set_exception(error)

    async def _misc_loop(self) -> None:
        try:
            await super()._misc_loop()
        except Exception as error:  # no task waits for this one
            self._lost(error)

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        def read() -> None:
            try:
                while not self._queue.full():
                    if client.loop_read() or not (self._unread or _pending(client._sock)):
                        return
            except Exception as error:
                self._lost(error)
            else:
                self._loop.call_soon(read)  # bytes that are here already wake no loop

        def watch() -> None:
            if self._abandoned or sock.fileno() < 0:
                self.abandon()
                return
            self._loop.add_reader(sock.fileno(), read)
            self._misc_task = self._loop.create_task(self._misc_loop())

        self._loop.call_soon_threadsafe(watch)  # called from another thread while connecting

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # after any error the connection is unusable
                self._lost(error)

        def watch() -> None:
            if sock.fileno() < 0:
                return
            try:
                self._loop.add_writer(sock.fileno(), write)
            except RuntimeError as error:
                write()  # detects the error and closes the socket
                self._lost(error)

        self._loop.call_soon_threadsafe(watch)  # called from another thread while connecting


def _pending(sock: Any) -> bool:
    """Return whether a socket with TLS has decrypted bytes that were not read."""
    return hasattr(sock, "pending") and sock.pending() > 0


def _retrieve(future: Future[None]) -> None:
    """Retrieve the error of a future, so that the event loop does not report it."""
    if not future.cancelled():
        future.exception()
