"""Dense networks that NumPy trains, against torch: golden vectors, and the learners side by side."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from p2pfl._util.machine import within
from p2pfl.errors import ConfigurationError, DivergenceError, MissingRequirementError
from p2pfl.learning import dense as network
from p2pfl.learning.dense import DenseNetwork, DenseTask, TorchGenerator
from p2pfl.learning.losses import CLASSIFICATION, metrics_of
from p2pfl.learning.measures import measures_of, squared_error
from p2pfl.learning.optimizers import SGD, Adam
from p2pfl.learning.schedules import schedule
from p2pfl.learning.torch_task import classification, regression
from p2pfl.random_streams import RandomStreams
from p2pfl.task import StatefulLearner
from p2pfl.tasks.mlp import mlp
from p2pfl.update_rules import Descent, Lookahead, Steps, TrainSubset

VECTORS = json.loads(Path(__file__).with_name("dense.json").read_text())["cases"]
LOSSES = {"cross-entropy": network.cross_entropy, "squared-error": network.squared_error}
SIZES = (6, 8, 4)
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.mark.parametrize("name", VECTORS)
def test_initial_values_equal_torch_bit_for_bit(name):
    case = VECTORS[name]
    draws, sizes = TorchGenerator(case["seed"]), case["sizes"]
    tensors = [tensor.ravel() for pair in pairwise(sizes) for tensor in draws.linear(*pair)]
    assert np.array_equal(np.concatenate(tensors), np.array(case["params"], np.float32))


@pytest.mark.parametrize("name", VECTORS)
def test_losses_and_gradients_equal_torch(name):
    case = VECTORS[name]
    dense, loss = DenseNetwork(tuple(case["sizes"])), LOSSES[case["loss"]]
    params, x = np.array(case["params"], np.float32), np.array(case["x"], np.float32)
    y = np.array(case["y"], np.int64 if case["loss"] == "cross-entropy" else np.float32)
    np.testing.assert_allclose(loss(dense.outputs(params, x), y)[0], case["losses"], **CLOSE)
    np.testing.assert_allclose(dense.gradient(params, x, y, loss), case["gradient"], **CLOSE)


def test_cross_entropy_of_large_logits_is_finite():
    losses, gradient = network.cross_entropy(np.array([[1e4, -1e4, 0]], np.float32), np.array([1]))
    assert losses.tolist() == [2e4]
    assert np.isfinite(gradient).all()


def data(n=37):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, SIZES[0])).astype(np.float32), rng.integers(SIZES[-1], size=n)


def pair(optimizer=None, private=(), metrics=(), **options):
    """Return a task of each kind with the same data and settings."""
    options = {"optimizer": optimizer or SGD(0.1), "batch_size": 5, **options}
    x, y = data()
    dense = DenseTask(DenseNetwork(SIZES, private=private), {"train": (x, y), "test": data(11)}, **options)
    return dense, classification(lambda: mlp(SIZES), (x, y), None, data(11), private=private, metrics=metrics, **options)


def trained(task, *rounds, start=None, **how):
    learner, params = task.learner(RandomStreams(0, "a"), "cpu"), task.initial(3) if start is None else start
    for round in rounds:
        params = learner.train(params, round=round, **how)
    return params


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.1),
        SGD(0.1, momentum=0.9, weight_decay=0.01),
        SGD(0.1, momentum=0.9, lasting=True),
        SGD(0.1, schedule=schedule("exponential", factor=0.5)),
    ],
)
@pytest.mark.parametrize("batch_size", [5, 100])
def test_training_equals_torch(optimizer, batch_size):
    dense, torch = pair(optimizer, batch_size=batch_size)
    assert dense.layout == torch.layout
    assert np.array_equal(dense.initial(3), torch.initial(3))
    found = [trained(task, 1, 2, 3, epochs=2) for task in (dense, torch)]
    np.testing.assert_allclose(*found, **CLOSE)
    assert not np.allclose(found[0], dense.initial(3), atol=1e-2)


@pytest.mark.parametrize("rule", [Descent(0.3), Steps(3), TrainSubset("shared"), TrainSubset("private")])
def test_rules_equal_torch(rule):
    dense, torch = pair(SGD(0.1, momentum=0.9), private=["2"])
    np.testing.assert_allclose(trained(dense, 1, rule=rule), trained(torch, 1, rule=rule), **CLOSE)


def test_proximal_term_with_private_part_equals_torch():
    dense, torch = pair(SGD(0.1, momentum=0.9), private=["2"])
    assert dense.layout == torch.layout
    anchor = dense.initial(9)
    np.testing.assert_allclose(*[trained(task, 1, 2, proximal=(0.5, anchor)) for task in (dense, torch)], **CLOSE)


def test_linear_regression_equals_torch():
    x, targets = data()[0], data()[0] @ np.arange(6, dtype=np.float32)[:, None]
    torch = regression(lambda: nn.Linear(6, 1), (x, targets), optimizer=SGD(0.01))
    how = {"loss": network.squared_error, "measures": {"mse": squared_error}, "higher_is_better": False}
    dense = DenseTask(DenseNetwork((6, 1), alone=True), {"train": (x, targets)}, optimizer=SGD(0.01), **how)
    assert (dense.layout, dense.metric, dense.higher_is_better) == (torch.layout, torch.metric, torch.higher_is_better)
    assert np.array_equal(dense.initial(1), torch.initial(1))
    np.testing.assert_allclose(trained(dense, 1, epochs=3), trained(torch, 1, epochs=3), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_figures_equal_torch():
    names = ["f1", "auc", "balanced_accuracy"]
    dense = replace(pair()[0], measures=measures_of(["accuracy", *names]))
    torch = pair(metrics=metrics_of(names, CLASSIFICATION))[1]
    assert dense.extra_metrics == torch.extra_metrics == tuple(names)
    models = [dense.initial(seed) for seed in (1, 2)]
    mine, theirs = (t.learner(RandomStreams(0, "a"), "cpu") for t in (dense, torch))
    for one, other in zip(*[each.evaluate(models, ("train", "validation", "test")) for each in (mine, theirs)], strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        assert list(one) == list(other)
    np.testing.assert_allclose(mine.loss(models, split="test"), theirs.loss(models, split="test"), **CLOSE)
    assert np.isnan(mine.loss(models, split="validation")).all()


def test_state_of_lasting_optimiser_continues_in_either_kind():
    tasks = pair(SGD(0.1, momentum=0.9, lasting=True))
    both = [task.learner(RandomStreams(0, "a"), "cpu") for task in tasks]
    params = [learner.train(tasks[0].initial(3), round=1) for learner in both]
    states = [learner.state() for learner in both]
    assert all(isinstance(learner, StatefulLearner) for learner in both)
    assert list(states[0]) == list(states[1])
    uninterrupted = both[1].train(params[1], round=2)
    for task, state in zip(tasks, reversed(states), strict=True):
        after = task.learner(RandomStreams(0, "a"), "cpu")
        after.restore(state)
        np.testing.assert_allclose(after.train(params[0], round=2), uninterrupted, **CLOSE)


def test_state_of_another_model_is_refused():
    learner = pair()[0].learner(RandomStreams(0, "a"))
    with pytest.raises(
        ConfigurationError, match="the optimiser's state 'train/velocity' in the checkpoint belongs to another"
    ):
        learner.restore({"train/velocity": np.zeros(3, np.float32)})


def test_training_leaves_the_given_model_unchanged():
    dense = pair()[0]
    start = dense.initial(3)
    trained(dense, 1, start=start)
    assert np.array_equal(start, dense.initial(3))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_divergence_names_the_node_and_the_round():
    with pytest.raises(DivergenceError, match="the training of a diverged in round 1"):
        trained(pair(SGD(1e30))[0], 1, epochs=5)


TORCH = r" needs PyTorch: pip install 'p2pfl-node\[torch\]'$"


@pytest.mark.parametrize(
    ("attempt", "what"),
    [
        (lambda: trained(pair()[0], 1, rule=Lookahead(0.1)), "the policy's update rule Lookahead"),
        (lambda: replace(pair()[0], optimizer=Adam()), "the optimizer Adam"),
        (lambda: pair()[0].learner(RandomStreams(0, "a"), "cuda"), "device 'cuda'"),
    ],
)
def test_what_needs_torch_says_so_in_one_line(attempt, what):
    with pytest.raises(MissingRequirementError, match=what + TORCH):
        attempt()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be 1 or more, got 0"),
        ({"data": {}}, "the task has no training samples"),
        ({"data": {"train": (np.full((1, 6), np.nan), np.zeros(1))}}, "train data: a value is not finite"),
    ],
)
def test_wrong_task_is_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        replace(pair()[0], **change)


def test_training_one_part_needs_a_private_part():
    with pytest.raises(ConfigurationError, match="the policy needs a model with a private and a shared part"):
        trained(pair()[0], 1, rule=TrainSubset("private"))


def test_network_larger_than_the_memory_is_refused():
    with within(10**6), pytest.raises(ConfigurationError, match="the task's model has 1,002,001 values"):
        replace(pair()[0], network=DenseNetwork((1000, 1000, 1)))


def test_unknown_metric_is_refused():
    with pytest.raises(ConfigurationError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        measures_of(["acuracy"])
