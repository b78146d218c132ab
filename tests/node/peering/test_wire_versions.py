"""Nodes of wire versions 6 and 7 in one federation: each link has the greatest version that both of its ends know."""

import asyncio

import msgspec
import pytest

from p2pfl.node.settings import Settings
from p2pfl.protocols.mqtt import packets
from p2pfl.protocols.wire.envelope import EARLIER, HEADER_SIZE, OVERHEAD, UNSIGNED, VERSION, Header
from tests.support.brokers import MemoryBroker
from tests.support.federation import play
from tests.support.loopback_nodes import folders, honest, until

header = msgspec.msgpack.Decoder(Header)


@pytest.mark.parametrize("broker", [False, True])
def test_link_has_greatest_version_of_both_ends(tmp_path, broker):
    members = folders(tmp_path, "alice", "bob", "carol")
    bus = MemoryBroker().bus if broker else None
    options = {"bus": bus, "addresses": dict.fromkeys(members, packets.ADDRESS)} if broker else {}

    async def main():
        async with (
            honest(members["alice"], **options) as alice,
            honest(members["bob"], **options) as bob,
            honest(members["carol"], **options, earlier=True) as carol,
        ):
            nodes = {"alice": alice, "bob": bob, "carol": carol}
            for one, other in ((a, b) for a in nodes for b in nodes if a != b):
                exchange = nodes[one].exchange
                await until(lambda exchange=exchange, other=other: exchange.peers[other].introduced)
                assert exchange.peers[other].link.version == (EARLIER if "carol" in (one, other) else VERSION)
                (update,) = await exchange.fetch([other], 1, "trained")
                assert update.params.tobytes() == nodes[other].model.tobytes()
            assert not any(node.rejected for node in nodes.values())

    asyncio.run(main())


def test_federation_of_both_versions_learns_and_compares_receipts():
    names = ("a", "b", "c", "d")
    frames = []

    async def test(federation):
        federation.network.earlier = frozenset({"d"})
        deliver = federation.network.deliver

        def record(link, frame):
            if frame is not None:
                frames.append((link.local, link.far, bytes(frame)))
            deliver(link, frame)

        federation.network.deliver = record
        federation.start()
        await federation.done()
        for node in federation.nodes.values():
            assert node.round == 4
            assert not node.exchange.rejected
            assert not node.exchange.conduct.proofs

    settings = Settings(rounds=4, deadline=10.0, robust="median-clip")
    play(test, names, settings, proven=True)
    receipts = 0
    for sender, recipient, frame in frames:
        found = header.decode(frame[:HEADER_SIZE])
        kind = type(found.body).__name__
        assert found.version == (EARLIER if "d" in (sender, recipient) else VERSION)
        if kind in ("Ping", "Pong", "Get", "RoundReached"):
            assert (frame[HEADER_SIZE:OVERHEAD] == UNSIGNED) == (found.version == VERSION)
        if kind == "Receipts":
            shown = [frame[at + 1] for at in range(OVERHEAD, len(frame), OVERHEAD)]
            receipts += len(shown)
            assert recipient != "d" or set(shown) == {EARLIER}
    assert receipts > 10
