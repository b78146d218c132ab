"""Malicious member of a federation over TLS, for benchmarks."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.certificates import client_context
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Payload

AGAIN = 0.5  # seconds until a lost link is replaced
LARGEST = 64 << 20


class Adversary:
    """Member that ignores the rules of the protocol.

    Args:
        folder: of the member.
        n_samples: number of samples that it claims.

    Attributes:
        round: the round that it claims, by default that of the others.
        links: links to the nodes that it has dialled, by name.
        serve: answers a request for a model; by default no model is sent.
    """

    def __init__(self, folder: Path, n_samples: int = 50) -> None:
        self.identity = Identity.load(folder / config.KEY)
        membership = load_federation(folder)
        assert membership is not None
        self.membership = membership
        self.n_samples = n_samples
        self.round = 0
        self.follows = True
        self.links: dict[str, Link] = {}
        self.term = (0, 0)  # membership version and number
        self.coordinator = ""
        self.assigned = b""  # the payload of the last assignment
        self.serve: Callable[[str, Link, m.Get], Awaitable[None]] = self._have_none
        self._keys = {member.name: member.key for member in membership.members.values()}
        self._signer = FrameSigner(self.identity, membership.federation, bytes(16), int(time.time()))
        self._verifier = FrameVerifier(self._keys, self.identity.public, membership.federation, LARGEST)
        self._transport = TlsTransport("127.0.0.1:0", self.identity, membership, LARGEST)
        self._transport.use(self)
        self._terms: dict[str, asyncio.Future[m.HelloParameters]] = {}
        self._agreed: dict[str, m.HelloParameters] = {}
        self._answers: dict[int, asyncio.Future[tuple[m.Message, bytes]]] = {}
        self._numbers = count(1 << 20)
        self._tasks: set[asyncio.Task[None]] = set()

    # Callbacks of the transport

    def received(self, link: Link, frame: memoryview) -> None:
        link.trust()
        with suppress(ProtocolError, TransportError):
            opened = self._verifier.open(frame, link.session, link.key)
            self._handle(opened.sender, link, opened.message, bytes(opened.payload))

    def _handle(self, name: str, link: Link, message: m.Message, payload: bytes) -> None:
        match message:
            case m.Hello() | m.Welcome():
                self._agreed[name] = m.decode_hello_parameters(payload)
                if isinstance(message, m.Hello):
                    self.send(link, m.Welcome(), self.terms(name))
                if (waiting := self._terms.pop(name, None)) is not None and not waiting.done():
                    waiting.set_result(self._agreed[name])
            case m.Ping():
                self.send(link, m.Pong(message.request, self.round))
            case m.RoundReached() if self.follows and message.round > self.round:
                self.claim(message.round)
            case m.Leading():
                self.term, self.coordinator = (message.membership_version, message.term), name
                self.send(link, m.Following(message.membership_version, message.term, message.beat))
            case m.Assigned() if message.given:
                self.assigned = payload
            case m.Get():
                self.begin(self.serve(name, link, message))
            case m.ModelUpdate() | m.NotAvailable():
                if (answer := self._answers.pop(message.request, None)) is not None and not answer.done():
                    answer.set_result((message, payload))

    def drained(self, link: Link) -> None: ...

    def lost(self, link: Link, reason: str) -> None:
        self.links = {name: known for name, known in self.links.items() if known is not link}

    def refused(self, cause: str, detail: str) -> None: ...

    # Messages

    def begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._count_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _count_errors(self, work: Awaitable[None]) -> None:
        with suppress(TransportError, TimeoutError):
            await work

    async def _have_none(self, name: str, link: Link, get: m.Get) -> None:
        self.send(link, m.NotAvailable(get.request, self.round, "gone"))

    def terms(self, name: str, **changes: Any) -> bytes:
        theirs = self._agreed[name]
        values = {"round": self.round, "stopped": False, "membership_version": theirs.membership_version} | changes
        return m.HelloParameters(theirs.agreed, {"n_samples": self.n_samples}, **values).encode()

    def frame(self, link: Link, message: m.Message, payload: bytes = b"") -> bytes:
        assert link.key is not None
        parts = self._signer.seal(message, link.key, Payload.of(payload), link.session)
        return b"".join(bytes(part) for part in parts)

    def send(self, link: Link, message: m.Message, payload: bytes = b"") -> None:
        link.send([self.frame(link, message, payload)])

    def claim(self, round: int) -> None:
        """Claim to be in a round, on all links."""
        self.round = round
        for link in list(self.links.values()):
            with suppress(TransportError):
                self.send(link, m.RoundReached(round))

    async def ask(self, link: Link, round: int, stage: m.Stage) -> bytes | None:
        """Return a model's payload, or None if there is none."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.send(link, m.Get(number, round, stage))
        message, payload = await asyncio.wait_for(answer, 10)
        return payload if isinstance(message, m.ModelUpdate) else None

    def submit(self, params: bytes) -> None:
        """Submit a model for the claimed round to the coordinator, if there is one."""
        link = self.links.get(self.coordinator)
        if link is not None:
            self.send(link, m.Submit(next(self._numbers), self.round, *self.term, self.n_samples, False), params)

    async def introduce(self, name: str, address: str, **changes: Any) -> Link:
        """Dial a node, accept all of its terms, and return the link."""
        link = await self._transport.dial(address, self._keys[name])
        if name not in self._agreed:
            await self._hello(name, link, m.HelloParameters({}, {}, 0, False).encode())
        await self._hello(name, link, self.terms(name, **changes))
        link.trust()
        self.links[name] = link
        return link

    async def _hello(self, name: str, link: Link, terms: bytes) -> None:
        answer = self._terms[name] = asyncio.get_running_loop().create_future()
        self.send(link, m.Hello(), terms)
        await asyncio.wait_for(answer, 10)

    async def stay(self, name: str, address: str) -> None:
        """Dial a node, and dial it again whenever the link is lost."""
        while True:
            if name not in self.links:
                with suppress(TransportError, TimeoutError):
                    await self.introduce(name, address)
            await asyncio.sleep(AGAIN)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._transport.close()


