"""Stacks on a GPU: the same models and figures as on the CPU, up to the order of sums.

The same tests run on the CPU, and so through the same code, where there is no GPU.
"""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import p2pfl
from p2pfl.algorithms.ggc import DecideGreedily, Sets
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.kernels.batched_gradient import ON_GPU, values_at_once
from p2pfl.learning.kernels.convolution_kernel import ConvolutionKernel
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.kernels.kernel import GraphedKernel, VmapKernel
from p2pfl.learning.optimizers import SGD, Adam
from p2pfl.learning.torch_task import classification
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Lookahead

NODES, SHAPE, CLASSES = 5, (2, 9, 9), 4
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"))
on_devices = pytest.mark.parametrize("device", ["cpu", GPU])


class Gated(nn.Module):
    """A module that only torch.func can stack."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(162, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.second(torch.sigmoid(self.first(x.flatten(1))))


class Noisy(Gated):
    """A module with random layers that only torch.func can stack."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.2, self.training))


def dense(dropout=0.0):
    drops = (nn.Dropout(dropout),) if dropout else ()
    return nn.Sequential(nn.Flatten(), nn.Linear(162, 12), nn.ReLU(), *drops, nn.Linear(12, CLASSES))


def convolutions():
    first = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(3, 5, 2, stride=2), nn.Tanh()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, CLASSES))


MODULES = {
    "dense": (dense, DenseKernel),
    "dropout": (lambda: dense(0.3), DenseKernel),
    "convolutions": (convolutions, ConvolutionKernel),
    "own module": (Gated, VmapKernel),
    "random layers": (Noisy, VmapKernel),
}
RANDOM = "dropout", "random layers"


def samples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, n)


def learners(name, device, counts, **options):
    template = MODULES[name][0]()
    options = {"optimizer": SGD(0.05, 0.9), "batch_size": 8} | options
    tasks = [
        classification(lambda: deepcopy(template), samples(n, k), samples(7, k + 50), samples(9, k + 90), **options)
        for k, n in enumerate(counts)
    ]
    return [task.learner(RandomStreams(0, f"node {k}"), device) for k, task in enumerate(tasks)]


def models(name, count=NODES, seed=0):
    rng, size = np.random.default_rng(seed), learners(name, "cpu", [8])[0].task.layout.size
    return [rng.normal(0, 0.2, size).astype(np.float32) for _ in range(count)]


def difference(some, others):
    return max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(some, others, strict=True))


SIZES = {"equal": (20,) * NODES, "unequal": (20, 7, 16, 33, 8)}
OPTIMIZERS = {"SGD": SGD(0.05, 0.9), "lasting": SGD(0.05, 0.9, lasting=True), "Adam": Adam(0.01)}
OPTIONS = {"plain": {}, "rule": {"rule": Lookahead(0.05)}, "proximal": {"proximal": 0.5}}


