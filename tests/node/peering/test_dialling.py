"""Dialling that is cancelled half-way, and the addresses that a node announces."""

import asyncio

import pytest

from p2pfl.node.folder import config
from p2pfl.node.runtime import connectivity
from p2pfl.protocols.addresses import needs_scope
from p2pfl.protocols.transports.certificates import make_certificate, server_context
from p2pfl.protocols.transports.tls import TlsTransport
from tests.support.gates import Club, identities


class Deaf:
    def refused(self, cause, detail): ...


def test_a_dialling_that_is_given_up_while_keys_are_proven_leaves_no_error_behind():
    """As happens to the slower one of two addresses of a peer. An error in a callback would end the node."""

    async def main():
        client, server = identities(2)
        errors, dialled = [], asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

        async def silent(reader, writer):  # it has the key, and says nothing: no proof is begun
            dialled.set()
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=server_context(server, make_certificate(server)))
        transport = TlsTransport("127.0.0.1:0", client, Club(client, server), 1000)
        transport.use(Deaf())
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
def test_an_address_of_one_link_needs_a_scope(host, scope):
    assert needs_scope(host) is scope


def test_a_node_says_no_address_that_only_its_own_machine_can_use(tmp_path, monkeypatch):
    monkeypatch.setattr(connectivity, "interface_hosts", lambda: ["10.0.0.5", "127.0.0.1", "::1", "fd00::2", "fe80::1"])
    config.create(tmp_path / "alice", "alice")
    assert connectivity.own_addresses(config.load(tmp_path / "alice"), ":4100") == ["10.0.0.5:4100", "[fd00::2]:4100"]
