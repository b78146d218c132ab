"""Nodes at rest, before their first round and after their last one: the frames they send, and how fast they find a death."""

import asyncio
from functools import partial
from math import inf, log10

import pytest

from p2pfl.node.settings import Settings
from tests.support.federation import play

NAMES = tuple("abcdefghi")
REST = 30.0
SUSPICION = 4 * log10(9)
pytestmark = pytest.mark.slow


def idle(test, rounds=1, speeds=None):
    """Run `test(federation)` with nine nodes that do their rounds, and then serve each other without end."""

    async def main(federation):
        for name in NAMES:
            federation.nodes[name] = node = federation.make(name)
            peering = node.exchange.peering
            serve = partial(peering.until, lambda peering=peering: not peering.final, inf)
            federation.running[name] = asyncio.create_task(node.run(serve))
        await test(federation)
        for task in federation.running.values():
            task.cancel()

    settings = Settings(rounds=rounds, members=len(NAMES), deadline=10.0)
    return play(main, NAMES, settings, period=1.0, rest=REST, speeds=speeds)


async def frames_in_a_minute(federation):
    """Return the frames that each node sends in the next minute."""
    before = federation.cable.frames.copy()
    await asyncio.sleep(60.0)
    return federation.cable.frames - before


def suspicions_of(federation, dead):
    """Return the nodes that suspect a dead one, and those that have closed their link with it."""
    others = [federation.nodes[name].exchange for name in NAMES if name != dead]
    return sum(dead in each.view.suspected for each in others), sum(not each.peers[dead].introduced for each in others)


async def all_finished(federation):
    for name in NAMES:
        await federation.round(name, 1)
    await asyncio.sleep(5.0)
    assert all(federation.nodes[name].done for name in NAMES)


def test_idle_node_with_eight_neighbours_sends_few_frames():
    async def test(federation):
        await all_finished(federation)
        for _ in range(5):
            sent = await frames_in_a_minute(federation)
            # A ping or a pong for each of eight links, once or twice a minute; in a round it is two each second.
            assert max(sent.values()) <= 2 * 8
            assert sent.total() >= 8 * len(NAMES)

    idle(test)


def test_node_in_a_long_round_probes_each_second():
    async def test(federation):
        await asyncio.sleep(20.0)
        assert all(90 <= count <= 150 for count in (await frames_in_a_minute(federation)).values())

    idle(test, speeds=dict.fromkeys(NAMES, 300.0))


def test_idle_nodes_find_a_dead_one_within_the_stated_time():
    async def test(federation):
        await all_finished(federation)
        await asyncio.sleep(100.0)
        federation.cable.cut.add("e")
        await asyncio.sleep(2 * REST + 4)
        assert suspicions_of(federation, "e")[0] == 8
        await asyncio.sleep(SUSPICION + 1)
        assert suspicions_of(federation, "e") == (8, 8)

    idle(test)


def test_nodes_in_a_round_find_a_dead_one_within_the_stated_time():
    async def test(federation):
        await asyncio.sleep(20.0)
        federation.cable.cut.add("e")
        await asyncio.sleep(2 * 8 + 4)
        assert suspicions_of(federation, "e")[0] == 8
        await asyncio.sleep(SUSPICION + 1)
        assert suspicions_of(federation, "e") == (8, 8)

    idle(test, speeds=dict.fromkeys(NAMES, 300.0))


def test_node_rests_only_outside_its_rounds():
    async def main(federation):
        federation.start("a")
        node = federation.nodes["a"]
        await asyncio.sleep(300.0)
        assert node.exchange.peering.detector.resting  # it waits for members
        federation.start("b")
        await federation.round("a", 1)
        assert not node.exchange.peering.detector.resting
        await federation.round("a", 2)
        await federation.kill("b")
        await asyncio.sleep(60.0)
        assert node.done
        assert not node.exchange.peering.detector.resting  # `others_done` waits for the peer
        await federation.done("a")

    speeds = {"a": 1.0, "b": 1.0}
    settings = Settings(rounds=3, members=2, deadline=10.0)
    play(main, ("a", "b"), settings, period=1.0, rest=3600.0, speeds=speeds)


def test_additional_rounds_end_the_rest():
    async def test(federation):
        await asyncio.sleep(200.0)
        resting = {name: node.exchange.peering.detector.resting for name, node in federation.nodes.items()}
        assert resting == dict.fromkeys(NAMES, True)
        for node in federation.nodes.values():
            node.extend(2)
            node.exchange.extend(2, resume=True)
        await asyncio.sleep(20.0)
        resting = {name: node.exchange.peering.detector.resting for name, node in federation.nodes.items()}
        assert resting == dict.fromkeys(NAMES, False)

    idle(test, speeds=dict.fromkeys(NAMES, 100.0))


def test_end_of_rest_wakes_the_prober_at_once():
    async def test(federation):
        await all_finished(federation)
        await asyncio.sleep(3.0)
        peering = federation.nodes["a"].exchange.peering
        peering.end_rest()
        assert (await frames_in_a_minute(federation))["a"] >= 50

    idle(test)
