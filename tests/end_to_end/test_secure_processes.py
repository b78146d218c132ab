"""Secure sums of real processes, one of which is killed before, while and after it submits its masked model."""

import signal

import msgspec
import numpy as np
import pytest

from p2pfl.node.privacy_ledger import read_ledger
from p2pfl.sim.scenario.scenario import resolve
from tests.support.processes import processes
from tests.support.simulated import run

NAMES = [f"node-{k}" for k in range(6)]
SETTINGS = """
robust = "none"
seed = 3
deadline = 30.0
members = 6
[task]
name = "concept-shift"
clusters = 2
[policy]
name = "{policy}"
"""
GATED = """
import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from p2pfl.policies.coordinated import CoordinatedFedAvg

@dataclass
class Gated(CoordinatedFedAvg):
    '''FedAvg that waits for a file before each round, and keeps who was in each mean in its state.'''

    only_mean: ClassVar[bool] = True
    seen: list = field(default_factory=list, init=False)

    async def round(self, me, peers):
        while int(Path("allowed").read_text() or 0) < me.round:
            await asyncio.sleep(0.02)
        merge = await super().round(me, peers)
        self.seen.append([me.round, sorted(merge.weights)])
        return merge

    def state(self):
        return {**super().state(), "seen": self.seen}

    def restore(self, state):
        super().restore(state)
        self.seen = list(state["seen"])
"""


def seen_by(federation, name):
    """Return the members of each mean that a node has been assigned, by round."""
    kept = federation.checkpoint(name)
    return {} if kept is None else dict(map(tuple, msgspec.msgpack.decode(kept.policy_state)["seen"]))


@pytest.mark.slow
def test_member_killed_before_while_and_after_it_submits(tmp_path):
    """The sum opens without its model, or with it once that has arrived, and the federation goes on."""
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "allowed").write_text("0")
    toml = f"rounds = 6\nsecure_sums = true\n{SETTINGS.format(policy='gated:Gated')}"
    with processes(tmp_path, NAMES, toml, cwd=tmp_path, path=tmp_path) as federation:

        def allow(round):
            (tmp_path / "new").write_text(str(round))
            (tmp_path / "new").replace(tmp_path / "allowed")

        def done(names, round):
            for name in names:
                federation.until(lambda name=name: round in seen_by(federation, name), f"{name} has done round {round}")

        federation.start()
        allow(1)
        done(NAMES, 1)
        coordinator = federation.status(NAMES[0])["election"]["coordinator"]
        victim = next(name for name in NAMES if name != coordinator)
        others = [name for name in NAMES if name != victim]

        def ready():
            """Wait until all nodes are connected, and the victim waits for the next round."""
            for name in others:
                federation.until(
                    lambda name=name: all(peer["link"] for peer in federation.status(name)["peers"]), f"{name} has all links"
                )

        federation.signal(victim, signal.SIGKILL)  # before it submits
        federation.wait(victim)
        allow(2)
        done(others, 2)
        for last, failpoint in ((2, "sum-shared:1"), (3, "sum-submitted:1")):  # while it submits, and afterwards
            federation.start(victim, failpoint=failpoint)
            done([victim], last)  # it repeats the round alone
            ready()
            allow(last + 1)
            done(others, last + 1)
            federation.wait(victim)
            assert federation.running[victim].returncode == -signal.SIGKILL
        federation.start(victim)
        done([victim], 4)
        ready()
        allow(6)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 6
        for name in others:
            members = seen_by(federation, name)
            assert [members[round] for round in (1, 4, 5, 6)] == [NAMES] * 4
            assert members[2] == members[3] == others
        assert seen_by(federation, victim)[6] == NAMES


@pytest.mark.slow
def test_processes_with_secure_sums_match_simulator(tmp_path):
    """The sums of processes, of the simulator, and of the simulator without secure sums."""
    toml = f"rounds = 4\nsecure_sums = true\n{SETTINGS.format(policy='coordinated-fedavg')}"
    with processes(tmp_path, NAMES, toml) as federation:
        federation.start()
        federation.wait()
        kept = {name: federation.checkpoint(name).params for name in NAMES}
        shown = federation.status(NAMES[0])["secure_sums"]
        assert (shown["assigned"], shown["missed"], shown["problem"], shown["threshold"]) == (4, 0, "", 5)
        assert shown["latest"] == {"round": 4, "announced": 6, "submitted": 6, "opened": True}
    settings = {"robust": "none", "seed": 3, "deadline": 30.0, "nodes": 6, "rounds": 4, "trainer": "one-by-one"}
    settings |= {"task": {"name": "concept-shift", "clusters": 2}, "policy": {"name": "coordinated-fedavg"}}
    secure, plain = (run(resolve(settings | {"secure_sums": on}, [], "same", ".").runs[0]) for on in (True, False))
    for name in NAMES:
        assert kept[name] == secure.nodes[name].me.params.tobytes()
        np.testing.assert_allclose(np.frombuffer(kept[name], np.float32), plain.nodes[name].me.params, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_noise_of_processes_adds_up_and_one_is_killed_after_its_training(tmp_path):
    """A killed member has counted its step, repeats it with another one, and lacks one for the last round."""
    pytest.importorskip("dp_accounting")
    task = SETTINGS.format(policy="coordinated-fedavg").replace("clusters = 2", "clusters = 2\nbatch_size = 50")
    task = task.replace("deadline = 30.0", "deadline = 6.0")
    head = "rounds = 4\npatience = 0\nsecure_sums = true\nsecure_threshold = 5\n"
    budget = "[privacy]\nepsilon = 8\ncentral = true\n"
    victim, others = NAMES[-1], NAMES[:-1]
    with processes(tmp_path, NAMES, f"{head}{task}{budget}") as federation:
        federation.start(*others)
        federation.start(victim, failpoint="trained:2")
        federation.wait(victim)
        federation.start(victim)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 6
        shown = {name: federation.status(name) for name in NAMES}
        ledgers = {name: read_ledger(federation.folders[name]) for name in NAMES}
        models = {federation.checkpoint(name).params for name in others}
    for name in NAMES:
        assert ledgers[name].made == 4
        assert shown[name]["privacy"]["central"] == {"colluding": 1, "threshold": 5}
        assert 7.9 < shown[name]["privacy"]["epsilon"] <= 8
    assert [shown[name]["secure_sums"]["assigned"] for name in others] == [4] * 5
    assert shown[victim]["secure_sums"]["assigned"] < 4
    assert shown[victim]["privacy"]["refused"] == 1
    assert len(models) == 1
