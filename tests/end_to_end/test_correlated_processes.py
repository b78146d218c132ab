"""Noise that cancels between real processes: as large as in a simulation, and accounted when one of them is killed."""

import signal

import numpy as np
import pytest
import tomli_w

from p2pfl.node.privacy_ledger import read_ledger
from p2pfl.node.status import text
from p2pfl.privacy import epsilon_of
from p2pfl.sim.scenario.scenario import resolve
from tests.support.processes import processes
from tests.support.simulated import run

pytest.importorskip("dp_accounting")
NAMES = [f"node-{k}" for k in range(6)]
LR, EXPECTED = 0.003, 8  # learning rate, and expected samples of a step
SETTINGS = {
    "robust": "none",
    "seed": 3,
    "patience": 0,
    "deadline": 30.0,
    "task": {"name": "concept-shift", "clusters": 1, "dimensions": 400},
    "privacy": {"epsilon": 8, "correlated": True},
}
DSGD = {"name": "dsgd", "steps": 1}
GATED = """
import asyncio
from pathlib import Path
from p2pfl.policies.dsgd import Dsgd

class Gated(Dsgd):
    '''Decentralised SGD that waits for a file before each round.'''

    def under_privacy(self, rounds):
        return super().under_privacy(rounds)

    async def round(self, me, peers):
        while int(Path("allowed").read_text() or 0) < me.round:
            await asyncio.sleep(0.02)
        return await super().round(me, peers)
"""


def toml(rounds, policy, members=6):
    return tomli_w.dumps({**SETTINGS, "rounds": rounds, "members": members, "policy": policy})


def model(federation, name):
    """Return the model of a node after its last round, float32 [P]."""
    return np.frombuffer(federation.checkpoint(name).params, np.float32)


def in_steps(difference):
    """Return the deviation of a difference of models, as noise of one step divided by the clip."""
    return float(difference.std()) * EXPECTED / LR


@pytest.mark.slow
def test_noise_of_processes_is_that_of_a_simulation(tmp_path):
    rounds = 3
    with processes(tmp_path, NAMES, toml(rounds, DSGD)) as federation:
        federation.start()
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 6
        shown = {name: federation.status(name)["privacy"] for name in NAMES}
        ledgers = {name: read_ledger(federation.folders[name]) for name in NAMES}
        merged = [model(federation, name) for name in NAMES]
        trained = [
            next(each for each in federation.checkpoint(name).outbox if each.round == rounds and each.stage == "trained")
            for name in NAMES
        ]
        rows = np.array([np.frombuffer(each.params, np.float32) for each in trained])
    simulated = run(resolve({**SETTINGS, "nodes": 6, "rounds": rounds, "policy": DSGD}, [], "same", ".").runs[0])
    nodes = [simulated.nodes[name] for name in NAMES]
    plan = nodes[0].me.privacy.plan
    for name in NAMES:
        row = shown[name]
        assert row["correlated"] == {"neighbours": 5, "noise": pytest.approx(plan.mechanism.noise, rel=1e-3)}
        assert (row["colluding"], ledgers[name].colluding) == (1, 1)
        (part,) = ledgers[name].parts
        assert (part.rate, part.steps) == (plan.rate, rounds)
        assert part.noise == pytest.approx(plan.hidden, rel=1e-2)  # which a simulation rounds to three digits
        assert row["epsilon"] == round(epsilon_of(*part, 1e-5), 4)
        assert row["epsilon"] <= 8
    for each in merged[1:]:
        np.testing.assert_allclose(each, merged[0], rtol=0, atol=1e-5)
    beside = [rows - merged[0], np.array([node.peers.published["trained"] - node.me.params for node in nodes])]
    live, modelled = map(in_steps, beside)
    assert live == pytest.approx(modelled, rel=0.1)  # mostly noise of edges
    own = plan.mechanism.noise
    assert live > 10 * own
    # in the mean it cancels, so that own noise of all rounds is left, in either run
    assert in_steps(merged[0] - nodes[0].me.params) == pytest.approx(own * (2 * rounds / 6) ** 0.5, rel=0.25)


