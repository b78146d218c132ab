"""Common tests of all ways to train: one node at a time, stacked with manual gradients, stacked with torch.func."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learning import batched_learner, batched_training, optimizers
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.kernels.kernel import VmapKernel, kernel_for
from p2pfl.learning.losses import Metric, cross_entropy, squared_error
from p2pfl.learning.modules import computes_alike
from p2pfl.learning.optimizers import SGD, Adam, AdamW
from p2pfl.learning.torch_learner import choose_device
from p2pfl.learning.torch_task import classification, regression
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Aligned, Between, Descent, Envelope, Lookahead, Mixture, Steps

COUNTS = (5, 23, 8, 16, 1, 40, 16)  # unequal, below and above the batch size, with and without a last small batch
NODES = len(COUNTS)
CREWS = ("one by one", "dense", "vmap")


@pytest.mark.parametrize("classes", [2, 15, 16])
@pytest.mark.parametrize("n", [1, 255, 256, 700])
def test_cross_entropy_equals_torch_at_every_size(n, classes):
    rng = torch.Generator().manual_seed(n)
    outputs = (20 * torch.randn(n, classes, generator=rng)).requires_grad_()
    targets = torch.randint(0, classes, (n,), generator=rng)
    mine, theirs = cross_entropy(outputs, targets), nn.functional.cross_entropy(outputs, targets, reduction="none")
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(losses.mean(), outputs)[0] for losses in (mine, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_training_leaves_unused_parameters_unchanged():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.used(x)

    this = task(Half, 40, 0)
    before = this.initial(0)
    after = this.learner(RandomStreams(0, "a")).train(before, round=1)
    moved = {
        name: not np.array_equal(part, this.layout.unflatten(before)[name])
        for name, part in this.layout.unflatten(after).items()
    }
    assert moved == {"used.weight": True, "used.bias": True, "unused.weight": False, "unused.bias": False}


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def tanh_chain():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 3))


def linear():
    return nn.Linear(6, 1)


class Own(nn.Module):
    """A module that only torch.func knows how to stack."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.offset = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]), requires_grad=False)

    def forward(self, x):
        return self.second(torch.sigmoid(self.first(x))) * self.scale + self.offset


def task(module, n, seed, **options):
    rng = np.random.default_rng(seed)

    def data(size):
        x = rng.normal(size=(size, 6)).astype(np.float32)
        return (x, rng.normal(size=(size, 1))) if module is linear else (x, rng.integers(0, 3, size))

    make = regression if module is linear else classification
    options = {"optimizer": SGD(0.1, momentum=0.9), "batch_size": 16} | options
    return make(module, data(n), data(7), data(9 + n % 2), **options)


def backend(kind, module=mlp, counts=COUNTS, **options):
    learners = [task(module, n, k, **options).learner(RandomStreams(0, f"node-{k}")) for k, n in enumerate(counts)]
    if kind == "one by one":
        return SequentialLearner(learners)
    return BatchedLearner(learners, by_hand=kind == "dense")


def models(count=NODES, module=mlp, seed=0):
    layout = task(module, 3, 0).layout
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.3, layout.size).astype(np.float32) for _ in range(count)]


def jobs(module=mlp, **options):
    return [NodeQuery(k, Train(model, 1, **options)) for k, model in enumerate(models(module=module))]


def difference(some, others):
    return max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(some, others, strict=True))


OPTIONS = [
    {},
    {"epochs": 3},
    {"proximal": (0.5, np.full(models()[0].shape, 0.1, np.float32))},
    {"purpose": "another"},
    {"rule": Lookahead(0.05), "epochs": 2},
    {"rule": Mixture(0.3, models(seed=9)[0]), "epochs": 2},
    {"rule": Aligned(0.5, models(seed=9)[0])},
    {"rule": Envelope(2.0, 0.05, 3), "epochs": 2},
    {"rule": Between(models(seed=9)[0], models(seed=8)[0], 0.5), "epochs": 2},
    {"rule": Descent(0.05), "epochs": 2},
    {"rule": Steps(1)},
    {"rule": Steps(3), "epochs": 2},
]


