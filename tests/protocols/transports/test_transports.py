"""Common contract of all transports."""

import asyncio
import os
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from blake3 import blake3

from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import AddressError, TransportError
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import client_context, make_certificate, server_context
from p2pfl.protocols.transports.frames import GRACE, HASHED, SLOWEST, Buffers, Reception
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.transports.tls import LINKS_PER_KEY, STRANGERS, TlsTransport
from p2pfl.protocols.transports.tls_link import BACKLOG_FRAMES, GREETING, PIECES
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.clock import VirtualLoop, run, virtual_loop
from tests.support.gates import Club, identities

MAX = 1_000_000


@dataclass
class Handler:
    """Handler that records events and can be awaited."""

    frames: list = field(default_factory=list)
    links: list = field(default_factory=list)
    lost_links: list = field(default_factory=list)
    drained_links: list = field(default_factory=list)
    refusals: list = field(default_factory=list)
    trusting: bool = True
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, link, frame):
        if self.trusting:
            link.trust()
        self.frames.append(bytes(frame))
        self.links.append(link)
        self.news.set()

    def lost(self, link, reason):
        self.lost_links.append((link, reason))
        self.news.set()

    def drained(self, link):
        self.drained_links.append(link)
        self.news.set()

    def refused(self, cause, detail):
        self.refusals.append((cause, detail))
        self.news.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition(self):
                self.news.clear()
                await self.news.wait()


class Memory:
    def __init__(self):
        self.network = InProcessNetwork()
        self.count = 0

    def transport(self):
        self.count += 1
        transport = self.network.transport(f"node-{self.count}")
        transport.public = b""  # nothing is proven
        return transport


class Tls:
    def __init__(self):
        self.people = identities(2)
        self.access = Club(*self.people)
        self.left = list(self.people)

    def transport(self):
        identity = self.left.pop()
        transport = TlsTransport("127.0.0.1:0", identity, self.access, MAX)
        transport.public = identity.public
        return transport


KINDS = {
    "memory": (Memory, asyncio.new_event_loop),
    "memory on virtual time": (Memory, virtual_loop),
    "tls": (Tls, asyncio.new_event_loop),
}
try:
    import uvloop

    KINDS["tls on uvloop"] = (Tls, uvloop.new_event_loop)
except ImportError:
    pass


@pytest.fixture(params=KINDS)
def contract(request):
    """Return a function that runs a test with two listening transports and their handlers."""
    world, loop = KINDS[request.param]

    def go(test):
        async def main():
            place = world()
            a, b = place.transport(), place.transport()
            handlers = Handler(), Handler()
            await a.listen(handlers[0])
            await b.listen(handlers[1])
            try:
                await test(a, b, *handlers)
            finally:
                await a.close()
                await b.close()

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    return go


@pytest.mark.parametrize("size", [1, 100, MAX])
def test_transport_delivers_frame_intact(contract, size):
    async def test(a, b, handler_a, handler_b):
        frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
        link = await a.dial(b.address, b.public)
        link.send([b"hello"])
        link.send([frame[:1], memoryview(frame[1:])])
        await handler_b.until(lambda handler: len(handler.frames) == 2)
        assert handler_b.frames == [b"hello", frame]

    contract(test)


def test_transport_keeps_order_and_boundaries_of_frames(contract):
    async def test(a, b, handler_a, handler_b):
        link = await a.dial(b.address, b.public)
        sent = [bytes([k]) * (1 + 37 * k % 5000) for k in range(200)]
        for frame in sent:
            link.send([frame])
        await handler_b.until(lambda handler: len(handler.frames) == 200)
        assert handler_b.frames == sent

    contract(test)


def test_link_carries_frames_both_ways(contract):
    async def test(a, b, handler_a, handler_b):
        link = await a.dial(b.address, b.public)
        link.send([b"question"])
        await handler_b.until(lambda handler: handler.frames)
        handler_b.links[0].send([b"answer"])
        await handler_a.until(lambda handler: handler.frames)
        assert handler_a.frames == [b"answer"]
        assert handler_a.links == [link]

    contract(test)


