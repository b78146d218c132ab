"""Interface of the broker client for p2pfl.protocols.mqtt.transport, and its implementation with aiomqtt.

The client handles no trusted or secret data except the password, and no text of this module contains the password.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from p2pfl.protocols.broker_address import PASSWORD, BrokerAddress
from p2pfl.protocols.broker_inquiry import Limits, describe_certificate, explain_limits, explain_silence
from p2pfl.protocols.errors import AddressError, TransportError
from p2pfl.protocols.mqtt.reliable_stream import LARGEST_PACKET
from p2pfl.system.printable import printable

if TYPE_CHECKING:
    import aiomqtt

CONNECTING = 5.0  # seconds for the broker to answer
KEEPALIVE = 10  # seconds; the broker publishes a node's last will after silence of one and a half times this period
NEEDS = Limits(packet=LARGEST_PACKET, keepalive=KEEPALIVE)
INCOMING = 64  # maximum waiting messages; further ones are dropped and sent again later
SMALL = 4096  # bytes; packets up to this size are sent before larger ones
WAITING = 4096  # maximum number of small packets that wait for the network; older ones are dropped, as by a broker
AMBIGUOUS = "timed out", "eof", "ssl", "reset by peer", "identifier", "connection lost", "unspecified"  # in errors
FLUSHING = 2.0  # seconds to send queued data when the connection is closed on purpose


_NUMBER = re.compile(r"^\[(code|errno):? ?-?\d+\] ", re.IGNORECASE)  # before the text of an error


class Message(NamedTuple):
    topic: str
    content: bytes


class Listener(Protocol):
    """User of a bus."""

    def connected(self) -> None:
        """Report that the connection is open and the requested topics are subscribed."""

    def came(self, topic: str, content: bytes) -> None:
        """Report a published message, from any sender."""

    def writable(self) -> None:
        """Report that `queued` has decreased."""


class Bus(Protocol):
    """Client of a broker.

    Attributes:
        name: name of the broker, for messages to people.
        connected: whether published messages can reach the broker.
        queued: bytes of published large packets that the network has not accepted yet.
    """

    name: str
    connected: bool
    queued: int

    async def run(self, will: Message, topics: Sequence[str], listener: Listener) -> None:
        """Connect once; return when `close` has closed the connection.

        Args:
            will: message that the broker publishes if this node disappears without closing the connection.

        Raises:
            TransportError: the broker does not answer, refuses this node, or has gone away. The text gives the reason
                and names the broker.
        """

    def publish(self, topic: str, content: bytes, retain: bool = False, last: bool = False) -> None:
        """Publish a message without waiting. Without a connection the message is lost.

        Args:
            retain: whether the broker keeps the message for later subscribers.
            last: whether to send a small message after the large ones that wait, instead of before them.
        """

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic; the broker sends its retained messages again."""

    async def explain(self) -> str:
        """Return why the broker closes connections, in one sentence with the remedy; "" if it does not say so."""

    async def close(self) -> None:
        """Send the queued data, unless that takes long, and close the connection."""


class AiomqttBus:
    """Client of a broker that supports MQTT 3.1.1.

    Args:
        url: see p2pfl.protocols.broker_address.
        password_file: file with the password in its first line. Without it the password is taken from the environment
            variable P2PFL_MQTT_PASSWORD or from the URL, where other users may see it.
        tls: TLS context for mqtts; by default it trusts the authorities that the system trusts. SSL_CERT_FILE may name
            the certificate of a private authority.

    Raises:
        AddressError: the URL or the file does not have this form.
    """

    def __init__(
        self,
        url: str,
        password_file: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address = BrokerAddress.parse(url)
        self.name = address.name
        self.connected = False
        self.queued = 0
        self._password = _read(password_file) or environment.get(PASSWORD) or address.password
        self._tls = tls or address.tls_context()
        self._explanation = ""  # why the broker has not accepted a connection since the last one
        self._small: deque[_Packet] = deque(maxlen=WAITING)
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
            self._address.host,
            self._address.port,
            username=self._address.user,
            password=self._password,
            identifier=f"p2pfl-{os.urandom(8).hex()}",
            will=aiomqtt.Will(will.topic, will.content),
            logger=_silent(),
            timeout=CONNECTING,
            keepalive=KEEPALIVE,
            max_queued_incoming_messages=INCOMING,
            tls_context=self._tls,
            tls_insecure=True if self._address.fingerprint else None,  # the context compares the fingerprint instead
        )
        stood = False
        try:
            async with client:
                await client.subscribe([(topic, 0) for topic in topics])
                self.connected = stood = True
                self._explanation = ""
                listener.connected()
                await self._serve(client, listener)
        except (aiomqtt.MqttError, OSError, ValueError) as error:  # ValueError: an invalid packet or topic
            failure = describe_failure(error, stood)
            if not stood and any(text in str(error).lower() for text in AMBIGUOUS):
                self._explanation = self._explanation or await self._inquire(explain_silence)
                failure = self._explanation or failure
            raise TransportError(f"the broker at {self.name} {failure}") from None
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

    def publish(self, topic: str, content: bytes, retain: bool = False, last: bool = False) -> None:
        if not self.connected:
            return
        large = len(content) > SMALL
        self.queued += len(content) if large else 0
        (self._large if large or last else self._small).append(_Packet(topic, content, retain))
        self._empty.clear()
        self._news.set()

    def subscribe(self, topic: str) -> None:
        if self.connected:
            self._topics.append(topic)
            self._news.set()

    async def explain(self) -> str:
        reason = await self._inquire(explain_limits)
        return f"the broker at {self.name} {reason}" if reason else ""

    async def _inquire(self, inquiry: Callable[[BrokerAddress, str | None, ssl.SSLContext | None, Limits], str]) -> str:
        """Return the result of an inquiry at the broker, which runs in a thread."""
        return printable(await asyncio.to_thread(inquiry, self._address, self._password, self._tls, NEEDS))

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
        raise AddressError(f"cannot read the password of the broker from {file}") from None
    return lines[0] if lines else None


def _silent() -> logging.Logger:
    """Return a logger without output: errors are raised, and lost messages are sent again."""
    logger = logging.getLogger("p2pfl.mqtt")
    logger.disabled = True
    return logger


def describe_failure(error: Exception, stood: bool) -> str:
    """Describe an error of the client. The client's own texts contain no credentials, but sometimes only a code."""
    given = _NUMBER.sub("", printable(" ".join(str(error).split()))) or type(error).__name__
    text = given.lower()
    if stood:
        return f"closed the connection: {text}"
    if "not authorized" in text or "bad user name" in text or "not authorised" in text:
        return (
            f"refuses this node: {text}; check the user name in mqtts://USER@HOST:PORT and {PASSWORD}, and that the broker"
            " accepts client ids that begin with p2pfl-"
        )
    if "identifier" in text:
        return (
            f"refuses this node: {text}; let it accept client ids that begin with p2pfl- (clientid_prefixes), and a"
            f" keepalive of {KEEPALIVE} s (max_keepalive)"
        )
    if "certificate verify failed" in text:
        return describe_certificate(given)
    return f"does not answer: {text}"