BOTH = SGD(0.05, 0.9, 0.01), Adam(0.01, weight_decay=0.1)  # optimizers with each option; others with those of no rule


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        *((options, optimizer) for options in OPTIONS for optimizer in BOTH),
        *(
            (options, optimizer)
            for options in OPTIONS[:2]
            for optimizer in (SGD(0.1), Adam(0.01), AdamW(0.01, weight_decay=0.1))
        ),
    ],
)
def test_stacked_training_equals_one_by_one(options, optimizer):
    expected = backend("one by one", optimizer=optimizer).compute(jobs(**options))
    for kind in CREWS[1:]:
        assert difference(expected, backend(kind, optimizer=optimizer).compute(jobs(**options))) < 1e-5, kind


@pytest.mark.parametrize("shape", [(11,), (3, 4), (2, 11), (2, 3, 7)])
@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.05, 0.9, 0.01), Adam(0.01, weight_decay=0.1), AdamW(0.01)])
def test_optimizer_in_blocks_gives_the_same_bits(monkeypatch, optimizer, shape):
    def stepped():
        draws = torch.Generator().manual_seed(3)
        params, *gradients = torch.randn(5, *shape, generator=draws)
        state, moved = optimizer.start(params, 4), torch.empty_like(params)
        for gradient in gradients[:2]:
            optimizer.step(params, gradient, state, params)
        for gradient in gradients[2:]:
            optimizer.step(params, gradient, state, moved)
        return [params, moved, *state.values()]

    whole = stepped()
    monkeypatch.setattr(optimizers, "BLOCK", 5)
    assert all(torch.equal(one, other) for one, other in zip(stepped(), whole, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREWS)
@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW])
def test_training_follows_the_schedule_of_each_nodes_round(kind, optimizer):
    scheduled = optimizer(0.02, schedule={"name": "exponential", "factor": 0.5})
    asked = [NodeQuery(k, Train(model, 1 + k % 3)) for k, model in enumerate(models())]
    expected = [
        backend("one by one", optimizer=optimizer(0.02 * 0.5 ** (k % 3))).compute([job])[0] for k, job in enumerate(asked)
    ]
    assert difference(expected, backend(kind, optimizer=scheduled).compute(asked)) < 1e-5
    constant = backend(kind, optimizer=optimizer(0.02)).compute(asked)
    assert difference(expected, constant) > 1e-3


@pytest.mark.parametrize("kind", CREWS[1:])
@pytest.mark.parametrize("module", [linear, tanh_chain])
def test_stacked_training_of_other_chains_equals_one_by_one(kind, module):
    expected = backend("one by one", module).compute(jobs(module))
    assert difference(expected, backend(kind, module).compute(jobs(module))) < 1e-5


@pytest.mark.slow
def test_stacked_training_of_custom_module_equals_one_by_one():
    expected = backend("one by one", Own).compute(jobs(Own))
    stacked = backend("dense", Own)
    assert isinstance(stacked.kernel, VmapKernel)
    assert difference(expected, stacked.compute(jobs(Own))) < 1e-5
    frozen = slice(-3, None)
    assert all((after[frozen] == job.query.params[frozen]).all() for after, job in zip(expected, jobs(Own), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Lookahead(0.05), Mixture(0.3, models(1, Own, 9)[0]), Aligned(0.5, models(1, Own, 9)[0])])
def test_vmap_training_with_rules_keeps_frozen_parameters(rule):
    expected = backend("one by one", Own).compute(jobs(Own, rule=rule))
    assert difference(expected, backend("vmap", Own).compute(jobs(Own, rule=rule))) < 1e-5
    assert all((after[-3:] == job.query.params[-3:]).all() for after, job in zip(expected, jobs(Own), strict=True))
    assert all((after != job.query.params).any() for after, job in zip(expected, jobs(Own), strict=True))


