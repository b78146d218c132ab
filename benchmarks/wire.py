"""Speed of transferring a model between two processes on loopback, against other ways to transfer it.

The client sends a request, the server answers with the model, and the client has it as a float32 array:

    p2pfl         two nodes' own exchange of a published model: authenticated, encrypted, signed, checked
    p2pfl-new     the same, and the model is hashed for each request, as for a peer that waits for its publication
    tls-loop      bare TLS 1.3 on the same event loop, received into one buffer that is used again
    tls-blocking  bare TLS 1.3 on blocking sockets, received into one buffer: no event loop, one system call per record
    grpc          gRPC, unary, not encrypted, without limits of size
    grpc-tls      the same over TLS 1.3
    pickle        pickle over a plain blocking socket, not encrypted

Every server is a separate process. The systems take turns, and every turn carries the same number of bytes. The figures
are gigabytes of model per second and seconds of one core per gigabyte of both ends: the median over the turns, and the
range. Core time depends less on other work of the machine. The core time of the parts of an exchange is also printed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import pickle
import socket
import ssl
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Protocol

import grpc
import numpy as np
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nodes import BenchNode, handshakes_per_second, idle_traffic, raise_limits

from p2pfl.node.exchange.base import Detached
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.transports.certificates import client_context, make_certificate, server_context

MB = 1_000_000
SIZES = (4 * MB, 40 * MB)
HOST = "127.0.0.1"
PIECE = 256 << 10  # bytes passed to TLS at once
REQUEST = 8  # bytes of a request, which has the number of requested bytes


def model_of(size: int) -> np.ndarray:
    """Return the model that servers send and that clients compare with."""
    return np.random.default_rng(size).random(size // 4, dtype=np.float32)


class Client(Protocol):
    """Client of a system; its server is a function in another process, which sends its port."""

    def exchange(self, size: int) -> np.ndarray:
        """Request a model of `size` bytes and return it: float32, valid until the next exchange."""

    def close(self) -> None: ...


# Two nodes


def serve_nodes(tell: Connection, hashing: bool = False) -> None:
    """Serve models of both sizes, with one node for each size."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            addresses = {}
            for number, size in enumerate(SIZES, 1):
                node = BenchNode(number, {10 + number: ""}, size, hashing=hashing)
                await node.exchange.peering.start(tasks)
                await node.exchange.publish(1, "trained", model_of(size), {})
                addresses[size] = node.transport.address
            tell.send(addresses)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def serve_new_models(tell: Connection) -> None:
    serve_nodes(tell, hashing=True)


class Nodes:
    def __init__(self, addresses: dict[int, str]) -> None:
        self.loop = new_loop()
        self.nodes = {size: BenchNode(10 + number, {number: addresses[size]}, size) for number, size in enumerate(SIZES, 1)}
        self.kept: object = None
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.ready, self.leave = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._live())
        await self.ready.wait()

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for size, node in self.nodes.items():
                await node.exchange.start(tasks, Detached())
                await node.exchange.publish(1, "trained", model_of(size), {})
            self.ready.set()
            await self.leave.wait()
            for node in self.nodes.values():
                await node.exchange.close()

    def exchange(self, size: int) -> np.ndarray:
        exchange = self.nodes[size].exchange
        self.kept = None  # the previous model; a node also releases it after aggregation
        (update,) = self.loop.run_until_complete(exchange.fetch([*exchange.peers], 1, "trained"))
        self.kept = update
        return update.params

    def close(self) -> None:
        self.leave.set()
        self.loop.run_until_complete(self.task)
        self.loop.close()


# TLS on an event loop


