"""Dialling that is cancelled half-way, and the addresses that a node announces."""

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import time

import pytest

from p2pfl.node import connectivity
from p2pfl.node.folder import config
from p2pfl.protocols import discovery
from p2pfl.protocols.addresses import needs_scope
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transports import tls
from p2pfl.protocols.transports.certificates import make_certificate, server_context
from p2pfl.protocols.transports.tls import TlsTransport
from tests.support.gates import Club, identities


class IdleListener:
    def refused(self, cause, detail): ...


def test_dial_cancelled_during_proof_leaves_no_callback_error():
    """The slower of two dials to a peer is cancelled like this; an error in a callback would end the node."""

    async def main():
        client, server = identities(2)
        errors, dialled = [], asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

        async def silent(reader, writer):  # it has the key but sends nothing, so no proof begins
            dialled.set()
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=server_context(server, make_certificate(server)))
        transport = TlsTransport("127.0.0.1:0", client, Club(client, server), 1000)
        transport.use(IdleListener())
        dialling = asyncio.create_task(transport.dial(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", server.public))
        async with listening:
            await dialled.wait()
            for _ in range(20):  # until it waits for the proof
                await asyncio.sleep(0)
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await transport.close()
        assert errors == []
        assert not transport.links
        assert not transport.strangers

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "scope"),
    [("fe80::1", True), ("fe80::1%2", True), ("fd00::2", False), ("::1", False), ("169.254.1.1", False), ("pi.lan", False)],
)
def test_needs_scope_only_for_ipv6_link_local_addresses(host, scope):
    assert needs_scope(host) is scope


def test_own_addresses_omit_loopback_and_link_local(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "interface_hosts", lambda: ["10.0.0.5", "127.0.0.1", "::1", "fd00::2", "fe80::1"])
    config.create(tmp_path / "alice", "alice")
    assert connectivity.own_addresses(config.load(tmp_path / "alice"), ":4100") == ["10.0.0.5:4100", "[fd00::2]:4100"]


def test_dials_that_end_while_their_connection_is_reset_leave_no_error(monkeypatch):
    """uvloop reports an error that nobody has retrieved if both happen in one turn of a loop that lags."""
    monkeypatch.setattr(tls, "DIALLING", 0.02)
    uvloop = pytest.importorskip("uvloop")
    errors = []

    def reset(listening):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

    async def main(port):
        client, server = identities(2)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        transport = TlsTransport("127.0.0.1:0", client, Club(client, server), 1000)
        transport.use(IdleListener())
        for k in range(24):
            dials = [asyncio.create_task(transport.dial(f"127.0.0.1:{port}", server.public)) for _ in range(20)]
            for _ in range(1 + k % 3):
                await asyncio.sleep(0)
            time.sleep(0.016 + 0.0005 * (k % 12))  # noqa: ASYNC251 (the loop lags)
            ends = await asyncio.gather(*dials, return_exceptions=True)
            assert all(isinstance(end, TransportError) for end in ends)
        await transport.close()
        assert not transport.links
        assert not transport.connected

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        resetting = threading.Thread(target=reset, args=[listening])
        resetting.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(listening.getsockname()[1]))
            gc.collect()
        listening.shutdown(socket.SHUT_RDWR)
        resetting.join()
    assert errors == []


class CountingTransport(TlsTransport):
    begun = 0

    async def _begin_tls(self, link, connection):
        self.begun += 1
        await super()._begin_tls(link, connection)


@pytest.mark.parametrize("settling", [0.05, 3600.0])
def test_listener_has_few_handshakes_in_progress(monkeypatch, settling):
    """Those that stand still keep no member out; those that make progress come first."""
    monkeypatch.setattr(tls, "SETTLING", settling)

    async def main():
        client, server = identities(2)
        access = Club(client, server)
        listening = CountingTransport("127.0.0.1:0", server, access, 1000)
        await listening.listen(IdleListener())
        host, port = listening.address.split(":")
        silent = [await asyncio.open_connection(host, port) for _ in range(2 * tls.BEGUN)]
        dialling = TlsTransport("127.0.0.1:0", client, access, 1000)
        dialling.use(IdleListener())
        dial = asyncio.create_task(dialling.dial(listening.address, server.public))
        while len(listening.strangers) <= 2 * tls.BEGUN and not dial.done():
            await asyncio.sleep(0.01)
        if settling > 1:
            assert listening.begun == tls.BEGUN
            for _, writer in silent:
                writer.close()
        assert (await dial).session_made
        for _, writer in silent:
            writer.close()
        await dialling.close()
        await listening.close()

    asyncio.run(main())