def test_stacked_training_allows_different_rules():
    rules = [None, Lookahead(0.05), Lookahead(0.5), Mixture(0.3, models(seed=9)[0]), Mixture(0.9, models(seed=8)[0])]
    rules += [Descent(0.1), Descent(0.2)]
    asked = [NodeQuery(k, Train(model, 1, rule=rule)) for k, (model, rule) in enumerate(zip(models(), rules, strict=True))]
    assert difference(backend("one by one").compute(asked), backend("dense").compute(asked)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREWS[1:])
@pytest.mark.parametrize("options", [*OPTIONS[:3], {"rule": Steps(2)}])
def test_stacked_training_on_equal_counts_equals_one_by_one(kind, options):
    counts = (37,) * NODES  # two whole batches and a smaller one
    expected = backend("one by one", counts=counts).compute(jobs(**options))
    assert difference(expected, backend(kind, counts=counts).compute(jobs(**options))) < 1e-5


def test_training_on_batches_copied_at_once_gives_the_same_bits(monkeypatch):
    counts = (37,) * NODES
    copied = backend("dense", counts=counts).compute(jobs(epochs=2))
    monkeypatch.setattr(batched_training, "LARGEST_COPY", 0)
    picked = backend("dense", counts=counts).compute(jobs(epochs=2))
    assert all(np.array_equal(a, b) for a, b in zip(copied, picked, strict=True))


def test_chains_of_linear_layers_use_the_dense_kernel():
    assert isinstance(backend("dense", mlp).kernel, DenseKernel)
    assert isinstance(backend("dense", tanh_chain).kernel, DenseKernel)
    assert isinstance(backend("dense", linear).kernel, DenseKernel)


@pytest.mark.parametrize("kind", CREWS)
def test_training_of_a_subset_equals_the_whole(kind):
    some = [jobs()[k] for k in (6, 2, 4)]
    whole, part = backend(kind).compute(jobs()), backend(kind).compute(some)
    assert difference([whole[6], whole[2], whole[4]], part) < 1e-6


@pytest.mark.parametrize("kind", CREWS)
def test_training_ignores_order_of_jobs(kind):
    forward, backward = backend(kind).compute(jobs()), backend(kind).compute(jobs()[::-1])
    assert all((a == b).all() for a, b in zip(forward, backward[::-1], strict=True))


@pytest.mark.parametrize("kind", CREWS)
def test_training_is_pure(kind):
    team, given = backend(kind), jobs()
    copies = [job.query.params.copy() for job in given]
    first = [params.copy() for params in team.compute(given)]
    team.compute([NodeQuery(k, Train(params, 2)) for k, params in enumerate(first)])
    again = team.compute(given)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert all((job.query.params == copy).all() for job, copy in zip(given, copies, strict=True))


@pytest.mark.parametrize("kind", CREWS)
def test_trained_models_are_not_overwritten_later(kind):
    team = backend(kind)
    first = team.compute(jobs())
    kept = [params.copy() for params in first]
    team.compute([NodeQuery(k, Mean(first, [1 / 7] * 7)) for k in range(7)])
    team.compute([NodeQuery(k, Train(params, 2)) for k, params in enumerate(first)])
    assert all((a == b).all() for a, b in zip(first, kept, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREWS)
def test_training_draws_depend_on_round_and_purpose(kind):
    model = models()[0]
    trained = [
        backend(kind).compute([NodeQuery(5, Train(model, r, purpose=p))])[0]
        for r, p in [(1, "a"), (2, "a"), (1, "b"), (1, "a")]
    ]
    assert (trained[0] == trained[3]).all()
    assert (trained[0] != trained[1]).any()
    assert (trained[0] != trained[2]).any()


def test_training_one_by_one_equals_pytorch():
    this = task(mlp, 16, 3)
    model = models(1)[0]
    (trained,) = SequentialLearner([this.learner(RandomStreams(0, "a"))]).compute([NodeQuery(0, Train(model, 1, epochs=3))])
    module = mlp()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(model), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(this.data["train"].x), this.data["train"].y).backward()
        optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    assert np.abs(trained - expected).max() < 1e-6


