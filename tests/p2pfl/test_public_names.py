"""The public names of the package `p2pfl`, at run time and for a type checker."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import p2pfl

ROOT = Path(__file__).parents[2]


def test_dir_shows_the_public_names_and_dunders_only():
    shown = dir(p2pfl)
    assert shown == sorted(shown)
    assert {name for name in shown if not name.startswith("__")} == {*p2pfl.__all__}
    assert {"__version__", "__all__", "__doc__"} <= {*shown}


def test_every_public_name_can_be_imported():
    assert all(getattr(p2pfl, name) is not None for name in p2pfl.__all__)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'p2pfl' has no attribute 'simulator'"):
        _ = p2pfl.simulator


def test_version_equals_version_of_the_distribution():
    assert p2pfl.__version__ == version("p2pfl-node")


@pytest.mark.slow
def test_import_loads_neither_the_simulator_nor_the_node():
    code = "import sys, p2pfl; dir(p2pfl); sys.exit(any(name.partition('.')[0] in ('node', 'sim') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_type_checker_knows_the_lazy_names(tmp_path):
    (tmp_path / "user.py").write_text(
        'import p2pfl\nreveal_type(p2pfl.simulate("x"))\nreveal_type(p2pfl.Node)\np2pfl.unknown\n'
    )
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path / "user.py")]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    printed = subprocess.run([*command, *config], cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    assert re.search(r'Revealed type is "[\w.]+\.Results"', printed)
    assert 'Revealed type is "def (' in printed
    assert 'Module has no attribute "unknown"' in printed
