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
    # Only the modules that the names lead to: reading those of libraries would take most of a minute.
    followed = "p2pfl,p2pfl.sim.api,p2pfl.sim.results.results,p2pfl.node.node"
    text = f"[mypy]\nstrict = true\nfollow_imports = skip\n[mypy-{followed}]\nfollow_imports = silent\n"
    (tmp_path / "mypy.ini").write_text(text)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", "mypy.ini", "user.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert re.search(r'Revealed type is "[\w.]+\.Results"', printed)
    assert 'Revealed type is "def (' in printed
    assert 'Module has no attribute "unknown"' in printed
