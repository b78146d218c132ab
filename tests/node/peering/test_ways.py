"""Several links to a peer: choice of the link, new dials, and events that do not count as silence."""

import asyncio
from collections import Counter
from itertools import count

import pytest

from p2pfl.node.peering.dialler import HINT_BURST
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.peering.peers import MOST_ADDRESSES, Peer
from p2pfl.node.settings import Settings
from p2pfl.policies.local import Local
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run
from tests.support.federation import Federation


class RecordingLink:
    """Link that records all sent frames."""

    dialled, joining, remote, backlog, progress, payload_digest, version = True, False, "b", 0, 0, b"", 6
    numbers = count(1)

    def __init__(self, key, direct):
        self.key, self.direct, self.session = key, direct, next(self.numbers).to_bytes(16, "big")
        self.said, self.closed = [], False

    def send(self, parts):
        self.said.append(b"".join(parts))

    def trust(self): ...

    def close(self):
        self.closed = True


class Pair:
    """Peer b in the table of node a; b can send to a over any link."""

    def __init__(self, federation):
        self.a, self.b = (federation.make(name).exchange.peering for name in "ab")
        self.peer = self.a.peers["b"]

    def make_link(self, direct):
        return RecordingLink(self.peer.key, direct)

    def receive(self, link, message):
        parts = self.b.signer.seal(message, self.b.peers["a"].key, self.b.introducer.parameters(), link.session)
        self.a.received(link, memoryview(b"".join(parts)))


def play(test, **options):
    async def main():
        federation = Federation("ab", **options)
        async with asyncio.timeout(1000):  # virtual seconds
            await test(federation)

    run(main())


def test_direct_link_replaces_broker_link_and_closes_it_later():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.make_link(False), pair.make_link(True)
        pair.receive(broker, m.Welcome())
        assert pair.peer.link is broker
        pair.receive(direct, m.Hello())
        assert pair.peer.link is direct
        assert not broker.closed
        await asyncio.sleep(10)
        assert broker.closed

    play(test)


def test_late_broker_answer_does_not_replace_direct_link():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.make_link(False), pair.make_link(True)
        pair.receive(direct, m.Hello())
        pair.receive(broker, m.Welcome())
        assert pair.peer.link is direct
        await asyncio.sleep(10)
        assert not broker.closed  # the other side may use it

    play(test)


def test_hello_through_broker_triggers_new_direct_dial():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.make_link(False), pair.make_link(True)
        pair.receive(direct, m.Hello())
        pair.peer.trouble.clear()
        pair.receive(broker, m.Hello())
        assert pair.peer.link is broker
        assert pair.peer.trouble.is_set()

    play(test)


@pytest.mark.parametrize("address", ["mqtt:", "memory:b"])
def test_repeated_broker_presence_triggers_immediate_dial(address):
    async def test(federation):
        node = federation.make("a")
        peering, dialled = node.exchange.peering, []
        dial = peering.transport.dial

        async def counted(address, key, joining=False):
            dialled.append(address)
            return await dial(address, key, joining)

        peering.transport.dial = counted
        async with asyncio.TaskGroup() as tasks:
            await peering.start(tasks)
            await asyncio.sleep(100)
            peering.found(federation.keys["b"].public, "mqtt:", "broker")
            await asyncio.sleep(1)
            dialled.clear()
            peering.found(federation.keys["b"].public, address, "broker")
            await asyncio.sleep(0.01)
            assert dialled == ([] if address == "memory:b" else ["memory:b", "mqtt:"])
            await peering.close()

    play(test)


async def dials_in_a_flood_of_hints(federation, seconds):
    """Return the addresses that are dialled while twenty hints arrive per second."""
    peering, dialled = federation.make("a").exchange.peering, []
    dial = peering.transport.dial

    async def counted(address, key, joining=False):
        dialled.append(address)
        return await dial(address, key, joining)

    peering.transport.dial = counted
    async with asyncio.TaskGroup() as tasks:
        await peering.start(tasks)
        for k in range(20 * seconds):
            peering.found(federation.keys["b"].public, f"memory:nobody-{k}", "mdns")
            await asyncio.sleep(0.05)
        await peering.close()
    return dialled


def test_hint_flood_is_limited_and_spares_configured_address():
    async def test(federation):
        dialled = await dials_in_a_flood_of_hints(federation, 100)
        assert 100 <= sum(address != "memory:b" for address in dialled) <= HINT_BURST + 100
        assert 25 <= dialled.count("memory:b") <= HINT_BURST + 100  # 4 s is the longest pause

    play(test)


def test_hints_evict_no_proven_address_and_no_other_source():
    peer = Peer("b", Member(bytes(32), ("configured",)))
    peer.hint("proven", "mdns")
    peer.record_proof("proven")
    for source in ("broker", "mdns"):
        for k in range(100):
            assert peer.hint(f"{source}-{k}", source)
    assert {"configured", "proven"} < peer.addresses.keys()
    assert Counter(peer.addresses.values()) == {"node.toml": 1, "broker": MOST_ADDRESSES, "mdns": MOST_ADDRESSES}
    assert "mdns-99" in peer.addresses


def test_proven_addresses_leave_room_for_others():
    peer = Peer("b", Member(bytes(32)))
    for k in range(100):
        assert peer.hint(f"{k}", "mdns")
        peer.record_proof(f"{k}")
    assert list(peer.proven) == ["96", "97", "98", "99"]
    assert len(peer.addresses) == MOST_ADDRESSES


@pytest.mark.slow
@pytest.mark.parametrize("moving", [True, False])
def test_slow_frame_with_progress_is_not_silence(moving):
    async def test(federation):
        federation.start("a", "b")
        peering = federation.nodes["a"].exchange.peering
        await federation.round("a", 3)
        link = peering.peers["b"].link
        federation.cable.cut.add("b")
        for second in range(30):
            await asyncio.sleep(1)
            if moving:
                link.progress = second
        assert ("b" in peering.view.suspected) is not moving
        for task in federation.running.values():
            task.cancel()
        await asyncio.gather(*federation.running.values(), return_exceptions=True)

    play(test, settings=Settings(rounds=10_000), policy=Local, period=1.0)