def test_both_sides_may_dial_each_other(contract):
    async def test(a, b, handler_a, handler_b):
        (await a.dial(b.address, b.public)).send([b"from a"])
        (await b.dial(a.address, a.public)).send([b"from b"])
        await handler_b.until(lambda handler: handler.frames)
        await handler_a.until(lambda handler: handler.frames)
        assert (handler_a.frames, handler_b.frames) == ([b"from b"], [b"from a"])

    contract(test)


def test_received_frame_is_not_overwritten(contract):
    async def test(a, b, handler_a, handler_b):
        kept = []
        handler_b.received = lambda link, frame: (kept.append(frame), Handler.received(handler_b, link, frame))
        link = await a.dial(b.address, b.public)
        for k in range(20):
            link.send([bytes([k]) * 1000])
        await handler_b.until(lambda handler: len(handler.frames) == 20)
        assert [bytes(frame) for frame in kept] == [bytes([k]) * 1000 for k in range(20)]

    contract(test)


def test_link_close_is_reported_once_to_other_side(contract):
    async def test(a, b, handler_a, handler_b):
        link = await a.dial(b.address, b.public)
        link.send([b"hello"])
        await handler_b.until(lambda handler: handler.frames)
        link.close()
        link.close()
        await handler_b.until(lambda handler: handler.lost_links)
        assert handler_b.lost_links[0][0] is handler_b.links[0]
        assert "closed" in handler_b.lost_links[0][1]
        assert handler_a.lost_links == []
        with pytest.raises(TransportError, match="closed"):
            link.send([b"too late"])

    contract(test)


def test_transport_close_ends_its_links(contract):
    async def test(a, b, handler_a, handler_b):
        link = await a.dial(b.address, b.public)
        link.send([b"hello"])
        await handler_b.until(lambda handler: handler.frames)
        await b.close()
        await handler_a.until(lambda handler: handler.lost_links)
        with pytest.raises(TransportError):
            await a.dial(b.address, b.public)

    contract(test)


def test_dial_of_closed_transport_fails(contract):
    async def test(a, b, handler_a, handler_b):
        address = b.address
        await b.close()
        with pytest.raises(TransportError):
            await a.dial(address, b.public)

    contract(test)


def test_listen_on_address_in_use_fails(contract):
    async def test(a, b, handler_a, handler_b):
        if isinstance(a, TlsTransport):
            other = TlsTransport(a.address, a.credentials.identity, a.credentials.access, MAX)
        else:
            other = a.network.transport(a.name)
        with pytest.raises(TransportError, match="in use"):
            await other.listen(Handler())

    contract(test)


# TLS only


@pytest.mark.parametrize(
    "address",
    [
        "",
        "4100",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "[::1:41",
        "::1]:41",
        "fe80::1:41",
        "a\x1b[2J:41",
    ],
)
def test_split_address_rejects_malformed_address(address):
    with pytest.raises(AddressError, match="not of the form"):
        split_address(address)


def test_split_address_rejects_invalid_port():
    with pytest.raises(AddressError, match=r"port of address '127\.0\.0\.1:70000' must be from 0 to 65535"):
        split_address("127.0.0.1:70000")


def test_split_address_returns_host_and_port():
    assert split_address("tcp://127.0.0.1:41") == ("127.0.0.1", 41)
    assert split_address("[::1]:41") == ("::1", 41)
    assert split_address(":41") == ("", 41)


class Party:
    """Listening TLS transport with its handler and its key."""

    def __init__(self, identity, access, address="127.0.0.1:0"):
        self.identity, self.access, self.handler = identity, access, Handler()
        self.transport = TlsTransport(address, identity, access, MAX)

    async def __aenter__(self):
        await self.transport.listen(self.handler)
        return self

    async def __aexit__(self, *exc):
        await self.transport.close()

    async def dial(self, other, key=None, **options):
        return await self.transport.dial(other.transport.address, key or other.identity.public, **options)

    def refusals(self):
        return [cause for cause, _ in self.handler.refusals]


def pair(count=2, **options):
    people = identities(count)
    club = Club(*people, **options)
    return [Party(person, club) for person in people]