def test_lasting_momentum_equals_one_pytorch_optimizer():
    this = task(mlp, 16, 3, optimizer=SGD(0.1, 0.9, 0.01, lasting=True))
    learner, trained = this.learner(RandomStreams(0, "a")), models(1)[0]
    module = mlp()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(trained), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    for round in (1, 2, 3):
        trained = learner.train(trained, round=round)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(this.data["train"].x), this.data["train"].y).backward()
        optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    assert np.abs(trained - expected).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9, lasting=True), Adam(0.01, lasting=True)])
@pytest.mark.parametrize("kind", CREWS[1:])
def test_lasting_state_of_stacked_training_equals_one_by_one(kind, optimizer):
    """Nodes train in some rounds only, and with two purposes."""
    backends = [backend(k, optimizer=optimizer) for k in ("one by one", kind)]
    anchor = (0.5, np.full(models()[0].shape, 0.1, np.float32))
    for round, nodes in enumerate([range(NODES), [0, 3, 5], [5, 2, 3]], 1):
        for options in ({}, {"proximal": anchor}, {"purpose": "another"}):
            asked = [NodeQuery(k, Train(models()[k], round, **options)) for k in nodes]
            alone, together = (each.compute(asked) for each in backends)
            assert difference(alone, together) < 2e-6


def test_restored_learner_continues_with_lasting_momentum():
    this = task(mlp, 40, 3, optimizer=SGD(0.1, 0.9, lasting=True))
    first, second, fresh = (this.learner(RandomStreams(0, "a")) for _ in range(3))
    once = first.train(models(1)[0], round=1)
    kept = first.state()
    assert {key: array.shape for key, array in kept.items()} == {"train/velocity": (this.layout.size,)}
    second.restore(kept)
    expected = first.train(once, round=2)
    assert (second.train(once, round=2) == expected).all()
    assert (fresh.train(once, round=2) != expected).any()
    with pytest.raises(ConfigurationError, match="belongs to another model"):
        fresh.restore({"train/velocity": np.zeros(3, np.float32)})


def test_learner_without_lasting_optimizer_keeps_no_state():
    learner = task(mlp, 40, 3).learner(RandomStreams(0, "a"))
    learner.train(models(1)[0], round=1)
    assert learner.state() == {}


def test_adam_equals_pytorch_adam():
    torch.manual_seed(0)
    ours, theirs = torch.randn(4), None
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], 0.05, weight_decay=0.1)
    state = Adam(0.05, weight_decay=0.1).start(ours, 5)
    for _ in range(5):
        gradient = torch.randn(4)
        theirs.grad = gradient.clone()
        optimizer.step()
        Adam(0.05, weight_decay=0.1).step(ours, gradient, state, ours)
    assert torch.allclose(ours, theirs.detach(), atol=1e-6)


# Losses, metrics, means


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREWS)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_losses_of_several_models_equal_one_by_one(kind, split):
    stacks = [models(1 + k % 3, seed=k) for k in range(NODES)]
    asked = [NodeQuery(k, Loss(stack, split)) for k, stack in enumerate(stacks)]
    expected = backend("one by one").compute(asked)
    found = backend(kind).compute(asked)
    assert [len(losses) for losses in found] == [len(stack) for stack in stacks]
    assert difference(expected, found) < 1e-5


