"""Nodes of the product for benchmarks of the wire: complete except for the learning."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterable
from math import inf

import numpy as np

from p2pfl.compression.codecs import Codec, Differential, Float32
from p2pfl.node.exchange.base import ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange, max_frame, payload_limit
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.peering.peering_config import Member, PeeringConfig, PeeringOptions
from p2pfl.node.peering.peers import Peer
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transports import tls
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Opened

HOST = "127.0.0.1"
FEDERATION, LAYOUT = bytes(16), bytes(16)
FLOAT32 = Float32()
_BYTES_ACKED, _BYTES_RECEIVED = 120, 128  # offsets in Linux's struct tcp_info


class Club:
    """Access control whose members are given as keys."""

    federation, invites, membership_version = FEDERATION, False, 0

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = set(keys)

    def refusal(self, key: bytes) -> str:
        return "" if key in self.keys else "stranger"

    def after(self, membership_version: int, limit: int) -> bytes:
        return b""

    def extend(self, entries: bytes) -> int:
        return 0


def identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


class HashingExchange(MessageExchange):
    """Exchange that hashes a model for every request, as if the peer had waited for its publication."""

    def handle(self, peer: Peer, opened: Opened) -> None:
        self.models.payloads.clear()
        super().handle(peer, opened)


class BenchNode:
    """Node without learning.

    Args:
        number: determines the key, by which other nodes know the node.
        others: numbers and addresses of its peers; "" for a peer that will dial.
        size: bytes of a model.
        hashing: whether the model is hashed for every request, instead of once when it is published.
        codec: codec of the models.
    """

    def __init__(
        self,
        number: int,
        others: dict[int, str],
        size: int,
        period: float = inf,
        *,
        hashing: bool = False,
        codec: Codec = FLOAT32,
    ) -> None:
        own, keys = identity(number), {other: identity(other).public for other in others}
        self.transport = TlsTransport(f"{HOST}:0", own, Club(keys.values()), max_frame(size // 4), rate=inf)
        config = ExchangeConfig(
            peering=PeeringConfig(
                name=f"node-{number}",
                key=own.public,
                neighbours={f"node-{k}": Member(key, (others[k],) if others[k] else ()) for k, key in keys.items()},
                transport=self.transport,
                signer=FrameSigner(own, FEDERATION, LAYOUT, 1),
                verifier=FrameVerifier(
                    {f"node-{k}": key for k, key in keys.items()}, own.public, FEDERATION, payload_limit(size // 4)
                ),
                agreed={},
                public_info={"n_samples": 1},
                asynchronous=True,
                options=PeeringOptions(period=period),
            ),
            settings=Settings(mode="asynchronous", members=1 + len(others), deadline=60.0),
            n_samples=1,
        )
        initial = np.zeros(size // 4, np.float32) if isinstance(codec, Differential) else None
        encoder = ModelEncoder(codec, Layout((("model", (size // 4,)),), size // 4), initial)
        self.exchange = (HashingExchange if hashing else MessageExchange)(config, encoder, self._no_loss)
        self.tasks = asyncio.TaskGroup()

    @staticmethod
    async def _no_loss(params: np.ndarray) -> float:
        return 0.0

    def wire_bytes(self) -> int:
        """Return the bytes that TCP has carried for this node in both directions.

        They include TLS, but not TCP's own headers.
        """
        total = 0
        for link in self.transport.links:
            assert link.connection is not None
            info = link.connection.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += sum(struct.unpack_from("Q", info, at)[0] for at in (_BYTES_ACKED, _BYTES_RECEIVED))
        return total


async def handshakes_per_second(count: int) -> float:
    """Return the connections per second between two nodes on one event loop, one by one, with encryption and proof."""
    tls.HOST_RATE = tls.CONNECTION_RATE = 1e6  # the limits of connections would refuse most of them
    server, client = BenchNode(1, {2: ""}, 4), BenchNode(2, {1: ""}, 4)
    for node in (server, client):
        await node.transport.listen(node.exchange.peering)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(count):
        (await client.transport.dial(server.transport.address, identity(1).public)).close()
    taken = loop.time() - begun
    for node in (server, client):
        await node.transport.close()
    return count / taken


async def idle_traffic(nodes: int, seconds: float) -> float:
    """Return the bytes per second of one idle node, in and out, in a federation with `nodes` nodes."""
    numbers = range(1, nodes + 1)
    all_nodes = {k: BenchNode(k, {other: "" for other in numbers if other != k}, 4, period=1.0) for k in numbers}
    async with asyncio.TaskGroup() as tasks:
        for node in all_nodes.values():
            await node.exchange.peering.start(tasks)
        for k, node in all_nodes.items():
            for other in numbers:
                if other != k:
                    node.exchange.peering.found(identity(other).public, all_nodes[other].transport.address, "benchmark")
        for node in all_nodes.values():
            peering = node.exchange.peering
            await peering.until(lambda peering=peering: len(peering.introduced_peers()) == nodes - 1, 60.0)
        await asyncio.sleep(2.0)  # until no node has pending messages
        before = sum(node.wire_bytes() for node in all_nodes.values())
        await asyncio.sleep(seconds)
        after = sum(node.wire_bytes() for node in all_nodes.values())
        for node in all_nodes.values():
            await node.exchange.close()
    return (after - before) / seconds / nodes


def raise_limits() -> None:
    """Raise the limit of open files to the system's maximum: fifty nodes have 2,450 connections."""
    if os.name == "posix":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