async def raw(transport):
    return await asyncio.open_connection(*split_address(transport.address))


async def raw_tls(transport):
    return await asyncio.open_connection(*split_address(transport.address), ssl=client_context())


async def read_frame(reader):
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def frame(data):
    return len(data).to_bytes(4, "big") + data


def test_tls_link_has_same_session_and_keys_at_both_ends(on_loop):
    async def main():
        async with pair()[0] as a, Party(identities(1)[0], a.access) as b:
            a.access.members.add(b.identity.public)
            link = await a.dial(b)
            again = await a.dial(b)
            link.send([b"x"])
            again.send([b"y"])
            await b.handler.until(lambda handler: len(handler.frames) == 2)
            assert link.key == b.identity.public
            assert {one.key for one in b.handler.links} == {a.identity.public}
            assert {link.session, again.session} == {one.session for one in b.handler.links}
            assert link.session != again.session
            assert link.dialled
            assert not b.handler.links[0].dialled

    on_loop(main())


@pytest.mark.parametrize("address", ["[::1]:0", ":0"])
def test_tls_listens_on_ipv6_and_all_addresses(address, on_loop):
    if not socket.has_ipv6:
        pytest.skip("no IPv6")

    async def main():
        a, b = pair()
        b.transport = TlsTransport(address, b.identity, b.access, MAX)
        async with a, b:
            port = split_address(b.transport.address)[1]
            for host in ("[::1]",) if address.startswith("[") else ("[::1]", "127.0.0.1"):
                link = await a.transport.dial(f"{host}:{port}", b.identity.public)
                link.send([b"hello"])
            await b.handler.until(lambda handler: handler.frames)

    on_loop(main())


def test_tls_refuses_stranger_with_valid_key(on_loop):
    async def main():
        a, b = pair()
        stranger = Party(identities(1)[0], Club(a.identity, b.identity))  # it considers itself a member
        async with a, b, stranger:
            with pytest.raises(TransportError, match="refuses this node: stranger"):
                await stranger.dial(b)
            assert b.refusals() == ["stranger"]
            assert not b.transport.links
            assert b.handler.frames == []

    on_loop(main())


def test_tls_refuses_revoked_member(on_loop):
    async def main():
        a, b = pair()
        async with a, b:
            b.access.gone.add(a.identity.public)
            with pytest.raises(TransportError, match="refuses this node: revoked"):
                await a.dial(b)
            assert b.refusals() == ["revoked"]

    on_loop(main())


def test_tls_refuses_member_of_another_federation(on_loop):
    async def main():
        people = identities(2)
        a, b = Party(people[0], Club(*people, federation=bytes(16))), Party(people[1], Club(*people))
        async with a, b:
            with pytest.raises(TransportError, match="refuses this node: other federation"):
                await a.dial(b)
            assert b.refusals() == ["other federation"]

    on_loop(main())


def test_tls_refuses_claim_of_members_key(on_loop):
    async def main():
        a, b = pair()
        claimed, own = a.identity.public, identities(1)[0]

        class Liar:
            public = claimed
            private_pem = own.private_pem
            sign = own.sign

        async with b:
            reader, writer = await raw_tls(b.transport)
            challenge = handshake.decode(await read_frame(reader))
            proof, _ = handshake.prove(
                Liar, b.access, challenge, b.identity.public, b.transport.credentials.certificate, joining=False
            )
            writer.write(frame(handshake.encode(proof)))
            answer = handshake.decode(await read_frame(reader))
            assert answer.cause == "wrong proof"
            assert await reader.read() == b""
            assert b.refusals() == ["wrong proof"]
            assert not b.transport.links
            writer.close()

    on_loop(main())


def test_tls_refuses_proof_made_for_another_member(on_loop):
    """Member m, dialled by a, requests a challenge from b and lets a answer it."""

    async def main():
        a, b, m = pair(3)
        async with a, b, m:
            reader, writer = await raw_tls(b.transport)
            challenge = handshake.decode(await read_frame(reader))
            proof, _ = handshake.prove(
                a.identity, a.access, challenge, m.identity.public, m.transport.credentials.certificate, joining=False
            )
            writer.write(frame(handshake.encode(proof)))
            assert handshake.decode(await read_frame(reader)).cause == "wrong proof"
            assert b.refusals() == ["wrong proof"]
            writer.close()

    on_loop(main())


