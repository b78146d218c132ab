from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import flatten, layout_of
from p2pfl.learning.optimizers import SGD, Adam
from p2pfl.learning.torch_learner import choose_device
from p2pfl.learning.torch_task import classification
from p2pfl.protocols.wire.messages import HelloParameters, decode_hello_parameters
from p2pfl.random_streams import RandomStreams
from p2pfl.task import MOST_FACTS, Part, Task, check_public_info, make_task
from p2pfl.tasks.digits import digit_images, digit_shares, node_labels


def no_task(part, seed):
    return object()


def tells(part, seed, *, key: str, kind: str):
    """Task whose public_info cannot be sent to peers."""
    value = {"numpy": np.int64(3), "list": [1], "long": "x" * 257, "large": 2**53 + 1, "none": None}[kind]
    return classification(linear, ([[1.0, 2.0]], [0]), public_info={key: value})


def of_another_class(part, seed):
    return SimpleNamespace(layout=None, n_samples=1, metric="mse", initial=None, learner=None)


class Half(Task):
    """Task that lacks what has no default."""

    metric = "mse"

    def __init__(self, part, seed): ...


class Around(Task):
    """Task that asks another one for its members."""

    def __init__(self, part, seed):
        self._task = make_task("concept-shift", {}, part, seed)

    def __getattr__(self, name):
        return getattr(self._task, name)

    def initial(self, seed): ...

    def learner(self, streams, device): ...


@dataclass
class Small(Task):
    """Task with every kind of member: a field, a field with a factory, an attribute and a property."""

    metric: str
    data_notes: list = field(default_factory=list)
    n_samples = 3

    @property
    def goals(self):
        return {"a": True}


def make(name, index=0, count=4, seed=0, **options):
    return make_task(name, options, Part(index, count), seed)


@pytest.mark.parametrize("labels", [1, 3, 10])
@pytest.mark.parametrize("count", [3, 20])
def test_digit_shares_are_disjoint(count, labels):
    shares = digit_shares(0, count, labels)
    splits = digit_images(0)[2]
    held = np.concatenate(shares)
    assert len(set(held.tolist())) == len(held)
    assert set(held.tolist()) <= set(splits["train"].tolist())
    everything = np.concatenate(list(splits.values()))
    assert sorted(everything.tolist()) == list(range(1797))


def test_digits_of_node_have_its_labels_in_every_split():
    owners = node_labels(0, 20, 3)
    for k in (0, 7, 19):
        task = make("digits", k, 20, labels=3)
        for split in ("train", "validation", "test"):
            assert set(task.data[split].y.tolist()) == set(owners[k])


def test_digits_judged_on_all_labels_share_evaluation():
    owners = node_labels(0, 20, 3)
    for k in (0, 7):
        own, of_all = make("digits", k, 20, labels=3), make("digits", k, 20, labels=3, judged_on="all")
        assert torch.equal(of_all.data["train"].x, own.data["train"].x)
        assert of_all.public_info == {"labels": ",".join(map(str, owners[k]))}
        for split, count in (("validation", 180), ("test", 180)):
            assert len(of_all.data[split].y) == count
            assert set(of_all.data[split].y.tolist()) == set(range(10))
    with pytest.raises(ConfigurationError, match=r"task.judged_on must be one of own, all, got 'others'"):
        make("digits", 0, 20, judged_on="others")


def test_node_labels_are_balanced():
    owners = node_labels(5, 40, 3)
    counts = [sum(label in own for own in owners) for label in range(10)]
    assert max(counts) - min(counts) <= 1
    assert all(len(own) == 3 for own in owners)


@pytest.mark.slow
def test_single_node_learns_digits_at_the_default_rate():
    task = make("digits", 0, 1)
    learner, params = task.learner(RandomStreams(0, "alone"), "cpu"), task.initial(0)
    for round in (1, 2, 3):
        params = learner.train(params, round=round)
    (figures,) = learner.evaluate([params], ["test"])
    assert figures["test_accuracy"] > 0.85  # at the rate for nodes with about fifty digits it falls to 0.1


def test_digits_of_a_hundred_nodes_are_fourteen_each():
    assert {make("digits", k, 100).n_samples for k in range(100)} == {14}


def test_task_data_depends_on_the_seed():
    for name in ("digits", "concept-shift"):
        x = [make(name, 1, seed=seed).data["train"].x for seed in (0, 0, 1)]
        assert torch.equal(x[0], x[1])
        assert not torch.equal(x[0], x[2])


def test_concept_shift_clusters_share_only_evaluation_data():
    tasks = [make("concept-shift", k, 6) for k in range(6)]
    assert [task.public_info["group"] for task in tasks] == [0, 0, 1, 1, 2, 2]
    assert tasks[0].data["test"].x is tasks[1].data["test"].x
    assert tasks[0].data["test"].x is not tasks[2].data["test"].x
    assert not torch.equal(tasks[0].data["train"].x, tasks[1].data["train"].x)


