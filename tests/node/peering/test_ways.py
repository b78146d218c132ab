"""Several links to a peer: choice of the link, dialling again, and events that do not count as silence."""

import asyncio
from collections import Counter
from itertools import count

import pytest

from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.links.dialler import HINT_BURST
from p2pfl.node.peering.peer import MOST_ADDRESSES, Member, Peer
from p2pfl.policies.local import Local
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run
from tests.support.federation import Federation


class Way:
    """A link that keeps what is said over it."""

    dialled, joining, remote, backlog, progress = True, False, "b", 0, 0
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
    """Peer b as node a knows it; b can send to a over any link."""

    def __init__(self, federation):
        self.a, self.b = (federation.make(name).exchange.contacts for name in "ab")
        self.peer = self.a.peers["b"]

    def way(self, direct):
        return Way(self.peer.key, direct)

    def hears(self, link, message):
        parts = self.b.sealer.seal(message, self.b.peers["a"].key, self.b.introducer.parameters(), link.session)
        self.a.links.received(link, memoryview(b"".join(parts)))


def play(test, **options):
    async def main():
        federation = Federation("ab", **options)
        async with asyncio.timeout(1000):  # virtual seconds
            await test(federation)

    run(main())


def test_a_direct_link_takes_the_place_of_the_broker_which_is_left_when_nothing_is_on_its_way():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.way(False), pair.way(True)
        pair.hears(broker, m.Welcome())
        assert pair.peer.link is broker
        pair.hears(direct, m.Hello())
        assert pair.peer.link is direct
        assert not broker.closed
        await asyncio.sleep(10)
        assert broker.closed

    play(test)


def test_an_answer_through_the_broker_that_comes_late_does_not_replace_a_direct_link():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.way(False), pair.way(True)
        pair.hears(direct, m.Hello())
        pair.hears(broker, m.Welcome())
        assert pair.peer.link is direct
        await asyncio.sleep(10)
        assert not broker.closed  # the other side may use it

    play(test)


def test_who_comes_through_the_broker_although_there_was_a_direct_link_is_dialled_directly_again():
    async def test(federation):
        pair = Pair(federation)
        broker, direct = pair.way(False), pair.way(True)
        pair.hears(direct, m.Hello())
        pair.peer.trouble.clear()
        pair.hears(broker, m.Hello())
        assert pair.peer.link is broker
        assert pair.peer.trouble.is_set()

    play(test)


@pytest.mark.parametrize("address", ["mqtt:", "memory:b"])
def test_who_says_at_the_broker_that_it_is_there_is_dialled_at_once(address):
    async def test(federation):
        node = federation.make("a")
        contacts, dialled = node.exchange.contacts, []
        dial = contacts.transport.dial

        async def counted(address, key, joining=False):
            dialled.append(address)
            return await dial(address, key, joining)

        contacts.transport.dial = counted
        async with asyncio.TaskGroup() as tasks:
            await contacts.start(tasks)
            await asyncio.sleep(100)
            contacts.found(federation.keys["b"].public, "mqtt:", "broker")
            await asyncio.sleep(1)
            dialled.clear()
            contacts.found(federation.keys["b"].public, address, "broker")
            await asyncio.sleep(0.01)
            assert dialled == ([] if address == "memory:b" else ["memory:b", "mqtt:"])
            await contacts.close()

    play(test)


async def dials_in_a_flood_of_hints(federation, seconds):
    """Return the addresses that are dialled while twenty hints come in each second."""
    contacts, dialled = federation.make("a").exchange.contacts, []
    dial = contacts.transport.dial

    async def counted(address, key, joining=False):
        dialled.append(address)
        return await dial(address, key, joining)

    contacts.transport.dial = counted
    async with asyncio.TaskGroup() as tasks:
        await contacts.start(tasks)
        for k in range(20 * seconds):
            contacts.found(federation.keys["b"].public, f"memory:nobody-{k}", "mdns")
            await asyncio.sleep(0.05)
        await contacts.close()
    return dialled


def test_hints_are_dialled_once_a_second_at_most_and_do_not_keep_from_what_the_owner_has_configured():
    async def test(federation):
        dialled = await dials_in_a_flood_of_hints(federation, 100)
        assert 100 <= sum(address != "memory:b" for address in dialled) <= HINT_BURST + 100
        assert 25 <= dialled.count("memory:b") <= HINT_BURST + 100  # 4 s is the longest pause

    play(test)


def test_a_hint_pushes_out_neither_an_address_that_has_worked_nor_what_others_have_said():
    peer = Peer("b", Member(bytes(32), ("configured",)))
    peer.hint("proven", "mdns")
    peer.record_proof("proven")
    for source in ("broker", "mdns"):
        for k in range(100):
            assert peer.hint(f"{source}-{k}", source)
    assert {"configured", "proven"} < peer.addresses.keys()
    assert Counter(peer.addresses.values()) == {"node.toml": 1, "broker": MOST_ADDRESSES, "mdns": MOST_ADDRESSES}
    assert "mdns-99" in peer.addresses


def test_addresses_that_have_worked_leave_room_for_others():
    peer = Peer("b", Member(bytes(32)))
    for k in range(100):
        assert peer.hint(f"{k}", "mdns")
        peer.record_proof(f"{k}")
    assert list(peer.proven) == ["96", "97", "98", "99"]
    assert len(peer.addresses) == MOST_ADDRESSES


@pytest.mark.slow
@pytest.mark.parametrize("moving", [True, False])
def test_a_frame_that_takes_long_is_no_silence(moving):
    async def test(federation):
        federation.start("a", "b")
        contacts = federation.nodes["a"].exchange.contacts
        await federation.round("a", 3)
        link = contacts.peers["b"].link
        federation.cable.cut.add("b")
        for second in range(30):
            await asyncio.sleep(1)
            if moving:
                link.progress = second
        assert ("b" in contacts.roster.suspected) is not moving
        for task in federation.running.values():
            task.cancel()
        await asyncio.gather(*federation.running.values(), return_exceptions=True)

    play(test, settings=Settings(rounds=10_000), policy=Local, period=1.0)
