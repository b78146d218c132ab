"""Interface of the broker client for p2pfl.protocols.mqtt.transport, its implementation with aiomqtt, and an inquiry.

The client handles no trusted or secret data except the password, and no text of this module contains the password.

Nodes use MQTT 3.1.1, in which a broker closes a connection without a reason. MQTT 5 states reasons and limits. The
inquiry at a broker that refuses or closes connections therefore connects once in that version, to learn what answers
at its address, and which limits it announces. It sends the account only to a broker that has shown the expected
certificate, as a node does, and nothing else of the node.

A broker reads as fast as it can. What it has not read waits in the buffers of the network, which hold megabytes of each
node: half a minute for a broker with 100 busy clients, much longer than anybody waits for an answer. A node therefore
has the broker confirm from time to time that it has read everything (p2pfl.protocols.mqtt.hardened_client.Client.mark), and
has at most two BATCHes on their way that are not confirmed. The rest waits here, where no link repeats it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, NamedTuple, Protocol

from p2pfl._util.printable import plural, printable
from p2pfl.protocols.addresses import PASSWORD, PORTS, BrokerAddress
from p2pfl.protocols.errors import AddressError, TransportError
from p2pfl.protocols.mqtt.reliable_stream import LARGEST_PACKET

if TYPE_CHECKING:
    import aiomqtt

    from p2pfl.protocols.mqtt.hardened_client import Client

CONNECTING = 5.0  # seconds for the broker to answer
KEEPALIVE = 10  # seconds; the broker publishes a node's last will after silence of one and a half times this period
INCOMING = 64  # maximum waiting messages; further ones are not read yet
SMALL = 4096  # bytes; packets up to this size are sent before larger ones
LEAST = 32 << 10  # bytes as which smaller packets count, because each costs the broker work
BATCH = 512 << 10  # bytes after which the broker is asked to confirm that it has read them
WAITING = 4096  # maximum number of small packets that wait for the network; older ones are dropped, as by a broker
AMBIGUOUS = "timed out", "eof", "ssl", "reset by peer", "identifier", "connection lost", "unspecified"  # in errors
FLUSHING = 2.0  # seconds to send queued data when the connection is closed on purpose
_NUMBER = re.compile(r"^\[(code|errno):? ?-?\d+\] ", re.IGNORECASE)  # before the text of an error
ADVISED = 300 << 10  # bytes; the limit of packets to set at the broker, with room for topics and headers
ANSWERING = 3.0  # seconds for each step of an inquiry
REFUSING = 0.5  # seconds for a refusal after the handshake of TLS
MOST = 4096  # bytes of an answer
CONNACK = b"\x20"  # first byte of the answer to a connection
CLOSED = (
    "closes new connections before it answers; see its log: it may have reached its limit of connections (max_connections),"
    " or refuse this machine"
)
CLIENT_CERTIFICATE = (
    "requires a certificate of its clients, which nodes do not have; set require_certificate false at the broker, and use"
    " accounts"
)


class Limits(NamedTuple):
    """Limits that a broker announces.

    Attributes:
        packet: maximum bytes of a packet; 0 for no limit.
        keepalive: maximum seconds; 0 for no limit.
        retains: whether it keeps retained messages.
    """

    packet: int = 0
    keepalive: int = 0
    retains: bool = True


NEEDS = Limits(packet=LARGEST_PACKET, keepalive=KEEPALIVE)


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
        queued: bytes of published packets that are not on their way to the broker yet; small ones count as LEAST.
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
        url: see p2pfl.protocols.addresses.
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

    async def _serve(self, client: Client, listener: Listener) -> None:
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

    async def _read(self, client: Client, listener: Listener) -> None:
        async for message in client.messages:
            more: aiomqtt.Message | None = message
            while more is not None:
                if isinstance(more.payload, bytes | bytearray):
                    listener.came(str(more.topic), bytes(more.payload))
                more = client.next_message()

    async def _write(self, client: Client, listener: Listener) -> None:
        size, confirmed = 0, asyncio.Event()  # bytes since the last mark, and whether the broker has confirmed it
        confirmed.set()
        while True:
            self._news.clear()
            while self._topics:
                await client.subscribe(self._topics.popleft())
            if packet := self._next():
                self.queued -= packet.cost
                size += packet.cost
                last = self._closing and not self._small
                client.post(packet.topic, packet.content, packet.retain)
                if last or size >= BATCH:
                    mark = client.mark()
                    await confirmed.wait()
                    size, confirmed = 0, mark
                listener.writable()
                continue
            if self._closing:  # data that arrives after the end makes the broker lose what it has not read
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSHING):
                        await confirmed.wait()
                self._empty.set()
                return
            self._empty.set()
            await self._news.wait()

    def _next(self) -> _Packet | None:
        if self._small:
            return self._small.popleft()
        return self._large.popleft() if self._large and not self._closing else None

    def publish(self, topic: str, content: bytes, retain: bool = False, last: bool = False) -> None:
        if not self.connected:
            return
        packet = _Packet(topic, content, retain)
        self.queued += packet.cost
        if last or len(content) > SMALL:
            self._large.append(packet)
        else:
            if len(self._small) == WAITING:
                self.queued -= self._small.popleft().cost
            self._small.append(packet)
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

    @property
    def cost(self) -> int:
        return max(len(self.content), LEAST)


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


def explain_silence(address: BrokerAddress, password: str | None, context: ssl.SSLContext | None, needs: Limits) -> str:
    """Return why a broker does not accept connections, with the remedy; "" if that remains unknown.

    The text is the predicate of a sentence about the broker. This function waits for the network.

    Args:
        context: the TLS context of the node; None without TLS.
        needs: what nodes need.
    """
    answer, closed = b"", False
    try:
        answer = _ask(address, context, address.user, password)
        closed = not answer
    except ssl.SSLCertVerificationError as error:
        return describe_certificate(str(error))
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error):
            return CLIENT_CERTIFICATE
        closed = isinstance(error, ssl.SSLEOFError)
    except ConnectionError as error:
        closed = not isinstance(error, ConnectionRefusedError)
    except OSError:
        pass
    if answer[:1] == CONNACK:
        return _describe_limits(read_limits(answer), needs)
    if answer:
        return _describe_other(answer, address)
    if address.scheme == "mqtts" and _answers_without_tls(address):
        return (
            f"does not use TLS at this port; name its port for TLS, usually {PORTS['mqtts']}, or use mqtt://{address.name},"
            " which does not encrypt the account"
        )
    if address.scheme == "mqtt" and _uses_tls(address):
        return f"expects TLS at this port; write mqtts:// instead of mqtt:// in its address: mqtts://{address.name}"
    return _try_http(address) or (CLOSED if closed else "")


def explain_limits(address: BrokerAddress, password: str | None, context: ssl.SSLContext | None, needs: Limits) -> str:
    """Return which limit that a broker announces nodes exceed, with the remedy; "" if none.

    See `explain_silence`.
    """
    try:
        return _describe_limits(read_limits(_ask(address, context, address.user, password)), needs)
    except OSError:
        return ""


def read_limits(answer: bytes) -> Limits:
    """Return the limits in a broker's answer to a connection in MQTT 5; none if it has another form."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    found = Properties(PacketTypes.CONNACK)  # type: ignore[no-untyped-call]
    with suppress(Exception):  # paho raises many kinds for an invalid answer
        if answer[:1] == CONNACK:
            found.unpack(answer[4:])  # type: ignore[no-untyped-call]
    packet, keepalive, retains = (
        getattr(found, name, None) for name in ("MaximumPacketSize", "ServerKeepAlive", "RetainAvailable")
    )
    return Limits(packet or 0, keepalive or 0, retains is None or bool(retains))


