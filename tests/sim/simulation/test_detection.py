"""Detection of attackers by simulated nodes."""

import pytest

from p2pfl.sim.scenario.scenario import resolve
from tests.support.simulated import run

BASE = {"nodes": 6, "rounds": 5, "task": "concept-shift", "policy": "fedavg"}


def simulate(**changes):
    (scenario,) = resolve({**BASE, **changes}, [], "x", ".").runs
    return run(scenario).nodes


def conducts(nodes, *attackers):
    return {name: node.exchange.conduct for name, node in nodes.items() if name not in attackers}


@pytest.mark.slow
def test_honest_nodes_hold_proof_of_equivocation():
    nodes = simulate(attack={"name": "equivocation", "nodes": [2, 4]})
    liars = sorted(nodes)[2], sorted(nodes)[4]
    for conduct in conducts(nodes, *liars).values():
        assert set(conduct.proofs) == {name.encode() for name in liars}
        assert {name: conduct.score(name) for name in liars} == dict.fromkeys(liars, 100)
        assert not conduct.left_out


@pytest.mark.slow
@pytest.mark.parametrize("network", [{}, {"latency": 0.01}], ids=["instant", "with latency"])
def test_distrusting_nodes_leave_equivocators_out(network):
    nodes = simulate(attack={"name": "equivocation", "nodes": [2]}, distrust=5, network=network)
    liar = sorted(nodes)[2]
    for name, node in nodes.items():
        if name != liar:
            assert node.exchange.conduct.left_out == {liar}
            assert liar not in node.exchange.view.neighbours
            assert liar not in node.peers.senders


@pytest.mark.slow
def test_equivocator_in_sparse_graph_is_found():
    topology = {"name": "k-regular", "degree": 4}
    changes = {"nodes": 16, "rounds": 8, "policy": {"name": "random", "neighbours": 2}, "topology": topology, "distrust": 1}
    nodes = simulate(attack={"name": "equivocation", "nodes": [2]}, **changes)
    liar = sorted(nodes)[2]
    for conduct in conducts(nodes, liar).values():
        assert set(conduct.proofs) == {liar.encode()}


@pytest.mark.slow
def test_other_attack_convicts_nobody():
    nodes = simulate(attack={"name": "sign-flip", "nodes": [2]}, distrust=5)
    assert not any(conduct.proofs or conduct.left_out for conduct in conducts(nodes).values())


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.slow
def test_honest_simulation_convicts_nobody(mode):
    compute = {"seconds": 1.0, "slowdown": [1.0, 4.0]}
    nodes = simulate(policy="random", mode=mode, distrust=1, compute=compute, network={"latency": 0.05})
    for conduct in conducts(nodes).values():
        assert (conduct.proofs, conduct.penalties) == ({}, {})