def test_tls_refuses_recorded_proof(on_loop):
    async def main():
        a, b = pair()
        async with b:
            recorded = None
            for expected in (handshake.Accepted, handshake.Refused):
                reader, writer = await raw_tls(b.transport)
                challenge = handshake.decode(await read_frame(reader))
                if recorded is None:
                    proof, _ = handshake.prove(
                        a.identity,
                        a.access,
                        challenge,
                        b.identity.public,
                        b.transport.credentials.certificate,
                        joining=False,
                    )
                    recorded = frame(handshake.encode(proof))
                writer.write(recorded)
                assert isinstance(handshake.decode(await read_frame(reader)), expected)
                writer.close()
            assert b.refusals() == ["wrong proof"]

    on_loop(main())


def test_tls_dialler_sends_nothing_to_wrong_key(on_loop):
    async def main():
        a, b = pair()
        other = identities(1)[0]
        said = []

        class Recorder(asyncio.Protocol):
            def data_received(self, data):
                said.append(data)

        loop = asyncio.get_running_loop()
        context = server_context(other, make_certificate(other))
        server = await loop.create_server(Recorder, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with a:
            with pytest.raises(TransportError, match="another key than expected"):
                await a.transport.dial(f"127.0.0.1:{port}", b.identity.public)
            assert a.refusals() == ["wrong key"]
        server.close()
        await server.wait_closed()
        assert said == []

    on_loop(main())


@pytest.mark.slow
def test_tls_joining_node_may_ask_if_inviting(on_loop):
    async def main():
        a, b = pair(invites=False)
        newcomer = Party(identities(1)[0], b.access)
        async with a, b, newcomer:
            with pytest.raises(TransportError, match="refuses this node: not inviting"):
                await newcomer.dial(b, joining=True)
            b.access.invites = True
            link = await newcomer.dial(b, joining=True)
            link.send([b"may I?"])
            await b.handler.until(lambda handler: handler.frames)
            assert b.handler.links[0].joining
            assert b.handler.links[0].key == newcomer.identity.public
            link.send([bytes(handshake.LIMIT + 1)])  # larger than a question may be
            await b.handler.until(lambda handler: handler.lost_links)

    on_loop(main())


def test_tls_accepts_only_version_1_3(on_loop):
    async def main():
        (b,) = pair(1)
        async with b:
            old = client_context()
            old.minimum_version = ssl.TLSVersion.TLSv1_2
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError, match="TLSV1_ALERT_PROTOCOL_VERSION"):
                await asyncio.open_connection(*split_address(b.transport.address), ssl=old)
            reader, writer = await raw(b.transport)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.wait_for(reader.read(), 20)
            writer.close()
            assert not b.transport.links

    on_loop(main())


@pytest.mark.parametrize("said", [b"", b"\xc1", b"\x91" * 2000, b"\xdd\xff\xff\xff\xff", bytes(handshake.LIMIT)])
def test_tls_garbage_before_proof_ends_connection(said, on_loop):
    async def main():
        (b,) = pair(1)
        async with b:
            reader, writer = await raw_tls(b.transport)
            await read_frame(reader)
            writer.write(frame(said))
            await asyncio.wait_for(reader.read(), 20)
            assert b.refusals() == ["malformed"]
            assert not b.transport.strangers
            writer.close()

    on_loop(main())


@pytest.mark.parametrize("size", [0, handshake.LIMIT + 1, 2**32 - 1])
def test_tls_wrong_size_before_proof_ends_connection(size, on_loop):
    async def main():
        (b,) = pair(1)
        async with b:
            reader, writer = await raw_tls(b.transport)
            await read_frame(reader)
            writer.write(size.to_bytes(4, "big"))
            assert await asyncio.wait_for(reader.read(), 20) == b""
            assert b.refusals() == ["malformed"]
            writer.close()

    on_loop(main())