def new_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of real nodes."""
    try:
        import uvloop
    except ImportError:  # on Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def tls_server() -> ssl.SSLContext:
    """Return the TLS context of a node that is dialled."""
    identity = Identity.from_seed(bytes(32))
    return server_context(identity, make_certificate(identity))


class Answers(asyncio.Protocol):
    """Server that sends answers in pieces, no faster than the client reads them."""

    def __init__(self, models: dict[int, bytes]) -> None:
        self.models = models
        self.left = memoryview(b"")
        self.writing = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(4 * PIECE)

    def data_received(self, data: bytes) -> None:
        self.left = memoryview(self.models[int.from_bytes(data, "big")])
        self.tolerate()

    def pause_writing(self) -> None:
        self.writing = False

    def resume_writing(self) -> None:
        self.writing = True
        self.tolerate()

    def tolerate(self) -> None:
        while self.writing and self.left:
            piece, self.left = self.left[:PIECE], self.left[PIECE:]
            self.transport.write(piece)


def serve_tls_loop(tell: Connection) -> None:
    models = {size: model_of(size).tobytes() for size in SIZES}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answers(models), HOST, 0, ssl=tls_server())
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


class Receives(asyncio.BufferedProtocol):
    """Client that receives answers into one buffer."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(max(SIZES)))
        self.start(0)

    def start(self, size: int) -> asyncio.Future[None]:
        self.got, self.size = 0, size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self.done

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, hint: int) -> memoryview:
        return self.buffer[self.got :]

    def buffer_updated(self, count: int) -> None:
        self.got += count
        if self.got == self.size:
            self.done.set_result(None)


class TlsLoop:
    def __init__(self, port: int) -> None:
        self.loop = new_loop()

        async def connect() -> Receives:
            _, protocol = await self.loop.create_connection(Receives, HOST, port, ssl=client_context())
            return protocol

        self.protocol = self.loop.run_until_complete(connect())

    def exchange(self, size: int) -> np.ndarray:
        async def ask() -> None:
            done = self.protocol.start(size)
            self.protocol.transport.write(size.to_bytes(REQUEST, "big"))
            await done

        self.loop.run_until_complete(ask())
        return np.frombuffer(self.protocol.buffer[:size], np.float32)

    def close(self) -> None:
        self.protocol.transport.abort()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


# Blocking sockets


def serve_blocking(tell: Connection, wrap: Callable[[socket.socket], socket.socket], encode: Callable[[int], Any]) -> None:
    """Answer each request on one connection with the result of `encode` for the model of that size."""
    with socket.create_server((HOST, 0)) as listening:
        tell.send(listening.getsockname()[1])
        connection = wrap(listening.accept()[0])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while request := connection.recv(REQUEST):
        connection.sendall(encode(int.from_bytes(request, "big")))


def receive(connection: socket.socket, buffer: memoryview) -> None:
    """Fill a buffer."""
    got = 0
    while got < len(buffer):
        got += connection.recv_into(buffer[got:])


def serve_tls_blocking(tell: Connection) -> None:
    models = {size: model_of(size).tobytes() for size in SIZES}
    context = tls_server()
    serve_blocking(tell, lambda accepted: context.wrap_socket(accepted, server_side=True), models.__getitem__)


class TlsBlocking:
    def __init__(self, port: int) -> None:
        self.connection = client_context().wrap_socket(socket.create_connection((HOST, port)))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(max(SIZES)))

    def exchange(self, size: int) -> np.ndarray:
        self.connection.sendall(size.to_bytes(REQUEST, "big"))
        receive(self.connection, self.buffer[:size])
        return np.frombuffer(self.buffer[:size], np.float32)

    def close(self) -> None:
        self.connection.close()


def serve_pickle(tell: Connection) -> None:
    models = {size: model_of(size) for size in SIZES}

    def encode(size: int) -> bytes:
        content = pickle.dumps(models[size], protocol=5)
        return len(content).to_bytes(REQUEST, "big") + content

    serve_blocking(tell, lambda accepted: accepted, encode)


class Pickle:
    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection((HOST, port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, size: int) -> np.ndarray:
        self.connection.sendall(size.to_bytes(REQUEST, "big"))
        head = bytearray(REQUEST)
        receive(self.connection, memoryview(head))
        content = bytearray(int.from_bytes(head, "big"))
        receive(self.connection, memoryview(content))
        array: np.ndarray = pickle.loads(content)
        return array

    def close(self) -> None:
        self.connection.close()


# gRPC

METHOD = "/wire/Get"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]  # up to 2 GiB