def test_concept_shift_is_linear_with_the_stated_noise():
    task = make("concept-shift", 0, 3)
    x, y = (part.double() for part in task.data["test"])
    solution = torch.linalg.lstsq(x, y).solution
    assert (y - x @ solution).std().item() == pytest.approx(3.0, rel=0.1)
    assert x.abs().max() <= 10
    assert task.n_samples == 50
    assert task.layout.size == 11


def test_initial_model_is_equal_at_all_nodes():
    initials = [make("digits", k).initial(3) for k in range(2)]
    assert initials[0].tobytes() == initials[1].tobytes()
    assert initials[0].tobytes() != make("digits").initial(4).tobytes()
    assert initials[0].dtype == np.float32


def test_initial_model_leaves_global_generator_unchanged():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    make("digits").initial(3)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("text", ["", "1", "1/", "/3", "a/3", "3/3", "-1/3", "1/0"])
def test_parse_of_invalid_part_is_refused(text):
    with pytest.raises(ConfigurationError, match="part"):
        Part.parse(text)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "did you mean 'digits'"),
        ("digits", {"label": 3}, "did you mean 'task.labels'"),
        ("digits", {"labels": "three"}, "task.labels"),
        ("digits", {"labels": 11}, "from 1 to 10"),
        ("digits", {"samples": -1}, "0 or more"),
        ("digits", {"lr": -0.1}, "task: lr must be 0 or more, and finite, got -0.1"),
        ("digits", {"momentum": float("nan")}, "task: momentum must be 0 or more, and finite, got nan"),
        ("concept-shift", {"clusters": 0}, "1 or more"),
        ("concept-shift", {"validation": -1}, "task.validation must be 0 or more, got -1"),
        ("concept-shift", {"lr": float("nan")}, "task: lr must be 0 or more, and finite, got nan"),
        ("concept-shift", {"noise": float("nan")}, "task.noise must be 0 or more, and finite, got nan"),
        ("concept-shift", {"noise": -1.0}, "task.noise must be 0 or more"),
        ("no_such_module:make", {}, "cannot be imported"),
        ("p2pfl.task:POINT", {}, "neither a class nor a function"),
        ("numpy:prod", {}, "is not a valid task: it does not take `part` and `seed`"),
        ("os:removedirs", {}, "os is a module of Python's standard library"),
        ("tests.p2pfl.tasks.test_tasks:no_task", {}, "not a valid task: it lacks layout"),
        ("tests.p2pfl.tasks.test_tasks:Half", {}, "not a valid task: it lacks layout, n_samples, initial, learner$"),
        (
            "tests.p2pfl.tasks.test_tasks:of_another_class",
            {},
            "not a valid task: make SimpleNamespace a subclass of p2pfl.Task$",
        ),
        (
            "tests.p2pfl.tasks.test_tasks:Around",
            {},
            "has __getattr__; to change members of another task, return a copy",
        ),
        (
            "tests.p2pfl.tasks.test_tasks:tells",
            {"key": "a", "kind": "numpy"},
            r"tells': public_info\['a'\] is of type numpy.int64; it must be",
        ),
        ("tests.p2pfl.tasks.test_tasks:tells", {"key": "a", "kind": "list"}, "is of type list; it must be a bool"),
        ("tests.p2pfl.tasks.test_tasks:tells", {"key": "a", "kind": "long"}, "a string of at most 256 characters"),
        ("tests.p2pfl.tasks.test_tasks:tells", {"key": "a", "kind": "large"}, r"an int of at most 2\*\*53"),
        ("tests.p2pfl.tasks.test_tasks:tells", {"key": "a", "kind": "none"}, "is of type NoneType"),
        (
            "tests.p2pfl.tasks.test_tasks:tells",
            {"key": "", "kind": "list"},
            "public_info has the key ''; keys must be strings of 1 to 64",
        ),
    ],
)
def test_make_task_refuses_invalid_tasks(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(name, **options)


def test_members_of_a_task_may_be_fields_attributes_and_properties():
    with pytest.raises(TypeError, match="metric"):
        Small()
    task = Small("mse", ["a note"])
    assert (task.metric, task.data_notes, task.n_samples, dict(task.goals)) == ("mse", ["a note"], 3, {"a": True})
    assert (task.higher_is_better, task.public_info, task.reference, task.group) == (True, {}, (), None)
    assert task.counts_for_front(np.zeros((2, 1))).tolist() == [True, True]


@pytest.mark.parametrize("about", [None, [], {str(k): k for k in range(MOST_FACTS + 1)}])
def test_public_info_must_be_a_small_dict(about):
    with pytest.raises(ConfigurationError, match="public_info must be a dict of at most 31 entries"):
        check_public_info(about)


def test_largest_public_info_fits_into_hello():
    values = ["x" * 256, 2**53, -(2**53), 0.5, True]
    about = {f"{k:064d}": values[k % len(values)] for k in range(MOST_FACTS)}
    check_public_info(about)
    hello = HelloParameters({}, about | {"n_samples": 3}, 0, False)
    assert decode_hello_parameters(hello.encode()) == hello


def test_shared_digits_are_drawn_by_each_node():
    tasks = [make("digits", k, 5000, labels=3, samples=40, shared=True) for k in (0, 1, 4999)]
    pool = {tuple(image.tolist()) for image in digit_images(0)[0][digit_images(0)[2]["train"]]}
    for task, own in zip(tasks, (node_labels(0, 5000, 3)[k] for k in (0, 1, 4999)), strict=True):
        images = {tuple(image.tolist()) for image in task.data["train"].x}
        assert len(images) == task.n_samples == 40  # no image twice at a node
        assert images <= pool
        assert set(task.data["train"].y.tolist()) <= set(own)
    assert make("digits", 4999, 5000, labels=3, samples=40, shared=True).data["train"].x.equal(tasks[2].data["train"].x)
    assert not tasks[0].data["train"].x.equal(tasks[1].data["train"].x)
    assert make("digits", 0, 1, samples=9000, shared=True).n_samples == len(pool)
    with pytest.raises(ConfigurationError, match=r"task.shared needs task.samples"):
        make("digits", 0, 3, shared=True)


def test_digits_with_too_many_nodes_are_refused():
    with pytest.raises(ConfigurationError, match="too many"):
        make("digits", 0, 2000)


# Modules and layouts


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("scale", torch.full((1,), 5.0))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


def test_layout_contains_float_buffers_but_no_integer_buffers():
    layout = layout_of(WithBuffers())
    assert layout.shapes == (("linear.weight", (2, 3)), ("linear.bias", (2,)), ("frozen", (2,)), ("scale", (1,)))
    assert layout.n_trained == 8
    assert flatten(WithBuffers(), layout)[-3:].tolist() == [1, 1, 5]


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = nn.Parameter(torch.zeros(2, dtype=torch.float64))


class HalfBuffer(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("small", torch.zeros(1, dtype=torch.float16))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Doubles, "Doubles: parameter odd is torch.float64"),
        (HalfBuffer, "HalfBuffer: buffer small is torch.float16"),
        (lambda: nn.LazyLinear(2), "weight has no shape yet"),
        (nn.ReLU, "ReLU has no trainable parameters"),
    ],
)
def test_layout_of_unsupported_module_is_refused(module, message):
    with pytest.raises(ConfigurationError, match=message):
        layout_of(module())


