"""DPFL, FedAvg and FedProx on plain dictionaries."""

import numpy as np
import pytest

from p2pfl.budget import BudgetTracker
from p2pfl.errors import ConfigurationError
from p2pfl.policies import make_policy
from p2pfl.policies.coordinated import FedProx
from p2pfl.policies.dpfl import Dpfl
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policies.local import Local
from p2pfl.policies.random import Random
from p2pfl.policy import Budget
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory

NAMES = [f"node-{k}" for k in range(6)]
TASKS = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}
PARTNER = dict(zip(NAMES, ["node-1", "node-0", "node-3", "node-2", "node-5", "node-4"], strict=True))


def play(make, rounds=2, **options):
    policies = {name: make() for name in NAMES}
    return policies, *run_in_memory(policies, TASKS, rounds, **options)


def loss(cast, name, params):
    return cast[name].learner.loss([params])[0]


@pytest.mark.slow
def test_dpfl_chooses_within_budget_and_keeps_its_choice():
    policies, cast, history = play(lambda: Dpfl(initial_epochs=2, epochs=1), rounds=4, budget=Budget(models=2))
    for name, actor in cast.items():
        omega = set(policies[name].omega)
        assert len(omega) <= 2
        assert all(set(actor.asked.get(round, ())) == omega for round in range(1, 5))
        assert all(set(merges[name].weights) - {name} <= omega for merges in history)
        assert sum(history[-1][name].weights.values()) == pytest.approx(1)


def test_dpfl_requests_each_prepared_model_at_most_twice():
    _, cast, _ = play(lambda: Dpfl(initial_epochs=1, epochs=1), rounds=1, budget=Budget(models=2))
    for name, actor in cast.items():
        assert sorted(set(actor.asked[0])) == sorted(set(NAMES) - {name})
        assert all(actor.asked[0].count(id) <= 2 for id in NAMES)
        first = actor.asked[0][:5]  # the first pass covers all peers before the second begins
        assert sorted(first) == sorted(set(NAMES) - {name})


@pytest.mark.slow
def test_dpfl_learns_with_its_own_cluster():
    _, _, history = play(lambda: Dpfl(initial_epochs=5, epochs=1), rounds=15, budget=Budget(models=2))
    late = [set(merges[name].weights) - {name} for merges in history[-5:] for name in NAMES]
    partners = [{PARTNER[name]} for _ in range(5) for name in NAMES]
    assert np.mean([chosen == partner for chosen, partner in zip(late, partners, strict=True)]) > 0.5


def test_dpfl_averages_with_those_whom_it_has_chosen():
    policies, _, history = play(lambda: Dpfl(initial_epochs=1, epochs=1), rounds=1, budget=Budget(models=3))
    for name, policy in policies.items():
        assert set(history[0][name].weights) == {name, *policy.chosen}
        assert set(policy.chosen) <= set(policy.omega)
    assert any(policy.chosen for policy in policies.values())
    assert any(policy.chosen != policy.omega for policy in policies.values())


@pytest.mark.slow
def test_dpfl_may_count_its_own_model():
    for options, most in (({}, 2), ({"count_self": True}, 1)):
        policies, *_ = play(lambda options=options: Dpfl(initial_epochs=1, epochs=1, **options), 1, budget=Budget(models=2))
        assert max(len(policy.omega) for policy in policies.values()) == most


@pytest.mark.slow
def test_dpfl_prepares_by_training_from_the_initial_model():
    policies, cast, _ = play(lambda: Dpfl(initial_epochs=3, epochs=1), rounds=1)
    actor = cast["node-4"]
    trained = actor.learner.train(actor.initial, round=0, epochs=3)
    assert (actor.published[0, "prepared"].params == trained).all()
    assert set(policies["node-4"].omega) <= set(NAMES)


@pytest.mark.slow
def test_dpfl_with_count_self_counts_its_own_model():
    policies, cast, _ = play(lambda: Dpfl(epochs=1, count_self=True), rounds=1, budget=Budget(models=1))
    assert all(policy.omega == () for policy in policies.values())
    assert all(not any(actor.asked.values()) for actor in cast.values())
    policies, *_ = play(lambda: Dpfl(epochs=1, count_self=True), rounds=1, budget=Budget(models=3))
    assert max(len(policy.omega) for policy in policies.values()) == 2


@pytest.mark.slow
def test_dpfl_chooses_as_many_as_fit_in_bytes():
    two = Budget(bytes=2 * 4 * 11 + 40)  # a model has 11 values
    for options in ({}, {"count_self": True}):  # with and without counting the own model
        policies, cast, _ = play(lambda: Dpfl(initial_epochs=1, epochs=1, **options), rounds=3, budget=two)  # noqa: B023
        assert max(len(policy.omega) for policy in policies.values()) == 2
        assert all(set(actor.asked.get(3, ())) == set(policies[name].omega) for name, actor in cast.items())
        assert all(len(set(actor.asked[0])) == 5 for actor in cast.values())  # all were evaluated
        assert max(actor.budget_tracker.most_held for actor in cast.values()) == 2


