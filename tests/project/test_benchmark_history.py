"""Comparison of the benchmarks' ratios with the last entry (benchmarks/history.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "history.py"
SIM = {
    "digits": {"loop": [1.0], "stacked": [10.0], "sim": [5.0], "dac": [2.5], "dpfl": [1.25], "evaluated": [4.0]},
    "cnn": {"loop": [2.0], "sim": [3.0]},
}
RULES = {"4810 merged by 100 nodes with 10 peers": {"trim": 1.0, "median-clip": 0.25}, "4810 rules": {"trim": 9.0}}
WIRE = {"GB/s": {}, "both ends, CPU s/GB": {"4 MB": {"p2pfl": 1.25, "tls-loop": 1.0}}}
RATIOS = {
    **{"sim digits": 0.5, "sim cnn": 1.5, "dac digits": 0.5, "dpfl digits": 0.25, "evaluated digits": 0.8},
    **{"wire 4 MB": 0.8, "rule trim": 0.5, "rule median-clip": 0.8},
}


def run(folder, *arguments, **environment):
    """Compare the figures above, with the history in `folder`."""
    files = {"sim.json": SIM, "wire.json": WIRE, "rules.json": RULES}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    clean = {name: value for name, value in os.environ.items() if name != "GITHUB_ACTIONS"}
    return subprocess.run(
        [sys.executable, str(PROGRAM), *files, "--history", "history.json", *arguments],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )


def write_history(folder, **ratios):
    entry = {"commit": "abc1234", "date": "2026-01-01", "machine": "here", "ratios": RATIOS | ratios}
    (folder / "history.json").write_text(json.dumps([entry]))


@pytest.mark.slow
def test_history_records_ratios_of_all_benchmarks(tmp_path):
    for _ in range(2):
        done = run(tmp_path, "--record", "a machine")
        assert done.returncode == 0, done.stderr
    first, second = json.loads((tmp_path / "history.json").read_text())
    assert first["ratios"] == second["ratios"] == RATIOS
    assert first["machine"] == "a machine"
    assert not first["quick"]
    assert "0.80     0.80 at" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("before", "warned", "status"), [(0.8, False, 0), (1.1, True, 0), (1.7, True, 1)])
def test_history_warns_by_a_quarter_and_fails_below_half(tmp_path, before, warned, status):
    write_history(tmp_path, **{"wire 4 MB": before})
    done = run(tmp_path)
    assert done.returncode == status, done.stderr
    assert (f"warning: wire 4 MB has fallen from {before:.2f} to 0.80" in done.stdout) == warned
    assert ("warning" in done.stdout) == warned
    assert ("::warning::" in run(tmp_path, GITHUB_ACTIONS="true").stdout) == warned


@pytest.mark.slow
def test_history_compares_with_last_entry_of_same_kind(tmp_path):
    assert run(tmp_path, "--record", "in full").returncode == 0
    assert "in full" in run(tmp_path, "--quick").stdout  # there is no quick one
    write_history(tmp_path, **{"wire 4 MB": 1.7})
    assert run(tmp_path, "--quick", "--record", "quick").returncode == 1
    assert run(tmp_path, "--quick").returncode == 0
    assert run(tmp_path).returncode == 1


@pytest.mark.slow
def test_history_without_entry_compares_nothing(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no earlier ratio") == len(RATIOS)
    assert not (tmp_path / "history.json").exists()
