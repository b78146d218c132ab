"""The README: its files are made and its commands run, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
SCRIPTS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.startswith("./")]


def files():
    """The blocks that are files: their first line is a comment with the name."""
    return {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind in ("python", "toml")}


def bash(command, folder):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_is_run_by_one_of_these_tests():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "toml"}
    assert list(files()) == ["mine.py", "rings.py", "rings.toml", "study.py"]
    assert SCRIPTS == ["./scripts/demo", "./scripts/test"]


@pytest.mark.parametrize("name", ["mine.py", "rings.py"])
def test_a_policy_and_a_task_take_less_than_thirty_lines(name):
    assert len(files()[name].splitlines()) <= 30


@pytest.mark.slow
def test_the_readme_does_what_it_says(tmp_path):
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    said = {}
    for kind, text in BLOCKS:
        if kind == "sh" and not text.startswith("./"):
            said[text.split("\n")[0]] = bash(text, tmp_path)
    nodes = said["p2pfl-node run alice &"]
    assert nodes.count("finished; the model of round") == 3
    assert "alice: finished, round 10 of 10" in nodes
    assert (tmp_path / "runs" / "gossip" / "edges.parquet").exists()
    own = next(text for command, text in said.items() if "rings.toml" in command)
    assert "alone" in own
    assert "pulled" in own
    assert "finished; the model of round" in own  # dave
    assert [line.split()[0] for line in bash("python study.py", tmp_path).splitlines()] == ["local", "random", "mine:Pull"]


@pytest.mark.slow
@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="only in the environment that the scripts make")
def test_the_two_commands():
    said = bash("./scripts/demo", ROOT)
    assert "installing" not in said  # a second time
    assert "together" in said
    assert "dac-synthetic" in said
    assert said.count("│ inverse-loss/fedsim") == 1
    assert bash("./scripts/test --version", ROOT).startswith("pytest")