@pytest.mark.parametrize("kind", CREWS)
def test_metrics_of_several_models_equal_one_by_one(kind):
    asked = [NodeQuery(k, Evaluate(models(2, seed=k), ("validation", "test"))) for k in range(NODES)]
    expected, found = backend("one by one").compute(asked), backend(kind).compute(asked)
    for a, b in zip(expected, found, strict=True):
        for x, y in zip(a, b, strict=True):
            assert set(x) == {"validation_loss", "validation_accuracy", "test_loss", "test_accuracy"}
            assert x == pytest.approx(y, rel=1e-5)


@pytest.mark.parametrize("kind", CREWS)
def test_evaluation_of_shared_data_equals_one_by_one(kind):
    shared = task(mlp, 8, 0)
    learners = [shared.learner(RandomStreams(0, f"node-{k}")) for k in range(5)]
    for other in learners[1:]:
        other.data = learners[0].data
    team = SequentialLearner(learners) if kind == "one by one" else BatchedLearner(learners, by_hand=kind == "dense")
    found = team.compute([NodeQuery(k, Evaluate(models(1, seed=k), ("test",))) for k in range(5)])
    expected = [
        SequentialLearner(learners).compute([NodeQuery(k, Evaluate(models(1, seed=k), ("test",)))])[0] for k in range(5)
    ]
    assert [row[0] for row in found] == [pytest.approx(row[0], rel=1e-5) for row in expected]


@pytest.mark.parametrize("kind", CREWS)
def test_evaluation_of_missing_split_gives_no_metrics(kind):
    data = (np.zeros((4, 6), np.float32), np.zeros(4))
    learners = [classification(mlp, data).learner(RandomStreams(0, f"node-{k}")) for k in range(3)]
    team = SequentialLearner(learners) if kind == "one by one" else BatchedLearner(learners, by_hand=kind == "dense")
    assert team.compute([NodeQuery(1, Evaluate(models(2), ("validation", "test")))]) == [[{}, {}]]
    assert np.isnan(team.compute([NodeQuery(1, Loss(models(2)))])[0]).all()


@pytest.mark.parametrize("kind", CREWS[1:])
def test_evaluation_of_mixed_splits_equals_one_by_one(kind):
    learners = [task(mlp, 8, k).learner(RandomStreams(0, f"node-{k}")) for k in range(5)]
    x, y = learners[0].data["test"]
    learners[1].data["test"] = learners[4].data["test"] = x, y  # the others have own samples of two sizes, or none
    learners[3].data["test"] = x[:0], y[:0]
    asked = [NodeQuery(k, Evaluate(models(2, seed=k), ("validation", "test"))) for k in range(5)]
    expected = SequentialLearner(learners).compute(asked)
    found = BatchedLearner(learners, by_hand=kind == "dense").compute(asked)
    assert "test_loss" not in found[3][0]
    assert "validation_loss" in found[3][0]
    assert found == [[pytest.approx(figures, rel=1e-5) for figures in row] for row in expected]


@pytest.mark.parametrize("kind", CREWS[1:])
def test_stacked_losses_compute_no_metric(kind):
    calls = []

    def figure(outputs, targets):
        calls.append(len(targets))
        return 0.0

    team = backend(kind, metrics=[Metric("figure", figure)])
    team.compute([NodeQuery(k, Loss(models(2, seed=k), "validation")) for k in range(NODES)])
    assert not calls
    team.compute([NodeQuery(0, Evaluate(models(1), ("validation",)))])
    assert calls == [7]


def test_metric_that_is_the_loss_is_computed_once():
    calls = []

    def error(outputs, targets):
        calls.append(len(targets))
        return squared_error(outputs, targets)

    tasks = [task(linear, 8, k) for k in range(3)]
    for each in tasks:
        each.loss = each.measure = error
    team = BatchedLearner([each.learner(RandomStreams(0, f"node-{k}")) for k, each in enumerate(tasks)])
    calls.clear()
    asked = [NodeQuery(k, Evaluate(models(1, linear, seed=k), ("validation",))) for k in range(3)]
    found = [row[0] for row in team.compute(asked)]
    assert calls == [3 * 7]
    assert [row["validation_mse"] for row in found] == [row["validation_loss"] for row in found]