@pytest.mark.parametrize("make", [lambda: Dpfl(initial_epochs=1, epochs=1), FedAvg, FedProx])
def test_budget_below_one_model_trains_alone(make):
    _, cast, history = play(make, budget=Budget(bytes=43))
    assert all(merges[name].weights == {name: 1.0} for merges in history for name in NAMES)
    assert not any(any(actor.asked.values()) for actor in cast.values())


def test_dpfl_with_reduced_bytes_fetches_fewer_models():
    policies = {name: Dpfl(initial_epochs=1, epochs=1) for name in NAMES}
    cast, _ = run_in_memory(policies, TASKS, 1, budget=Budget(bytes=4 * 4 * 11))
    name, actor = next((name, actor) for name, actor in cast.items() if len(policies[name].omega) > 2)
    actor.budget_tracker = BudgetTracker(Budget(bytes=2 * 4 * 11))
    asked = actor.asked[1]
    for due in (1, 9):  # in a round with GGC, and between two of them
        asked.clear()
        policies[name].due, policies[name].chosen = due, policies[name].omega
        actor.budget_tracker.begin_round()
        with pytest.raises(StopIteration):
            policies[name].round(actor, actor).send(None)
        assert len(asked) == 2
        assert set(asked) < set(policies[name].omega)


@pytest.mark.slow
def test_dpfl_with_period_fetches_only_chosen_peers():
    policies, cast, history = play(lambda: Dpfl(initial_epochs=1, epochs=1, period=3), rounds=7)
    for name, actor in cast.items():
        omega = policies[name].omega
        for first in (1, 4):
            assert set(actor.asked.get(first, ())) == set(omega)
            chosen = set(history[first - 1][name].weights) - {name}
            for round in (first + 1, first + 2):
                assert set(actor.asked.get(round, ())) == chosen
                assert set(history[round - 1][name].weights) - {name} == chosen
        assert set(actor.asked.get(7, ())) == set(omega)


def test_dpfl_that_trains_between_averages_every_period_only():
    _, cast, history = play(lambda: Dpfl(initial_epochs=1, epochs=1, period=3, between="train"), rounds=4)
    for name, actor in cast.items():
        assert [round for round in range(1, 5) if actor.asked.get(round)] == [1, 4]
        assert [merges[name].weights for merges in history[1:3]] == [{name: 1.0}] * 2
    assert any(set(history[3][name].weights) - {name} for name in NAMES)


@pytest.mark.slow
def test_dpfl_without_selection_trains_alone_but_publishes():
    policies, cast, history = play(lambda: Dpfl(initial_epochs=2, epochs=2, select="none"), rounds=2)
    assert all(not any(actor.asked.values()) for actor in cast.values())
    assert all(policy.omega == () for policy in policies.values())
    assert set(cast["node-0"].published) == {(0, "prepared"), (1, "trained"), (2, "trained")}
    assert history[-1]["node-0"].weights == {"node-0": 1.0}


def test_dpfl_snapshot_option_sets_reported_stage():
    assert (Dpfl().reported_stage, Dpfl(snapshot="trained").reported_stage) == ("merged", "trained")


def test_dpfl_restored_from_state_is_equal():
    policies, *_ = play(lambda: Dpfl(initial_epochs=1, epochs=1, period=5), rounds=2)
    for policy in policies.values():
        restored = Dpfl(initial_epochs=1, epochs=1, period=5)
        restored.restore(policy.state())
        assert restored == policy
        assert restored.due == 6


def test_dpfl_skips_missing_peer_and_accepts_it_again():
    policies = {name: Dpfl(initial_epochs=1, epochs=1) for name in NAMES}
    cast, _ = run_in_memory(policies, TASKS, 1)
    me = cast["node-0"]
    me.round = 2
    for name in NAMES[1:]:
        cast[name].round = 2
        cast[name].published[2, "trained"] = cast[name].published[1, "trained"]
    policies["node-0"].omega = tuple(NAMES[1:])
    lost = cast.pop("node-3")
    with pytest.raises(StopIteration) as done:
        policies["node-0"].round(me, me).send(None)
    assert "node-3" not in done.value.value.weights
    assert me.asked[2] == ["node-1", "node-2", "node-4", "node-5"]
    assert "node-3" in policies["node-0"].omega
    cast["node-3"] = lost
    policies["node-0"].due = 2
    with pytest.raises(StopIteration):
        policies["node-0"].round(me, me).send(None)
    assert me.asked[2][4:] == NAMES[1:]


# FedAvg and FedProx


@pytest.mark.slow
def test_fedavg_gives_all_nodes_the_same_mean():
    _, cast, history = play(lambda: FedAvg(epochs=2))
    params = [actor.params for actor in cast.values()]
    assert all((p == params[0]).all() for p in params)
    assert set(history[0]["node-0"].weights) == set(NAMES)
    models = [cast[name].published[2, "trained"].params for name in NAMES]
    assert np.allclose(params[0], np.mean(models, axis=0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Budget(models=2), Budget(held=2), Budget(bytes=2 * 4 * 11)])