def linear():
    return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([[1.0, 2.0]], [0, 1]), "1 inputs, but 2 targets"),
        (([[1.0, float("nan")]], [0]), "not finite"),
        ((np.zeros((0, 2)), np.zeros(0)), "no training samples"),
    ],
)
def test_classification_refuses_invalid_arrays(data, message):
    with pytest.raises(ConfigurationError, match=message):
        classification(linear, data)


def test_loss_of_empty_split_is_nan():
    nothing = np.zeros((0, 2)), np.zeros(0)
    task = classification(linear, ([[1.0, 2.0]], [0]), validation=nothing)
    learner, model = task.learner(RandomStreams(0, "a")), task.initial(0)
    assert np.isnan(learner.loss([model, model], split="validation")).all()
    assert np.isnan(learner.loss([model], split="test")).all()
    assert learner.evaluate([model], ("validation", "test")) == [{}]


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_sgd_refuses_invalid_options(name, value):
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, and finite, got"):
        SGD(**{name: value})


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_adam_refuses_invalid_options(name, value):
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, and finite, got"):
        Adam(**{name: value})


@pytest.mark.parametrize("betas", [(-0.1, 0.9), (0.9, 1.0), (float("nan"), 0.9)])
def test_adam_refuses_invalid_betas(betas):
    with pytest.raises(ValueError, match="betas must be from 0 to below 1"):
        Adam(betas=betas)


@pytest.mark.parametrize("name", ["cpu:abc", "cpu:", "cpu:-1", "cpu:300", "cuda:x", "cuda:999"])
def test_choose_device_refuses_malformed_name(name):
    with pytest.raises(ConfigurationError, match=f"device '{name}' is not of the form {name[:3]}"):
        choose_device(name)


def test_choose_device_refuses_missing_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1").index == 1
    with pytest.raises(ConfigurationError, match="device 'cuda:2' is not available"):
        choose_device("cuda:2")


def test_batch_size_of_zero_is_refused():
    with pytest.raises(ConfigurationError, match="batch_size"):
        classification(linear, ([[1.0, 2.0]], [0]), batch_size=0)
