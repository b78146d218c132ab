"""Stacked DQN: equal draws, and results equal to those of single learners within float tolerance."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.queries import Evaluate, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import load
from p2pfl.task import Part, make_task

pytest.importorskip("mo_gymnasium", reason="needs the extra morl")

SMALL = {"learning_starts": 32, "net_arch": [16, 16], "batch_size": 16, "buffer_size": 100, "target_update_interval": 48}


def learners(count=3, **options):
    options = {"steps": 64, "rounds": 4, "settings": SMALL} | options
    tasks = [make_task("morl", options, Part(k, count), 0) for k in range(count)]
    return [task.learner(RandomStreams(0, f"node-{k}"), "cpu") for k, task in enumerate(tasks)]


def stack(single):
    return single[0].task.stacked(single)


def train_together(stacked, queries):
    return stacked.compute([NodeQuery(k, query) for k, query in queries.items()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"settings": SMALL | {"gradient_steps": -1, "train_freq": 5, "batch_size": 8}},
        {"environment": "lunar-lander"},
        {"targets": "kept"},
    ],
    ids=["deep-sea-treasure", "steps-not-a-multiple", "observations-not-enumerated", "kept-targets"],
)
def test_stacked_training_equals_single_learners(options):
    alone, together = learners(**options), learners(**options)
    stacked = stack(together)
    models = {k: learner.task.initial(0) for k, learner in enumerate(alone)}
    found = dict(models)
    for round in range(1, 5):  # until transitions are overwritten
        epochs, mu = 1 + (round == 2), 0.5 if round == 3 else None
        queries = {k: Train(model, round, epochs, mu and (mu, model)) for k, model in models.items()}
        same = {k: Train(model, round, epochs, mu and (mu, model)) for k, model in found.items()}
        models = {k: alone[k].compute(query) for k, query in queries.items()}
        found = dict(enumerate(train_together(stacked, same)))
    for k, model in models.items():
        assert np.abs(model - alone[k].task.initial(0)).max() > 0.02
        np.testing.assert_allclose(found[k], model, atol=2e-5)
        kept, expected = together[k].state(), alone[k].state()
        assert kept.keys() == expected.keys()
        for name, array in expected.items():
            exact = name.startswith("buffer/") or name == "counters"  # equal draws, equal actions
            np.testing.assert_allclose(kept[name], array, atol=0 if exact else 2e-5, err_msg=name)


@pytest.mark.slow
def test_stack_trains_nodes_with_different_counters():
    alone, together = learners(), learners()
    stacked = stack(together)
    start = alone[0].task.initial(0)
    alone[1].train(start, round=1)
    train_together(stacked, {1: Train(start, 1)})
    queries = {k: Train(start, 2) for k in range(3)}
    found = train_together(stacked, queries)
    for k, query in queries.items():
        np.testing.assert_allclose(found[k], alone[k].compute(query), atol=2e-5)


@pytest.mark.slow
def test_stack_continues_from_a_restored_state():
    one, other = learners(), learners()
    start = one[0].task.initial(0)
    stacked = stack(one)
    train_together(stacked, {k: Train(start, 1) for k in range(3)})
    after = stack(other)
    for learner, model in zip(other, one, strict=True):
        learner.restore(model.state())
    queries = {k: Train(start, 2) for k in range(3)}
    for found, expected in zip(train_together(after, queries), train_together(stacked, queries), strict=True):
        assert (found == expected).all()


def test_stack_evaluates_as_single_learners_do():
    single = learners()
    start = single[0].task.initial(0)
    asked = {k: Evaluate([start], ["test"]) for k in range(3)}
    assert train_together(stack(single), asked) == [single[k].compute(query) for k, query in asked.items()]


def test_stack_refuses_other_algorithms_and_settings():
    with pytest.raises(ConfigurationError, match="only DQN can be stacked"):
        stack(learners(2, environment="lunar-lander-continuous", settings={"buffer_size": 10}))
    mixed = [*learners(1), *learners(1, settings=SMALL | {"gamma": 0.5})]
    with pytest.raises(ConfigurationError, match="their environments or settings differ"):
        stack(mixed)


@pytest.mark.slow
def test_run_with_stack_equals_run_one_by_one():
    stacked, single = (
        run_all(load("fedpref-morl-dst", ["form=smoke", f"trainer={trainer}"]).only("fedprox"), "local")[0]
        for trainer in ("stacked", "one-by-one")
    )
    for figure in ("mean", "nodes"):
        assert stacked.summary["test"][figure] == pytest.approx(single.summary["test"][figure])
    assert stacked.summary["batches"]["train"]["mean_jobs"] > 1
    assert stacked.notes == single.notes == []
