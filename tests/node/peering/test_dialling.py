"""Dialling that is cancelled half-way, and the addresses that a node announces."""

import asyncio

import pytest

from p2pfl.node import connectivity
from p2pfl.node.folder import config
from p2pfl.protocols.addresses import needs_scope
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
    monkeypatch.setattr(connectivity, "interface_hosts", lambda: ["10.0.0.5", "127.0.0.1", "::1", "fd00::2", "fe80::1"])
    config.create(tmp_path / "alice", "alice")
    assert connectivity.own_addresses(config.load(tmp_path / "alice"), ":4100") == ["10.0.0.5:4100", "[fd00::2]:4100"]
