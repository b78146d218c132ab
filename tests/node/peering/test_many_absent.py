"""Dialling where many peers are missing at once: at a founding, after an outage, and while most members are off."""

import asyncio
from math import inf
from types import SimpleNamespace

from p2pfl.node.peering.dialler import FIRST_PAUSE, HOLD, LONGEST_PAUSE
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import DialLimits, Member
from p2pfl.protocols.errors import TransportError
from p2pfl.sim.simulation.clock import run

LIMITS = DialLimits()


class AbsentPeers:
    """Transport whose peers do not answer.

    Attributes:
        dials: time and address of each dial.
        seconds: duration of a dial until its failure; by address, or for all.
    """

    address = "tcp://127.0.0.1:1"

    def __init__(self, seconds=0.0):
        self.dials, self.seconds = [], seconds
        self.now = self.most = 0

    async def dial(self, address, key, joining=False):
        self.dials.append((asyncio.get_running_loop().time(), address))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds.get(address, 0.0) if isinstance(self.seconds, dict) else self.seconds)
        finally:
            self.now -= 1
        raise TransportError(f"{address}: connection refused")

    async def listen(self, handler): ...

    async def close(self): ...


class Node:
    """Peers of one node with `count` absent peers."""

    def __init__(self, count, transport, limits=LIMITS):
        self.transport, self.changes = transport, 0
        options = SimpleNamespace(
            period=inf, rest=0.0, dialling=limits, guard=None, access=None, discovery=None, answer_join=None
        )
        config = SimpleNamespace(
            name="alice",
            key=b"\xff" * 32,
            public_info={},
            signer=None,
            neighbours={f"p{k:04}": Member(k.to_bytes(32, "big"), (f"tcp://{k}",)) for k in range(count)},
            sources=None,
            seed=0,
            asynchronous=False,
            options=options,
            transport=transport,
            verifier=SimpleNamespace(),
        )
        self.peering = PeerManager(config, SimpleNamespace(peers_changed=self.count_change))

    def count_change(self):
        self.changes += 1

    async def run(self, work):
        async with asyncio.TaskGroup() as tasks:
            await self.peering.start(tasks)
            for peer in self.peering.peers.values():
                self.peering.suspect(peer, "not connected at the start")
            await work()
            await self.peering.close()

    def sight(self, k):
        self.peering.found(k.to_bytes(32, "big"), f"tcp://{k}", "mdns")

    def dials_in(self, begin, end, address=None):
        return sum(begin <= at < end and address in (None, to) for at, to in self.transport.dials)


def play(test, *given, **options):
    async def main():
        node = Node(*given, **options)
        await node.run(lambda: test(node))

    run(main())


def test_few_dials_are_in_progress_at_once():
    async def test(node):
        await asyncio.sleep(20.0)
        assert {to for _, to in node.transport.dials} == {f"tcp://{k}" for k in range(200)}
        assert node.transport.most == LIMITS.at_once

    play(test, 200, AbsentPeers(0.5))


def test_first_dials_of_nodes_differ_in_order():
    async def test(node):
        await asyncio.sleep(2.0)
        first = [to for _, to in node.transport.dials[:50]]
        assert first != sorted(first, key=lambda to: int(to[6:]))

    play(test, 50, AbsentPeers(0.1))


def test_tarpit_holds_its_slot_for_a_moment():
    """As many tarpits as slots: a peer behind them is dialled once they have held their slots."""
    tarpits = {f"tcp://{k}": 3600.0 for k in range(LIMITS.at_once)}

    async def test(node):
        await asyncio.sleep(2.0 + 2 * HOLD)
        assert {to for _, to in node.transport.dials} == {f"tcp://{k}" for k in range(30)}
        assert node.transport.now == len(tarpits)  # they go on without slots

    play(test, 30, AbsentPeers(tarpits))


def test_many_absent_peers_together_are_dialled_at_a_bounded_rate():
    limits = DialLimits(rate=4.0)

    async def test(node):
        await asyncio.sleep(180.0)
        assert node.dials_in(120.0, 180.0) <= 1.5 * limits.rate * 60.0
        for k in range(200):  # and none is forgotten
            assert node.dials_in(180.0 - 2 * limits.longest, 180.0, f"tcp://{k}")

    play(test, 200, AbsentPeers(), limits=limits)


def test_single_absent_peer_is_dialled_often_at_first_and_once_a_minute_later():
    async def test(node):
        await asyncio.sleep(30.0)
        assert node.dials_in(20.0, 30.0) >= 2
        await asyncio.sleep(3600.0)
        assert 1800 / (1.25 * LIMITS.longest) - 1 <= node.dials_in(1830.0, 3630.0) <= 1800 / (0.75 * LIMITS.longest) + 1

    play(test, 1, AbsentPeers())


def test_sign_of_life_ends_a_long_pause():
    async def test(node):
        await asyncio.sleep(3600.0)
        before = len(node.transport.dials)
        node.sight(0)
        await asyncio.sleep(0.001)
        assert len(node.transport.dials) == before + 1
        await asyncio.sleep(4 * LONGEST_PAUSE)
        assert len(node.transport.dials) >= before + 3

    play(test, 1, AbsentPeers())


def test_flood_of_signs_of_life_causes_few_dials():
    async def test(node):
        await asyncio.sleep(3600.0)
        before = len(node.transport.dials)
        for _ in range(1000):
            node.sight(0)
            await asyncio.sleep(0.1)
        assert len(node.transport.dials) - before <= 2 * 100.0 / LONGEST_PAUSE

    play(test, 1, AbsentPeers())


def test_repeated_failure_wakes_nobody():
    async def test(node):
        await asyncio.sleep(10.0)
        changes, dials = node.changes, len(node.transport.dials)
        await asyncio.sleep(600.0)
        assert len(node.transport.dials) > dials + 100
        assert node.changes == changes

    play(test, 10, AbsentPeers())


def test_dialling_without_limits_keeps_its_pauses():
    async def test(node):
        await asyncio.sleep(600.0)
        assert node.dials_in(0.0, FIRST_PAUSE / 2) == 3
        assert node.dials_in(300.0, 600.0, "tcp://0") >= 300.0 / (1.25 * LONGEST_PAUSE) - 1

    play(test, 3, AbsentPeers(), limits=None)
