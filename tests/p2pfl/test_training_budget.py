"""Budgets of trainings and of joules: a node that has used its own up goes on without training."""

import asyncio
import json
from math import inf

import numpy as np
import pytest

from p2pfl.budget import Effort, TrainingTracker
from p2pfl.errors import ConfigurationError
from p2pfl.node.settings import Settings
from p2pfl.node.status.endpoints import text
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.text import describe
from p2pfl.policies.random import Random
from p2pfl.policy import Budget
from p2pfl.queries import Train
from p2pfl.sim.results import costs
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.testing import run_in_memory
from p2pfl.update_rules import Descent, Lookahead, Steps
from tests.support.federation import play
from tests.support.logs import log_to
from tests.support.simulated import run

SMALL = {"nodes": 6, "rounds": 5, "task": {"name": "concept-shift"}, "policy": {"name": "random", "neighbours": 2}}
BOARD = {"devices": {"board": {"samples": 100, "watts": 4.0}}, "device": "board"}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


# The tracker


class Meter:
    def __init__(self, each):
        self.each, self.spent = each, None

    def used(self):
        return Effort(0.0, self.spent)

    def expected(self, samples):
        return self.each * samples

    def train(self, tracker, samples):
        assert tracker.admits(samples)
        tracker.charge(samples)
        self.spent = (self.spent or 0.0) + self.each * samples


def test_tracker_admits_trainings_up_to_the_budget():
    tracker = TrainingTracker(Budget(trainings=2))
    for left in (2, 1):
        assert tracker.left(10) == left
        assert tracker.admits(10)
        tracker.charge(10)
    assert not tracker.admits(10)
    assert (tracker.trainings, tracker.samples, tracker.refused) == (2, 20, 1)
    assert tracker.refusal == "the budget of trainings is used up: 2 of 2 trainings"


@pytest.mark.parametrize("each", [0.1, 1 / 3, 0.7])
def test_tracker_admits_as_many_trainings_as_fit_into_the_joules(each):
    meter = Meter(each)
    tracker = TrainingTracker(Budget(joules=12 * each), meter.used, meter.expected)
    for left in (6, 5, 4, 3, 2, 1):
        assert tracker.left(2) == left
        meter.train(tracker, 2)
    assert not tracker.admits(2)
    assert tracker.refusal.endswith("joules, too few are left for a training")


def test_tracker_refuses_training_that_would_exceed_the_joules():
    meter = Meter(1.0)
    tracker = TrainingTracker(Budget(joules=5), meter.used, meter.expected)
    meter.train(tracker, 3)
    assert not tracker.admits(3)
    meter.train(tracker, 2)


def test_tracker_without_counters_does_not_limit_joules():
    tracker = TrainingTracker(Budget(joules=1))
    assert tracker.left(5) == inf
    assert tracker.effort.joules is None


def test_restarted_tracker_continues_its_sums():
    meter = Meter(1.0)
    tracker = TrainingTracker(Budget(joules=10), meter.used, meter.expected)
    meter.train(tracker, 4)
    again = Meter(1.0)
    after = TrainingTracker(Budget(joules=10), again.used, again.expected)
    after.restore(tracker.state())
    assert after.effort.joules == 4
    again.train(after, 4)
    assert (after.trainings, after.samples, after.effort.joules) == (2, 8, 8)
    assert not after.admits(4)


@pytest.mark.parametrize(
    ("rule", "samples"),
    [(None, 30), (Lookahead(0.1), 30), (Descent(0.1), 10), (Steps(2), 8), (Steps(5), 10)],
)
def test_training_takes_the_samples_of_its_rule(rule, samples):
    query = Train(np.zeros(3, np.float32), 1, epochs=3, rule=rule)
    assert query.samples(10, 4) == samples
    assert query.samples(np.array([10, 10]), 4).tolist() == [samples, samples]


# In simulations


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_node_trains_within_its_budget_and_goes_on_merging(fidelity):
    result = run(scenario(fidelity=fidelity, budget={"trainings": 2}))
    _, jobs = result.batches["train"]
    assert jobs == 2 * 6  # what was computed, not what the nodes have counted
    rounds = result_of(result).rounds
    assert rounds["trainings"][np.lexsort((rounds["round"], rounds["node"]))].reshape(6, 5).sum(axis=1).tolist() == [2] * 6
    assert (rounds["models_in"] == 2).all()
    assert rounds["round"].max() == 5
    assert result.notes == ["6 of 6 nodes had used up the budget of trainings before the end: they went on without training"]


