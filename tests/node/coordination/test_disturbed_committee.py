"""Rounds with a committee, with groups and without, under faults from a seed: on virtual time, with real frames and votes.

Members are killed and return, are cut off, hear one another in one direction only, are divided, and are revoked. Whatever
happens, all models that were assigned in a round and a term are the same, nobody takes one of an earlier term after one of a
later, and in the end all that are left learn together.
"""

import asyncio
import random

import pytest

from p2pfl.node.settings import Settings
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.sim.simulation.clock import run
from tests.node.coordination.test_committee import LostFederation
from tests.support.depth import many

NAMES = "abcdefgh"
ROUNDS, DEADLINE = 25, 12.0
EXPECTED = {"link lost", "lower term", "revoked", "not the coordinator", "not introduced", "differs", "stranger"}


class DisturbedFederation(LostFederation):
    """Federation with faults.

    Args:
        draw: draws the faults.

    Attributes:
        dead, revoked: names of members that are not there.
    """

    def __init__(self, draw, group_size, **options):
        super().__init__(NAMES, policy=CoordinatedFedAvg, period=1.0, **options)
        self.draw, self.group_size = draw, group_size
        self.dead, self.revoked = set(), set()

    def coordination(self, name, policy):
        return super().coordination(name, policy)._replace(group_size=self.group_size)

    @property
    def left(self):
        return set(NAMES) - self.dead - self.revoked

    async def disturb(self):
        """Let one fault begin and end."""
        fault = self.draw.choice([self.fall, self.rise, self.cut_off, self.divide, self.deafen, self.revoke_one])
        await fault(self.draw.choice(sorted(self.left)))

    async def fall(self, name):
        if len(self.dead) < 2:
            await self.kill(name)
            self.cable.cut.add(name)
            self.dead.add(name)

    async def rise(self, _):
        for name in sorted(self.dead):
            self.dead.remove(name)
            self.cable.cut.remove(name)
            self.start(name)

    async def cut_off(self, name):
        self.cable.cut.add(name)
        await self.pause()
        self.cable.cut.remove(name)

    async def divide(self, _):
        apart = self.draw.sample(NAMES, self.draw.randint(1, 4))
        self.cable.sides = dict.fromkeys(apart, "there")
        await self.pause()
        self.cable.sides = {}

    async def deafen(self, name):
        pair = self.draw.choice(sorted(set(NAMES) - {name})), name
        self.cable.one_way.add(pair)
        await self.pause()
        self.cable.one_way.remove(pair)

    async def revoke_one(self, name):
        if len(self.revoked) == 2:
            return
        await self.kill(name)
        self.revoked.add(name)
        self.revoke(name)

    async def pause(self):
        await asyncio.sleep(self.draw.uniform(0.5, 8.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(many(3, 60)))
def test_rounds_of_a_disturbed_committee_keep_invariants(seed):
    draw = random.Random(seed)

    async def main():
        speeds = {name: draw.choice([0.5, 1.0, 2.0]) for name in NAMES}
        settings = Settings(rounds=ROUNDS, deadline=DEADLINE, seed=seed)
        federation = DisturbedFederation(draw, (0, 2, 4)[seed % 3], settings=settings, speeds=speeds)
        federation.start()
        for _ in range(draw.randint(2, 6)):
            await federation.pause()
            await federation.disturb()
        async with asyncio.timeout(1000):
            await federation.done(*federation.left)
        return federation

    federation = run(main())
    models = {}
    for name, taken in federation.taken.items():
        for round, term, model in taken:
            models.setdefault((round, term), set()).add(model)
        if name in federation.left:
            terms = [term for _, term, _ in taken]
            assert terms == sorted(terms), name
    assert {len(found) for found in models.values()} == {1}
    for name in federation.left:
        weights = federation.watch[name].weights
        assert all(sum(each.values()) == pytest.approx(1.0) for each in weights.values())
        assert set(weights[ROUNDS]) == federation.left, name
        assert set(federation.nodes[name].exchange.rejected) <= EXPECTED, name