def _describe_limits(limits: Limits, needs: Limits) -> str:
    if not limits.retains:
        return "does not retain messages, by which nodes find each other; set retain_available true at the broker"
    if 0 < limits.packet < needs.packet:
        return (
            f"accepts packets of at most {limits.packet} bytes, but nodes use {describe_size(needs.packet)};"
            f" raise max_packet_size of the broker to {ADVISED} bytes"
        )
    if 0 < limits.keepalive < needs.keepalive:
        return (
            f"accepts a keepalive of at most {limits.keepalive} s, but nodes use {needs.keepalive} s; raise its"
            " max_keepalive"
        )
    return ""


def describe_certificate(error: str) -> str:
    """Return why the certificate of a broker is not accepted, with the remedy.

    Args:
        error: the text of the error of its verification.
    """
    reason = error.partition("certificate verify failed: ")[2].partition(" (_ssl")[0].rstrip(".") or error
    lower = reason.lower()
    if "fingerprint" in lower:
        return f"shows another certificate: {reason}; correct #sha256= in its address if the broker has a new certificate"
    if "has expired" in lower:
        return "shows a certificate that has expired; renew it at the broker, or correct the clock of this machine"
    if "not yet valid" in lower:
        return "shows a certificate that is not valid yet; correct the clock of this machine, or of the one that made it"
    if "mismatch" in lower or "not valid for" in lower:
        return f"shows a certificate for another name: {reason}; use a name of the certificate as the host in its address"
    return (
        f"does not have a trusted certificate: certificate verify failed: {reason}; set SSL_CERT_FILE to the certificate"
        " of its authority, or add #sha256=FINGERPRINT to its address"
    )


