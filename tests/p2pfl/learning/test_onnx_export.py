"""Models as ONNX files: onnxruntime, without p2pfl, computes the same outputs as the task's own module."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.func import functional_call

from p2pfl import SGD, classification
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.learning import onnx_export
from p2pfl.learning.onnx_export import to_onnx
from p2pfl.node.cli.main import main
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, make_task

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra test-all")

ABOUT = {"name": "alice", "round": "2", "federation": "", "fingerprint": "00ff"}


def outputs(content, x):
    """Return onnxruntime's outputs, for all inputs at once and one by one: a batch may have any size."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (whole,) = session.run(["output"], {"input": x.numpy()})
    single = [session.run(["output"], {"input": x[k : k + 1].numpy()})[0] for k in range(3)]
    np.testing.assert_allclose(np.concatenate(single), whole[:3], rtol=1e-4, atol=1e-5)
    return whole, session.get_modelmeta().custom_metadata_map


def expected(task, params, x):
    tensors = {name: torch.tensor(array) for name, array in task.layout.unflatten(params).items()}
    with torch.no_grad():
        return functional_call(task.template.eval(), tensors, (x,)).numpy()


@pytest.mark.slow
def test_exported_onnx_model_runs_in_onnxruntime(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "alice", "--listen", "127.0.0.1:0"]) == 0
    assert main(["run", "alice", "--set", "rounds=2", "--set", "mdns=false"]) == 0
    assert main(["export", "alice", "model.safetensors"]) == 0
    assert main(["export", "alice", "model.onnx"]) == 0
    assert main(["export", "alice", "model.bin", "--format", "onnx"]) == 0
    assert main(["export", "alice", "model.onnx"]) == 2
    printed = capsys.readouterr()
    assert printed.err.endswith("model.onnx exists; use --force to overwrite it\n")
    assert "to model.onnx" in printed.out
    assert (tmp_path / "model.bin").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    task = make_task("digits", {}, Part(0, 1), 0)
    with safe_open("model.safetensors", "numpy") as file:
        params = task.layout.flatten({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        about = file.metadata()
    x = task.data["test"].x
    found, metadata = outputs((tmp_path / "model.onnx").read_bytes(), x)
    assert metadata == about
    assert metadata["name"] == "alice"
    np.testing.assert_allclose(found, expected(task, params, x), rtol=1e-4, atol=1e-5)
    assert (found.argmax(1) == task.data["test"].y.numpy()).mean() > 0.5


@pytest.mark.slow
def test_onnx_of_batch_norm_contains_running_statistics():
    rng = np.random.default_rng(0)
    x, y = (5 + 3 * rng.normal(size=(40, 4))).astype(np.float32), rng.integers(3, size=40)

    def module():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))

    task = classification(module, (x, y), optimizer=SGD(lr=0.1))
    params = task.learner(RandomStreams(0, "alice"), "cpu").train(task.initial(0), round=1, epochs=3)
    mean = task.layout.unflatten(params)["1.running_mean"]
    assert np.abs(mean).max() > 0.5
    found, metadata = outputs(to_onnx(task, params, ABOUT), task.data["train"].x)
    assert metadata == ABOUT
    np.testing.assert_allclose(found, expected(task, params, task.data["train"].x), rtol=1e-4, atol=1e-4)


class Centred(nn.Module):
    """Module that subtracts a learned mean, which its state_dict omits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x):
        return self.layer(x - self.mean)


@pytest.mark.slow
def test_onnx_contains_non_persistent_buffer():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    task = classification(Centred, (x, np.arange(20) % 3))
    params = np.arange(task.layout.size, dtype=np.float32)
    found, _ = outputs(to_onnx(task, params, ABOUT), task.data["train"].x)
    np.testing.assert_allclose(found, expected(task, params, task.data["train"].x), rtol=1e-4, atol=1e-3)


class Counting(nn.Module):
    """A count in an attribute, and constants that are drawn when the module is made."""

    def __init__(self):
        super().__init__()
        self.layer, self.steps = nn.Linear(4, 3), 0
        self.register_buffer("order", torch.randperm(4))

    def forward(self, x):
        self.steps += self.training
        return self.layer(x[:, self.order]) * (1 + 0.1 * self.steps)


@pytest.mark.slow
def test_onnx_contains_attributes_and_constants():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    task = classification(Counting, (x, np.arange(20) % 3), batch_size=5)
    learner = task.learner(RandomStreams(7, "alice"), "cpu")
    params = learner.train(task.initial(7), round=1)
    assert task.loaded(params, 7).steps == 4
    found, _ = outputs(to_onnx(task, params, ABOUT, 7), task.data["train"].x)
    np.testing.assert_allclose(found, learner.outputs(params, task.data["train"].x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_onnx_of_fairness_model_equals_module():
    task = make_task("fairness", {"data": "synthetic"}, Part(0, 2), 0)
    params = task.initial(0)
    x = task.data["test"].x[:50]
    found, _ = outputs(to_onnx(task, params, ABOUT), x)
    np.testing.assert_allclose(found, expected(task, params, x), rtol=1e-4, atol=1e-5)


def test_onnx_of_task_without_module_is_refused():
    task = make_task("deep-sea-treasure", {}, Part(0, 1), 0)
    with pytest.raises(ConfigurationError, match=r"has no torch module to export to ONNX; export a \.safetensors file"):
        to_onnx(task, task.initial(0), ABOUT)


class TwoFaced(nn.Module):
    """Module whose Python code branches on its inputs, which no graph can express."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


@pytest.mark.slow
def test_onnx_of_unexportable_module_reports_one_line(capfd):
    task = classification(TwoFaced, (np.zeros((4, 4), np.float32), np.zeros(4, int)))
    with pytest.raises(ConfigurationError, match="the module TwoFaced cannot be exported to ONNX: ") as refused:
        to_onnx(task, task.initial(0), ABOUT)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_onnx_without_the_extra_names_the_extra(monkeypatch):
    task = classification(lambda: nn.Linear(4, 2), (np.zeros((4, 4), np.float32), np.zeros(4, int)))
    monkeypatch.setattr(onnx_export, "NEEDED", ("a_package_that_nobody_has",))
    with pytest.raises(
        MissingRequirementError, match=r"ONNX needs a_package_that_nobody_has: pip install 'p2pfl-node\[onnx\]'"
    ):
        to_onnx(task, task.initial(0), ABOUT)


def test_onnx_of_too_large_model_is_refused(monkeypatch):
    task = classification(lambda: nn.Linear(4, 2), (np.zeros((4, 4), np.float32), np.zeros(4, int)))
    monkeypatch.setattr(onnx_export, "MOST_BYTES", 39)
    with pytest.raises(ConfigurationError, match=r"a model of 10 values is too large for ONNX; export a \.safetensors file"):
        to_onnx(task, task.initial(0), ABOUT)
