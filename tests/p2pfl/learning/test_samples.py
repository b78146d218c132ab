"""Own data: arrays, tensors, torch datasets, Hugging Face datasets, and their division among nodes."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split

import p2pfl
from p2pfl._util import machine
from p2pfl.errors import ConfigurationError
from p2pfl.task import Part

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1, 0, 1, 0, 1, 0, 1])


def network():
    return nn.Linear(3, 2)


def pictures():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))


class Image:
    """A picture with the interface of Pillow."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.mode = {2: "L", 3: "RGB"}[pixels.ndim] if pixels.dtype == np.uint8 else "F"

    def getbands(self):
        return tuple(self.mode)

    def __array__(self, dtype=None, copy=None):
        return self.pixels


class Vision(Dataset):
    """A data set like those of torchvision: pictures, class numbers, and a transform."""

    def __init__(self, transform=None, pictures=None):
        rng = np.random.default_rng(0)
        self.pictures = pictures or [Image(rng.integers(0, 256, (4, 4, 3), np.uint8)) for _ in range(8)]
        self.transform = transform
        self.reads = Counter()

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        self.reads[index] += 1
        picture = self.pictures[index]
        return picture if self.transform is None else self.transform(picture), index % 2


class ClassLabel:
    """The type of a column of class numbers, by the name that `datasets` gives it."""


class Value:
    """The type of any other column."""


class HuggingFace:
    """The part of `datasets.Dataset` that reads rows: columns, types, length, and rows as dicts."""

    def __init__(self, columns, classes=(), transform=None):
        self._columns = columns
        self._transform = transform
        self.features = {name: ClassLabel() if name in classes else Value() for name in columns}

    @property
    def column_names(self):
        return list(self._columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self._columns[key]
        if self._transform is None:
            return {name: values[key] for name, values in self._columns.items()}
        rows = key if isinstance(key, slice) else slice(key, key + 1)
        batch = self._transform({name: values[rows] for name, values in self._columns.items()})
        return batch if isinstance(key, slice) else {name: values[0] for name, values in batch.items()}

    def with_transform(self, transform):
        return HuggingFace(self._columns, (), transform)


class DatasetDict(dict):
    """The splits of a Hugging Face dataset."""

    @property
    def column_names(self):
        return {name: split.column_names for name, split in self.items()}


def table(**columns):
    return HuggingFace({"pixels": X.tolist(), "label": Y.tolist()} | columns)


def samples(data, module=network, split="train", **options):
    task = p2pfl.classification(module, train=data, **options)
    return task.data[split]


def is_own_data(found):
    return found.x.dtype == torch.float32 and found.y.dtype == torch.int64 and found.x.tolist() == X.tolist()


TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.tolist(), Y.tolist()),
        (X.astype(np.float64), Y.astype(np.uint8)),
        (X[::-1].copy()[::-1], Y.astype(">i4")),
        (torch.from_numpy(X).double(), torch.from_numpy(Y)),
        TENSORS,
        Subset(TENSORS, range(8)),
        ConcatDataset([Subset(TENSORS, [0, 1, 2]), Subset(TENSORS, [3, 4, 5, 6, 7])]),
        [(x, y) for x, y in zip(X, Y, strict=True)],
        [{"x": x, "y": int(y)} for x, y in zip(X, Y, strict=True)],
        HuggingFace({"pixels": X.tolist(), "label": Y.tolist()}),
        HuggingFace({"kind": Y.tolist(), "pixels": X.tolist()}, classes=["kind"]),
        HuggingFace({"a": X[:, 0].tolist(), "label": Y.tolist(), "b": X[:, 1].tolist(), "c": X[:, 2].tolist()}),
        HuggingFace({"raw": X.tolist(), "y": Y.tolist()}).with_transform(lambda batch: batch),
    ],
)
def test_all_forms_of_data_make_equal_samples(data):
    found = samples(data)
    assert is_own_data(found)
    assert found.y.tolist() == Y.tolist()


def test_readonly_array_is_taken_without_a_warning():
    x = X.copy()
    x.flags.writeable = False
    assert is_own_data(samples((x, Y)))


def test_columns_may_be_named():
    data = table(other=["text"] * 8, second=X[:, :1].tolist())
    assert is_own_data(samples(data, columns=("pixels", "label")))
    numbers = table(a=X[:, 0].tolist(), b=X[:, 1].tolist(), c=X[:, 2].tolist())
    assert is_own_data(samples(numbers, columns=(["a", "b", "c"], "label")))