def _ask(address: BrokerAddress, context: ssl.SSLContext | None, user: str | None, password: str | None) -> bytes:
    """Connect in MQTT 5; return the first bytes of the answer, b"" if the broker closes the connection.

    Raises:
        OSError: the connection or its encryption fails, or there is no answer in time.
    """
    flags = 0x02 | (0x80 if user is not None else 0) | (0x40 if user is not None and password is not None else 0)
    content = b"\x00\x04MQTT\x05" + pack(">BH", flags, 0) + b"\x00" + _text(f"p2pfl-{os.urandom(8).hex()}")
    if user is not None:
        content += _text(user) + (b"" if password is None else _text(password))
    length, left = bytearray(), len(content)
    while True:
        left, digit = left >> 7, left & 0x7F
        length.append(digit | (0x80 if left else 0))
        if not left:
            break
    return _exchange(address, context, b"\x10" + bytes(length) + content)


def _exchange(address: BrokerAddress, context: ssl.SSLContext | None, packet: bytes) -> bytes:
    with socket.create_connection((address.host, address.port), timeout=ANSWERING) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
        with connection:
            if context is not None:  # a broker that refuses the client says so before it reads anything
                connection.settimeout(REFUSING)
                with suppress(TimeoutError):
                    return connection.recv(MOST)
            connection.settimeout(ANSWERING)
            connection.sendall(packet)
            return connection.recv(MOST)


def _text(text: str) -> bytes:
    raw = text.encode()
    return pack(">H", len(raw)) + raw


def _answers_without_tls(address: BrokerAddress) -> bool:
    try:
        return _ask(address, None, None, None)[:1] == CONNACK
    except OSError:
        return False


def _uses_tls(address: BrokerAddress) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=ANSWERING) as plain,
            context.wrap_socket(plain, server_hostname=address.host),
        ):
            return True
    except ssl.SSLError as error:
        return any(word in str(error).upper() for word in ("ALERT", "CERTIFICATE_REQUIRED"))
    except OSError:
        return False


def _try_http(address: BrokerAddress) -> str:
    """Return what answers in plain text at an address where no broker does; "" if nothing does."""
    try:
        answer = _exchange(address, None, b"GET / HTTP/1.0\r\n\r\n")
    except OSError:
        return ""
    return _describe_other(answer, address) if answer else ""


def _describe_other(answer: bytes, address: BrokerAddress) -> str:
    protocol = "HTTP" if answer.startswith(b"HTTP") else "another protocol"
    usual = " or ".join(f"{port} for {scheme}://" for scheme, port in PORTS.items())
    return f"speaks {protocol} at this port, and not MQTT; name its port for MQTT, usually {usual}"


def describe_size(size: int) -> str:
    """Return the size of a packet in words: in bytes, or in whole KiB."""
    return plural(size, "byte") if size < 1 << 10 else f"{size >> 10} KiB"