def trainings():
    """Yield every combination for a GPU; for the CPU, each module with each optimizer and with each option."""
    for (i, name), size, (j, optimizer), (k, options) in product(
        enumerate(MODULES), SIZES, enumerate(OPTIMIZERS), enumerate(OPTIONS)
    ):
        id = f"{options}-{optimizer}-{size}-{name}"
        given = name, SIZES[size], OPTIMIZERS[optimizer], OPTIONS[options]
        yield pytest.param("cuda", *given, marks=GPU.marks, id=f"{id}-cuda")
        if size == "unequal" and (i + j + k) % 3 == 0:
            yield pytest.param("cpu", *given, id=f"{id}-cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("device", "name", "counts", "optimizer", "options"), list(trainings()))
def test_training_on_a_device_equals_one_by_one(device, name, counts, optimizer, options):
    stacked = BatchedLearner(learners(name, device, counts, optimizer=optimizer))
    by_hand = MODULES[name][1]
    kind = GraphedKernel if device == "cuda" and by_hand is not VmapKernel and name not in RANDOM else by_hand
    assert isinstance(stacked.kernel, kind)
    if name == "dropout" and device != "cpu":
        pytest.skip("nn.Dropout draws other numbers there")
    alone = SequentialLearner(learners(name, device if name in RANDOM else "cpu", counts, optimizer=optimizer))
    start = models(name)
    if "proximal" in options:
        options = {"proximal": (options["proximal"], models(name, 1, seed=7)[0])}
    expected = found = start
    for round in (1, 2):
        expected, found = (
            learner.compute([NodeQuery(k, Train(model, round, epochs=2, **options)) for k, model in enumerate(before)])
            for learner, before in ((alone, expected), (stacked, found))
        )
    tolerance = 1e-2 if isinstance(optimizer, Adam) else 2e-4  # Adam divides small gradients by their own size
    assert difference(expected, found) < tolerance
    assert difference(start, found) > 2 * tolerance


@pytest.mark.slow
@on_devices
@pytest.mark.parametrize("name", RANDOM)
def test_random_layers_on_a_device_do_not_depend_on_the_stack(device, name):
    queries = [NodeQuery(k, Train(model, 1, epochs=2)) for k, model in enumerate(models(name))]
    expected = BatchedLearner(learners(name, device, (20,) * NODES)).compute(queries)
    few = BatchedLearner(learners(name, device, (20,) * NODES))
    assert difference(expected, [*few.compute(queries[:2]), *few.compute(queries[2:])]) < 1e-5
    others = [NodeQuery(k, Train(job.query.params, 2, epochs=2)) for k, job in enumerate(queries)]
    assert difference(expected, few.compute(others)) > 1e-2


@on_devices
@pytest.mark.parametrize("name", MODULES)
def test_figures_on_a_device_equal_those_of_the_cpu(device, name):
    stacked = BatchedLearner(learners(name, device, (20,) * NODES))
    alone = SequentialLearner(learners(name, "cpu", (20,) * NODES))
    start = models(name)
    for query in (lambda model: Evaluate([model], ("validation", "test")), lambda model: Loss([model, start[0]])):
        jobs = [NodeQuery(k, query(model)) for k, model in enumerate(start)]
        for expected, found in zip(alone.compute(jobs), stacked.compute(jobs), strict=True):
            if isinstance(expected, np.ndarray):
                assert found == pytest.approx(expected, rel=1e-4)
            else:
                assert [found[0][key] for key in expected[0]] == pytest.approx([*expected[0].values()], rel=1e-4)


@on_devices
def test_means_on_a_device_are_trained_further(device):
    stacked = BatchedLearner(learners("dense", device, (20,) * NODES))
    trained = stacked.compute([NodeQuery(k, Train(model, 1)) for k, model in enumerate(models("dense"))])
    pairs = [(trained[k], trained[k - 1]) for k in range(NODES)]
    means = stacked.compute([NodeQuery(k, Mean(pair, (0.25, 0.75))) for k, pair in enumerate(pairs)])
    assert difference([0.25 * own + 0.75 * other for own, other in pairs], means) < 1e-6
    again = stacked.compute([NodeQuery(k, Train(model, 2)) for k, model in enumerate(means)])
    fresh = BatchedLearner(learners("dense", device, (20,) * NODES))
    copies = [NodeQuery(k, Train(model.copy(), 2)) for k, model in enumerate(means)]
    assert difference(fresh.compute(copies), again) == 0


@on_devices
def test_greedy_decisions_on_a_device_equal_those_of_the_cpu(device):
    start = models("convolutions")
    sets = Sets(start[0], start[0] + start[1] + start[2], 1, 3)
    query = DecideGreedily(sets, start[1:3], [1, 1], np.array([0.2, 0.9]), 2)
    jobs = [NodeQuery(k, query) for k in range(NODES)]
    alone, stacked = (BatchedLearner(learners("convolutions", where, (20,) * NODES)) for where in ("cpu", device))
    for expected, found in zip(alone.compute(jobs), stacked.compute(jobs), strict=True):
        assert list(found.accepted) == list(expected.accepted)
        assert found.losses == pytest.approx(expected.losses, rel=1e-4)


def test_a_gpu_computes_more_at_once():
    assert values_at_once(100, torch.device("cpu")) == 100
    assert values_at_once(100, torch.device("cuda")) == ON_GPU


@pytest.mark.slow
@on_devices
def test_simulation_on_a_device_has_the_figures_of_the_cpu(device):
    table = {
        "nodes": 6,
        "rounds": 3,
        "task": {"name": "digits", "batch_size": 16},
        "policy": {"name": "dac", "neighbours": 2},
    }
    expected, found = (p2pfl.simulate(table | {"device": where}).summary for where in ("cpu", device))
    figures = [summary["runs"][0]["test"] for summary in (expected, found)]
    assert figures[1]["mean"] == pytest.approx(figures[0]["mean"], abs=0.02)
