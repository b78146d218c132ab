"""Links that are cut in one direction, or again and again, on virtual time."""

import asyncio

import pytest

from p2pfl.node.settings import Settings
from tests.support.federation import play

NAMES = ("a", "b", "c", "d")


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["b", "bcd"])
def test_cut_in_one_direction_heals(deaf):
    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        federation.cable.one_way = {("a", name) for name in deaf}
        await federation.round("c", 15)
        federation.cable.one_way = set()
        await federation.done()

    federation = play(test, NAMES, Settings(rounds=40, deadline=5.0), period=1.0)
    assert set(federation.watch["c"].weights) == set(range(1, 41))
    assert all("d" in federation.partners("c", round) for round in range(1, 41))  # the others learn meanwhile
    for name in NAMES:
        assert federation.partners(name, 40) == set(NAMES) - {name}


@pytest.mark.slow
def test_link_that_flaps_for_minutes_heals():
    async def test(federation):
        federation.start()
        await federation.round("a", 2)
        for _ in range(60):  # two minutes of one second without and one second with the link
            federation.cable.one_way = {("a", "b"), ("b", "a")}
            await asyncio.sleep(1.0)
            federation.cable.one_way = set()
            await asyncio.sleep(1.0)
        assert max(federation.watch["c"].weights) > 20
        await federation.done()

    speeds = dict.fromkeys(NAMES, 4.0)
    federation = play(test, NAMES, Settings(rounds=80, deadline=10.0), period=1.0, speeds=speeds)
    assert federation.nodes["c"].exchange.expired < 5  # the others lose little time
    for name in NAMES:
        assert federation.partners(name, 80) == set(NAMES) - {name}
