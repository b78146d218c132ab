"""The broker as p2pfl.protocols.mqtt.transport sees it, and the real one, over aiomqtt.

Nothing here is trusted or secret but the password, which no text of this module contains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from p2pfl.protocols.addresses import join_address
from p2pfl.protocols.errors import AddressError, TransportError
from p2pfl.system.printable import printable

if TYPE_CHECKING:
    import aiomqtt

PASSWORD = "P2PFL_MQTT_PASSWORD"
PORTS = {"mqtt": 1883, "mqtts": 8883}
CONNECTING = 5.0  # seconds for the broker to answer
KEEPALIVE = 10  # seconds; the broker publishes a node's last will when it has heard nothing for one and a half times as long
INCOMING = 64  # messages that may wait to be looked at; what comes then is lost, and will be sent again
SMALL = 4096  # bytes; packets up to this size are sent before larger ones
FLUSHING = 2.0  # seconds for what is still to be sent when the connection is closed on purpose


class Message(NamedTuple):
    topic: str
    content: bytes


class Listener(Protocol):
    """Who uses a bus."""

    def connected(self) -> None:
        """A connection stands, and what was asked for is subscribed to."""

    def came(self, topic: str, content: bytes) -> None:
        """Something was published, by whomever."""

    def writable(self) -> None:
        """`queued` has become less."""


class Bus(Protocol):
    """Attributes:
    name: of the broker, for messages to people.
    connected: whether what is published can reach it.
    queued: bytes of large packets that were published and that the network has not taken yet.
    """

    name: str
    connected: bool
    queued: int

    async def run(self, will: Message, topics: Sequence[str], listener: Listener) -> None:
        """Connect once; return when the connection was closed by `close`.

        Args:
            will: is published by the broker when this node goes away without a word.

        Raises:
            TransportError: the broker does not answer, lets this node not in, or has gone away. The text says which, and
                names the broker.
        """

    def publish(self, topic: str, content: bytes, retain: bool = False) -> None:
        """Publish something, without waiting; what is published while there is no connection is lost.

        Args:
            retain: the broker keeps it for those who subscribe later.
        """

    def subscribe(self, topic: str) -> None:
        """Subscribe; what the broker has kept comes again."""

    async def close(self) -> None:
        """Send what is queued, unless it takes long, and end the connection."""


class AiomqttBus:
    """A broker that speaks MQTT 3.1.1.

    Args:
        url: mqtt://[user[:password]@]host[:port], or mqtts:// for TLS.
        password_file: whose first line is the password; otherwise it is taken from the environment variable
            P2PFL_MQTT_PASSWORD, or else from the URL, where others may see it.
        tls: for mqtts, by default a context that trusts whom the system trusts; SSL_CERT_FILE may name the certificate of an
            authority of one's own.

    Raises:
        AddressError: the URL or the file is not of this form.
    """

    def __init__(
        self,
        url: str,
        password_file: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:  # without its text, which may quote the password
            host, port = None, 0
        if not host or not port or parts.path.strip("/") or parts.query:
            raise AddressError("the address of a broker is of the form mqtt://host:1883 or mqtts://user@host:8883")
        self.name = join_address(host, port)
        self.connected = False
        self.queued = 0
        self._host, self._port = host, port
        self._user = unquote(parts.username) if parts.username else None
        self._password = _read(password_file) or environment.get(PASSWORD) or unquote(parts.password or "") or None
        self._tls = tls
        if parts.scheme == "mqtts" and tls is None:
            self._tls = ssl.create_default_context()
        self._small: deque[_Packet] = deque()
        self._large: deque[_Packet] = deque()
        self._topics: deque[str] = deque()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._closing = False

    def __repr__(self) -> str:
        return f"AiomqttBus({self.name})"

    async def run(self, will: Message, topics: Sequence[str], listener: Listener) -> None:
        import aiomqtt

        from p2pfl.protocols.mqtt.hardened_client import Client

        client = Client(
            self._host,
            self._port,
            username=self._user,
            password=self._password,
            identifier=f"p2pfl-{os.urandom(8).hex()}",
            will=aiomqtt.Will(will.topic, will.content),
            logger=_silent(),
            timeout=CONNECTING,
            keepalive=KEEPALIVE,
            max_queued_incoming_messages=INCOMING,
            tls_context=self._tls,
        )
        stood = False
        try:
            async with client:
                await client.subscribe([(topic, 0) for topic in topics])
                self.connected = stood = True
                listener.connected()
                await self._serve(client, listener)
        except (aiomqtt.MqttError, OSError, ValueError) as error:  # the last: a packet or a topic that cannot be
            raise TransportError(f"the broker at {self.name} {describe_failure(error, stood)}") from None
        finally:
            client.abandon()
            self.connected = False
            self._forget()

    async def _serve(self, client: aiomqtt.Client, listener: Listener) -> None:
        """Read and write until the connection ends."""
        import aiomqtt

        reading = asyncio.ensure_future(self._read(client, listener))
        writing = asyncio.ensure_future(self._write(client, listener))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            for outcome in await asyncio.gather(reading, writing, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, aiomqtt.MqttError):
                    raise outcome
        for task in (reading, writing):
            if not task.cancelled():
                task.result()

    async def _read(self, client: aiomqtt.Client, listener: Listener) -> None:
        async for message in client.messages:
            if isinstance(message.payload, bytes | bytearray):
                listener.came(str(message.topic), bytes(message.payload))

    async def _write(self, client: aiomqtt.Client, listener: Listener) -> None:
        while True:
            self._news.clear()
            while self._topics:
                await client.subscribe(self._topics.popleft())
            if packet := self._next():
                await client.publish(packet.topic, packet.content, 0, packet.retain, timeout=inf)
                if len(packet.content) > SMALL:
                    self.queued -= len(packet.content)
                    listener.writable()
                continue
            self._empty.set()
            if self._closing:
                return
            await self._news.wait()

    def _next(self) -> _Packet | None:
        if self._small:
            return self._small.popleft()
        return self._large.popleft() if self._large and not self._closing else None

    def publish(self, topic: str, content: bytes, retain: bool = False) -> None:
        if not self.connected:
            return
        if len(content) > SMALL:
            self.queued += len(content)
            self._large.append(_Packet(topic, content, retain))
        else:
            self._small.append(_Packet(topic, content, retain))
        self._empty.clear()
        self._news.set()

    def subscribe(self, topic: str) -> None:
        if self.connected:
            self._topics.append(topic)
            self._news.set()

    async def close(self) -> None:
        self._closing = True
        self._news.set()
        if self.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSHING):
                    await self._empty.wait()

    def _forget(self) -> None:
        for queue in (self._small, self._large, self._topics):
            queue.clear()
        self.queued = 0
        self._empty.set()


class _Packet(NamedTuple):
    topic: str
    content: bytes
    retain: bool


def _read(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise AddressError(f"the broker's password cannot be read from {file}") from None
    return lines[0] if lines else None


def _silent() -> logging.Logger:
    """Return a logger that says nothing: what goes wrong is raised, and lost messages are sent again."""
    logger = logging.getLogger("p2pfl.mqtt")
    logger.disabled = True
    return logger


def describe_failure(error: Exception, stood: bool) -> str:
    """Say what an error of the client means. Its own texts contain no credentials, but sometimes only a code."""
    text = printable(" ".join(str(error).split()).lower()) or type(error).__name__
    if stood:
        return f"has ended the connection: {text}"
    if "not authorized" in text or "bad user name" in text or "not authorised" in text:
        return f"does not let this node in: {text}; check the user name and {PASSWORD}"
    return f"does not answer: {text}"
