"""Modules that keep state, draw numbers in evaluation, or need several samples in a batch."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.local_state import LocalState, Slot, kind_of
from p2pfl.learning.module_probe import is_plain
from p2pfl.learning.modules import generator_states, seeded
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_learner import batch_sizes
from p2pfl.learning.torch_task import classification
from p2pfl.node.checkpoint import Checkpoint, with_local_state
from p2pfl.parameters import Layout, PrivateParameters
from p2pfl.queries import NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Lookahead


def normed(**options):
    return lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, 2))


class Dropping(nn.Module):
    """Dropout that is active in evaluation too."""

    def __init__(self, draw=lambda x: functional.dropout(x, 0.5)):
        super().__init__()
        self.body, self.head, self.draw = nn.Linear(4, 8), nn.Linear(8, 2), draw

    def forward(self, x):
        return self.head(self.draw(functional.relu(self.body(x))))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.steps = nn.Linear(4, 2), 0

    def forward(self, x):
        self.steps += self.training
        return self.line(x) * (1 + 0.1 * self.steps)


def task(module, n=20, seed=0, **options):
    rng = np.random.default_rng(seed)
    sizes = (n, options.pop("validation", 6), 6)
    data = [(rng.normal(size=(size, 4)).astype(np.float32), rng.integers(0, 2, size)) for size in sizes]
    return classification(module, *data, **({"optimizer": SGD(0.1, momentum=0.9), "batch_size": 8} | options))


def learner(this, name="node-0"):
    return this.learner(RandomStreams(0, name))


# A batch of one sample


@pytest.mark.parametrize(
    ("n", "least", "sizes"),
    [(16, 2, (2, 0)), (17, 1, (2, 1)), (17, 2, (1, 9)), (18, 2, (2, 2)), (1, 2, (0, 1)), (18, 3, (1, 10)), (9, 2, (0, 9))],
)
def test_small_last_batch_joins_the_one_before(n, least, sizes):
    assert tuple(map(int, batch_sizes(np.array(n), 8, least))) == sizes


@pytest.mark.parametrize("module", [normed(), normed(track_running_stats=False)])
def test_last_sample_is_trained_with_the_batch_before(module):
    """A node with 17 samples makes two steps: with 8 samples, and with 9."""
    this = task(module, 17)
    one = learner(this)
    start = this.initial(0)
    order = RandomStreams(0, "node-0").generator(1, "train").permutation(17)
    module = this.loaded(start, 0).train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for index in (order[:8], order[8:]):
        optimizer.zero_grad()
        functional.cross_entropy(module(this.data["train"].x[index]), this.data["train"].y[index]).backward()
        optimizer.step()
    trained = this.tensors(one.train(start, round=1), 0)
    for name, tensor in module.state_dict().items():
        assert trained[name] == pytest.approx(tensor.numpy(), abs=1e-6), name


@pytest.mark.slow
def test_stack_joins_the_last_sample_too():
    counts = (17, 33, 24, 9, 16)
    tasks = [task(normed(track_running_stats=False), n, k) for k, n in enumerate(counts)]
    learners = [learner(this, f"node-{k}") for k, this in enumerate(tasks)]
    start = tasks[0].initial(0)
    single = [one.train(start, round=1) for one in learners]
    stacked = BatchedLearner(learners).compute([NodeQuery(k, Train(start, 1)) for k in range(len(counts))])
    for one, other in zip(single, stacked, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-6)


def test_modules_without_batch_norm_keep_the_batch_of_one():
    assert task(lambda: nn.Linear(4, 2), 17).conduct.least == 1
    assert task(Counting, 17).conduct.least == 1
    assert (
        task(
            lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 2))
        ).conduct.least
        == 1
    )


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        (
            normed(),
            {"n": 1},
            "bob has 1 training sample, but module Sequential needs batches of at least 2, as batch norm does",
        ),
        (normed(), {"batch_size": 1}, "bob has batch_size = 1, but module Sequential needs batches of at least 2"),
        (
            normed(track_running_stats=False),
            {"validation": 1},
            "bob has 1 sample in its validation data, but module Sequential evaluates at least 2 together",
        ),
    ],
)
def test_node_with_too_few_samples_is_refused_by_name(module, options, reason):
    with pytest.raises(ConfigurationError) as refusal:
        learner(task(module, **options), "bob")
    assert str(refusal.value).startswith(reason)


def test_rule_with_two_gradients_needs_two_batches():
    this = task(normed(), 10)  # the last batch has two samples: one for each gradient
    one = learner(this)
    assert np.isfinite(one.train(this.initial(0), round=1, rule=Lookahead(0.1))).all()
    with pytest.raises(
        ConfigurationError, match="bob has 2 training samples, but module Sequential needs batches of at least 3"
    ):
        learner(task(normed(), 2), "bob").train(this.initial(0), round=1, rule=Lookahead(0.1))


# Draws


DRAWS = {
    "torch": lambda x: functional.dropout(x, 0.5),
    "NumPy": lambda x: x * float(np.random.uniform(0.5, 1)),
    "Python": lambda x: x * random.uniform(0.5, 1),
}


@pytest.mark.parametrize("library", DRAWS)
def test_evaluation_draws_from_the_node_alone(library):
    this = task(lambda: Dropping(DRAWS[library]))
    one, start = learner(this), this.initial(0)
    assert this.conduct.draws_in_evaluation
    before = generator_states()
    first = one.evaluate([start, start], ("validation", "test"))
    assert generator_states() == before
    torch.rand(3), np.random.rand(3), random.random()
    assert first[0] == first[1]
    assert one.evaluate([start], ("validation", "test"))[0] == first[0]
    assert one.loss([start])[0] == pytest.approx(first[0]["validation_loss"])
    assert learner(this, "node-1").evaluate([start], ("test",))[0]["test_loss"] != first[0]["test_loss"]
    assert any("draws random numbers in evaluation" in note for note in this.module_notes)
    assert one.train(start, round=1).tobytes() == one.train(start, round=1).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("library", DRAWS)
def test_runs_with_one_seed_have_one_trace_on_every_engine(library):
    """The policy dpfl chooses peers by losses on validation data."""

    def make(part, seed):
        return task(lambda: Dropping(DRAWS[library]), 30, part.index)

    scenario = {"nodes": 3, "rounds": 2, "task": make, "policy": "dpfl"}
    found = []
    for trainer in ("stacked", "stacked", "one-by-one"):
        np.random.seed(len(found))
        (run,) = p2pfl.simulate(scenario | {"trainer": trainer}, progress=False)
        found.append((run.summary["trace"], run.summary["test"]["nodes"]))
    assert found[0] == found[1]
    assert found[2][1] == pytest.approx(found[0][1])
    if library != "torch":
        assert found[2] == found[0]


def test_seeded_block_restores_the_generators():
    before = generator_states()
    with seeded(3):
        drawn = torch.rand(1), np.random.rand(), random.random()
    assert generator_states() == before
    with seeded(3):
        assert drawn == (torch.rand(1), np.random.rand(), random.random())


class Chosen(nn.Module):
    """Its inputs are permuted by a constant that is drawn when the module is made."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
        self.register_buffer("order", torch.randperm(4))
        self.scale = np.random.uniform(0.5, 1)

    def forward(self, x):
        return self.line(x[:, self.order]) * self.scale


