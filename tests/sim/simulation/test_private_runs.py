"""Privacy budgets in simulations: enforced, accounted by round, and without effect where there is none."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from p2pfl import SGD, Adam
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.console import print_table
from p2pfl.sim.results.results import result_of, summarise
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import make_task
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


CORRELATED = {
    "policy": {"name": "dsgd", "steps": 1},
    "topology": "ring",
    "nodes": 5,
    "privacy": {"epsilon": 8, "correlated": True},
}


def with_adam(part, seed):
    return replace(make_task("digits", {"samples": 32, "shared": True}, part, seed), optimizer=Adam())


def correlated(**changes):
    return scenario(**(CORRELATED | changes))


def test_correlated_noise_is_accounted_and_reported():
    results = [result_of(run(correlated(fidelity=fidelity))) for fidelity in ("modelled", "wire")]
    assert results[0].summary["trace"] == results[1].summary["trace"]
    found, local = results[0].summary["privacy"], result_of(run(correlated(privacy={"epsilon": 8}))).summary["privacy"]
    assert 7.9 < found["epsilon"]["greatest"] <= 8
    assert found["noise"]["greatest"] < local["noise"]["least"] <= found["correlated"]["hidden"]["least"] * (1 + 1e-9)
    assert found["correlated"]["colluding"] == 1
    assert found["correlated"]["outside"] < found["epsilon"]["greatest"]
    assert "correlated" not in local


def test_noise_of_a_peer_that_does_not_answer_stays_and_is_not_repaired():
    plain, lossy = (run(correlated(topology="complete", **changes)) for changes in ({}, {"network": {"loss": 0.3}}))
    spent = [{node.me.privacy.epsilon for node in each.nodes.values()} for each in (plain, lossy)]
    assert spent[0] == spent[1]
    apart = [np.ptp([node.me.params for node in each.nodes.values()], axis=0).max() for each in (plain, lossy)]
    assert apart[0] < 1e-3 < apart[1]


def test_run_where_neighbours_may_collude_says_that_edges_have_no_use():
    result = run(correlated(privacy=CORRELATED["privacy"] | {"colluding": 2}))
    assert any("noise of edges has no use here" in note for note in result.notes)
    local = run(correlated(privacy={"epsilon": 8}))
    assert result_of(result).summary["trace"] == result_of(local).summary["trace"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": {"name": "random"}}, "needs a policy that averages with all neighbours after each step: dsgd"),
        ({"policy": {"name": "dsgd", "steps": 2}}, "dsgd with steps = 1"),
        ({"policy": {"name": "dsgd", "steps": 1, "weights": "uniform"}}, 'without weights = "uniform" or "graph"'),
        ({"topology": "base-k"}, "a topology without directions that does not change"),
        ({"mode": "asynchronous"}, 'mode = "synchronous"'),
        ({"robust": "median"}, 'robust = "none"'),
        ({"codec": "int8"}, "sent without loss"),
        ({"budget": {"models": 1}}, "remove the budget"),
        ({"task": SMALL["task"] | {"private": "head"}}, "without private parameters"),
        ({"task": {"name": f"{__name__}:with_adam"}}, "the optimiser sgd"),
        ({"privacy": CORRELATED["privacy"] | {"by_node": {"1": {"epsilon": 4}}}}, "one budget for all nodes"),
        ({"privacy": {"epsilon": 8, "colluding": 2}}, "set privacy.correlated or privacy.central to true, or remove it"),
        ({"privacy": CORRELATED["privacy"] | {"colluding": -1}}, "privacy.colluding must be 0 or more"),
    ],
)
def test_runs_in_which_noise_would_not_cancel_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        run(correlated(**changes))


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


CENTRAL = {
    "policy": {"name": "coordinated-fedavg"},
    "nodes": 6,
    "task": SMALL["task"] | {"batch_size": 32, "momentum": 0.0},
    "secure_sums": True,
    "privacy": {"epsilon": 8, "central": True},
}


def with_momentum(part, seed):
    task = make_task("digits", {"samples": 32, "shared": True, "batch_size": 32}, part, seed)
    return replace(task, optimizer=SGD(0.1, momentum=0.9))


def central(**changes):
    return scenario(**(CENTRAL | changes))


def test_noise_that_adds_up_in_sums_is_accounted_and_reported():
    found = result_of(run(central())).summary["privacy"]
    local = result_of(run(central(privacy={"epsilon": 8}))).summary["privacy"]
    assert 7.9 < found["epsilon"]["greatest"] <= 8
    assert found["epsilon"] == local["epsilon"]
    told = found["central"]
    assert (told["threshold"], told["colluding"]) == (5, 1)
    assert told["share"]["greatest"] * 2 == pytest.approx(told["hidden"]["least"])  # of five survivors, four are honest
    assert told["hidden"]["greatest"] == local["noise"]["greatest"]
    assert told["outside"] < found["epsilon"]["greatest"]
    assert "central" not in local


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_released_means_have_the_noise_of_all_members(fidelity):
    """Two runs differ in the noise alone: the members' own models are alike, and the means differ by the planned noise."""
    runs = [Simulation(central(rounds=1, fidelity=fidelity, task=CENTRAL["task"] | {"lr": 0.1})) for _ in range(2)]
    for node in runs[1].nodes.values():
        node.me.deviation = lambda _: 1e-7
    share = runs[0].plan.privacy[0].share
    noisy, nearly = (next(iter(each.run().nodes.values())).me.params for each in runs)
    expected = 0.1 * share * sqrt(6) / (6 * 32)
    assert np.std(noisy - nearly) == pytest.approx(expected, rel=0.05)