@pytest.mark.parametrize("kind", CREWS)
def test_mean_query_returns_weighted_means(kind):
    team = backend(kind)
    trained = team.compute(jobs())
    for stock in (trained, models(seed=9)):  # models of one stack, and separate ones
        asked = [NodeQuery(k, Mean([stock[k], stock[(k + 1) % 7]], [0.25, 0.75])) for k in range(7)]
        expected = [0.25 * stock[k] + 0.75 * stock[(k + 1) % 7] for k in range(7)]
        assert difference(expected, team.compute(asked)) < 1e-6
        assert difference(expected[:1], team.compute(asked[:1])) < 1e-6


def test_models_of_one_stack_are_averaged_together_however_many(monkeypatch):
    monkeypatch.setattr(batched_learner, "LARGEST_MIX", 0)  # nothing may be copied
    team = backend("dense")
    trained = team.compute(jobs())
    found = team.compute([NodeQuery(k, Mean([trained[k], trained[0]], [0.25, 0.75])) for k in range(NODES)])
    assert difference([0.25 * model + 0.75 * trained[0] for model in trained], found) < 1e-6
    assert len({id(row.base) for row in found}) == 1  # rows of one array, which trains without a copy
    separate = models(seed=9)
    alone = team.compute([NodeQuery(k, Mean([separate[k], separate[0]], [0.25, 0.75])) for k in range(NODES)])
    assert difference([0.25 * model + 0.75 * separate[0] for model in separate], alone) < 1e-6


# Random layers


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3))


class Feature(nn.Sequential):
    """Dropout of whole channels, and of single values that keeps their mean and deviation."""

    def __init__(self):
        layers = nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 2), nn.Dropout1d(0.4), nn.SELU(), nn.AlphaDropout(0.3)
        super().__init__(*layers, nn.Flatten(), nn.Linear(15, 3))