def test_constants_of_a_module_come_from_the_federations_seed():
    this = task(Chosen)
    torch.manual_seed(int(np.random.randint(100)))
    one, other = (learner(this, name) for name in ("node-0", "node-1"))
    start = this.initial(0)
    x = this.data["test"].x
    assert torch.equal(one.outputs(start, x), other.outputs(start, x))
    assert torch.equal(this.loaded(start, 0)(x), one.outputs(start, x))
    team = BatchedLearner([one, other])
    assert torch.allclose(
        team.kernel.outputs(torch.from_numpy(np.stack([start] * 2)), torch.stack([x] * 2))[0], one.outputs(start, x)
    )


# State


@pytest.mark.slow
def test_each_node_counts_for_itself():
    def make(part, seed):
        return task(Counting, 17 + 8 * part.index, part.index)

    for trainer in ("stacked", "one-by-one"):
        scenario = {"nodes": 3, "rounds": 2, "task": make, "policy": {"name": "random", "neighbours": 1}, "trainer": trainer}
        (run,) = p2pfl.simulate(scenario, progress=False, models=True)
        notes = [note for note in run.notes if note.startswith("trained one by one: module Counting changes steps")]
        assert bool(notes) == (trainer == "stacked")
        assert any("files of the model lack it" in note for note in run.notes)


def test_state_follows_the_model():
    this = task(Counting)
    one, start = learner(this), this.initial(0)
    first = one.train(start, round=1)
    second = one.train(first, round=2)
    assert [this.loaded(params, 0).steps for params in (start, first, second)] == [0, 3, 6]
    assert one.train(first, round=2).tobytes() == second.tobytes()
    one.evaluate([first], ("test",))
    assert one.train(first, round=2).tobytes() == second.tobytes()


def test_state_stays_on_the_node():
    this = task(normed(momentum=None))
    layout, start = this.layout, this.initial(0)
    assert layout.local == ("1.num_batches_tracked",)
    private = PrivateParameters(layout, start)
    trained = learner(this).train(private.whole(private.layout.shared_of(start)), round=1)
    shared = private.keep(trained)
    assert shared.shape == (layout.shared.size,)
    assert "1.num_batches_tracked" not in dict(layout.shared.shapes)
    assert this.tensors(private.whole(np.zeros_like(shared)), 0)["1.num_batches_tracked"] == 3
    assert Layout(layout.shared.shapes, layout.n_trained).fingerprint == layout.fingerprint


