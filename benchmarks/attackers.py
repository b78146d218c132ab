"""Attackers of node processes, for benchmarks: malicious members, strangers, and a broker.

Each runs in a process of its own, which `attacking` starts. A malicious member has the folder of an admitted node, but
ignores the rules of the protocol. Its attacks are floods of frames, frames that never end, silence, and poisoned models.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from p2pfl.node.exchange.message_exchange import max_frame
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.certificates import client_context, make_certificate, server_context
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameVerifier
from tests.support.brokers import CONNACK, TRICKS
from tests.support.loopback_nodes import Intruder

AGAIN = 0.5  # seconds until a lost link is replaced
LARGEST = 16 << 20  # values of a model in a frame
VALUES = 4810  # in the model of the task digits
MOST = 2**32 - 1  # samples or rounds that a member can claim
CONNECTIONS = 500  # of strangers; half of them begin TLS
ASKING = 0.02  # seconds between requests of the member that reads nothing
SPELL = 60.0  # seconds of one of several attacks
FLOODS = ("ping", "hello", "score", "get", "probe", "signatures", "junk", "flap")
ATTACKS = ("connections", "half-frames", "tarpit", *FLOODS)
POISONS = ("huge", "own-scaled", "own-flipped", "echo", "noise", "samples")


class Adversary(Intruder):
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
        membership = load_federation(folder)
        assert membership is not None
        super().__init__(Identity.load(folder / config.KEY), membership, int(time.time()), LARGEST)
        self.n_samples = n_samples
        self.round = 0
        self.follows = True
        self.links: dict[str, Link] = {}
        self.term = (0, 0)  # membership version and number
        self.coordinator = ""
        self.assigned = b""  # the payload of the last assignment
        self.serve: Callable[[str, Link, m.Get], Awaitable[None]] = self._have_none
        self._keys = {member.name: member.key for member in membership.members.values()}
        self._verifier = FrameVerifier(self._keys, self.key, membership.federation, 4 * LARGEST)
        self._terms: dict[str, asyncio.Future[m.HelloParameters]] = {}
        self._agreed: dict[str, m.HelloParameters] = {}
        self._answers: dict[int, asyncio.Future[tuple[m.Message, bytes]]] = {}
        self._numbers = count(1 << 20)
        self._tasks: set[asyncio.Task[None]] = set()

    # Callbacks of the transport

    def received(self, link: Link, frame: memoryview) -> None:
        link.trust()
        with suppress(ProtocolError, TransportError):
            opened = self._verifier.open(frame, link.session, link.key, version=link.version)
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

    def lost(self, link: Link, reason: str) -> None:
        self.links = {name: known for name, known in self.links.items() if known is not link}

    # Messages

    def begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._ignore_losses(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ignore_losses(self, work: Awaitable[None]) -> None:
        with suppress(TransportError, TimeoutError):
            await work

    async def _have_none(self, name: str, link: Link, get: m.Get) -> None:
        self.send(link, m.NotAvailable(get.request, self.round, "gone"))

    def terms(self, name: str, **changes: Any) -> bytes:
        theirs = self._agreed[name]
        values = {"round": self.round, "stopped": False, "membership_version": theirs.membership_version} | changes
        return m.HelloParameters(theirs.agreed, {"n_samples": self.n_samples}, **values).encode()

    def send(self, link: Link, message: m.Message, payload: bytes = b"") -> None:
        link.send([self.seal(link, message, payload)])

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
        link = await self.transport.dial(address, self._keys[name])
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


# Floods


def flood_frames(kind: str, adversary: Adversary, link: Link, name: str) -> Callable[[int], bytes]:
    """Return a function that makes the n-th frame of a flood."""
    model = np.random.default_rng(0).standard_normal(VALUES).astype("<f4").tobytes()
    terms = adversary.terms(name) if name in adversary._agreed else b""

    def changed(frame: bytes) -> bytes:
        return frame[:260] + bytes([frame[260] ^ 1]) + frame[261:]

    subject = adversary.identity.public
    return {
        "ping": lambda n: adversary.seal(link, m.Ping(n)),
        "hello": lambda n: adversary.seal(link, m.Hello(), terms),
        "score": lambda n: adversary.seal(link, m.Score(n, 1), model),
        "get": lambda n: adversary.seal(link, m.Get(n, 0, "trained")),
        "probe": lambda n: adversary.seal(link, m.PingRequest(n, subject)),
        "signatures": lambda n: changed(adversary.seal(link, m.Vote(1, n, True))),
        "junk": lambda n: os.urandom(400),
        "flap": lambda n: adversary.seal(link, m.Bye(0, True) if n % 2 else m.Hello(), b"" if n % 2 else terms),
    }[kind]


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


async def flood_sink(kind: str, folder: Path, address: str) -> None:
    """Send the frames of a flood to a port that discards them."""
    adversary, context = Adversary(folder), client_context()
    make = flood_frames(kind, adversary, SimpleNamespace(key=bytes(31) + b"\1", session=bytes(16)), "")  # type: ignore[arg-type]
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


async def read_nothing(folder: Path, name: str, address: str) -> None:
    """Request every model, and read none."""
    adversary = Adversary(folder)
    while True:
        with suppress(TransportError, OSError, TimeoutError):
            link = await adversary.introduce(name, address, stopped=True)
            link.connection.pause_reading()  # type: ignore[attr-defined]
            for number in count(1):
                adversary.send(link, m.Get(number, adversary.round + number % 2, "trained"))
                await asyncio.sleep(ASKING / 2)
        await asyncio.sleep(1.0)


def strangers(address: str) -> Iterator[Any]:
    host, port = split_address(address)
    context = client_context()
    return (connect_silently(host, port, context if k % 2 else None) for k in range(CONNECTIONS))


async def attack(kind: str, folder: str, nodes: dict[str, str]) -> None:
    """Attack the first of some nodes, in one of the ways of ATTACKS."""
    (name, address), member = next(iter(nodes.items())), Path(folder)
    if kind == "tarpit":
        await say_nothing(member, nodes)
    elif kind == "half-frames":
        await hold_frames(member, name, address, max_frame(VALUES))
    elif kind == "connections":
        await asyncio.gather(*strangers(address), read_nothing(member, name, address))
    else:
        await flood_member(kind, member, name, address)


async def attack_in_turn(folder: str, nodes: dict[str, str]) -> None:
    """Start a different attack of a member against a different node in every interval."""
    names = list(nodes)
    for n in count():
        order = [*names[n % len(names) :], *names[: n % len(names)]]
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(SPELL):
                await attack(ATTACKS[1:][n % len(ATTACKS[1:])], folder, {name: nodes[name] for name in order})


# The same load on a port that discards it


async def control(kind: str, folder: str, address: str) -> None:
    """Send what an attack sends to a sink."""
    if kind in FLOODS:
        await flood_sink(kind, Path(folder), address)
    elif kind == "connections":
        await asyncio.gather(*strangers(address))
    await asyncio.Event().wait()


async def sink() -> None:
    """Accept connections and discard their data; print the port."""
    identity = Identity.from_seed(bytes(32))
    context = server_context(identity, make_certificate(identity))

    async def discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(1 << 18):
                pass
        writer.close()

    server = await asyncio.start_server(discard, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# Poisoned models


def poisoned(kind: str, theirs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the vector to send instead of a model; float32, [P].

    Args:
        kind: "huge" is noise with 900 times the norm of the victim's model, "own-scaled" the victim's own model times
            900, "own-flipped" its negative, and "echo" the model itself; others are noise with the norm of the model.
        theirs: the victim's model.
    """
    noise = rng.standard_normal(theirs.size)
    noise *= float(np.linalg.norm(theirs)) / np.linalg.norm(noise)
    made = {"own-scaled": theirs * 900, "own-flipped": -theirs, "echo": theirs, "huge": noise * 900}.get(kind, noise)
    return np.ascontiguousarray(made, "<f4")


