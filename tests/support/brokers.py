"""Brokers for tests: real ones on a free port of loopback, and an in-memory one that can be hostile."""

import asyncio
import contextlib
import datetime
import importlib.util
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from p2pfl.protocols.errors import TransportError
from tests.support.ports import free_port

PATIENCE = 60  # seconds of real time after which something has gone wrong

CONNACK = b"\x20\x02\x00\x00"
TRICKS = {  # the broker's answer to a client, and whether it then closes the connection
    "closes": (CONNACK, True),
    "reserved type": (CONNACK + b"\x00\x00", False),
    "a length of five bytes": (CONNACK + b"\x30\xff\xff\xff\xff\xff\x01", False),
    "a publication of no bytes": (CONNACK + b"\x30\x00", False),
    "a publication to a wildcard": (CONNACK + b"\x30\x05\x00\x01#xx", False),
    "disconnects": (CONNACK + b"\xe0\x00", False),
    "lets in, then refuses": (CONNACK + b"\x20\x02\x00\x05", False),
    "refuses": (b"\x20\x02\x00\x05", False),
    "nonsense": (b"\x00\x00\x00\x00", False),
    "publishes first": (b"\x30\x05\x00\x01#xx", False),
    "half an answer": (b"\x20\x02", False),
}


@contextlib.asynccontextmanager
async def tricking(trick):
    """Run a broker that answers with one of TRICKS; yield its URL and an event that a client has disconnected."""
    answer, closes = TRICKS[trick]
    ended = asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readexactly(2)
            length = head[1] if head[1] < 128 else head[1] - 128 + 128 * (await reader.readexactly(1))[0]
            await reader.readexactly(length)
            writer.write(answer)
            if closes:
                writer.close()
            await reader.read(-1)
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", ended
    finally:
        server.close()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Broker:
    """A broker process that can be killed and started again at the same port.

    Args:
        command: returns the command line for a port.
    """

    def __init__(self, command, **options):
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._command, self._options = command, options
        self.start()

    def start(self):
        self._process = subprocess.Popen(
            self._command(self.port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._options
        )
        deadline = time.monotonic() + PATIENCE
        while not answers(self.port):
            assert self._process.poll() is None, "the broker has ended"
            assert time.monotonic() < deadline, "the broker does not come up"
            time.sleep(0.02)  # real time: this is a real process

    def kill(self):
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def mosquitto(config_lines=(), files=None):
    """Run Mosquitto if it is installed; without lines about access everything is allowed.

    Args:
        config_lines: lines in which {folder} stands for the folder of the files.
        files: their texts, by name.
    """
    program = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    if program is None:
        pytest.skip("Mosquitto is not installed")
    folder = Path(tempfile.mkdtemp(prefix="mosquitto-"))
    folder.chmod(0o755)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    lines = [line.format(folder=folder) for line in config_lines]
    if not any("allow_anonymous" in line for line in lines):
        lines.append("allow_anonymous true")

    def command(port):
        config = folder / "mosquitto.conf"
        config.write_text("\n".join([f"listener {port} 127.0.0.1", "max_qos 0", "persistence false", *lines]) + "\n")
        return [program, "-c", str(config)]

    broker = Broker(command, **({"user": "nobody"} if os.geteuid() == 0 else {}))
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder)


def make_certificate():
    """Return a certificate for a broker at 127.0.0.1 and its key, by file name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2099, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .sign(key, SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {"cert.pem": made.public_bytes(serialization.Encoding.PEM).decode(), "key.pem": private.decode()}


AMQTT = """
import asyncio, logging, sys
from amqtt.broker import Broker

async def serve(port):
    broker = Broker({
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    })
    await broker.start()
    await asyncio.Event().wait()

logging.disable(logging.CRITICAL)
asyncio.run(serve(sys.argv[1]))
"""


@contextlib.contextmanager
def amqtt():
    """Run amqtt in its own process; everything is allowed."""
    if importlib.util.find_spec("amqtt") is None:
        pytest.skip("amqtt is not installed")
    broker = Broker(lambda port: [sys.executable, "-c", AMQTT, str(port)])
    try:
        yield broker
    finally:
        broker.kill()


class MemoryBroker:
    """
    Attributes:
        seen: all published messages, as (topic, content).
        fate: returns the deliveries of a published message, as a list of (seconds, topic, content).
        allowed: returns whether messages of a topic are delivered.
        up: whether it answers.
    """

    name = "memory:1883"

    def __init__(self):
        self.seen = []
        self.fate = lambda topic, content: [(0.001, topic, content)]
        self.allowed = lambda topic: True
        self.up = True
        self.retained = {}
        self.connections = []
        self.attempts = Counter()

    def bus(self):
        return MemoryBus(self)

    def publish(self, topic, content, retain=False):
        self.seen.append((topic, content))
        if not self.allowed(topic):
            return
        if retain:
            self.retained[topic] = content
        for seconds, place, altered in self.fate(topic, content):
            asyncio.get_running_loop().call_later(seconds, self.deliver, place, altered)

    def deliver(self, topic, content):
        for bus in list(self.connections):
            if any(matches(topic, pattern) for pattern in bus.topics):
                bus.listener.came(topic, content)

    def go_away(self):
        self.up = False
        for bus in list(self.connections):
            bus.end("closed the connection: killed")

    def drop(self, bus):
        """Lose a node's connection, so that its last will is published."""
        bus.end("closed the connection: lost")


class MemoryBus:
    def __init__(self, broker):
        self.broker = broker
        self.name = broker.name
        self.connected = False
        self.queued = 0
        self.topics = []

    async def run(self, will, topics, listener):
        self.broker.attempts[asyncio.get_running_loop().time() // 60] += 1
        if not self.broker.up:
            raise TransportError(f"the broker at {self.name} does not answer: connection refused")
        self.topics, self.listener, self.will = list(topics), listener, will
        self.ending = asyncio.get_running_loop().create_future()
        self.connected = True
        self.broker.connections.append(self)
        listener.connected()
        for pattern in topics:
            self.subscribe(pattern)
        reason = await self.ending
        if reason:
            raise TransportError(f"the broker at {self.name} {reason}")

    def end(self, reason):
        self.connected = False
        self.broker.connections.remove(self)
        if reason:
            self.broker.publish(self.will.topic, self.will.content)
        self.ending.set_result(reason)

    def publish(self, topic, content, retain=False, last=False):
        if self.connected:
            self.broker.publish(topic, bytes(content), retain)

    def subscribe(self, pattern):
        if pattern not in self.topics:
            self.topics.append(pattern)
        for topic, content in self.broker.retained.items():
            if matches(topic, pattern):
                asyncio.get_running_loop().call_later(0.001, self.listener.came, topic, content)

    async def explain(self):
        return ""

    async def close(self):
        if self.connected:
            self.end("")


def matches(topic, pattern):
    """Return whether a subscription matches a topic; the only wildcard is +."""
    parts, wanted = topic.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(
        fnmatchcase(a, "*" if b == "+" else b) for a, b in zip(parts, wanted, strict=True)
    )
