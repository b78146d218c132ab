"""Private steps: clipped gradients of single samples, noise, and the same bits for a node alone and in a stack."""

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl import SGD, Adam, classification
from p2pfl.errors import ConfigurationError
from p2pfl.learner import Learner
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.dense import DenseNetwork, DenseTask
from p2pfl.learning.private_training import check_private
from p2pfl.queries import NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import EdgeNoise, Lookahead, Mechanism, Steps

MODULES = {
    "linear": lambda: nn.Linear(6, 3),
    "relu": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)),
    "tanh": lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)),
}


def samples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 3, n)


def learner(name="relu", n=20, k=0, **options):
    options = {"optimizer": SGD(0.5), "batch_size": 8} | options
    return classification(MODULES[name], samples(n, k), **options).learner(RandomStreams(0, f"node-{k}"), "cpu")


def train(found, mechanism, epochs=1, **options):
    return found.compute(Train(found.task.initial(0), 1, epochs, mechanism=mechanism, **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {}),
        ("relu", {"optimizer": SGD(0.5, momentum=0.9, lasting=True)}),
        ("tanh", {"optimizer": Adam(0.1)}),
        ("dropout", {}),
        ("norm", {"optimizer": SGD(0.5, momentum=0.9)}),
    ],
)
def test_stack_has_the_bits_of_single_nodes(name, options):
    counts = [20, 3, 20, 33, 20, 9]  # of several numbers of steps, and of one sample in few steps
    alone, stacked = ([learner(name, n, k, **options) for k, n in enumerate(counts)] for _ in range(2))
    batched = BatchedLearner(stacked)
    mechanisms = [Mechanism(1.0, 0.5 + k) for k in range(len(counts))]
    start = alone[0].task.initial(0)
    for round in (1, 2):
        queries = [Train(start, round, 2, mechanism=mechanism) for mechanism in mechanisms]
        one_by_one = [found.compute(query) for found, query in zip(alone, queries, strict=True)]
        together = batched.compute([NodeQuery(k, query) for k, query in enumerate(queries)])
        for one, row in zip(one_by_one, together, strict=True):
            assert np.array_equal(one, row)


def test_nodes_with_and_without_a_budget_train_in_one_stack():
    learners = [learner(k=k) for k in range(4)]
    batched, start = BatchedLearner([learner(k=k) for k in range(4)]), learners[0].task.initial(0)
    queries = [Train(start, 1, mechanism=Mechanism(1.0, 1.0) if k % 2 else None, proximal=(0.1, start)) for k in range(4)]
    found = batched.compute([NodeQuery(k, query) for k, query in enumerate(queries)])
    for k, (own, query) in enumerate(zip(learners, queries, strict=True)):
        assert np.allclose(own.compute(query), found[k], atol=1e-6)
        assert k % 2 == 0 or np.array_equal(own.compute(query), found[k])


@pytest.mark.parametrize("name", ["linear", "relu", "tanh", "norm"])
@pytest.mark.parametrize("clip", [0.05, 1000.0])
def test_step_is_the_sum_of_clipped_gradients(name, clip):
    found = learner(name, n=6, batch_size=6)  # every sample is in the only step
    (x, y), start = found.data["train"], found.task.initial(0)
    module = found.task.loaded(start, 0).train()
    total = np.zeros_like(start)
    for k in range(6):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[k : k + 1]), y[k : k + 1]).backward()
        gradient = np.concatenate([each.grad.numpy().ravel() for each in module.parameters()])
        total += gradient * min(1, clip / np.linalg.norm(gradient))
    trained = train(found, Mechanism(clip, 0.0))
    assert np.allclose(trained, start - 0.5 * total / 6, atol=1e-6)
    assert clip == 1000 or np.linalg.norm(total) <= 6 * clip * (1 + 1e-6)


def test_one_sample_changes_a_step_by_no_more_than_the_clip():
    data, clip = samples(8, 0), 0.3
    for k, scale in enumerate((1.0, 1e4, 1e30)):  # the gradient of the last one overflows, and counts as 0
        moved = []
        for x in (data[0], np.where(np.arange(8)[:, None] == k, scale * data[0], data[0])):
            task = classification(MODULES["relu"], (x, data[1]), optimizer=SGD(1.0), batch_size=8)
            moved.append(train(task.learner(RandomStreams(0, "a"), "cpu"), Mechanism(clip, 0.0)))
        assert np.linalg.norm(moved[0] - moved[1]) * 8 <= 2 * clip * (1 + 1e-5)
        assert np.isfinite(moved[1]).all()


