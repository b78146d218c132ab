"""Nodes without PyTorch as processes in which every import of torch fails, alone and among nodes that have it."""

import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2pfl._util.console import WRONG_USAGE
from tests.support import without_torch
from tests.support.depth import many
from tests.support.processes import processes

pytestmark = pytest.mark.slow
NAMES = ("alice", "bob", "carol")
SETTINGS = 'rounds = 5\nseed = 3\ndeadline = 60.0\n[task]\nname = "digits"\nsamples = 60\n[policy]\n'
POLICIES = {
    "judged by loss": 'name = "dac"\nneighbours = 2\nsimilarity = "inverse-loss"\n',
    "coordinated": 'name = "coordinated-fedavg"\n',
}


def models(root, policy, light=()):
    """Run a federation in which some nodes lack torch, and return the final models, float32 [P], by name."""
    with processes(root, NAMES, SETTINGS + policy) as federation:
        for name in NAMES:
            federation.start(name, torch=name not in light)
        printed = federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * len(NAMES), printed
        assert all(federation.status(name)["rejected"] == {} for name in NAMES)
        return {name: np.frombuffer(federation.checkpoint(name).params, np.float32) for name in NAMES}


@pytest.mark.parametrize("policy", POLICIES)
def test_federations_with_and_without_torch_agree(tmp_path, policy):
    torch = models(tmp_path / "torch", POLICIES[policy])
    for light in many([("bob",)], [("bob",), NAMES]):
        found = models(tmp_path / f"{len(light)} light", POLICIES[policy], light)
        for name in NAMES:
            np.testing.assert_allclose(found[name], torch[name], rtol=0, atol=1e-5)


def test_node_with_given_addresses_loads_only_what_it_uses(tmp_path):
    """A module that is only imported costs memory for as long as the node runs."""
    settings = 'rounds = 1\nmembers = 1\ndeadline = 0.5\n[task]\nname = "concept-shift"\n[policy]\nname = "random"\n'
    with processes(tmp_path, NAMES[:2], settings) as federation:
        run = ["-X", "importtime", "-m", "p2pfl.node", "run", str(federation.folders["alice"]), "--until-done"]
        done = subprocess.run(
            [sys.executable, *run],
            env=os.environ | {"PYTHONPATH": without_torch.PYTHONPATH},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert (done.returncode, "round 1 of 1" in done.stdout) == (0, True), done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"numpy", "ssl", "p2pfl.protocols.transports.tls_link", "p2pfl.learning.dense"} <= loaded
    unused = {"aiomqtt", "dp_accounting", "duckdb", "ifaddr", "importlib.metadata", "jinja2", "networkx", "pandas"}
    unused |= {"p2pfl.node.coordination.submissions", "p2pfl.protocols.discovery", "p2pfl.protocols.secure_sums"}
    unused |= {"prometheus_client", "rich", "scipy", "sklearn", "zeroconf"} | (
        {"psutil"} if sys.platform == "linux" else set()
    )
    assert sorted(loaded & unused) == []


def node(folder, *arguments):
    return without_torch.call("p2pfl.node", *arguments, cwd=folder)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a node alice that has its own data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=(x @ rng.normal(size=(3, 4))).argmax(1))
    assert node(tmp_path, "init", "alice", "--data", "own.npz", "--policy", "local")[0] == 0
    return tmp_path


def test_node_trains_and_exports_a_model(folder):
    code, printed = node(folder, "run", "alice", "--until-done", "--set", "rounds=2")
    assert (code, "round 2 of 2, validation accuracy" in printed) == (0, True), printed
    assert node(folder, "export", "alice", "model.safetensors")[0] == 0
    assert load_file(folder / "model.safetensors")["0.weight"].shape == (64, 3)
    code, printed = node(folder, "export", "alice", "model.onnx")
    assert (code, printed) == (WRONG_USAGE, "a model as ONNX needs PyTorch: pip install 'p2pfl-node[onnx]'\n")


OWN = "from p2pfl import TorchTask\n\n\ndef own(part, seed):\n    return TorchTask()\n"
LATE = "def own(part, seed):\n    import torch\n"


@pytest.mark.parametrize(
    ("task", "text", "what"),
    [
        ("teachers", "", "task 'teachers'"),
        ("own:own", "from torch import nn\n", "task 'own:own'"),
        ("own:own", OWN, "p2pfl.TorchTask"),
        ("own:own", LATE, "task 'own:own'"),
    ],
)
def test_task_that_needs_torch_says_so_in_one_line(folder, task, text, what):
    (folder / "alice" / "own.py").write_text(text)
    code, printed = node(folder, "run", "alice", "--set", 'data=""', "--set", f"task.name={task}")
    *log, line = printed.splitlines()
    assert code == WRONG_USAGE
    assert line.endswith(f"{what} needs PyTorch: pip install 'p2pfl-node[torch]'"), printed
    assert not any("Traceback" in each for each in log)


def test_simulator_says_in_one_line_that_it_needs_torch(tmp_path):
    code, printed = without_torch.call("p2pfl.sim", "run", "digits-gossip", "--set", "form=smoke", cwd=tmp_path)
    assert (code, printed) == (WRONG_USAGE, "p2pfl-sim needs PyTorch: pip install 'p2pfl-node[sim]'\n")
    assert without_torch.call("p2pfl.sim", "list", cwd=tmp_path)[0] == 0
