"""Reading of dataset objects: again if they have changed, once in a run, and with seeded generators."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import p2pfl
from p2pfl._util.shared_work import sharing
from p2pfl.learning.samples.datasets import read_samples

OFFSET = 0.0


class Scale:
    """A transform with a setting."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Steps:
    """Transforms one after another."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Numbers(Dataset):
    """Eight samples, a transform of the inputs and one of the targets, and a counter of readings."""

    table = None

    def __init__(self, transform=None, target_transform=None, path=None):
        self.x = np.arange(1.0, 9.0, dtype=np.float32)[:, None]
        self.y = np.arange(8) % 2
        self.transform, self.target_transform, self.path = transform, target_transform, path
        self.readings = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        self.readings += 1
        x, y = self.x[k] + OFFSET, self.y[k]
        if self.table is not None:
            x = x * self.table[k]
        if self.path is not None:
            x = x + float(self.path.read_text())
        return x if self.transform is None else self.transform(x), y if self.target_transform is None else (
            self.target_transform(y)
        )


def inputs(data):
    return read_samples("train", data)[0].flatten().tolist()


def double(data):
    data.transform = lambda x: 2 * x


def deeper(data):
    data.transform.steps[1].factor = 2


def in_place(data):
    data.x *= 2


def of_class(data):
    type(data).table = np.full(8, 2.0, np.float32)


@pytest.mark.parametrize("change", [double, deeper, in_place, of_class])
@pytest.mark.parametrize("form", [lambda data: data, lambda data: Subset(data, range(8))], ids=["dataset", "subset"])
def test_changed_dataset_is_read_again(change, form, monkeypatch):
    monkeypatch.setattr(Numbers, "table", None)
    data = Numbers(Steps(Scale(1), Scale(1)))
    given = form(data)
    first = inputs(given)
    change(data)
    assert inputs(given) == [2 * x for x in first]


def test_changed_targets_global_and_file_are_read_again(monkeypatch, tmp_path):
    path = tmp_path / "offset.txt"
    path.write_text("0")
    data = Numbers(path=path)
    first = inputs(data)
    monkeypatch.setitem(globals(), "OFFSET", 1.0)
    assert inputs(data) == [x + 1 for x in first]
    path.write_text("10")
    assert inputs(data) == [x + 11 for x in first]
    data.target_transform = lambda y: 1 - y
    assert read_samples("train", data)[1].tolist() == [1, 0] * 4
    data.y[:] = 1
    assert read_samples("train", data)[1].tolist() == [0] * 8


def test_unchanged_dataset_is_read_once():
    data = Numbers(Scale(2))
    assert inputs(data) == inputs(data)
    assert data.readings == 8


def test_dataset_with_an_open_file_is_read_once_in_a_run(tmp_path):
    data = Numbers()
    data.file = (tmp_path / "open.txt").open("w")
    with data.file:
        inputs(data)
        inputs(data)
        assert data.readings == 16
        with sharing():
            inputs(data)
            data.readings = 0
            inputs(data)
            inputs(data)
        assert data.readings == 8


def test_change_between_the_nodes_of_a_run_is_seen():
    data = Numbers(Scale(1))
    with sharing():
        first = inputs(data)
        data.transform = Scale(3)
        assert inputs(data) == [3 * x for x in first]
        data.transform.factor = 5
        assert inputs(data) == [5 * x for x in first]


@pytest.mark.slow
def test_simulation_uses_a_corrected_dataset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)

    class Data(Dataset):
        transform = staticmethod(lambda x: x * 0)

        def __len__(self):
            return 150

        def __getitem__(self, k):
            return torch.tensor(self.transform(x[k])), int(y[k])

    data = Data()

    def task(part, seed):
        rule = p2pfl.partition("iid")
        optimizer = p2pfl.SGD(0.5)
        return p2pfl.classification(
            lambda: nn.Linear(2, 2),
            data,
            None,
            (x[150:], y[150:]),
            partition=rule,
            part=part,
            seed=seed,
            optimizer=optimizer,
        )

    def accuracy():
        scenario = {"nodes": 2, "rounds": 3, "task": task, "policy": "local"}
        return p2pfl.simulate(scenario, progress=False)[0].summary["test"]["mean"]

    assert accuracy() < 0.7
    data.transform = lambda x: x
    assert accuracy() > 0.9
    Data.transform = staticmethod(lambda x: x * 0)
    del data.transform
    assert accuracy() < 0.7


class Noisy(Numbers):
    """Random transforms with the global generators, and with one of its own."""

    def __init__(self):
        super().__init__()
        self.own = np.random.default_rng(3), torch.Generator().manual_seed(3), random.Random(3)

    def __getitem__(self, k):
        draws = [
            torch.rand(()).item(),
            np.random.rand(),
            random.random(),
            self.own[0].random(),
            torch.rand((), generator=self.own[1]).item(),
            self.own[2].random(),
        ]
        return np.array(draws, np.float32), k % 2


def test_random_transforms_draw_from_seeded_generators():
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        expected = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        found.append(read_samples("train", Noisy())[0])
        assert torch.equal(torch.get_rng_state(), expected[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == expected[1:]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert len(found[0].unique()) == found[0].numel()


def test_generators_of_a_dataset_are_put_back():
    data = Noisy()
    first = read_samples("train", data)[0]
    data.more = 1  # read again
    assert torch.equal(read_samples("train", data)[0], first)
