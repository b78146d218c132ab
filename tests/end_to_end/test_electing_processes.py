"""FedPref in real processes: its coordinator is killed repeatedly, and only rounds are lost."""

import signal
import tomllib

import msgspec
import pytest

from p2pfl._util.atomic_files import read_sealed
from p2pfl.node.coordination.election_runner import MAGIC
from p2pfl.node.folder import config
from p2pfl.policies.fedpref import FedPref
from p2pfl.protocols.election import Ballot
from p2pfl.sim.scenario.scenario import resolve
from tests.support.brokers import amqtt
from tests.support.processes import processes
from tests.support.simulated import run

NAMES = [f"node-{k}" for k in range(5)]
SETTINGS = """
robust = "none"
seed = 3
deadline = 30.0
members = 5
[task]
name = "concept-shift"
clusters = 2
[policy]
name = "{policy}"
epsilon = 0.5
min_progress = 0.5
relative = true
patience = 5
"""
TRACED = """
import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from p2pfl.policies.fedpref import FedPref

@dataclass
class Traced(FedPref):
    '''FedPref that waits for a file before each round, and keeps the rounds with an assigned model in its state.'''

    applied: list = field(default_factory=list, init=False)

    async def round(self, me, peers):
        while int(Path("allowed").read_text() or 0) < me.round:
            await asyncio.sleep(0.02)
        before = self.previous
        merge = await super().round(me, peers)
        if self.previous is not before:
            self.applied.append(me.round)
        return merge

    def state(self):
        return {**super().state(), "applied": self.applied}

    def restore(self, state):
        super().restore(state)
        self.applied = list(state["applied"])
"""


def simulated(rounds, nodes=5):
    toml = f'nodes = {nodes}\ntrainer = "one-by-one"\nrounds = {rounds}\n{SETTINGS.format(policy="fedpref")}'
    return run(resolve(tomllib.loads(toml), [], "same", ".").runs[0])


def cluster_of(previous):
    return "".join(str(int(part)) for part in previous["cluster"])


def policy_state_of(checkpoint):
    """Return the cluster of a checkpoint and its rounds with an assigned model."""
    state = msgspec.msgpack.decode(checkpoint.policy_state)
    policy = FedPref()
    policy.restore(state)
    return cluster_of(policy.previous), state.get("applied")


def assert_same_as_simulated(federation, rounds):
    result = simulated(rounds, len(federation.names))
    for name in federation.names:
        node, kept = result.nodes[name], federation.checkpoint(name)
        assert kept.params == node.me.params.tobytes()
        assert kept.early_stopping["best"] == node.early_stopping.best.tobytes()
        assert policy_state_of(kept)[0] == cluster_of(node.policy.previous)
        status = federation.status(name)
        assert status["deadlines_expired"] == 0
        assert not status["election"]["problem"] or status["state"] == "finished"


@pytest.mark.slow
def test_processes_with_elected_coordinator_match_simulator(tmp_path):
    with processes(tmp_path, NAMES, f"rounds = 8\n{SETTINGS.format(policy='fedpref')}") as federation:
        federation.start()
        printed = federation.wait()
        assert_same_as_simulated(federation, 8)
        votes = [msgspec.msgpack.decode(read_sealed(federation.folders[n] / config.VOTE, MAGIC), type=Ballot) for n in NAMES]
        assert {ballot.term.membership_version for ballot in votes} == {5}  # of the membership log: it has five members
        assert all(", term 5." in text for text in printed.values())


@pytest.mark.slow
def test_processes_through_broker_alone_match_simulator(tmp_path):
    with amqtt() as broker:
        settings = SETTINGS.format(policy="fedpref").replace("members = 5", "members = 3")
        toml = f'rounds = 8\nbroker = "{broker.url}"\ndirect = false\n{settings}'
        with processes(tmp_path, NAMES[:3], toml) as federation:
            federation.start()
            federation.wait()
            assert_same_as_simulated(federation, 8)
            assert {peer["link"] for peer in federation.status("node-0")["peers"]} <= {"broker", ""}


@pytest.mark.slow
def test_coordinator_killed_three_times_costs_only_rounds(tmp_path):
    """Only the killed node misses rounds, until it is back; the clusters equal those of an undisturbed run."""
    rounds, killed = 24, []
    (tmp_path / "traced.py").write_text(TRACED)
    (tmp_path / "allowed").write_text("0")
    toml = f"rounds = {rounds}\n{SETTINGS.format(policy='traced:Traced')}"
    with processes(tmp_path, NAMES, toml, cwd=tmp_path, path=tmp_path) as federation:

        def allow(round):
            (tmp_path / "new").write_text(str(round))
            (tmp_path / "new").replace(tmp_path / "allowed")

        def seen(name):
            return federation.status(name).get("election", {}).get("coordinator")

        def agreed(names, but=None):
            federation.until(
                lambda: len({seen(name) for name in names}) == 1 and seen(names[0]) not in (None, but), "they agree"
            )
            return seen(names[0])

        def done(names, round):
            for name in names:
                federation.until_round(name, round)

        federation.start()
        agreed(NAMES)
        for last in (3, 9, 15):  # before and after the clusters split
            allow(last)
            done(NAMES, last)
            lost = agreed(NAMES)
            others = [name for name in NAMES if name != lost]
            allow(last + 2)  # at any point of its round
            federation.signal(lost, signal.SIGKILL)
            federation.wait(lost)
            killed.append(lost)
            agreed(others, but=lost)
            done(others, last + 2)
            federation.start(lost)
            agreed(NAMES)
            done(NAMES, last + 2)  # the killed node catches up alone
            allow(last + 4)
            done(NAMES, last + 4)
        allow(rounds)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 5
        statuses = {name: federation.status(name) for name in NAMES}
        kept = {name: policy_state_of(federation.checkpoint(name)) for name in NAMES}

    undisturbed = simulated(rounds)
    for name in NAMES:
        cluster, applied = kept[name]
        assert applied == sorted(set(applied)), name  # none is applied twice, also across restarts
        history = [row["round"] for row in statuses[name]["history"]]
        assert history == sorted(set(history)), name
        assert history[-1] == rounds
        lost = set(range(1, rounds + 1)) - set(applied)
        print(f"{name} was killed {killed.count(name)} times, and has lost the rounds {sorted(lost)}")
        if name not in killed:
            assert not lost
        assert lost <= {last + k for last in (3, 9, 15) for k in (1, 2)}
        assert cluster == cluster_of(undisturbed.nodes[name].policy.previous)


@pytest.mark.slow
def test_groups_of_a_committee_lose_a_summer_and_the_coordinator(tmp_path):
    names = [f"node-{k}" for k in range(8)]
    toml = f"rounds = 12\n{SETTINGS.format(policy='coordinated-fedavg')}".replace("members = 5", "members = 8")
    toml = toml[: toml.index("epsilon")]
    with processes(tmp_path, names, toml, committee=5, group_size=3) as federation:
        federation.start()
        federation.until_round("node-7", 2)
        coordinator = federation.status("node-7")["election"]["coordinator"]
        summer = next(name for name in names[:5] if name != coordinator)
        federation.signal(summer, signal.SIGKILL)
        federation.until_round("node-7", 5)
        federation.signal(coordinator, signal.SIGKILL)
        left = set(names) - {summer, coordinator}
        federation.wait(*left)
        for name in left:
            status = federation.status(name)
            assert set(status["history"][-1]["weights"]) == left
            assert not status["faults"]
