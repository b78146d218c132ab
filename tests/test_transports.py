"""One contract for every transport."""

import asyncio
import socket
import struct
from dataclasses import dataclass, field

import pytest

from protocols.errors import AddressError, TransportError
from protocols.memory import MemoryNetwork
from protocols.tcp import BACKLOG_FRAMES, GREETING, STRANGERS, TcpTransport, split_address
from sim.clock import VirtualLoop, run, virtual_loop

MAX = 1_000_000


@dataclass
class Ear:
    """A handler that remembers, and can be waited for."""

    frames: list = field(default_factory=list)
    links: list = field(default_factory=list)
    lost_links: list = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, link, frame):
        link.trust()
        self.frames.append(bytes(frame))
        self.links.append(link)
        self.news.set()

    def lost(self, link, reason):
        self.lost_links.append((link, reason))
        self.news.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition(self):
                self.news.clear()
                await self.news.wait()


class Memory:
    def __init__(self):
        self.network = MemoryNetwork()
        self.count = 0

    def transport(self):
        self.count += 1
        return self.network.transport(f"node-{self.count}")


class Tcp:
    def transport(self):
        return TcpTransport("127.0.0.1:0", MAX)


KINDS = {
    "memory": (Memory, asyncio.new_event_loop),
    "memory on virtual time": (Memory, virtual_loop),
    "tcp": (Tcp, asyncio.new_event_loop),
}
try:
    import uvloop

    KINDS["tcp on uvloop"] = (Tcp, uvloop.new_event_loop)
except ImportError:
    pass


@pytest.fixture(params=KINDS)
def contract(request):
    """Runs a test of two transports that listen, each with its ear."""
    world, loop = KINDS[request.param]

    def go(test):
        async def main():
            place = world()
            a, b = place.transport(), place.transport()
            ears = Ear(), Ear()
            await a.listen(ears[0])
            await b.listen(ears[1])
            try:
                await test(a, b, *ears)
            finally:
                await a.close()
                await b.close()

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    return go


@pytest.mark.parametrize("size", [1, 100, MAX])
def test_a_frame_arrives_whole(contract, size):
    async def test(a, b, ear_a, ear_b):
        frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
        link = await a.dial(b.address)
        link.send([b"hello"])
        link.send([frame[:1], memoryview(frame[1:])])
        await ear_b.until(lambda ear: len(ear.frames) == 2)
        assert ear_b.frames == [b"hello", frame]

    contract(test)


def test_frames_keep_their_order_and_their_bounds(contract):
    async def test(a, b, ear_a, ear_b):
        link = await a.dial(b.address)
        sent = [bytes([k]) * (1 + 37 * k % 5000) for k in range(200)]
        for frame in sent:
            link.send([frame])
        await ear_b.until(lambda ear: len(ear.frames) == 200)
        assert ear_b.frames == sent

    contract(test)


def test_a_link_carries_both_ways(contract):
    async def test(a, b, ear_a, ear_b):
        link = await a.dial(b.address)
        link.send([b"question"])
        await ear_b.until(lambda ear: ear.frames)
        ear_b.links[0].send([b"answer"])
        await ear_a.until(lambda ear: ear.frames)
        assert ear_a.frames == [b"answer"]
        assert ear_a.links == [link]

    contract(test)


def test_both_may_dial_each_other(contract):
    async def test(a, b, ear_a, ear_b):
        (await a.dial(b.address)).send([b"from a"])
        (await b.dial(a.address)).send([b"from b"])
        await ear_b.until(lambda ear: ear.frames)
        await ear_a.until(lambda ear: ear.frames)
        assert (ear_a.frames, ear_b.frames) == ([b"from b"], [b"from a"])

    contract(test)


def test_a_frame_that_came_stays_as_it_is(contract):
    async def test(a, b, ear_a, ear_b):
        kept = []
        ear_b.received = lambda link, frame: (kept.append(frame), Ear.received(ear_b, link, frame))
        link = await a.dial(b.address)
        for k in range(20):
            link.send([bytes([k]) * 1000])
        await ear_b.until(lambda ear: len(ear.frames) == 20)
        assert [bytes(frame) for frame in kept] == [bytes([k]) * 1000 for k in range(20)]

    contract(test)


def test_closing_is_noticed_by_the_other_side_and_by_nobody_twice(contract):
    async def test(a, b, ear_a, ear_b):
        link = await a.dial(b.address)
        link.send([b"hello"])
        await ear_b.until(lambda ear: ear.frames)
        link.close()
        link.close()
        await ear_b.until(lambda ear: ear.lost_links)
        assert ear_b.lost_links[0][0] is ear_b.links[0]
        assert "closed" in ear_b.lost_links[0][1]
        assert ear_a.lost_links == []
        with pytest.raises(TransportError, match="closed"):
            link.send([b"too late"])

    contract(test)


def test_a_transport_that_closes_ends_its_links(contract):
    async def test(a, b, ear_a, ear_b):
        link = await a.dial(b.address)
        link.send([b"hello"])
        await ear_b.until(lambda ear: ear.frames)
        await b.close()
        await ear_a.until(lambda ear: ear.lost_links)
        with pytest.raises(TransportError):
            await a.dial(b.address)

    contract(test)


def test_nobody_there(contract):
    async def test(a, b, ear_a, ear_b):
        address = b.address
        await b.close()
        with pytest.raises(TransportError):
            await a.dial(address)

    contract(test)


def test_an_address_is_listened_on_once(contract):
    async def test(a, b, ear_a, ear_b):
        other = TcpTransport(a.address, MAX) if isinstance(a, TcpTransport) else a.network.transport(a.name)
        with pytest.raises(TransportError, match="in use"):
            await other.listen(Ear())

    contract(test)