@pytest.mark.parametrize("make", [FedAvg, FedProx])
def test_fedavg_with_budget_draws_peers_each_round(make, budget):
    _, cast, history = play(make, rounds=8, budget=budget)
    for name, actor in cast.items():
        assert all(len(actor.asked[round]) == 2 for round in range(1, 9))
        assert len({id for round in range(1, 9) for id in actor.asked[round]}) > 3
        assert set(history[-1][name].weights) == {name, *actor.asked[8]}


def test_fedprox_holds_model_near_previous_round():
    def move_weights(make):
        _, cast, _ = play(make, rounds=1)
        return np.linalg.norm(cast["node-0"].published[1, "trained"].params - cast["node-0"].initial)

    assert move_weights(lambda: FedProx(mu=30.0)) < move_weights(lambda: FedProx(mu=10.0)) < 0.97 * move_weights(FedAvg)
    assert move_weights(lambda: FedProx(mu=0.0)) == pytest.approx(move_weights(FedAvg), rel=1e-6)


@pytest.mark.parametrize("make", [FedAvg, FedProx])
def test_fedavg_fine_tuning_replaces_the_last_aggregation(make):
    _, cast, history = play(lambda: make(ft="replace-last"), rounds=3)
    assert set(history[1]["node-0"].weights) == set(NAMES)
    assert history[2]["node-0"].weights == {"node-0": 1.0}
    assert (3, "trained") not in cast["node-0"].published
    assert (history[2]["node-0"].params != history[2]["node-1"].params).any()


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedAvg, FedProx])
def test_fine_tuning_starts_from_best_aggregated_model(make):
    policies, cast, history = play(lambda: make(ft="from-best", epochs=3), rounds=4)
    _, _, without = play(lambda: make(epochs=3), rounds=4)
    for name in NAMES:
        merged = [merges[name].params for merges in without]
        best = min(merged, key=lambda params: loss(cast, name, params))
        assert (policies[name].best == best).all()
        tuned = cast[name].learner.train(best, round=4, epochs=6, purpose="fine tuning")
        assert (history[3][name].params == tuned).all()


def test_fedavg_restored_from_state_keeps_best_model():
    policies, *_ = play(lambda: FedAvg(ft="from-best"), rounds=3)
    restored = FedAvg(ft="from-best")
    restored.restore(policies["node-1"].state())
    assert (restored.best == policies["node-1"].best).all()
    assert restored.loss == policies["node-1"].loss


# Options of other policies


@pytest.mark.parametrize("name", ["local", "random", "oracle", "dac", "fedavg", "fedprox"])
def test_policies_train_the_given_number_of_epochs(name):
    policies = {id: make_policy(name, {"epochs": 3}) for id in NAMES}
    cast, history = run_in_memory(policies, TASKS, 1)
    actor = cast["node-2"]
    proximal = (0.1, actor.initial) if name == "fedprox" else None
    trained = actor.learner.train(actor.initial, round=1, epochs=3, proximal=proximal)
    found = history[0]["node-2"].params if name == "local" else actor.published[1, "trained"].params
    assert (found == trained).all()


def test_random_with_fixed_graph_draws_once():
    policies, cast, _ = play(lambda: Random(neighbours=2, graph="fixed"), rounds=4)
    for name, actor in cast.items():
        asked = {tuple(sorted(actor.asked[round])) for round in range(1, 5)}
        assert len(asked) == 1
        assert len(*asked) == 2
        restored = Random(neighbours=2, graph="fixed")
        restored.restore(policies[name].state())
        assert restored == policies[name]
    assert len({tuple(policy.drawn) for policy in policies.values()}) > 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dpfl", {"epochs": 0}, "epochs must be 1 or more, got 0"),
        ("dpfl", {"initial_epochs": 0}, "initial_epochs must be 1 or more, got 0"),
        ("dpfl", {"period": 0}, "period must be 1 or more, got 0"),
        ("dpfl", {"snapshot": "merged"}, "policy.snapshot must be one of aggregated, trained, got 'merged'"),
        ("dpfl", {"omega": ["a"]}, "unknown key 'policy.omega'"),
        ("fedavg", {"ft": "last"}, "policy.ft must be one of"),
        ("fedprox", {"mu": -1.0}, "mu must be 0 or more, and finite, got -1.0"),
        ("random", {"graph": "once"}, "policy.graph must be one of each-round, fixed, got 'once'"),
        ("local", {"epochs": 0}, "epochs must be 1 or more, got 0"),
        ("dac", {"epochs": -1}, "epochs must be 1 or more, got -1"),
    ],
)
def test_make_policy_refuses_invalid_options(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_policy(name, options)


def test_local_needs_no_options():
    assert Local() == make_policy("local", {})
