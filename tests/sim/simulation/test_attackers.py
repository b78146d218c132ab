"""Attackers of a scenario: their choice, what honest nodes receive, and the figures of the honest nodes."""

import numpy as np
import pytest

import p2pfl
from p2pfl.attacks.registry import ATTACKS
from p2pfl.errors import ConfigurationError
from p2pfl.sim.scenario.scenario import plan_attack, resolve
from tests.support.depth import spread

BASE = {"nodes": 6, "rounds": 2, "task": "concept-shift", "policy": "fedavg"}


def simulate(**changes):
    return p2pfl.simulate({**BASE, **changes})[0]


def test_plan_attack_draws_attackers_from_the_seed():
    table = {"name": "alie", "share": 0.3}
    assert plan_attack(table, 10, 0) == plan_attack(table, 10, 0)
    assert len(plan_attack(table, 10, 0).nodes) == 3
    assert len({plan_attack(table, 10, seed).nodes for seed in range(5)}) > 1
    assert plan_attack({"name": "alie", "nodes": [4, 2]}, 10, 0).nodes == (2, 4)
    assert plan_attack(None, 10, 0) is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"share": 0.2}, r"attack\.name is missing"),
        ({"name": "alie", "share": 1.0}, r"attack\.share must be at least 0 and less than 1"),
        ({"name": "alie", "nodes": [6]}, r"attack\.nodes must be numbers from 0 to 5"),
        ({"name": "alie", "nodes": [0, 1, 2, 3, 4, 5]}, "at least one of the 6 nodes must be honest"),
        ({"name": "alie", "zz": 1.0}, r"unknown key 'attack\.zz'"),
    ],
)
def test_invalid_attack_is_refused(table, problem):
    with pytest.raises(ConfigurationError, match=problem):
        resolve({**BASE, "attack": table}, [], "x", ".")


def test_attack_by_victim_needs_modelled_network():
    with pytest.raises(ConfigurationError, match='needs fidelity = "modelled"'):
        resolve({**BASE, "attack": {"name": "dissensus"}, "fidelity": "wire"}, [], "x", ".")


@pytest.mark.slow
def test_attack_by_victim_refuses_coordinated_policy():
    with pytest.raises(ConfigurationError, match="a coordinated policy needs an attack that sends one model to all"):
        simulate(attack={"name": "dissensus"}, policy="coordinated-fedavg")


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(ATTACKS, 2))
def test_attack_runs_and_only_honest_nodes_count(name):
    result = simulate(attack={"name": name, "nodes": [1]}, **({"policy": "dac"} if name == "dac-similarity" else {}))
    test = result.summary["test"]
    assert result.summary["attackers"] == [1]
    assert np.isnan(test["nodes"][1])
    assert test["mean"] == pytest.approx(np.mean([value for k, value in enumerate(test["nodes"]) if k != 1]))
    assert np.isfinite(test["worst_decile"])


@pytest.mark.slow
def test_scenario_without_attack_stays_as_it_was():
    assert "attack" not in resolve(BASE, [], "x", ".").to_toml()["run"][0]
    assert "attackers" not in simulate().summary


@pytest.mark.slow
def test_rule_keeps_honest_nodes_from_harm():
    def error(**changes):
        return simulate(rounds=6, attack={"name": "scale", "share": 0.2}, **changes).summary["test"]["mean"]

    assert error(robust="nna") * 10 < error()
    assert error(policy="coordinated-fedavg", robust="nna") * 10 < error(policy="coordinated-fedavg")


@pytest.mark.slow
def test_edges_show_weights_after_the_rule():
    result = simulate(attack={"name": "scale", "nodes": [1]}, robust="nna")
    edges = result.edges
    assert 1 not in set(edges["src"][edges["dst"] != 1].tolist())


@pytest.mark.slow
def test_table_has_worst_tenth_of_honest_nodes():
    results = p2pfl.simulate({**BASE, "run": [{"name": "clean"}, {"name": "bad", "attack": {"name": "ipm"}}]})
    for row, result in zip(results.summary["table"], results, strict=True):
        assert row["extra_metrics"]["worst_tenth"] == result.summary["test"]["worst_decile"]


@pytest.mark.slow
def test_attack_is_equal_over_messages():
    plain, wire = (
        simulate(attack={"name": "alie", "nodes": [1]}, fidelity=how).summary["test"] for how in ("modelled", "wire")
    )
    assert wire["nodes"] == pytest.approx(plain["nodes"], nan_ok=True)


@pytest.mark.slow
def test_attackers_train_only_for_attacks_that_need_it():
    for name, trainings in (("gaussian", 12), ("negated-mean", 10)):
        batches = simulate(attack={"name": name, "nodes": [1]}).summary["batches"]["train"]
        assert batches["count"] * batches["mean_jobs"] == pytest.approx(trainings)
