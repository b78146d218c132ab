"""Ansible's example: its syntax, and a run against folders of this machine in place of other machines."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.ports import free_ports
from tests.support.processes import PATIENCE

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
PLAYBOOK = ANSIBLE / "site.yaml"
NAMES = ("alice", "bob", "carol")


def play(*arguments, folder):
    """Run ansible-playbook, and return its output."""
    program = shutil.which("ansible-playbook")
    if program is None:
        pytest.skip("ansible-playbook is not installed")
    own = {"ANSIBLE_HOME": str(folder / "ansible"), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    own |= {"ANSIBLE_PIPELINING": "1"}  # one process for each task instead of six
    done = subprocess.run([program, *arguments, str(PLAYBOOK)], env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def command():
    """Return the words of p2pfl-node."""
    return [str(forked.commands() / "p2pfl-node")] if forked.POSSIBLE else [sys.executable, "-m", "p2pfl.node"]


def inventory(folder):
    """Write the shipped inventory with folders, ports and programs of this machine, and return its path."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    table = yaml.safe_load((ANSIBLE / "inventory.yaml").read_text())
    assert tuple(table["nodes"]["hosts"]) == NAMES
    table["nodes"]["vars"] |= {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "p2pfl_address": "127.0.0.1:{{ own_port }}",
        "p2pfl_folder": str(folder) + "/{{ inventory_hostname }}",
        "p2pfl_node": command(),
    }
    for host, port in zip(table["nodes"]["hosts"].values(), free_ports(len(NAMES)), strict=True):
        host["own_port"] = port
        host["p2pfl_init"] += ["--listen", f"127.0.0.1:{port}"]
    path = folder / "inventory.yaml"
    path.write_text(yaml.safe_dump(table))
    return path


@contextmanager
def running(folders):
    processes = [
        subprocess.Popen([*command(), "run", str(folder), "--quiet"], env=os.environ | {"PYTHONPATH": str(ROOT)})
        for folder in folders
    ]
    try:
        yield
        for process in processes:
            process.terminate()
        assert [process.wait(PATIENCE) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_playbook_has_correct_syntax(tmp_path):
    play("-i", str(ANSIBLE / "inventory.yaml"), "--syntax-check", folder=tmp_path)


@pytest.mark.slow
def test_playbook_makes_and_checks_a_federation(tmp_path):
    hosts = inventory(tmp_path)
    folders = [tmp_path / name for name in NAMES]
    federation = ["-i", str(hosts), "--tags", "federation"]
    play(*federation, folder=tmp_path)
    backup = tmp_path / "admission-key.backup"
    assert backup.stat().st_mode & 0o777 == 0o600
    again = play(*federation, folder=tmp_path)  # keeps what exists
    assert again.count("changed=0") == len(NAMES)
    with running(folders):
        checked = play("-i", str(hosts), "--tags", "check", folder=tmp_path)
    assert len(re.findall("(running|serving), round [0-9]+ of 10", checked)) == len(NAMES)
    assert all(f"(item=peer {name})" in checked for name in NAMES)