def test_tls_large_frame_on_untrusted_link_ends_it(on_loop):
    async def main():
        a, b = pair()
        b.handler.trusting = False
        async with a, b:
            link = await a.dial(b)
            link.send([bytes(GREETING)])
            await b.handler.until(lambda handler: handler.frames)
            link.send([bytes(GREETING + 1)])
            await b.handler.until(lambda handler: handler.lost_links)
            assert "announced a frame" in b.handler.lost_links[0][1]

    on_loop(main())


@pytest.mark.slow
def test_tls_drops_oldest_strangers_and_serves_members(monkeypatch, on_loop):
    monkeypatch.setattr("p2pfl.protocols.transports.tls.HOST_BURST", 1000)

    async def main():
        a, b = pair()
        async with a, b:
            connections = [await raw(b.transport) for _ in range(STRANGERS + 10)]
            for reader, _ in connections[:10]:
                assert await asyncio.wait_for(reader.read(), 20) == b""
            assert len(b.transport.strangers) == STRANGERS
            (await a.dial(b)).send([b"hello"])
            await b.handler.until(lambda handler: handler.frames)
            for _, writer in connections:
                writer.close()

    on_loop(main())


def test_tls_drops_silent_stranger(monkeypatch, on_loop):
    async def main():
        monkeypatch.setattr("p2pfl.protocols.transports.tls_link.PATIENCE", 0.05)
        (b,) = pair(1)
        async with b:
            for connect in (raw, raw_tls):
                reader, writer = await connect(b.transport)
                await asyncio.wait_for(reader.read(), 20)
                writer.close()
            assert not b.transport.strangers
            assert b.handler.lost_links == []  # it never became a link

    on_loop(main())


def test_tls_survives_connections_reset_at_once(on_loop):
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        a, b = pair()
        async with a, b:
            for _ in range(50):
                with socket.create_connection(split_address(b.transport.address)) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            (await a.dial(b)).send([b"x"])
            await b.handler.until(lambda handler: handler.frames)
            assert faults == []

    on_loop(main())


@pytest.mark.parametrize("size", [0, MAX + 1, 2**32 - 1])
def test_tls_frame_of_forbidden_size_ends_link(size, on_loop):
    async def main():
        a, b = pair()
        async with a, b:
            link = await a.dial(b)
            link.send([b"hello"])
            await b.handler.until(lambda handler: handler.frames)
            link.connection.write(size.to_bytes(4, "big"))
            await b.handler.until(lambda handler: handler.lost_links)
            assert b.handler.frames == [b"hello"]
            assert "announced a frame" in b.handler.lost_links[0][1]

    on_loop(main())


def test_tls_peer_that_does_not_read_is_bounded_and_closed(monkeypatch, on_loop):
    async def main():
        monkeypatch.setattr("p2pfl.protocols.transports.tls_link.STALLED", 0.05)
        a, b = pair()
        async with a, b:
            link = await a.dial(b)
            link.trust()  # otherwise a slow machine may end it for another reason
            link.send([b"hello"])
            await b.handler.until(lambda handler: handler.frames)
            b.handler.links[0].connection.pause_reading()
            with pytest.raises(TransportError, match="does not read"):
                for _ in range(100):
                    link.send([bytes(MAX)])
            assert link.backlog <= (BACKLOG_FRAMES + 1) * (MAX + 4) + PIECES
            async with asyncio.timeout(20):
                while not a.handler.lost_links:  # the operating system may accept more data for a while
                    with suppress(TransportError):
                        link.send([bytes(MAX)])
                    await asyncio.sleep(0)
            assert a.handler.lost_links == [(link, "does not read its messages")]

    on_loop(main())


def test_tls_link_has_hash_of_large_frame_only(on_loop):
    async def main():
        a, b = pair()
        async with a, b:
            link, frame = await a.dial(b), os.urandom(HASHED)
            for sent in (b"hello", frame, b"small"):
                link.send([sent])
                await b.handler.until(lambda handler, sent=sent: handler.frames[-1:] == [sent])
                expected = blake3(sent[OVERHEAD:]).digest() if sent is frame else b""
                assert b.handler.links[-1].payload_digest == expected

    on_loop(main())


