"""Nodes over TLS on loopback, or through a broker, in the test's process; and their attackers.

The attackers are strangers, forgers and malicious members.
"""

import asyncio
import os
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from p2pfl.compression.codecs import Float32
from p2pfl.node.exchange.base import ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange, max_frame, payload_limit
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.federation import loading, membership_file
from p2pfl.node.federation.invitations import InvitationService, TokenRedeemer
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.folder import config
from p2pfl.node.peering.peering_config import Guard, PeeringConfig, PeeringOptions
from p2pfl.parameters import Layout
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt.transport import MqttTransport
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import HEADER_SIZE, FrameSigner, FrameVerifier, Header, Payload
from tests.support.processes import Processes

SIZE = 1000  # values of a model
LAYOUT = bytes(16)
TOML = 'task = {name = "concept-shift"}\n'
SOON = 30  # seconds of real time after which something has gone wrong


def folders(root, *names):
    """Make the folders of a federation's members; the first one has the admission key."""
    return Processes(root, names, TOML).folders


async def until(condition):
    """Wait for something that happens on real sockets."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.002)


class Honest:
    """A running node of a folder, without learning: it serves one model made of noise.

    Args:
        addresses: of other members, instead of the configured ones.
        size: P, the number of values of a model.
        guarded: exclude members that send invalid messages.
        bus: makes its client of a broker, through which it is reached instead of directly.

    Attributes:
        now: time of its invitation service, in seconds since 1970 and since the start of the machine.
    """

    def __init__(self, folder, addresses=None, size=SIZE, guarded=False, bus=None, earlier=False):
        ready = loading.load(folder)
        if addresses is not None:
            ready = ready._replace(config=msgspec.structs.replace(ready.config, addresses=addresses))
        own, self.log, self.folder, self.now = ready.config, ready.membership, folder, 1e9
        self.identity = Identity.load(folder / config.KEY)
        self.key, self.name = self.identity.public, own.name
        self.model = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        access = Guard(self.log, asyncio.get_running_loop().time) if guarded else self.log
        self.bus = bus
        self.transport = _transport(bus, own.listen, self.identity, access, size)
        if earlier:
            know_earlier_version_only(self.transport)
        neighbourhood = Neighbourhood(ready, ())
        around = neighbourhood.members()
        keys = {name: member.key for name, member in around.items()}
        self.service = None
        if membership_file.may_admit(folder):
            self.log.invites = True
            self.service = InvitationService(
                TokenRedeemer(folder, now=lambda: self.now, booted=lambda: self.now),
                self.log,
                booted=lambda: self.now,
                told=neighbourhood.told,
            )
        exchange_config = ExchangeConfig(
            peering=PeeringConfig(
                name=self.name,
                key=self.key,
                neighbours=around,
                transport=self.transport,
                signer=FrameSigner(self.identity, self.log.federation, LAYOUT, config.next_incarnation(folder)),
                verifier=FrameVerifier(keys, self.key, self.log.federation, payload_limit(size)),
                agreed={"size": str(size)},
                public_info={"n_samples": 50},
                seed=own.seed,
                options=PeeringOptions(
                    access=access,
                    guard=access if guarded else None,
                    answer_join=self._answer if self.service else None,
                ),
            ),
            settings=own,
            n_samples=50,
        )
        encoder = ModelEncoder(Float32(), Layout((("model", (size,)),), size))
        self.exchange = MessageExchange(exchange_config, encoder, self._loss)
        self.peering = self.exchange.peering
        self.members = MembershipSync(ready, self.key, neighbourhood, self.peering)

    async def _answer(self, *question):
        return await self.service.answer(*question)

    async def _loss(self, params):
        return 0.5

    @property
    def rejected(self):
        return dict(self.exchange.rejected)

    def state(self):
        """Return the state that intruders must not change, and the counts of sent models."""
        exchange = self.exchange
        return {
            "round": exchange.round,
            "ids": exchange.view.ids,
            "peers": {name: (peer.round, peer.stopped, peer.problem) for name, peer in exchange.peers.items()},
            "models": {key: model.update.params.tobytes() for key, model in exchange.outbox.models.items()},
            "norm": exchange.limit.own,
            "log": self.log.encode(),
            "file": (self.folder / "membership").read_bytes(),
            "sent": (exchange.traffic.sent["models"], exchange.traffic.sent["update"], exchange.traffic.sent["score"]),
            "received": (exchange.traffic.received["models"], exchange.traffic.received["update"]),
        }


@asynccontextmanager
async def honest(folder, **options):
    """Run a node; an error in any of its tasks ends the test."""
    node = Honest(folder, **options)
    async with asyncio.TaskGroup() as tasks:
        await node.peering.start(tasks)
        await node.exchange.publish(1, "trained", node.model, {})
        keeping = tasks.create_task(node.members.run())
        try:
            yield node
        finally:
            keeping.cancel()
            await node.exchange.close()


class Intruder:
    """A client that sends arbitrary messages to nodes.

    Args:
        access: its claims about its federation.
        bus: makes its client of a broker.

    Attributes:
        heard, said: frames, by their link.
    """

    def __init__(self, identity, access, incarnation=1, size=SIZE, bus=None):
        self.bus = bus
        self.identity, self.access, self.key = identity, access, identity.public
        self.signer = FrameSigner(identity, access.federation, LAYOUT, incarnation)
        self.transport = _transport(bus, "127.0.0.1:0", identity, access, size)
        if bus is None:
            self.transport.use(self)
        self.heard, self.said, self.numbers = {}, {}, iter(range(1, 1 << 30))
        self.lost_links = []

    async def __aenter__(self):
        if self.bus is not None:
            await self.transport.listen(self)
        return self

    async def __aexit__(self, *exc):
        await self.transport.close()

    def received(self, link, frame):
        link.trust()
        self.heard.setdefault(link, []).append(bytes(frame))

    def drained(self, link): ...

    def lost(self, link, reason):
        self.lost_links.append(link)

    def refused(self, cause, detail): ...

    async def dial(self, node, **options):
        return await self.transport.dial(node.transport.address, node.key, **options)

    def seal(self, link, message, payload=b"", to=None, session=None):
        """Return a frame, by default for the other end of the link."""
        payload = payload if isinstance(payload, Payload) else Payload.of(payload)
        session = link.session if session is None else session
        parts = self.signer.seal(message, to or link.key, payload, session, link.version)
        return b"".join(bytes(part) for part in parts)

    def send(self, link, message, payload=b""):
        frame = self.seal(link, message, payload)
        self.said.setdefault(link, []).append(frame)
        link.send([frame])
        return frame

    async def introduce(self, node):
        """Become a regular peer; return the link."""
        link = await self.dial(node)
        terms = m.HelloParameters(
            {"size": str(node.exchange.encoder.layout.size)}, {"n_samples": 50}, 1, False, self.access.membership_version
        )
        self.send(link, m.Hello(), terms.encode())
        await until(lambda: link in self.heard)
        return link

    async def settled(self, link, node):
        """Wait until a node has handled all frames sent over a link; return the frames received in this time."""
        heard = self.heard.setdefault(link, [])
        before = len(heard)
        number = next(self.numbers)
        link.send([self.seal(link, m.Ping(number))])
        await until(lambda: any(_number(frame, m.Pong) == number for frame in heard[before:]))
        return heard[before:-1]

    def everything(self):
        return b"".join(frame for frames in self.heard.values() for frame in frames)


def know_earlier_version_only(transport):
    """Let a transport offer the application protocol of wire version 6 only, as nodes of that version do."""
    for context in (transport.credentials.accepting, transport.credentials.dialling):
        context.set_alpn_protocols(["p2pfl/1"])


def _transport(bus, listen, identity, access, size):
    if bus is None:
        return TlsTransport(listen, identity, access, max_frame(size))
    return MqttTransport(bus(), identity, access, max_frame(size))


def _number(frame, kind):
    body = msgspec.msgpack.decode(frame[:HEADER_SIZE], type=Header).body
    return body.request if isinstance(body, kind) else None


class Relay:
    """A relay that listens instead of a node, forwards everything to it, and keeps a copy of all data.

    Args:
        inside, outside: TLS contexts for the dialling side and for the node; without them it forwards encrypted data
            unchanged.
    """

    def __init__(self, node, inside=None, outside=None):
        self.node, self.inside, self.outside = node, inside, outside
        self.from_dialler, self.from_node = bytearray(), bytearray()
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.inside)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        there = await asyncio.open_connection(*split_address(self.node.transport.address), ssl=self.outside)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, there[1], self.from_dialler))
                tasks.create_task(self._pump(there[0], writer, self.from_node))
        finally:
            for end in (writer, there[1]):
                end.transport.abort()

    @staticmethod
    async def _pump(reader, writer, kept):
        try:
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
            writer.close()
        except OSError:
            writer.close()


def somebody():
    return Identity.from_seed(os.urandom(32))