# Floods


def flood_frames(kind: str, adversary: Adversary, link: Link, name: str) -> Callable[[int], bytes]:
    """Return a function that makes the n-th frame of a flood."""
    model = np.random.default_rng(0).standard_normal(4810).astype("<f4").tobytes()
    terms = adversary.terms(name) if name in adversary._agreed else b""

    def changed(frame: bytes) -> bytes:
        return frame[:260] + bytes([frame[260] ^ 1]) + frame[261:]

    subject = adversary.identity.public
    return {
        "ping": lambda n: adversary.frame(link, m.Ping(n)),
        "hello": lambda n: adversary.frame(link, m.Hello(), terms),
        "score": lambda n: adversary.frame(link, m.Score(n, 1), model),
        "get": lambda n: adversary.frame(link, m.Get(n, 0, "trained")),
        "probe": lambda n: adversary.frame(link, m.PingRequest(n, subject)),
        "signatures": lambda n: changed(adversary.frame(link, m.Ping(n))),
        "junk": lambda n: os.urandom(400),
        "flap": lambda n: adversary.frame(link, m.Bye(0, True) if n % 2 else m.Hello(), b"" if n % 2 else terms),
    }[kind]


FLOODS = ("ping", "hello", "score", "get", "probe", "signatures", "junk", "flap")


async def flood_member(kind: str, folder: Path, name: str, address: str) -> None:
    """Send frames to a node as fast as it accepts them."""
    adversary = Adversary(folder)
    while True:
        try:
            link = await adversary.introduce(name, address)
            make = flood_frames(kind, adversary, link, name)
            for n in count(1):
                link.send([make(n % 2**32)])
                while link.backlog > 1 << 20:  # noqa: ASYNC110 (the transport tells its handler, not this task)
                    await asyncio.sleep(0.005)
                if n % 20 == 0:
                    await asyncio.sleep(0)
        except (TransportError, TimeoutError):
            await asyncio.sleep(AGAIN)


class _Pipe:
    """Stand-in for a link, with only its key and session."""

    key, session = bytes(31) + b"\1", bytes(16)


async def flood_sink(kind: str, folder: Path, address: str) -> None:
    """Send the frames of a flood to a port that discards them."""
    adversary, context = Adversary(folder), client_context()
    make = flood_frames(kind, adversary, _Pipe(), "")  # type: ignore[arg-type]
    _, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    for n in count(1):
        frame = make(n % 2**32)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        if n % 20 == 0:
            await writer.drain()
            await asyncio.sleep(0)


async def connect_silently(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Open a connection and send nothing; repeat whenever it ends."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(1.0)


async def hold_frames(folder: Path, name: str, address: str, size: int) -> None:
    """Open links, begin a frame of the maximum size on each, and stop one byte before its end."""
    adversary = Adversary(folder)
    while True:
        with suppress(TransportError, TimeoutError):
            link = await adversary.introduce(name, address)
            tls = link.connection  # type: ignore[attr-defined]
            tls.write(size.to_bytes(4, "big") + bytes(size - 1))
        await asyncio.sleep(AGAIN)


async def say_nothing(folder: Path, nodes: dict[str, str]) -> None:
    """Run a member that answers pings, is always in the round of the others, and never answers a request."""
    adversary = Adversary(folder)

    async def nothing(name: str, link: Link, get: m.Get) -> None: ...

    adversary.serve = nothing
    await asyncio.gather(*(adversary.stay(name, address) for name, address in nodes.items()))
