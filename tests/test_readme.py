"""The README: its files are made and its commands run. Those that give the table of a paper are run by test_tables.py."""

import json
import sys
from pathlib import Path

import pytest
from readme import BLOCKS, COMMANDS, FILES, ROOT, bash, block


def test_every_block_is_run_by_a_test():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "toml"}
    assert list(FILES) == ["mine.py", "rings.py", "rings.toml", "study.py"]
    words = "./scripts", "init alice", "run alice", "digits-gossip", "rings.toml", "dac-synthetic", "benchmarks"
    assert [block(word) for word in words] == COMMANDS


@pytest.mark.parametrize("name", ["mine.py", "rings.py"])
def test_a_policy_and_a_task_take_less_than_thirty_lines(name):
    assert len(FILES[name].splitlines()) < 30


@pytest.mark.slow
def test_three_nodes_by_hand(tmp_path):
    bash(block("init alice"), tmp_path)
    said = bash(block("run alice"), tmp_path)
    assert said.count("finished; the model of round") == 3
    assert "alice: finished, round 10 of 10" in said
    assert "bob: " in said


@pytest.mark.slow
def test_a_simulation(tmp_path):
    said = bash(block("digits-gossip"), tmp_path)
    assert "dac-synthetic: 11 runs of 99 nodes" in said
    left = {path.name for path in (tmp_path / "runs" / "gossip").iterdir()}
    assert left == {"summary.json", "rounds.parquet", "edges.parquet", "scenario.toml"}


@pytest.mark.slow
def test_a_policy_and_a_task_of_ones_own(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    said = bash(block("rings.toml"), tmp_path)
    assert "finished; the model of round" in said  # dave
    rows = {row["name"]: row["mean"] for row in json.loads((tmp_path / "runs/rings/summary.json").read_text())["table"]}
    assert rows["pulled"] > rows["alone"] > 1 / 3
    assert [line.split()[0] for line in bash("python study.py", tmp_path).splitlines()] == ["local", "random", "mine:Pull"]


@pytest.mark.slow
@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="only in the environment that the scripts make")
def test_the_two_commands():
    assert block("./scripts") == "./scripts/demo\n./scripts/test\n"
    said = bash("./scripts/demo", ROOT)
    assert "installing" not in said  # a second time
    assert "together" in said
    assert said.count("│ inverse-loss/fedsim") == 1
    assert bash("./scripts/test --version", ROOT).startswith("pytest")
