"""Search for the user's own modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from tests.support.depth import spread

ROOT = Path(__file__).parents[3]
TASK = """
from p2pfl.tasks.digits import digits

def make(part, seed):
    return digits(part, seed, hidden=%d)
"""


@pytest.fixture
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    return sys.path


def make(root, task="digits", policy="dac"):
    config.create(root / "alice", "alice", task=task, policy=policy)
    return root / "alice"


def test_loading_finds_module_in_node_folder(tmp_path, path):
    folder = make(tmp_path, task="mine_in_folder:make")
    (folder / "mine_in_folder.py").write_text(TASK % 7)
    before = list(path)
    assert loading.task_of(loading.load(folder)).layout.size == 7 * 64 + 7 + 7 * 10 + 10
    assert path == [*before, str(folder)]


def test_loading_ignores_current_folder(tmp_path, path, monkeypatch):
    folder = make(tmp_path, task="mine_in_cwd:make")
    (tmp_path / "mine_in_cwd.py").write_text(TASK % 7)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in path if each not in ("", str(tmp_path))])
    with pytest.raises(ConfigurationError, match="'mine_in_cwd:make' cannot be imported"):
        loading.task_of(loading.load(folder))


def test_loading_built_in_task_keeps_import_path(tmp_path, path):
    folder, before = make(tmp_path), list(path)
    ready = loading.load(folder)
    loading.task_of(ready)
    loading.policy_of(ready)
    assert path == before


def test_loading_finds_custom_policy_without_custom_task(tmp_path, path):
    folder = make(tmp_path, policy="own_policy:Mine")
    (folder / "own_policy.py").write_text("from p2pfl.policies.local import Local\n\n\nclass Mine(Local):\n    pass\n")
    assert type(loading.policy_of(loading.load(folder))).__name__ == "Mine"


@pytest.mark.slow
@pytest.mark.parametrize("task", spread(["mine:make", "digits"], 2))
def test_run_imports_no_library_from_current_or_node_folder(tmp_path, task):
    """Both folders hold modules with names that the node or one of its libraries imports or tries to import."""
    folder = make(tmp_path, task=task)
    (folder / "mine.py").write_text(TASK % 7)
    for place in (tmp_path, folder):
        for name in ("sklearn", "numpy", "torch", "random", "triton", "onnx", "scipy", "sitecustomize"):
            (place / f"{name}.py").write_text("import os\nos._exit(77)\n")
    command = [sys.executable, "-P", "-m", "p2pfl.node", "run", str(folder), "--set", "rounds=1"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