def test_pictures_become_floats_with_channels_first():
    data = Vision()
    found = samples(data, pictures)
    assert found.x.shape == (8, 3, 4, 4)
    assert torch.equal(found.x[5], torch.from_numpy(data.pictures[5].pixels).permute(2, 0, 1) / 255)
    grey = [Image(np.full((4, 12), 51, np.uint8))] * 4
    assert torch.equal(samples(Vision(pictures=grey), pictures).x, torch.full((4, 1, 4, 12), 0.2))


def test_dataset_is_read_once_for_all_nodes():
    data = Vision(lambda picture: torch.rand(3, 4, 4))
    first, second = samples(data, pictures), samples(data, pictures)
    assert set(data.reads.values()) == {1}
    assert first.x is second.x  # nodes of a simulation share the memory


def test_read_samples_are_freed_with_their_dataset():
    data = Vision(lambda picture: torch.rand(3, 4, 4))
    found = samples(data, pictures)
    kept = weakref.ref(found.x)
    del data, found
    gc.collect()
    assert kept() is None


def test_random_transform_is_repeatable_and_keeps_torchs_seed():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    found = [samples(Vision(lambda picture: torch.rand(3, 4, 4)), pictures).x for _ in range(2)]
    assert torch.equal(*found)
    assert torch.equal(torch.rand(1), expected)


def test_random_split_is_read_from_its_dataset():
    part, _ = random_split(Vision(), [6, 2], torch.Generator().manual_seed(0))
    assert len(samples(part, pictures).x) == 6


# Labels that are not class numbers

NAMES = ["cat", "dog"]
TEXTS = [NAMES[k] for k in Y]


@pytest.mark.parametrize(
    "data",
    [
        (X, TEXTS),
        (X, np.array(TEXTS)),
        list(zip(X, TEXTS, strict=True)),
        table(label=TEXTS),
        Subset(list(zip(X, TEXTS, strict=True)), range(8)),
    ],
    ids=["list", "array", "pairs", "columns", "subset"],
)
def test_listed_labels_become_classes(data):
    assert is_own_data(found := samples(data, labels=NAMES))
    assert found.y.tolist() == Y.tolist()
    assert samples(data, labels=NAMES[::-1]).y.tolist() == (1 - Y).tolist()


def test_listed_numbers_become_classes():
    assert samples((X, torch.from_numpy(Y + 3)), labels=[3, 4]).y.tolist() == Y.tolist()
    assert samples((X, Y + 0.5), labels=[0.5, 1.5]).y.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "cow"], "^train data: target 1 is 'dog'; a label must be one of 'cat', 'cow'$"),
        (["cat", "cat"], "^labels must list two different labels or more, got "),
        ("cat", "^labels must list two different labels or more, got 'cat'$"),
    ],
)
def test_invalid_labels_are_refused_in_one_line(labels, message):
    for data in ((X, TEXTS), list(zip(X, TEXTS, strict=True))):
        with pytest.raises(ConfigurationError, match=message):
            samples(data, labels=labels)


# Samples that are held out, and division among nodes


def test_fractions_hold_out_disjoint_samples():
    task = p2pfl.classification(network, train=(X, Y), validation=0.25, test=1, seed=5)
    rows = [task.data[split].x[:, 0].tolist() for split in ("train", "validation", "test")]
    assert [len(part) for part in rows] == [5, 2, 1]
    assert sorted([*rows[0], *rows[1], *rows[2]]) == X[:, 0].tolist()
    again = p2pfl.classification(network, train=(X, Y), validation=0.25, test=1, seed=5)
    other = p2pfl.classification(network, train=(X, Y), validation=0.25, test=1, seed=6)
    assert torch.equal(again.data["test"].x, task.data["test"].x)
    assert not torch.equal(torch.cat([s.x for s in other.data.values()]), torch.cat([s.x for s in task.data.values()]))


def test_single_sample_is_not_held_out():
    task = p2pfl.classification(network, train=(X[:1], Y[:1]), validation=0.5, test=0.25)
    assert {split: len(s.x) for split, s in task.data.items()} == {"train": 1, "validation": 0, "test": 0}