class Noisy(nn.Module):
    """Noise from functions of torch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            x = nn.functional.dropout(x + 0.1 * torch.randn_like(x), 0.2) * (1 + torch.rand(6))
            x = x * torch.bernoulli(torch.full_like(x, 0.8))
        return self.layer(x)


@pytest.mark.slow
@pytest.mark.parametrize("module", [Dropping, Feature, Noisy])
@pytest.mark.parametrize("options", [{"epochs": 2}, {"purpose": "another", "epochs": 2}])
def test_random_layers_draw_the_same_when_stacked(module, options):
    expected = backend("one by one", module).compute(jobs(module, **options))
    assert difference(expected, backend("vmap", module).compute(jobs(module, **options))) < 2e-5


def dropping_chain():
    return nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.4), nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"epochs": 2}, {"purpose": "another", "epochs": 2}])
def test_dense_chain_draws_the_same_dropout(options):
    team = backend("dense", dropping_chain)
    assert isinstance(team.kernel, DenseKernel)
    assert team.kernel.random
    expected = backend("one by one", dropping_chain).compute(jobs(dropping_chain, **options))
    assert difference(expected, team.compute(jobs(dropping_chain, **options))) < 1e-5


def test_dropout_by_hand_is_for_every_device():
    this = task(dropping_chain, 8, 0)
    for device in ("cpu", "cuda"):
        assert isinstance(kernel_for(this, torch.device(device)), DenseKernel)


def dropping_twice():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.4), nn.Dropout(0.4), nn.Linear(5, 3))


def dropping_after_tanh():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.4), nn.Linear(5, 3))


def dropping_all():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(1.0), nn.Linear(5, 3))


@pytest.mark.slow
@pytest.mark.parametrize("module", [dropping_twice, dropping_after_tanh, dropping_all])
def test_other_dropout_is_left_to_torch(module):
    team = backend("dense", module)
    assert isinstance(team.kernel, VmapKernel)
    expected = backend("one by one", module).compute(jobs(module, epochs=2))
    assert difference(expected, team.compute(jobs(module, epochs=2))) < 2e-5


@pytest.mark.slow
def test_random_layers_of_rules_with_two_gradients_draw_the_same():
    given = [
        NodeQuery(k, Train(model, 1, epochs=2, rule=Mixture(0.4, model * 0.5)))
        for k, model in enumerate(models(module=Dropping))
    ]
    expected = backend("one by one", Dropping).compute(given)
    assert difference(expected, backend("vmap", Dropping).compute(given)) < 2e-5


@pytest.mark.slow
def test_stacked_random_layers_keep_the_state_of_torch():
    team = backend("vmap", Dropping)
    assert team.kernel.random
    assert not backend("vmap", Own).kernel.random
    before = torch.get_rng_state()
    team.compute(jobs(Dropping))
    assert torch.equal(torch.get_rng_state(), before)


class Shuffling(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x[:, torch.randperm(6)])


def test_random_operation_without_rows_is_refused():
    with pytest.raises(ConfigurationError, match="cannot be stacked: torch cannot draw randperm for each node of a stack"):
        backend("vmap", Shuffling)


# Modules that cannot be stacked, and training that fails


class Normed(nn.Sequential):
    def __init__(self, momentum=0.1):
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 3))


def test_stacking_of_unsuitable_module_is_refused():
    words = r"layer 1 \(BatchNorm1d\) changes its buffers in training; GroupNorm and LayerNorm do not"
    with pytest.raises(ConfigurationError, match=words):
        backend("dense", Normed, counts=(5, 23))


def test_random_layers_are_seeded_by_round_and_purpose():
    learner = task(Dropping, 16, 0).learner(RandomStreams(0, "a"))
    model = models(1, Dropping)[0]
    assert (learner.train(model, round=1) == learner.train(model, round=1)).all()
    assert (learner.train(model, round=1) != learner.train(model, round=2)).any()


def test_model_contains_running_statistics_and_their_count():
    this = task(partial(Normed, momentum=None), 16, 0)  # statistics are the means of all batches, by their count
    learner = this.learner(RandomStreams(0, "a"))
    before = this.initial(0)
    first = learner.train(before, round=1)
    second = learner.train(first, round=2)
    counts = [int(this.tensors(params, 0)["1.num_batches_tracked"]) for params in (before, first, second)]
    assert counts == [0, 1, 2]
    assert learner.train(before, round=1).tobytes() == first.tobytes()  # whatever the learner has computed
    assert this.layout.local == ("1.num_batches_tracked",)
    assert this.layout.shared.size == this.layout.size - this.layout.local_size


def test_stacking_of_different_tasks_is_refused():
    learners = [task(mlp, 8, k, batch_size=4 + k).learner(RandomStreams(0, f"node-{k}")) for k in range(2)]
    with pytest.raises(ConfigurationError, match="differ in batch size"):
        BatchedLearner(learners)


class Rolled(nn.Sequential):
    """Module with a plain attribute, an attribute that each module makes, and an integer buffer."""

    def __init__(self, shift=0, factor=1, order=0, power=1, offset=0.0):
        super().__init__(nn.Linear(6, 3))
        self.shift = shift
        self.scale = lambda x, *, power=power: factor * x**power
        self.offsets = [nn.Parameter(torch.tensor([offset]))]  # not registered
        self.first = [self[0]]
        self.activation = self.double
        self.clamp = partial(torch.clamp, min=-1.0)
        self.register_buffer("order", torch.tensor([order]))

    def double(self, x):
        return 2 * x

    def forward(self, x):
        return super().forward(self.scale(x).roll(self.shift + int(self.order), 1))


@pytest.mark.parametrize("change", [{"shift": 1}, {"factor": 2}, {"order": 1}, {"power": 2}, {"offset": 1.0}])
def test_modules_that_compute_differently_are_not_stacked(change):
    assert computes_alike(Rolled(), Rolled())
    assert not computes_alike(Rolled(), Rolled(**change))
    tasks = [task(lambda: Rolled(), 8, 0), task(lambda: Rolled(**change), 8, 1)]
    with pytest.raises(ConfigurationError, match="differ in module"):
        BatchedLearner([this.learner(RandomStreams(0, f"node-{k}")) for k, this in enumerate(tasks)])


@pytest.mark.parametrize(
    "module", [lambda: nn.LSTM(3, 4), lambda: nn.TransformerEncoderLayer(8, 2), lambda: nn.Conv2d(1, 2, 3)]
)
def test_new_modules_of_one_architecture_compute_alike(module):
    assert computes_alike(module(), module())


@pytest.mark.parametrize("kind", CREWS)
def test_diverging_training_names_the_node(kind):
    given = jobs()
    broken = NodeQuery(3, Train(np.full_like(given[3].query.params, 1e38), 4))
    with pytest.raises(DivergenceError, match="node-3 diverged in round 4"):
        backend(kind).compute([*given[:3], broken])


def test_choose_device_refuses_unknown_device():
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigurationError, match="known: auto, cpu, cuda, mps"):
        choose_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match="not available"):
            choose_device("cuda")


@pytest.mark.parametrize("kind", CREWS)
def test_nodes_may_share_inputs_but_not_targets(kind):
    x = torch.tensor(np.random.default_rng(0).normal(size=(8, 6)), dtype=torch.float32)
    tasks = [classification(mlp, (x, [k] * 8), (x, [k] * 8)) for k in range(3)]
    learners = [made.learner(RandomStreams(0, str(k))) for k, made in enumerate(tasks)]
    together = SequentialLearner(learners) if kind == "one by one" else BatchedLearner(learners, by_hand=kind == "dense")
    model = models(1)[0]
    losses = [float(found[0]) for found in together.compute([NodeQuery(k, Loss([model], "validation")) for k in range(3)])]
    logits = torch.nn.functional.log_softmax(_outputs(tasks[0], model, x), 1).mean(0)
    assert losses == pytest.approx((-logits).tolist(), rel=1e-5)


def _outputs(made, model, x):
    return torch.func.functional_call(
        made.template, {name: torch.tensor(t) for name, t in made.layout.unflatten(model).items()}, (x,)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "samples"), [(8, 16), (5, 33)])
def test_training_in_parts_equals_the_whole(monkeypatch, hidden, samples):
    rng, nodes = np.random.default_rng(0), 130
    tasks = [
        classification(
            lambda: nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, 3)),
            (rng.standard_normal((samples, 10)).astype(np.float32), rng.integers(0, 3, samples)),
        )
        for _ in range(nodes)
    ]
    start = tasks[0].initial(0)
    jobs = [NodeQuery(k, Train(start, round=1, epochs=2)) for k in range(nodes)]

    def trained():
        team = BatchedLearner([each.learner(RandomStreams(0, f"node-{k}")) for k, each in enumerate(tasks)])
        return np.array(team.compute(jobs))

    whole = trained()
    monkeypatch.setattr(batched_learner, "PART", 1)
    assert difference(whole, trained()) < 1e-6


@pytest.mark.parametrize("make", [classification, regression])
def test_unknown_options_of_a_task_are_configuration_errors(make):
    data = np.zeros((4, 6), np.float32), np.zeros((4, 3) if make is regression else 4, int)
    with pytest.raises(ConfigurationError, match="unknown option 'batchsize'; did you mean 'batch_size'"):
        make(mlp, data, batchsize=5)
    with pytest.raises(ConfigurationError, match="unknown option 'loss'"):
        make(mlp, data, loss=None)
