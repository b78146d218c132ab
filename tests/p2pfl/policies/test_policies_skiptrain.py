"""SkipTrain: rounds of training and of averaging, and the trainings of a budget spread over the run."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.settings import Settings
from p2pfl.policies.dsgd import Dsgd
from p2pfl.policies.skiptrain import SkipTrain
from p2pfl.policy import Budget
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import Part, batch_size_of, make_task
from p2pfl.testing import run_in_memory
from tests.support.federation import play
from tests.support.simulated import run

SMALL = {"nodes": 6, "rounds": 6, "task": {"name": "digits", "samples": 24}, "topology": {"name": "ring"}}
TASKS = {name: make_task("concept-shift", {}, Part(k, 3), 0) for k, name in enumerate("abc")}


def scenario(**options):
    policy = {"name": "skiptrain", "train_rounds": 2, "sync_rounds": 1} | options.pop("policy", {})
    return resolve(SMALL | {"policy": policy} | options, [], "test", ".").runs[0]


@pytest.mark.parametrize(
    ("lengths", "trained"), [((1, 0), [1] * 6), ((2, 1), [1, 1, 0, 1, 1, 0]), ((1, 3), [1, 0, 0, 0, 1, 0])]
)
def test_blocks_of_training_and_of_averaging_alternate(lengths, trained):
    train_rounds, sync_rounds = lengths
    policy = {"train_rounds": train_rounds, "sync_rounds": sync_rounds}
    rounds = result_of(run(scenario(policy=policy))).rounds
    assert [rounds["trainings"][rounds["round"] == round].tolist() for round in range(1, 7)] == [[k] * 6 for k in trained]
    assert (rounds["models_in"] == 2).all()


def test_nodes_that_do_not_wait_are_refused():
    with pytest.raises(ConfigurationError, match=r'needs mode = "synchronous": .*; policies for them are ad-psgd and sgp'):
        run(scenario(mode="asynchronous"))


def test_without_rounds_of_averaging_it_is_decentralised_sgd():
    plain = run(scenario(policy={"sync_rounds": 0}))
    dsgd = run(resolve(SMALL | {"policy": {"name": "dsgd"}}, [], "test", ".").runs[0])
    assert plain.recorder.trace.digest() == dsgd.recorder.trace.digest()


def test_round_of_averaging_keeps_the_mean_of_all_models():
    cast, history = run_in_memory({name: SkipTrain(train_rounds=1, sync_rounds=1) for name in "abc"}, TASKS, 2)
    after = [np.mean([merge.params for merge in merges.values()], axis=0) for merges in history]
    assert after[1] == pytest.approx(after[0], abs=1e-6)
    assert {node.training.trainings for node in cast.values()} == {1}


def test_momentum_moves_no_model_in_a_round_of_averaging():
    policies = {name: SkipTrain(train_rounds=1, sync_rounds=1, momentum=0.9) for name in "abc"}
    _, history = run_in_memory(policies, TASKS, 2)
    after = [np.mean([merge.params for merge in merges.values()], axis=0) for merges in history]
    assert after[1] == pytest.approx(after[0], abs=1e-6)


@pytest.mark.slow
def test_constrained_nodes_train_by_their_budget_and_not_beyond():
    policy = {"constrained": True}
    rounds = 60
    result = result_of(run(scenario(policy=policy, rounds=rounds, budget={"trainings": 12})))
    table = result.rounds
    of_node = np.bincount(table["node"], table["trainings"])
    assert (of_node <= 12).all()
    assert of_node.mean() > 8  # 40 rounds of training with a probability of 12 / 40
    late = table["trainings"][table["round"] > 40]
    assert late.sum() > 0  # greedy nodes would have used their budget up by round 18
    assert (table["trainings"][table["round"] % 3 == 0] == 0).all()
    again = result_of(run(scenario(policy=policy, rounds=rounds, budget={"trainings": 12})))
    assert again.summary["trace"] == result.summary["trace"]


def test_constrained_probability_follows_from_the_joules_and_outlasts_a_restart():
    policies = {name: SkipTrain(train_rounds=1, sync_rounds=1, constrained=True) for name in "abc"}
    run_in_memory(policies, TASKS, 8, budget=Budget(trainings=1))
    assert policies["a"].probability == 0.25
    again = SkipTrain(constrained=True)
    again.restore(policies["a"].state())
    assert again.probability == 0.25
    board = {"devices": {"board": {"samples": 100, "watts": 4.0}}, "device": "board"}
    task = run(scenario()).tasks[0]
    each, of_step = 4.0 * task.n_samples / 100, min(batch_size_of(task) / task.n_samples, 1)
    for options, share in (({}, 1), ({"epochs": 2}, 2), ({"steps": 1}, of_step)):  # of the joules of an epoch
        policy, budget = {"constrained": True, **options}, {"joules": 1.5 * share * each}
        made = Simulation(scenario(policy=policy, compute=board, budget=budget))
        made.run()
        assert {policy.probability for policy in made.policies.values()} == {0.25}  # one of four rounds of training


def test_live_nodes_train_in_the_rounds_of_training_only():
    async def to_the_end(federation):
        federation.start()
        await federation.done()

    settings = Settings(rounds=5, deadline=10.0)
    federation = play(to_the_end, tuple("abc"), settings, policy=lambda: SkipTrain(train_rounds=1, sync_rounds=2))
    assert {node.me.training.trainings for node in federation.nodes.values()} == {2}
    assert {node.round for node in federation.nodes.values()} == {5}


@pytest.mark.parametrize("options", [{"train_rounds": 0}, {"sync_rounds": -1}, {"mixing": 0.0}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        SkipTrain(**options)


def test_greedy_baseline_is_decentralised_sgd_with_a_budget():
    cast, _ = run_in_memory({name: Dsgd() for name in "abc"}, TASKS, 4, budget=Budget(trainings=2))
    assert {node.training.trainings for node in cast.values()} == {2}
