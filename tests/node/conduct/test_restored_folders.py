"""Crashes, restarts, partitions and folders restored from older copies: none of them makes an honest node look dishonest."""

import asyncio
from collections import defaultdict

import numpy as np
import pytest

from p2pfl.node.peering.control_messages import IncarnationConflictError
from p2pfl.node.settings import Settings
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, parse_signed_model
from tests.support.federation import federation_id, play

NAMES = ("a", "b", "c", "d")
ROUNDS = 20


class Signed:
    """All signed models of a federation, including those that no node has compared."""

    def __init__(self):
        self.models = defaultdict(set)  # by sender, start, round and stage: their contents

    def record(self, exchange):
        signer = exchange.peering.signer
        honest = signer.seal

        def seal(message, *args, **options):
            parts = honest(message, *args, **options)
            if isinstance(message, m.ModelUpdate):
                model = parse_signed_model(b"".join(map(bytes, parts))[:OVERHEAD], federation_id("test"))
                self.models[model.sender, model.start, model.round, model.stage].add(model.content)
            return parts

        signer.seal = seal


class MemoryDisk:
    """All checkpoints of a node; see p2pfl.node.checkpoint.Store."""

    problem = ""

    def __init__(self):
        self.saved = []

    @property
    def round(self):
        return self.saved[-1].round if self.saved else 0

    def save(self, checkpoint):
        self.saved.append(checkpoint)

    def load(self):
        return self.saved[-1] if self.saved else None


class Unlucky:
    """A federation in which nodes crash, start again, also from older folders, and are cut off."""

    def __init__(self, federation, seed):
        self.federation = federation
        federation.stores = {name: MemoryDisk() for name in NAMES}
        self.rng = np.random.default_rng(seed)
        self.signed = Signed()
        self.backups = {name: [] for name in NAMES}  # incarnations and numbers of checkpoints
        self.resumed = []

    def start(self, name, resume_after=0):
        self.federation.start(name, resume_after=resume_after)
        self.signed.record(self.federation.nodes[name].exchange)

    def back_up(self, name):
        self.backups[name].append((self.federation.incarnations[name], len(self.federation.stores[name].saved)))

    def restore(self, name):
        """Replace a folder with an older copy of it, with its count of starts."""
        incarnation, checkpoints = self.backups[name][int(self.rng.integers(len(self.backups[name])))]
        del self.federation.stores[name].saved[checkpoints:]
        self.federation.incarnations[name] = incarnation

    async def crash(self, name):
        if not self.federation.running[name].done():
            await self.federation.kill(name)
            if self.rng.random() < 0.7:
                self.restore(name)
            await asyncio.sleep(float(self.rng.exponential(2.0)))
            self.start(name)

    async def cut(self, name):
        self.federation.cable.sides[name] = 1
        await asyncio.sleep(float(self.rng.exponential(8.0)))
        self.federation.cable.sides.clear()

    def renumber(self, name):
        """Do what p2pfl.node.runtime.run does when peers know later messages of a node."""
        task = self.federation.running[name]
        if task.done() and isinstance(conflict := task.exception(), IncarnationConflictError):
            self.resumed.append(conflict.round)
            self.federation.incarnations[name] = conflict.incarnation + 2**20
            self.start(name, conflict.round)

    async def run(self):
        for name in NAMES:
            self.back_up(name)
            self.start(name)
        for _ in range(16):
            await asyncio.sleep(float(self.rng.exponential(1.0)))
            name = NAMES[int(self.rng.integers(len(NAMES)))]
            self.back_up(name)
            await (self.crash(name) if self.rng.random() < 0.7 else self.cut(name))
            for each in NAMES:
                self.renumber(each)
        while not all(task.done() for task in self.federation.running.values()):
            await asyncio.sleep(1.0)
            for name in NAMES:
                self.renumber(name)
        await self.federation.done()


def run_unlucky(seed):
    unlucky = []

    async def test(federation):
        unlucky.append(Unlucky(federation, seed))
        await unlucky[0].run()

    settings = Settings(rounds=ROUNDS, deadline=5.0, robust="median-clip", distrust=1)
    return play(test, NAMES, settings, period=1.0, proven=True), unlucky[0]


@pytest.mark.slow
def test_bad_luck_convicts_no_honest_node():
    resumed = 0
    for seed in (0, 1, 2, 16, 31, 33):  # in 16, 31 and 33 nodes repeat rounds
        federation, unlucky = run_unlucky(seed)
        double = {key: contents for key, contents in unlucky.signed.models.items() if len(contents) > 1}
        assert not double, (seed, double)
        for node in federation.nodes.values():
            assert not node.exchange.conduct.proofs, seed
            assert not node.exchange.view.left_out, (seed, node.exchange.view.left_out)
        resumed += len(unlucky.resumed)
    assert resumed > 4  # folders were restored, and their nodes noticed