def test_tls_link_reports_drain(on_loop):
    async def main():
        a, b = pair()
        async with a, b:
            link = await a.dial(b)
            link.send([b"hello"])
            await b.handler.until(lambda handler: handler.frames)
            b.handler.links[0].connection.pause_reading()
            while link.backlog < MAX:
                link.send([bytes(MAX)])
            b.handler.links[0].connection.resume_reading()
            await a.handler.until(lambda handler: handler.drained_links)
            assert a.handler.drained_links[-1] is link

    on_loop(main())


def test_buffers_are_reused_only_when_unreferenced():
    buffers = Buffers()
    first = buffers.take(PIECES)
    first[1] = 1
    kept = np.frombuffer(first[:64], np.uint8)
    second = buffers.take(PIECES)
    second[0] = 1
    assert kept[0] == 0
    del first
    third = buffers.take(PIECES)
    third[0] = 2
    assert kept[0] == 0  # an array still refers to it
    del kept
    fourth = buffers.take(PIECES)
    assert fourth.obj is not second.obj
    assert fourth.obj is not third.obj
    assert fourth[1] == 1  # reused from the first; new memory has only zeros


# Limits on members


async def dial_links(dialler, listener, count):
    """Dial `count` times; return the listener's links after a frame has arrived over each."""
    for _ in range(count):
        (await dialler.dial(listener)).send([b"hello"])
    await listener.handler.until(lambda handler: len(handler.frames) == count)
    return list(listener.handler.links)