async def poison(kinds: Sequence[str], folder: str, nodes: dict[str, str], lies: bool = False) -> None:
    """Answer requests for models, and assignments of a coordinator, with poisoned models.

    Args:
        kinds: of POISONS, in turn; none answers that there is no model.
        lies: whether to claim false rounds, too, and to drop links.
    """
    adversary = Adversary(Path(folder), MOST if lies or "samples" in kinds else 287)

    def forge(payload: bytes, round: int) -> bytes:
        theirs = np.frombuffer(payload[: 4 * VALUES], "<f4") if payload else np.ones(VALUES, "<f4")
        kind = kinds[int(time.monotonic() / SPELL) % len(kinds)]
        return poisoned(kind, theirs, np.random.default_rng(round)).tobytes()

    async def answer(name: str, link: Link, get: m.Get) -> None:
        payload = await adversary.ask(link, get.round, get.stage) if kinds else None
        if payload is None:
            adversary.send(link, m.NotAvailable(get.request, adversary.round, "gone"))
            return
        said = m.ModelUpdate(get.request, get.round, get.stage, adversary.n_samples, False, 0.0)
        adversary.send(link, said, forge(payload, get.round))

    async def submit() -> None:
        """Submit once per round, if the policy has a coordinator: the last assignment, poisoned."""
        done = 0
        while True:
            await asyncio.sleep(0.05)
            if kinds and adversary.coordinator in adversary.links and adversary.round > done:
                done = adversary.round
                with suppress(TransportError):
                    adversary.submit(forge(adversary.assigned, done))

    async def lie() -> None:
        rng = random.Random(0)
        while lies:
            await asyncio.sleep(rng.uniform(5, 20))
            adversary.claim(rng.choice([MOST, 0, adversary.round + 3, adversary.round + 1000]))
            await asyncio.sleep(rng.uniform(1, 5))
            adversary.round = 0
            for link in list(adversary.links.values()):
                if rng.random() < 0.3:
                    link.close()
                    adversary.lost(link, "dropped")

    adversary.serve = answer
    await asyncio.gather(submit(), lie(), *(adversary.stay(name, address) for name, address in nodes.items()))


# A broker


async def broker(port: int) -> None:
    """Run a broker that ends connections at every stage, and sends nonsense."""
    rng = random.Random(1)

    async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        kind, size, shift = (await reader.readexactly(1))[0], 0, 0
        while True:
            byte = (await reader.readexactly(1))[0]
            size |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return kind >> 4, await reader.readexactly(size)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        patience = rng.choice([0, 1, 2, 3, 50, 500])  # packets until it turns hostile
        with suppress(asyncio.IncompleteReadError, OSError):
            for _ in range(patience):
                kind, body = await packet(reader)
                answers = {1: CONNACK, 8: b"\x90\x05" + body[:2] + b"\0\0\0", 12: b"\xd0\x00"}
                writer.write(answers.get(kind, b""))
            await packet(reader)
            nonsense, _ = rng.choice(list(TRICKS.values()))
            writer.write(rng.choice([nonsense, nonsense.removeprefix(CONNACK)]) + os.urandom(rng.choice([0, 9])))
        with suppress(OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


# Processes

ROLES: dict[str, Callable[..., Any]] = {
    role.__name__: role for role in (attack, attack_in_turn, broker, control, poison, sink)
}


@contextmanager
def attacking(role: str, **arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of ROLES in a process until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.attackers", role, json.dumps(arguments)]
    root = Path(__file__).parents[1]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](**json.loads(sys.argv[2])))