MANY_X = np.random.default_rng(1).normal(size=(300, 3)).astype(np.float32)
MANY_Y = np.arange(300) % 3


def three():
    return nn.Linear(3, 3)


def divided(rule, count=5, seed=0, **options):
    given = {"train": (MANY_X, MANY_Y), "test": (MANY_X[:90], MANY_Y[:90])} | options
    return [p2pfl.classification(three, **given, partition=rule, part=Part(k, count), seed=seed) for k in range(count)]


def test_partition_gives_each_sample_to_one_node():
    tasks = divided(p2pfl.partition("dirichlet", alpha=0.3))
    rows = [tuple(row) for task in tasks for row in task.data["train"].x.tolist()]
    assert len(rows) == len(set(rows)) == 300
    sizes = [task.n_samples for task in tasks]
    assert len(set(sizes)) > 1
    assert sizes == [task.n_samples for task in divided(p2pfl.partition("dirichlet", alpha=0.3))]
    assert sizes != [task.n_samples for task in divided(p2pfl.partition("dirichlet", alpha=0.3), seed=1)]


def test_test_samples_follow_the_labels_of_the_node():
    for task in divided(p2pfl.partition("pathological", classes=1)):
        (label,) = set(task.data["train"].y.tolist())
        assert task.data["test"].y.tolist() == [label] * 30


def test_partition_may_judge_all_nodes_on_all_samples():
    tasks = divided(p2pfl.partition("pathological", classes=1, judged_on="all"), test=TENSORS3)
    assert all(task.data["test"].x is TENSORS3.tensors[0] for task in tasks)


TENSORS3 = TensorDataset(torch.from_numpy(MANY_X[:90]), torch.from_numpy(MANY_Y[:90]))


def test_partition_refuses_test_labels_without_training_samples():
    rule, test = p2pfl.partition("iid"), (MANY_X, np.where(np.arange(len(MANY_Y)) == 7, 5, MANY_Y))
    with pytest.raises(ConfigurationError, match="test data: target 7 is 5, which no training sample has"):
        divided(rule, test=test)
    assert len(divided(rule, test=(MANY_X[:0], MANY_Y[:0]))[0].data["test"].x) == 0


def test_partition_warns_of_few_test_samples():
    kept = np.flatnonzero((MANY_Y != 2) | (np.arange(len(MANY_Y)) == int((MANY_Y == 2).argmax())))
    expected = r"a node is tested on \d of \d+ test samples, .* and only 1 of class 2"
    with pytest.warns(UserWarning, match=expected):
        divided(p2pfl.partition("iid"), test=(MANY_X[kept], MANY_Y[kept]))


def test_partition_of_a_dataset_reads_it_once():
    data = Vision()
    tasks = [
        p2pfl.classification(pictures, train=data, validation=0.5, partition=p2pfl.partition("iid"), part=Part(k, 4), seed=0)
        for k in range(4)
    ]
    assert set(data.reads.values()) == {1}
    assert [(task.n_samples, len(task.data["validation"].x)) for task in tasks] == [(1, 1)] * 4


