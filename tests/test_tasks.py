import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.task import Part, make_task
from p2pfl.tasks.digits import _images, _shares, node_labels
from p2pfl.torch_task import classification, flatten, layout_of


def no_task(part, seed):
    return object()


def make(name, index=0, count=4, seed=0, **options):
    return make_task(name, options, Part(index, count), seed)


@pytest.mark.parametrize("labels", [1, 3, 10])
@pytest.mark.parametrize("count", [3, 20])
def test_digits_are_divided_without_overlap_or_leak(count, labels):
    shares = _shares(0, count, labels)
    splits = _images(0)[2]
    held = np.concatenate(shares)
    assert len(set(held.tolist())) == len(held)
    assert set(held.tolist()) <= set(splits["train"].tolist())
    everything = np.concatenate(list(splits.values()))
    assert sorted(everything.tolist()) == list(range(1797))


def test_digits_of_a_node_have_its_labels_in_every_split():
    owners = node_labels(0, 20, 3)
    for k in (0, 7, 19):
        task = make("digits", k, 20, labels=3)
        for split in ("train", "validation", "test"):
            assert set(task.data[split].y.tolist()) == set(owners[k])


def test_every_label_is_at_as_many_nodes_as_any_other():
    owners = node_labels(5, 40, 3)
    counts = [sum(label in own for own in owners) for label in range(10)]
    assert max(counts) - min(counts) <= 1
    assert all(len(own) == 3 for own in owners)


def test_a_hundred_nodes_have_fourteen_digits_each():
    assert {make("digits", k, 100).n_samples for k in range(100)} == {14}


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    for name in ("digits", "concept-shift"):
        x = [make(name, 1, seed=seed).data["train"].x for seed in (0, 0, 1)]
        assert torch.equal(x[0], x[1])
        assert not torch.equal(x[0], x[2])


def test_nodes_of_a_cluster_share_validation_and_test_data_and_no_training_data():
    tasks = [make("concept-shift", k, 6) for k in range(6)]
    assert [task.about["group"] for task in tasks] == [0, 0, 1, 1, 2, 2]
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


def test_all_nodes_begin_with_one_model():
    initials = [make("digits", k).initial(3) for k in range(2)]
    assert initials[0].tobytes() == initials[1].tobytes()
    assert initials[0].tobytes() != make("digits").initial(4).tobytes()
    assert initials[0].dtype == np.float32


def test_an_initial_model_leaves_torchs_own_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    make("digits").initial(3)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("text", ["", "1", "1/", "/3", "a/3", "3/3", "-1/3", "1/0"])
def test_parts_that_do_not_exist_are_refused(text):
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
        ("concept-shift", {"clusters": 0}, "1 or more"),
        ("no_such_module:make", {}, "cannot be imported"),
        ("math:pi", {}, "not callable"),
        ("builtins:dict", {}, "no signature"),
        ("test_tasks:no_task", {}, "no task: it lacks layout"),
    ],
)
def test_wrong_tasks_are_refused_with_a_reason(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(name, **options)


def test_more_nodes_than_digits_are_refused():
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


def test_float_buffers_travel_and_integer_ones_stay():
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
        (nn.ReLU, "ReLU has nothing to train"),
    ],
)
def test_modules_that_cannot_be_handled_are_refused_by_name(module, message):
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
def test_wrong_arrays_are_refused(data, message):
    with pytest.raises(ConfigurationError, match=message):
        classification(linear, data)


def test_a_batch_size_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="batch_size"):
        classification(linear, ([[1.0, 2.0]], [0]), batch_size=0)
