"""Connections that a listener accepts or drops, limited per host and for all hosts."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager

import pytest

from p2pfl.protocols.addresses import network
from p2pfl.protocols.transports import tls
from p2pfl.protocols.transports.tls import HOST_BURST, HOST_RATE, Listener, accept_from
from tests.support.loops import LOOPS, run_on

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine")


class RecordingListener:
    """Listener with records of accepted and dropped hosts."""

    def __init__(self):
        self.now = 0.0
        self.taken, self.dropped = [], []
        self.listener = Listener(self.take, self.drop, lambda: self.now)
        self.news = asyncio.Event()
        self.error = None  # raised once instead of taking a connection

    def take(self, connection, remote, host):
        if self.error is not None:
            error, self.error = self.error, None
            self.news.set()
            raise error
        self.taken.append(host)
        connection.close()
        self.news.set()

    def drop(self, remote):
        self.dropped.append(remote.partition(":")[0])
        self.news.set()

    async def until(self, taken, dropped):
        async with asyncio.timeout(20):
            while (len(self.taken), len(self.dropped)) != (taken, dropped):
                self.news.clear()
                await self.news.wait()

    def connect(self, host="127.0.0.1"):
        return socket.create_connection(self.listener.sockets[0].getsockname(), source_address=(host, 0))


@asynccontextmanager
async def listening():
    recorder = RecordingListener()
    await recorder.listener.bind("127.0.0.1", 0)
    task = asyncio.create_task(recorder.listener.accept(recorder.listener.sockets[0]))
    try:
        yield recorder
    finally:
        task.cancel()
        recorder.listener.close()
        await asyncio.wait([task])


@needs_linux
def test_listener_drops_host_that_connects_too_often(on_loop):
    async def main():
        async with listening() as recorder:
            flood = [recorder.connect("127.0.0.2") for _ in range(HOST_BURST + 100)]
            await recorder.until(HOST_BURST, 100)
            flood.append(recorder.connect("127.0.0.3"))
            await recorder.until(HOST_BURST + 1, 100)
            assert recorder.taken[-1] == "127.0.0.3"
            assert set(recorder.dropped) == {"127.0.0.2"}
            recorder.now = 1.0
            flood += [recorder.connect("127.0.0.2") for _ in range(int(HOST_RATE) + 1)]
            await recorder.until(HOST_BURST + 1 + int(HOST_RATE), 101)
            for connection in flood:
                connection.close()

    on_loop(main())


@needs_linux
def test_listener_limits_connections_of_all_hosts(monkeypatch, on_loop):
    monkeypatch.setattr(tls, "CONNECTION_BURST", 10)

    async def main():
        async with listening() as recorder:
            connections = [recorder.connect(f"127.0.0.{k}") for k in range(1, 16)]
            await recorder.until(10, 5)
            for connection in connections:
                connection.close()

    on_loop(main())


def test_listener_resets_dropped_connection_at_once(monkeypatch, on_loop):
    monkeypatch.setattr(tls, "HOST_BURST", 0)

    async def main():
        async with listening() as recorder:
            connection = recorder.connect()
            await recorder.until(0, 1)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            connection.close()

    on_loop(main())


def test_listener_reports_fault_and_continues_accepting(on_loop):
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
        async with listening() as recorder:
            error = recorder.error = KeyError("chaos")
            broken = recorder.connect()
            await recorder.news.wait()
            other = recorder.connect()
            await recorder.until(1, 0)
            assert faults == [error]
            broken.settimeout(20)
            assert broken.recv(1) == b""  # it was closed
            for connection in (broken, other):
                connection.close()

    on_loop(main())


def test_listener_counts_ipv6_hosts_by_network(on_loop):
    async def main():
        recorder = RecordingListener()

        def connects(host):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                return not recorder.listener.meet(theirs, (host, 4100, 0, 0))

        assert all(connects(f"2001:db8::{k:x}") for k in range(HOST_BURST))
        assert not connects("2001:db8::ffff:1")
        assert connects("2001:db8:0:1::1")

    on_loop(main())


@pytest.mark.parametrize(
    ("host", "same", "other"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"),
        ("2001:db8::1", "2001:db8:0:0:ffff::1", "2001:db8:0:1::1"),
        ("fe80::1", "fe80::1%2", "fd00::1"),
        ("broker", "broker", "pi.lan"),
    ],
)
def test_network_is_ipv4_address_or_ipv6_prefix_of_64_bits(host, same, other):
    assert network(host) == network(same) != network(other)


@pytest.mark.parametrize("loop", LOOPS)
def test_accept_cancelled_as_connection_arrives_raises_nothing(loop):
    async def test():
        here, errors = asyncio.get_running_loop(), []
        here.set_exception_handler(lambda _, context: errors.append(context))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            accepting = asyncio.create_task(accept_from(listening))
            await asyncio.sleep(0)
            with socket.create_connection(listening.getsockname()):
                here.call_soon(accepting.cancel)  # the loop then finds the connection in the same turn
                await asyncio.wait([accepting])
        assert accepting.cancelled()
        assert errors == []

    run_on(loop, test())