def test_regression_is_divided_without_classes():
    def task(rule):
        y = np.linspace(-1, 1, 8)[:, None]
        return p2pfl.regression(lambda: nn.Linear(3, 1), (X, y), partition=rule, part=Part(0, 2), seed=0)

    assert task(p2pfl.partition("iid")).n_samples == 4
    with pytest.raises(ConfigurationError, match="can be divided by iid or quantity"):
        task(p2pfl.partition("dirichlet", alpha=1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: p2pfl.partition("dirichlett", alpha=1), "unknown partition 'dirichlett'; did you mean 'dirichlet'"),
        (lambda: p2pfl.partition("iid", judged_on="own data"), "partition: judged_on must be one of own, all"),
        (lambda: p2pfl.partition("iid", alpha=object()), "partition: Object of type object is not JSON"),
        (lambda: divided(p2pfl.partition("dirichlet")), "missing a required argument: 'alpha'"),
        (lambda: divided(p2pfl.partition("dirichlet", beta=1)), r"unknown key 'task\.partition\.beta'"),
        (lambda: divided(p2pfl.partition("iid"), 301)[0], "301 nodes are too many for 300 samples"),
        (
            lambda: p2pfl.classification(three, (MANY_X, MANY_Y), partition=p2pfl.partition("iid")),
            "partition needs the part and the seed",
        ),
        (lambda: divided("dirichlet"), "partition must be a rule such as p2pfl.partition"),
    ],
)
def test_invalid_partition_is_refused_in_one_line(make, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# Invalid data


class Stream(IterableDataset):
    """Samples without a length."""

    def __iter__(self):
        return iter([(X[0], 0)])


class Broken(Dataset):
    """A data set whose fourth sample cannot be read."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise OSError("truncated image\nat byte 7")
        return X[index], int(Y[index])


ODD = [Image(np.zeros((4, 4, 3), np.uint8)), Image(np.zeros((4, 4), np.uint8))]


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("options", [{"partition": p2pfl.partition("iid"), "validation": 2}, {"validation": 0.3, "test": 2}])
def test_error_names_place_in_data_of_the_user(place, options):
    wrong = X.copy()
    wrong[place, 1] = np.inf
    said = set()
    for k in range(2):
        for x, y in ((wrong, Y), (X, np.where(np.arange(8) == place, 5, Y))):
            try:
                p2pfl.classification(network, train=(x, y), part=Part(k, 2), seed=1, **options)
            except ConfigurationError as error:
                said.add(str(error).partition(" is ")[0])
    assert said == {f"train data: input {place}", f"train data: target {place}"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "train must be samples, got 7"),
        ("mnist", "train data: a sample must be .input, target. or a dict, got str"),
        (None, "train must be samples, got None"),
        (Stream(), "collect the samples of an iterable dataset in a list"),
        (DatasetDict(train=table(), test=table()), "train is a dict with the keys train, test; pass one of its entries"),
        ((X, Y[:5]), "train data: 8 inputs, but 5 targets"),
        ((X[:0], Y[:0]), "the task has no training samples"),
        ([], "train data: there are no samples"),
        (
            ([[1.0, 2.0, 3.0], [1.0, 2.0]], [0, 1]),
            r"inputs: number 1 has the shape \[2\], but number 0 has \[3\]",
        ),
        ([(X[0], 0), (X[1, :2], 1), (X[2], 0)], r"input 1 has the shape \[2\], but number 0 has \[3\]"),
        (Vision(pictures=ODD), r"input 1 has the shape \[1, 4, 4\], but number 0 has \[3, 4, 4\]"),
        (Vision(pictures=[Image(np.zeros((4, 4), np.float32))]), 'input 0: the image has the mode F; convert it to "L"'),
        ((np.where(np.arange(24).reshape(8, 3) == 16, np.nan, X), Y), "train data: input 5 is not finite"),
        ((X, Y + 1), "train data: target 1 is 2, but module Linear has 2 outputs; labels must be from 0 to 1"),
        ((X, Y - 1), "train data: target 0 is -1, but module"),
        ((X, Y + 0.5), "train data: target 0 is 0.5; a class must be a whole number"),
        ((X, np.where(Y, np.nan, 0)), "train data: target 1 is nan; a class must be"),
        ((X, np.eye(8)), r"train data: targets have the shape \[n, 8\], expected class numbers \[n\]"),
        (
            (X, ["cat"] * 8),
            "train data: targets must be numbers, got text; number the classes from 0, or list `labels`",
        ),
        ((X[:, :2], Y), r"module Linear does not take inputs \[n, 2\] of float32: mat1 and mat2 shapes"),
        ((X.astype(np.uint8), Y), r"inputs \[n, 3\] of uint8: .*; most modules need float32 inputs, such as pixels / 255"),
        (Broken(), "train data: sample 3 cannot be read: truncated image"),
        (table(other=["text"] * 8), r"train data: the columns pixels, other are not all numbers; name those of the inputs"),
        (HuggingFace({"a": [1.0], "b": [1]}), r'the columns are a, b; name .* such as columns=\("a", "b"\)'),
        ([(1, 2, 3)] * 4, "a sample must be .input, target. or a dict, got tuple"),
    ],
)
def test_invalid_data_is_refused_in_one_line(data, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        samples(data)
    assert "\n" not in str(caught.value)


def test_module_instead_of_its_maker_is_refused():
    with pytest.raises(ConfigurationError, match="module must be a function that makes a new module, got a Linear"):
        p2pfl.classification(nn.Linear(3, 2), train=(X, Y))


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, p2pfl.SGD, torch.optim.SGD([torch.zeros(1)])])
def test_optimizer_of_another_kind_is_refused(optimizer):
    with pytest.raises(ConfigurationError, match=r"optimizer must be an object such as p2pfl\.SGD\(lr=0\.1\)") as caught:
        p2pfl.classification(lambda: nn.Linear(3, 2), train=(X, Y), optimizer=optimizer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["3", 2.5, None])
def test_batch_size_of_another_type_is_refused(size):
    with pytest.raises(ConfigurationError, match=f"batch_size must be a whole number, got {size!r}$"):
        p2pfl.classification(network, train=(X, Y), batch_size=size)


def test_unknown_column_is_refused():
    with pytest.raises(ConfigurationError, match="there is no column 'image'; the columns are pixels, label"):
        samples(table(), columns=("image", "label"))


@pytest.mark.parametrize("size", [-0.1, -1, 0.6, 0.9, 1.0, 1.5, 2.0, float("nan"), float("inf"), True])
def test_invalid_size_of_a_split_is_refused(size):
    with pytest.raises(ConfigurationError, match=r"validation must be .* a fraction of at most 0[.]5, got"):
        p2pfl.classification(network, train=(X, Y), validation=size)


def test_fraction_above_half_of_the_rest_is_refused():
    with pytest.raises(ConfigurationError, match=r"test must be .* a fraction of at most 0\.35, got 0\.4"):
        p2pfl.classification(network, train=(X, Y), validation=0.3, test=0.4)


def test_invalid_test_samples_are_named():
    with pytest.raises(ConfigurationError, match="test data: target 0 is 7, but module Linear has 2 outputs"):
        p2pfl.classification(network, train=(X, Y), test=(X[:1], [7]))


@pytest.mark.parametrize(
    ("make", "targets"), [(p2pfl.classification, Y), (p2pfl.regression, np.eye(2)[Y])], ids=["classification", "regression"]
)
def test_test_inputs_of_another_shape_are_refused_in_one_line(make, targets):
    with pytest.raises(ConfigurationError, match=r"test data: inputs have the shape \[n, 2\], but .* \[n, 3\]; ") as caught:
        make(network, train=(X, targets), test=(X[:, :2], targets))
    assert "\n" not in str(caught.value)


def test_test_inputs_of_another_type_are_refused_in_one_line():
    message = "^test data: inputs have the type uint8, but those of the training data float32; module Linear does not take"
    with pytest.raises(ConfigurationError, match=message):
        p2pfl.classification(network, train=(X, Y), test=((abs(X) * 100).astype(np.uint8), Y))


def test_test_pixels_beside_scaled_training_pixels_are_noted():
    class Module(nn.Linear):
        def forward(self, x):
            return super().forward(x.float())

    pixels = np.full(X.shape, 255, np.uint8)
    task = p2pfl.classification(lambda: Module(3, 2), train=(np.ones_like(X), Y), test=(pixels, Y))
    assert task.data_notes == (
        "test data: inputs are more than 50 times as great as those of the training data; scale both alike",
    )


def test_samples_of_one_class_are_noted():
    assert p2pfl.classification(network, train=(X, Y * 0)).data_notes == ("train data: all targets are class 0",)


def test_test_inputs_may_have_another_shape():
    task = p2pfl.classification(
        lambda: nn.Sequential(nn.AdaptiveAvgPool1d(2), nn.Linear(2, 2)), train=(X, Y), test=(X[:, :2], Y)
    )
    assert task.data["test"].x.shape == (8, 2)


def test_dataset_larger_than_memory_is_refused_before_allocation(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    with pytest.raises(ConfigurationError, match=r"train data: inputs in memory needs 0\.0 MiB of memory"):
        samples(Vision(), pictures)


def test_targets_of_a_regression_have_the_shape_of_the_outputs():
    with pytest.raises(
        ConfigurationError, match=r"targets have the shape \[n\], but the module's outputs \[n, 1\]; reshape"
    ):
        p2pfl.regression(lambda: nn.Linear(3, 1), (X, np.zeros(8)))


def test_module_without_classes_is_refused():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x.sum(1) * self.scale

    with pytest.raises(ConfigurationError, match=r"module Sum returns outputs of shape \[n\]; classification needs logits"):
        samples((X, Y), Sum)