@pytest.mark.slow
def test_members_of_a_ring_count_on_their_neighbours_alone(tmp_path):
    names = NAMES[:4]
    ring = tuple(zip(names, [*names[1:], names[0]], strict=True))
    with processes(tmp_path, names, toml(2, DSGD, members=3), edges=ring) as federation:
        federation.start()
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 4
        shown = [federation.status(name)["privacy"] for name in names]
        printed = "\n".join(text.describe(federation.status(names[0])))
    for row in shown:
        assert row["correlated"]["neighbours"] == 2
        # of two neighbours one may collude, so that more is needed than on a complete graph
        assert row["correlated"]["noise"] == pytest.approx(0.83256 * row["noise"], rel=1e-3)
    row = shown[0]
    assert (
        f"noise that cancels, with 2 neighbours in the last training; own noise {row['correlated']['noise']:.4g}" in printed
    )
    assert "what is spent holds against 1 member who may collude" in printed


@pytest.mark.slow
def test_member_killed_before_while_and_after_it_releases(tmp_path):
    """Its ledger counts each training, the others go on, and their noise cancels whenever all know who is there."""
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "allowed").write_text("0")
    victim, others, rounds = NAMES[-1], NAMES[:-1], 8
    with processes(
        tmp_path, NAMES, toml(rounds, {"name": "gated:Gated", "steps": 1}), cwd=tmp_path, path=tmp_path
    ) as federation:

        def links(name):
            return {peer["name"]: bool(peer["link"]) for peer in federation.status(name)["peers"]}

        def allow(round, names=NAMES):
            """Let the nodes do a round once they have links with each other; return how far it moves the mean model."""
            for name in names:
                wanted = {other: other in names for other in NAMES if other != name}
                federation.until(lambda name=name, wanted=wanted: links(name) == wanted, f"{name} has links with {names}")
            before = model(federation, others[0])
            (tmp_path / "new").write_text(str(round))
            (tmp_path / "new").replace(tmp_path / "allowed")
            done(others, round)
            return in_steps(np.mean([model(federation, name) for name in others], axis=0) - before)

        def done(names, round):
            for name in names:
                federation.until(
                    lambda name=name: (kept := federation.checkpoint(name)) is not None and kept.round >= round,
                    f"{name} has done round {round}",
                )

        def killed():
            federation.wait(victim)
            assert federation.running[victim].returncode == -signal.SIGKILL
            return read_ledger(federation.folders[victim]).made

        federation.start()
        moved = [allow(1)]
        done(NAMES, 1)
        federation.signal(victim, signal.SIGKILL)  # before its training
        assert killed() == 1
        moved.append(allow(2, others))
        federation.start(victim, failpoint="trained:2")  # round 2 alone, then round 3 up to its release
        done([victim], 2)
        moved.append(allow(3))
        assert killed() == 3
        federation.start(victim, failpoint="published:2")  # round 3 alone, then round 4 up to its release
        done([victim], 3)
        moved.append(allow(4))
        assert killed() == 5
        federation.start(victim)
        allow(5)  # from here on it has the model of the others again
        moved.append(allow(6))
        allow(rounds)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 6
        shown = {name: federation.status(name)["privacy"] for name in NAMES}
        ledgers = {name: read_ledger(federation.folders[name]) for name in NAMES}
    own = shown[NAMES[0]]["correlated"]["noise"]
    assert [each < own for each in moved] == [True, True, False, False, True]  # whether it has cancelled
    for name in NAMES:
        (part,) = ledgers[name].parts
        assert (part.steps, ledgers[name].colluding) == (rounds, 1)
        assert shown[name]["correlated"]["neighbours"] == 5
        assert shown[name]["epsilon"] <= 8
        assert shown[name]["refused"] == 2 * (name == victim)  # its last rounds, because it has repeated others