def test_member_does_not_join_a_sum_with_less_noise_than_it_needs():
    simulation = Simulation(central(fidelity="wire", rounds=2))
    greedy, *others = simulation.nodes.values()
    greedy.exchange.peering.public_info["privacy.sum_noise"] *= 0.9
    result = simulation.run()
    assert all(node.exchange.coordination.sums.assigned == 0 for node in result.nodes.values())
    problems = [node.exchange.coordination.sums.problem for node in others]
    assert (
        sum(f"{greedy.name} claims" in problem for problem in problems) >= 4
    )  # the coordinator says what it could not open


def test_node_without_an_assignment_drops_its_step_and_does_not_submit_without_one():
    simulation = Simulation(central())
    first, *others = simulation.nodes.values()
    start = first.me.params.copy()
    first.me.privacy.plan = first.me.privacy.plan._replace(steps=2)
    result = simulation.run()
    edges = result.recorder.edges_table()
    assert set(edges["round"][edges["src"] == 0]) == {1, 2}  # two steps were in its budget
    assert set(edges["round"][edges["src"] == 1]) == {1, 2, 3, 4, 5}
    assert not np.array_equal(first.me.params, start)
    assert not np.array_equal(first.me.params, others[0].me.params)


def test_sum_that_is_not_opened_leaves_the_model_as_it_was():
    simulation = Simulation(central(secure_threshold=6, network={"loss": 0.9}, rounds=2))
    start = simulation.plan.initial
    result = simulation.run()
    assert all(np.array_equal(node.me.params, start) for node in result.nodes.values())
    assert all(node.me.privacy.steps == 2 for node in result.nodes.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": {"name": "dsgd"}, "secure_sums": False}, "a policy that submits each training to a secure sum"),
        ({"policy": {"name": "coordinated-fedavg", "ft": "replace-last"}}, "without ft"),
        ({"policy": {"name": "coordinated-fedavg", "reported_stage": "trained"}}, 'reported_stage = "merged"'),
        ({"policy": {"name": "coordinated-fedavg", "epochs": 2}}, "one step in each round.*set epochs = 1"),
        ({"task": CENTRAL["task"] | {"batch_size": 16}}, "set batch_size to 32 or more for this one, got 16"),
        ({"task": {"name": f"{__name__}:with_momentum"}}, "the optimiser sgd without momentum"),
        ({"secure_sums": False}, "secure_sums = true"),
        ({"privacy": CENTRAL["privacy"] | {"colluding": 5}}, "raise secure_threshold above 5"),
        ({"privacy": CENTRAL["privacy"] | {"colluding": 4}}, "a sum of 5 of 6 nodes does not hide models from 4"),
        ({"privacy": CENTRAL["privacy"] | {"correlated": True}}, "remove one of them"),
        ({"privacy": CENTRAL["privacy"] | {"by_node": {"1": {"epsilon": 4}}}}, "would not suffice .* of node 1"),
        ({"privacy": {"epsilon": 8, "by_node": {"1": {"central": True}}}}, "remove them from by_group and by_node"),
    ],
)
def test_runs_in_which_noise_would_not_add_up_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        run(central(**changes))