async def wait_until(condition):
    """Wait for a condition that triggers no event."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def begin_frame(dialler, size, which):
    """Send a frame without its last byte over one of the dialled links."""
    link = [link for link in dialler.transport.links if link.dialled][which]
    link.connection.write(size.to_bytes(4, "big") + bytes(size - 1))


def test_tls_third_incomplete_largest_frame_ends_first(on_loop):
    async def main():
        a, b, c = pair(3)
        async with a, b, c:
            links = await dial_links(a, b, 3)
            for which in range(3):
                begin_frame(a, MAX, which)
            await b.handler.until(lambda handler: handler.lost_links)
            assert b.handler.lost_links == [(links[0], "did not complete a frame before it began others")]
            assert b.refusals() == ["incomplete"]
            (await c.dial(b)).send([bytes(GREETING)])  # other members are not affected
            await b.handler.until(lambda handler: len(handler.frames) == 4)

    on_loop(main())


def test_tls_frame_not_completed_in_time_ends_its_link(monkeypatch, on_loop):
    monkeypatch.setattr("p2pfl.protocols.transports.tls.LOOKING", 0.01)

    async def main():
        now = 0.0
        a, b = pair()
        b.transport = TlsTransport("127.0.0.1:0", b.identity, b.access, MAX, clock=lambda: now)
        async with a, b:
            links = await dial_links(a, b, 2)
            begin_frame(a, MAX, 0)
            await wait_until(lambda: not b.transport.reception(a.identity.public).idle)
            now = GRACE + MAX / SLOWEST
            await b.handler.until(lambda handler: handler.lost_links)
            assert b.handler.lost_links == [(links[0], "did not complete a frame in time")]
            assert b.refusals() == ["incomplete"]
            assert list(b.transport.links) == links[1:]

    on_loop(main())


def test_tls_closed_link_releases_memory_of_its_frame(on_loop):
    async def main():
        a, b = pair()
        async with a, b:
            (link,) = await dial_links(a, b, 1)
            begin_frame(a, MAX, 0)
            await wait_until(lambda: len(link.get_buffer(-1)) == 1)  # the last byte of the frame
            link.close()
            assert len(link.get_buffer(-1)) == 4  # the length of the next frame
            assert b.transport.reception(a.identity.public).idle

    on_loop(main())


def test_tls_expel_closes_only_links_of_that_key(on_loop):
    async def main():
        a, b, c = pair(3)
        async with a, b, c:
            links = await dial_links(a, b, 3)
            (await c.dial(b)).send([b"hello"])
            await b.handler.until(lambda handler: len(handler.frames) == 4)
            b.transport.expel(a.identity.public)
            await a.handler.until(lambda handler: len(handler.lost_links) == 3)
            assert not set(links) & set(b.transport.links)
            assert [link.key for link in b.transport.links] == [c.identity.public]

    on_loop(main())


def test_tls_link_limit_closes_oldest_trusted_or_new_link(on_loop):
    async def main():
        a, b = pair()
        b.handler.trusting = False
        async with a, b:
            links = await dial_links(a, b, LINKS_PER_KEY)
            await a.dial(b)  # a parallel dial, of which only the first answer is used
            await b.handler.until(lambda handler: handler.lost_links)
            assert list(b.transport.links) == links
            links[1].trust()
            await a.dial(b)
            await b.handler.until(lambda handler: len(handler.lost_links) == 2)
            assert b.handler.lost_links[1] == (links[1], "closed to make room for another connection")
            assert len(b.transport.links) == LINKS_PER_KEY

    on_loop(main())


def test_tls_throttles_flood_of_frames_without_loss(monkeypatch, on_loop):
    monkeypatch.setattr("p2pfl.protocols.transports.tls.Reception", partial(Reception, burst=10))

    async def main():
        a, b, c = pair(3)
        b.transport = TlsTransport("127.0.0.1:0", b.identity, b.access, MAX, rate=1e-3, clock=lambda: 0.0)
        async with a, b, c:
            link = await a.dial(b)
            for k in range(30):
                link.send([bytes([k])])
            await b.handler.until(lambda handler: len(handler.frames) == 11)
            (await c.dial(b)).send([b"c"])
            await b.handler.until(lambda handler: len(handler.frames) == 12)
            assert b.handler.frames == [*(bytes([k]) for k in range(11)), b"c"]
            assert b.handler.lost_links == b.handler.refusals == []

    on_loop(main())


def test_tls_throttled_link_continues_later(monkeypatch, on_loop):
    monkeypatch.setattr("p2pfl.protocols.transports.tls.Reception", partial(Reception, burst=10))

    async def main():
        a, b = pair()
        b.transport = TlsTransport("127.0.0.1:0", b.identity, b.access, MAX, rate=1000)
        async with a, b:
            link = await a.dial(b)
            sent = [bytes([k]) * 100 * k for k in range(1, 60)]
            for frame in sent:
                link.send([frame])
            await b.handler.until(lambda handler: len(handler.frames) == len(sent))
            assert b.handler.frames == sent
            assert b.handler.refusals == []

    on_loop(main())


def test_tls_error_in_handler_ends_only_its_link(on_loop):
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        a, b, c = pair(3)
        async with a, b, c:
            links = await dial_links(a, b, 1)
            received = b.handler.received
            b.handler.received = lambda link, frame: 1 // 0 if link is links[0] else received(link, frame)
            next(iter(a.transport.links)).send([b"again"])
            await b.handler.until(lambda handler: handler.lost_links)
            assert b.refusals() == ["fault"]
            (await c.dial(b)).send([b"hello"])
            await b.handler.until(lambda handler: len(handler.frames) == 2)
        assert faults == []

    on_loop(main())


# The simulated network


class SlowNetwork:
    """Network in which every second frame is slow and every fifth is lost."""

    def __init__(self):
        self.count = 0

    def arrival(self, source, target, size, now):
        self.count += 1
        return None if self.count % 5 == 0 else now + (10.0 if self.count % 2 else 1.0)


def test_in_process_link_keeps_order_with_delay_and_loss():
    async def main():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = InProcessNetwork(SlowNetwork())
        a, b, handler = network.transport("a"), network.transport("b"), Handler()
        await a.listen(Handler())
        await b.listen(handler)
        link = await a.dial("memory:b", b"")
        for k in range(10):
            link.send([bytes([k])])
        await handler.until(lambda handler: len(handler.frames) == 8)
        assert handler.frames == [bytes([k]) for k in range(10) if k % 5 != 4]
        assert loop.time() == 10.0

    run(main())
