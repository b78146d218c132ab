"""Privacy budgets in simulations: enforced, accounted by round, and without effect where there is none."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.console import print_table
from p2pfl.sim.results.results import result_of, summarise
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from tests.support.simulated import run

SMALL = {
    "nodes": 4,
    "rounds": 5,
    "task": {"name": "digits", "samples": 32, "shared": True, "batch_size": 16},
    "policy": {"name": "random", "neighbours": 2},
}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


def test_run_spends_its_budget_and_reports_it_by_round(capsys):
    file = resolve(SMALL | {"privacy": {"epsilon": 8}}, [], "test", ".")
    results = [result_of(run(scenario(privacy={"epsilon": 8}, fidelity=fidelity))) for fidelity in ("modelled", "wire")]
    assert results[0].summary["trace"] == results[1].summary["trace"]
    found = results[0].summary["privacy"]
    assert found["nodes"] == 4
    assert found["validation"] == ["private"]
    assert 7.9 < found["epsilon"]["greatest"] <= 8
    assert found["by_round"]["round"] == [1, 2, 3, 4, 5]
    assert found["by_round"]["greatest"] == sorted(found["by_round"]["greatest"])
    assert found["by_round"]["greatest"][-1] == found["epsilon"]["greatest"]
    assert not any("validation" in name for name in results[0].rounds)  # nothing has looked at them
    summary = summarise(file, results[:1])
    assert summary["table"][0]["epsilon"] == found["epsilon"]["greatest"]
    print_table(summary)
    assert "epsilon" in capsys.readouterr().out


@pytest.mark.parametrize(("then", "last"), [("merge", 5), ("stop", 3)])
def test_node_that_has_spent_its_budget_trains_no_more(then, last):
    simulation = Simulation(scenario(privacy={"epsilon": 8, "when_spent": then}))
    for node in simulation.nodes.values():  # as if the policy trained more than it has planned
        tracker = node.me.privacy
        tracker.plan = tracker.plan._replace(steps=4)
    result = simulation.run()
    rounds = result_of(result).rounds
    assert np.bincount(rounds["node"], rounds["trainings"]).tolist() == [2] * 4
    assert {node.me.privacy.steps for node in result.nodes.values()} == {4}
    assert rounds["round"].max() == last
    says = {"merge": "went on without training", "stop": "ended their rounds"}[then]
    assert result.notes == [f"4 of 4 nodes had spent the privacy budget before the end: they {says}"]


def test_budgets_differ_by_node():
    changed = {"epsilon": 8, "by_node": {"1": {"epsilon": 4}, "2": {"epsilon": 0}}}
    noise = [
        node.me.privacy and node.me.privacy.plan.mechanism.noise
        for node in Simulation(scenario(privacy=changed)).nodes.values()
    ]
    assert noise[2] is None
    assert noise[0] == noise[3] < noise[1]


def test_public_validation_data_stop_and_select():
    public = {"epsilon": 8, "validation": "public"}
    result = result_of(run(scenario(privacy=public, policy={"name": "dpfl", "initial_epochs": 1, "epochs": 1}, patience=2)))
    assert any("validation_loss" in name for name in result.rounds)
    assert result.summary["privacy"]["validation"] == ["public"]


def test_without_a_budget_nothing_changes():
    plain, zero = scenario(), scenario(privacy={"epsilon": 0, "clip": 2.0})
    assert "privacy" not in resolve(SMALL, [], "test", ".").to_toml()["run"][0]
    results = [result_of(run(each)).summary for each in (plain, zero)]
    assert results[0]["trace"] == results[1]["trace"]
    assert "privacy" not in results[0]
    assert "epsilon" not in summarise(resolve(SMALL, [], "test", "."), [result_of(run(plain))])["table"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patience": 3}, r"early stopping \(patience\) looks at validation data"),
        ({"robust": "clip-loss"}, "the robust rule clip-loss takes losses on validation data"),
        ({"policy": {"name": "dpfl"}}, "the policy Dpfl selects by validation data"),
        ({"policy": {"name": "apfl"}}, "the policy Apfl is refused under a privacy budget"),
        ({"task": {"name": "teachers"}}, "needs a task of one loss per sample"),
        ({"task": {"name": "deep-sea-treasure"}}, "needs a task whose samples give gradients"),
        ({"rounds": 0}, "none is planned; set rounds"),
        ({"privacy": {"by_group": {"9": {"epsilon": 8}}}}, "privacy.by_group: unknown group '9'; the groups are: none"),
        ({"privacy": {"by_node": {"4": {"epsilon": 8}}}}, "privacy.by_node names the node '4'; the nodes are 0 to 3"),
        ({"privacy": {"epsilon": 8, "by_node": {"1": {"delta": 2.0}}}}, r"privacy.by_node.1.delta must be above 0"),
        ({"search": {}}, "which no privacy budget covers"),
    ],
)
def test_what_would_leak_is_refused_before_the_run(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        run(scenario(**({"privacy": {"epsilon": 8}} | changes)))