def test_joules_of_a_node_stay_within_its_budget():
    each = 4.0 * run(scenario()).nodes["node-0"].task.n_samples / 100
    result = run(scenario(compute=BOARD, budget={"joules": 3.5 * each}))
    rounds = result_of(result).rounds
    joules = np.bincount(rounds["node"], rounds["joules"])
    assert joules == pytest.approx([3 * each] * 6)
    summary = result_of(result).summary
    assert summary["traffic"]["budget"]["joules"]["used"] == pytest.approx(3 / 3.5)
    assert summary["cost"]["joules"] == {"total": pytest.approx(18 * each), "mean": pytest.approx(3 * each)}


def test_budget_that_is_not_used_up_changes_no_result():
    one_by_one, together = (result_of(run(scenario(budget={"trainings": limit}), together=True)) for limit in (99, 0))
    assert together.summary["computed"] == "all nodes at once"
    assert one_by_one.summary["computed"] == "node by node: trainings are limited"
    assert one_by_one.summary["trace"] == together.summary["trace"]
    for name, column in together.rounds.items():
        assert np.array_equal(column, one_by_one.rounds[name], equal_nan=True), name


def test_asynchronous_node_without_trainings_left_takes_as_long_as_before():
    result = run(scenario(mode="asynchronous", budget={"trainings": 1}))
    assert result.virtual_s == 5


def test_budget_of_joules_needs_devices():
    with pytest.raises(ConfigurationError, match=r"budget.joules needs devices whose joules are known"):
        scenario(budget={"joules": 5.0})
    with pytest.raises(ConfigurationError, match=r"budget.joules must be a number of 0 or more"):
        scenario(budget={"joules": -5.0}, compute=BOARD)


def test_run_in_memory_applies_budget_of_trainings():
    tasks = {name: run(scenario()).nodes[f"node-{k}"].task for k, name in enumerate("ab")}
    cast, _ = run_in_memory({name: Random() for name in "ab"}, tasks, 3, budget=Budget(trainings=2))
    assert {node.training.trainings for node in cast.values()} == {2}
    assert all(("trained" in {stage for round, stage in node.published if round == 3}) for node in cast.values())


def test_cost_of_a_row_is_the_mean_over_its_runs():
    runs = [{"cost": {"trainings": {"total": total}, "joules": {"total": 2.0 * total}}} for total in (10, 20)]
    assert costs.over_seeds(runs) == {"trainings": 15.0, "joules": 30.0}
    assert costs.over_seeds([*runs, {}]) == {}


# On real nodes


def test_real_node_logs_and_shows_the_end_of_its_budget_once(tmp_path):
    logged = []

    async def test(federation):
        federation.start("b")
        exchange = federation.exchange("a")
        status_observer = StatusObserver(tmp_path / "status.json", exchange, log_to(logged))
        node = federation.make("a", exchange=exchange, observer=status_observer)
        status_observer.begin(node)
        federation.running["a"] = asyncio.create_task(node.run(node.exchange.others_done))
        for task in federation.running.values():
            await task

    play(test, ("a", "b"), Settings(rounds=4, deadline=10.0), budget=Budget(trainings=1), lenient=True)
    said = "budget: the budget of trainings is used up: 1 of 1 trainings; the node goes on without training"
    assert logged.count(said) == 1
    state = json.loads((tmp_path / "status.json").read_text())
    assert (state["cost"]["trainings"], state["refused_trainings"]) == (1, 3)
    assert state["cost"]["joules"] is None
    lines = [" ".join(line.split()) for line in describe(state)]
    assert "budget 1 of 1 trainings used" in lines
    assert "budget used up: 3 trainings left out" in lines
    metrics = text(state).decode()
    assert "p2pfl_trainings_total 1.0" in metrics
    assert "p2pfl_trainings_refused_total 3.0" in metrics
    assert "p2pfl_training_joules" not in metrics


@pytest.mark.slow
def test_restarted_node_keeps_its_count_of_trainings(tmp_path):
    async def test(federation):
        federation.start()
        while federation.nodes["a"].round < 2:
            await asyncio.sleep(0.5)
        federation.running["a"].cancel()
        await asyncio.gather(federation.running["a"], return_exceptions=True)
        federation.start("a")
        for task in federation.running.values():
            await task

    federation = play(test, ("a", "b"), Settings(rounds=6, deadline=10.0), budget=Budget(trainings=4), folder=tmp_path)
    assert federation.nodes["a"].me.training.trainings == 4
    assert federation.nodes["a"].round == 6