def test_earlier_checkpoint_gets_the_initial_state():
    this = task(normed())
    start = this.initial(0)
    old = start[: this.layout.shared.size] + 1
    kept = Checkpoint(
        name="a",
        seed=0,
        layout=this.layout.fingerprint,
        round=2,
        params=old.tobytes(),
        early_stopping={"best": old.tobytes()},
        unevaluated={"merged": old.tobytes()},
        unevaluated_round=2,
        policy="",
        policy_state=b"",
        outbox=[],
        final=False,
    )
    new = with_local_state(kept, this.layout, start)
    whole = np.concatenate([old, start[len(old) :]]).tobytes()
    assert (new.params, new.early_stopping["best"], new.unevaluated["merged"]) == (whole, whole, whole)
    assert with_local_state(new, this.layout, start) == new
    with pytest.raises(ConfigurationError, match="its module now has another state"):
        this.layout.with_local(old[1:], lambda: start)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -(2**63),
        0.1,
        float("-inf"),
        True,
        None,
        torch.tensor([[1.5, float("nan")]]),
        torch.tensor([True, False]),
        torch.tensor(2**62),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j]),
        np.arange(3, dtype=np.uint8),
        np.float32(0.3),
        random.Random(4),
        np.random.default_rng(5),
        torch.Generator().manual_seed(6),
    ],
)
def test_values_of_every_kind_round_trip(value):
    module = nn.Module()
    module.value = value
    state = LocalState([Slot("value", "", (("attribute", "value"),), kind_of(value))])
    kept = state.take(module)
    assert kept.dtype == np.float32
    assert np.isfinite(kept).all()
    if isinstance(value, np.random.Generator):
        value.normal(size=3)
    elif isinstance(value, random.Random):
        value.gauss(0, 1)
    elif isinstance(value, torch.Generator):
        torch.rand(3, generator=value)
    elif isinstance(value, torch.Tensor | np.ndarray):
        module.value = value * 0
    else:
        module.value = 7
    state.put(module, kept)
    assert state.take(module).tobytes() == kept.tobytes()
    assert kind_of(module.value) == kind_of(value)


class Phased(Counting):
    """Its phase changes after three steps."""

    def __init__(self):
        super().__init__()
        self.phase = 1

    def forward(self, x):
        outputs = super().forward(x)
        if self.steps > 3:
            self.phase = 2
        return outputs * self.phase


def test_numbers_that_change_late_are_carried():
    this = task(Phased)
    first = learner(this).train(this.initial(0), round=1)
    second = learner(this).train(first, round=2)
    assert [this.loaded(params, 0).phase for params in (first, second)] == [1, 2]


class Hidden(nn.Module):
    """Its state depends on its inputs, and the samples that are tried first do not change it."""

    def __init__(self):
        super().__init__()
        self.line, self.calls = nn.Linear(4, 2), [0]
        self.state = 0

    def forward(self, x):
        outside.append(0)
        if len(outside) > 12:
            self.state += 1
        return self.line(x)


outside = deque(maxlen=99)  # of a type in which no state is looked for


def test_stack_ends_if_its_module_changes_late():
    tasks = [task(Hidden, 40, k) for k in range(2)]
    outside.clear()
    team = BatchedLearner([learner(this, f"node-{k}") for k, this in enumerate(tasks)])
    start = tasks[0].initial(0)
    with pytest.raises(
        ConfigurationError, match="module Hidden changes its state, but not in the first two steps; set trainer"
    ):
        for round in range(1, 9):
            team.compute([NodeQuery(k, Train(start, round)) for k in range(2)])


def test_state_that_changes_its_kind_is_an_error():
    class Fickle(Counting):
        def forward(self, x):
            outputs = super().forward(x)
            if self.steps > 2:
                self.steps = "many"
            return outputs

    this = task(Fickle)
    with pytest.raises(ConfigurationError, match="module Fickle: steps has become a str in training"):
        learner(this).train(this.initial(0), round=1)


def test_chains_of_plain_layers_are_not_run():
    assert is_plain(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Sequential(nn.Linear(3, 2))))
    assert not is_plain(normed()())
    assert not is_plain(Counting())
    hooked = nn.Linear(4, 2)
    hooked.register_forward_hook(lambda *given: None)
    assert not is_plain(hooked)


def test_common_module_of_all_nodes_counts_for_each():
    counting = Counting()
    this = task(lambda: counting)
    start = this.initial(0)
    trained = [learner(this, name).train(start, round=1) for name in ("node-0", "node-1")]
    assert [this.loaded(params, 0).steps for params in trained] == [3, 3]
    assert counting.steps == 0