class Get(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        models = {size: model_of(size).tobytes() for size in SIZES}
        self.handler = grpc.unary_unary_rpc_method_handler(lambda request, _: models[int.from_bytes(request, "big")])

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self.handler if details.method == METHOD else None


def serve_grpc(tell: Connection, pem: tuple[bytes, bytes] | None = None) -> None:
    server = grpc.server(ThreadPoolExecutor(1), options=UNLIMITED)
    server.add_generic_rpc_handlers((Get(),))
    if pem is None:
        port = server.add_insecure_port(f"{HOST}:0")
    else:
        port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([pem]))
    server.start()
    tell.send((port, pem[1]) if pem else port)
    server.wait_for_termination()


def serve_grpc_tls(tell: Connection) -> None:
    serve_grpc(tell, ecdsa_certificate())


def ecdsa_certificate() -> tuple[bytes, bytes]:
    """Return a key and its certificate for localhost, PEM: gRPC's own TLS does not support Ed25519."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain), certificate.public_bytes(serialization.Encoding.PEM)


class Grpc:
    def __init__(self, address: Any) -> None:
        if isinstance(address, tuple):
            port, certificate = address
            name = ("grpc.ssl_target_name_override", "localhost")
            credentials = grpc.ssl_channel_credentials(certificate)
            self.channel = grpc.secure_channel(f"{HOST}:{port}", credentials, options=[*UNLIMITED, name])
        else:
            self.channel = grpc.insecure_channel(f"{HOST}:{address}", options=UNLIMITED)
        self.get = self.channel.unary_unary(METHOD)

    def exchange(self, size: int) -> np.ndarray:
        return np.frombuffer(self.get(size.to_bytes(REQUEST, "big"), wait_for_ready=True), np.float32)

    def close(self) -> None:
        self.channel.close()


# Measurement

SYSTEMS: dict[str, tuple[Callable[[Connection], None], Callable[[Any], Client]]] = {
    "p2pfl": (serve_nodes, Nodes),
    "p2pfl-new": (serve_new_models, Nodes),
    "tls-loop": (serve_tls_loop, TlsLoop),
    "tls-blocking": (serve_tls_blocking, TlsBlocking),
    "grpc": (serve_grpc, Grpc),
    "grpc-tls": (serve_grpc_tls, Grpc),
    "pickle": (serve_pickle, Pickle),
}


class End(NamedTuple):
    """Client of a system, and the core time of its server.

    Attributes:
        server_seconds: returns the seconds of one core that the server has used.
    """

    exchange: Callable[[int], np.ndarray]
    server_seconds: Callable[[], float]


class Turn(NamedTuple):
    """Seconds per gigabyte in one turn: elapsed time, and processor time of the client and of the server."""

    elapsed: float
    client: float
    server: float

    @property
    def cores(self) -> float:
        return self.client + self.server


def serve_and_report(serve: Callable[[Connection], None], tell: Connection, clock: Connection) -> None:
    """Run a server, and answer each request on `clock` with the processor seconds that it has used."""

    def report() -> None:
        with suppress(EOFError):  # the client has ended
            while clock.recv():
                clock.send(time.process_time())

    Thread(target=report, daemon=True).start()
    serve(tell)


def start(stack: ExitStack, serve: Callable[[Connection], None], connect: Callable[[Any], Client]) -> End:
    """Start a server in its own process, which ends with the stack, and return its client."""
    context = multiprocessing.get_context("spawn")
    (told, tell), (clock, report) = context.Pipe(duplex=False), context.Pipe()
    process = context.Process(target=serve_and_report, args=(serve, tell, report), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)
    tell.close()  # closed here so that the death of a server is noticed
    report.close()
    client = connect(told.recv())
    stack.callback(client.close)

    def server_seconds() -> float:
        clock.send(True)
        seconds: float = clock.recv()
        return seconds

    return End(client.exchange, server_seconds)


Turns = dict[str, list[Turn]]  # by system


def measure_exchanges(repeat: int) -> dict[int, Turns]:
    """Return the turns of all systems, by size."""
    with ExitStack() as stack:
        ends = {name: start(stack, *pair) for name, pair in SYSTEMS.items()}
        return {size: _in_turns(ends, size, repeat) for size in SIZES}


def _in_turns(ends: dict[str, End], size: int, repeat: int) -> Turns:
    expected, count = model_of(size), max(SIZES) // size
    gigabytes = count * size / 1e9
    turns: Turns = {name: [] for name in ends}
    for turn in range(repeat + 1):
        for name, (exchange, server_seconds) in ends.items():
            server, client, begun = server_seconds(), time.process_time(), time.perf_counter()
            for _ in range(count):
                model = exchange(size)
            elapsed, client = time.perf_counter() - begun, time.process_time() - client
            measured = Turn(*(value / gigabytes for value in (elapsed, client, server_seconds() - server)))
            assert np.array_equal(model, expected), name
            if turn:  # the first is a warm-up
                turns[name].append(measured)
    return turns


def print_turns(size: int, turns: Turns) -> None:
    """Print the speed and the processor time of each system for one size, and their ratios to bare TLS in the same turns."""
    print(f"models of {size // MB} MB: gigabytes per second, and processor seconds per gigabyte")
    bare = turns["tls-loop"]
    for system, mine in turns.items():
        speed = spread([1 / turn.elapsed for turn in mine])
        faster = spread([base.elapsed / turn.elapsed for base, turn in zip(bare, mine, strict=True)])
        cheaper = spread([base.cores / turn.cores for base, turn in zip(bare, mine, strict=True)])
        client, server = (statistics.median(values) for values in zip(*(turn[1:] for turn in mine), strict=True))
        print(f"  {system:12s} {speed}, {faster} x tls-loop   {client:.2f} + {server:.2f}, tls-loop / it {cheaper}")


def spread(values: list[float]) -> str:
    """Return the median and the range of some values."""
    return f"{statistics.median(values):.2f} [{min(values):.2f} {max(values):.2f}]"


def measure_parts(repeat: int) -> dict[str, float]:
    """Return the processor seconds per gigabyte for each part of a signed exchange.

    The models have the maximum size.
    """
    model = model_of(max(SIZES))
    content, copy = model.tobytes(), np.empty_like(model)
    identity = Identity.from_seed(bytes(32))
    verifier = Verifier(identity.public)
    signature = identity.sign(blake3(content).digest())

    def verify() -> None:
        assert verifier.valid(signature, blake3(content).digest())

    parts: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: np.copyto(copy, model),
        "SHA-256": lambda: hashlib.sha256(content).digest(),
        "BLAKE3": lambda: blake3(content).digest(),
        "BLAKE3 and Ed25519 sign": lambda: identity.sign(blake3(content).digest()),
        "BLAKE3 and Ed25519 verify": verify,
        "finite and norm": lambda: np.dot(model, model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(repeat + 1):
        for name, part in parts.items():
            begun = time.process_time()
            part()
            if turn:
                seconds[name].append(time.process_time() - begun)
    return {name: statistics.median(times) / len(content) * 1e9 for name, times in seconds.items()}


def _medians(exchanges: dict[int, Turns], figure: Callable[[Turn], float]) -> dict[str, dict[str, float]]:
    """Return the median of a figure over the turns, by size and system."""
    return {
        f"{size // MB} MB": {system: statistics.median(map(figure, mine)) for system, mine in turns.items()}
        for size, turns in exchanges.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one repetition, to check that the benchmark works; the figures are not accurate",
    )
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="repetitions after one warm-up (default: 15)")
    options = parser.parse_args()
    repeat = 1 if options.quick else options.repeat
    exchanges, parts = measure_exchanges(repeat), measure_parts(repeat)
    raise_limits()
    nodes, seconds_idle = (10, 3.0) if options.quick else (50, 20.0)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        handshakes = runner.run(handshakes_per_second(20 if options.quick else 200))
        idle = runner.run(idle_traffic(nodes, seconds_idle))
    for size, turns in exchanges.items():
        print_turns(size, turns)
    print("seconds of one core per gigabyte")
    for part, seconds in parts.items():
        print(f"  {part:25s} {seconds:6.3f}")
    print(f"handshakes per second, both ends on one core: {handshakes:.0f}")
    print(f"idle traffic of one node among {nodes}: {idle:.0f} bytes per second, in and out")
    if options.json:
        figures = {
            "GB/s": _medians(exchanges, lambda turn: 1 / turn.elapsed),
            "both ends, CPU s/GB": _medians(exchanges, lambda turn: turn.cores),
            "CPU s/GB": parts,
            "handshakes/s": handshakes,
            "idle": {"nodes": nodes, "bytes/s": idle},
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