@pytest.mark.parametrize("name", ["relu", "norm"])
def test_noise_has_the_standard_deviation_of_the_mechanism(name):
    found = learner(name, n=20, optimizer=SGD(1.0))
    start, values = found.task.initial(0), []
    for round in range(60):
        query = Train(start, round, rule=Steps(1), mechanism=Mechanism(1e-6, 3.0))  # the samples hardly count
        values.append((found.compute(query) - start) * 8 / 3e-6)
    values = np.concatenate(values)
    values = values[np.abs(np.tile(start, 60)) < 0.25]  # where a float32 holds so small a change in enough digits
    assert values.mean() == pytest.approx(0, abs=0.1)
    assert values.std() == pytest.approx(1, abs=0.1)


def test_numpy_trains_as_torch():
    found = learner("relu", optimizer=SGD(0.5, momentum=0.9, weight_decay=0.01))
    x, y = samples(20, 0)
    network = DenseNetwork((6, 7, 5, 3))
    dense = DenseTask(network, {"train": (x, y)}, optimizer=SGD(0.5, momentum=0.9, weight_decay=0.01), batch_size=8)
    start = found.task.initial(0)
    query = Train(start, 1, 3, proximal=(0.1, start), mechanism=Mechanism(0.7, 0.9))
    ours = dense.learner(RandomStreams(0, "node-0")).compute(query)
    assert np.allclose(ours, found.compute(query), atol=1e-5)
    assert np.abs(ours - start).max() > 0.1
    with pytest.raises(ConfigurationError, match="the update rule Lookahead"):
        dense.learner(RandomStreams(0, "node-0")).compute(Train(start, 1, rule=Lookahead(0.1), mechanism=Mechanism(1, 1)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(4), r"layer 1 \(BatchNorm1d\) .* mixes the samples of a batch.* use GroupNorm or LayerNorm"),
        (nn.BatchNorm1d(4, track_running_stats=False), "use GroupNorm or LayerNorm"),
    ],
)
def test_layers_that_mix_samples_are_refused(layer, message):
    task = classification(lambda: nn.Sequential(nn.Linear(6, 4), layer, nn.Linear(4, 3)), samples(20, 0))
    with pytest.raises(ConfigurationError, match=message):
        check_private(task)


def test_learner_that_does_not_know_the_mechanism_refuses_it():
    class Own(Learner):
        def compute_train(self, query):
            raise AssertionError("trains without noise")

    with pytest.raises(ConfigurationError, match="Own does not support Train with a Mechanism"):
        Own().compute(Train(np.zeros(3, np.float32), 1, mechanism=Mechanism(1.0, 1.0)))


def test_threads_do_not_change_the_bits_of_a_single_node():
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            own, stacked = learner("relu", n=200, batch_size=32), [learner("relu", 200, k, batch_size=32) for k in range(3)]
            query = Train(own.task.initial(0), 1, mechanism=Mechanism(1.0, 1.0))
            together = BatchedLearner(stacked).compute([NodeQuery(k, query) for k in range(3)])
            found.append(own.compute(query))
            assert np.array_equal(found[-1], together[0])
    finally:
        torch.set_num_threads(before)


def test_correlated_noise_has_the_same_bits_in_a_stack_and_cancels_in_the_mean():
    nodes, mechanisms = [f"node-{k}" for k in range(4)], []
    for k in range(4):
        edges = EdgeNoise(tuple(name for name in nodes if name != nodes[k]), 5.0)
        mechanisms.append(Mechanism(1.0, 0.5, edges=edges))
    alone, stacked = ([learner(k=k) for k in range(4)] for _ in range(2))
    start = alone[0].task.initial(0)
    queries = [Train(start, 1, rule=Steps(1), mechanism=mechanism) for mechanism in mechanisms]
    one_by_one = [found.compute(query) for found, query in zip(alone, queries, strict=True)]
    together = BatchedLearner(stacked).compute([NodeQuery(k, query) for k, query in enumerate(queries)])
    plain = [found.compute(Train(start, 1, rule=Steps(1), mechanism=Mechanism(1.0, 0.5))) for found in alone]
    for one, row in zip(one_by_one, together, strict=True):
        assert np.array_equal(one, row)
    assert np.allclose(np.mean(one_by_one, axis=0), np.mean(plain, axis=0), atol=1e-6)
    assert np.abs(np.array(one_by_one) - plain).mean() > 0.1