# TCP alone


@pytest.mark.parametrize("address", ["0.0.0.0:4100", "192.168.1.5:4100", "[::]:4100", "example.org:4100"])
def test_only_loopback_is_listened_on_and_a_sentence_says_why(address):
    with pytest.raises(AddressError, match="not a loopback address; connections are not encrypted yet"):
        TcpTransport(address, MAX)


@pytest.mark.parametrize(
    "address", ["", "4100", "127.0.0.1", "127.0.0.1:", ":4100", "127.0.0.1:x", "127.0.0.1:70000", "[::1:41", "::1]:41"]
)
def test_malformed_addresses(address):
    with pytest.raises(AddressError, match="not of the form"):
        split_address(address)


def test_addresses():
    assert split_address("tcp://127.0.0.1:41") == ("127.0.0.1", 41)
    assert split_address("[::1]:41") == ("::1", 41)


async def raw(transport):
    host, port = split_address(transport.address)
    return await asyncio.open_connection(host, port)


@pytest.mark.parametrize("address", ["192.0.2.1:41", "example.org:41", "a..b:41"])
def test_only_loopback_is_dialled(address):
    async def main():
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(Ear())
        with pytest.raises(AddressError, match="not a loopback address"):
            await transport.dial(address)
        await transport.close()

    asyncio.run(main())


def test_a_stranger_may_not_send_much():
    async def main():
        ear = Ear()
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(ear)
        reader, writer = await raw(transport)
        writer.write((GREETING + 1).to_bytes(4, "big"))
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        reader, writer = await raw(transport)
        writer.write((5).to_bytes(4, "big") + b"hello" + MAX.to_bytes(4, "big") + bytes(MAX))
        await ear.until(lambda ear: len(ear.frames) == 2)  # once it is trusted it may
        writer.close()
        await transport.close()

    asyncio.run(main())


def test_of_many_strangers_the_oldest_go():
    async def main():
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(Ear())
        connections = [await raw(transport) for _ in range(STRANGERS + 10)]
        for reader, _ in connections[:10]:
            assert await asyncio.wait_for(reader.read(), 20) == b""
        assert len(transport.links) == len(transport.strangers) == STRANGERS
        for _, writer in connections:
            writer.close()
        await transport.close()

    asyncio.run(main())


def test_a_stranger_that_says_nothing_is_sent_away(monkeypatch):
    async def main():
        monkeypatch.setattr("protocols.tcp.PATIENCE", 0.01)
        ear = Ear()
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(ear)
        reader, writer = await raw(transport)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        assert ear.lost_links[0][1] == "was not introduced in time"
        assert transport.links == set()
        writer.close()
        await transport.close()

    asyncio.run(main())


def test_a_connection_that_is_reset_at_once_does_no_harm():
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        ear = Ear()
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(ear)
        for _ in range(50):
            with socket.create_connection(split_address(transport.address)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _, writer = await raw(transport)
        writer.write((1).to_bytes(4, "big") + b"x")
        await ear.until(lambda ear: ear.frames)
        assert faults == []
        writer.close()
        await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, MAX + 1, 2**32 - 1])
def test_a_frame_of_a_forbidden_size_ends_its_connection_before_memory_is_taken(size):
    async def main():
        ear = Ear()
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(ear)
        reader, writer = await raw(transport)
        writer.write(size.to_bytes(4, "big"))
        assert await asyncio.wait_for(reader.read(), 20) == b""
        assert ear.frames == []
        assert "announced a frame" in ear.lost_links[0][1]
        writer.close()
        await transport.close()

    asyncio.run(main())


def test_frames_that_come_in_pieces():
    async def main():
        ear = Ear()
        transport = TcpTransport("127.0.0.1:0", MAX)
        await transport.listen(ear)
        _, writer = await raw(transport)
        for byte in (3).to_bytes(4, "big") + b"abc" + (1).to_bytes(4, "big") + b"d":
            writer.write(bytes([byte]))
            await writer.drain()
        await ear.until(lambda ear: len(ear.frames) == 2)
        assert ear.frames == [b"abc", b"d"]
        writer.close()
        await transport.close()

    asyncio.run(main())


def test_a_peer_that_does_not_read_costs_bounded_memory():
    async def main():
        a, b = TcpTransport("127.0.0.1:0", MAX), TcpTransport("127.0.0.1:0", MAX)
        await a.listen(Ear())
        writers = []
        server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0, limit=1)
        port = server.sockets[0].getsockname()[1]
        link = await a.dial(f"127.0.0.1:{port}")
        with pytest.raises(TransportError, match="does not read"):
            for _ in range(100):
                link.send([bytes(MAX)])
        assert link._tcp.get_write_buffer_size() <= (BACKLOG_FRAMES + 1) * (MAX + 4)
        link._tcp.abort()
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()
        await a.close()
        await b.close()

    asyncio.run(main())


# The simulated network


class Slow:
    """Every second frame is slow, every fifth is lost."""

    def __init__(self):
        self.count = 0

    def arrival(self, source, target, size, now):
        self.count += 1
        return None if self.count % 5 == 0 else now + (10.0 if self.count % 2 else 1.0)


def test_a_slow_link_keeps_the_order_of_its_frames_and_may_lose_some():
    async def main():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = MemoryNetwork(Slow())
        a, b, ear = network.transport("a"), network.transport("b"), Ear()
        await a.listen(Ear())
        await b.listen(ear)
        link = await a.dial("memory:b")
        for k in range(10):
            link.send([bytes([k])])
        await ear.until(lambda ear: len(ear.frames) == 8)
        assert ear.frames == [bytes([k]) for k in range(10) if k % 5 != 4]
        assert loop.time() == 10.0

    run(main())
