"""State of modules through a node's restart, and into the files of its model."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from p2pfl.node.checkpoint import FileStore, unpack
from p2pfl.node.cli import main as node_cli
from p2pfl.node.folder.config import CHECKPOINT, CONFIG

TASKS = """
import numpy as np, torch
from torch import nn
from p2pfl import SGD, classification


class Warm(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.line, self.kind = nn.Linear(4, 2), kind
        if kind == "buffer":
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        else:
            self.steps = 0

    def forward(self, x):
        if self.training:
            self.steps = self.steps + 1
        return self.line(x) * min(float(self.steps), 200) / 200


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.seen = nn.Linear(4, 2), []

    def forward(self, x):
        self.seen.append(len(x))
        return self.line(x)


MODULES = {
    "buffer": lambda: Warm("buffer"),
    "attribute": lambda: Warm("attribute"),
    "norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 2)),
    "tied": Tied,
    "grows": Grows,
}


def task(part, seed, *, kind: str = "buffer"):
    r = np.random.default_rng([seed, part.index])
    x = r.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    data = (x[:81], y[:81]), (x[81:100], y[81:100]), (x[100:], y[100:])
    return classification(MODULES[kind], *data, optimizer=SGD(0.1), batch_size=20)
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_state", raising=False)


def node(capsys, *arguments):
    code = node_cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out + err


def train(capsys, folder, kind, *rounds):
    """Run a node for some rounds, several times, and return what it said."""
    node(capsys, "init", folder, "--task", "own_state:task", "--policy", "local", "--name", "n")
    (folder / "own_state.py").write_text(TASKS)
    text, name = (folder / CONFIG).read_text(), 'name = "own_state:task"'
    (folder / CONFIG).write_text(text.replace(name, f'{name}\nkind = "{kind}"').replace("mdns = true", "mdns = false"))
    return "".join(node(capsys, "run", folder, "--set", f"rounds={number}") for number in rounds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["buffer", "attribute", "norm"])
def test_restart_gives_the_bits_of_one_run(tmp_path, capsys, kind):
    train(capsys, tmp_path / "whole", kind, 4)
    train(capsys, tmp_path / "again", kind, 2, 4)
    whole, again = (FileStore(tmp_path / name / CHECKPOINT).load() for name in ("whole", "again"))
    assert whole.params == again.params
    assert whole.early_stopping == again.early_stopping
    assert np.isfinite(unpack(whole.params)).all()


@pytest.mark.slow
def test_exported_counts_are_those_of_the_best_model(tmp_path, capsys):
    folder = tmp_path / "n"
    train(capsys, folder, "norm", 3)
    best = FileStore(folder / CHECKPOINT).load().early_stopping["round"]
    node(capsys, "export", folder, "model.safetensors")
    tensors = load_file("model.safetensors")
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 2))
    module.load_state_dict(tensors)
    assert tensors["1.num_batches_tracked"].dtype == torch.int64
    assert tensors["1.num_batches_tracked"] == 4 * best  # 81 samples: the last of five batches of 20 joins the fourth


@pytest.mark.slow
def test_node_says_before_the_first_round_what_it_cannot_carry(tmp_path, capsys):
    said = train(capsys, tmp_path / "n", "grows", 1)
    place = said.index("module Grows changes seen in training, which neither a checkpoint nor a file of the model can carry")
    assert place < said.index("round 1")
