"""The benchmarks run, and leave their figures behind."""

import json
import os
import re
import subprocess
import sys
from math import isfinite
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SYSTEMS = {"digits": ["loop", "stacked", "sim", "module"], "linear": ["loop", "stacked", "sim"]}


def printed(text):
    """What was printed: by workload and system, the speed, and how many times that of the loop and of the stack it is."""
    found = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+): node-rounds per second", line):
            found[match[1]] = rows = {}
        elif match := re.fullmatch(r"  (\w+) +([\d,]+) +([\d.]+) x loop, +([\d.]+) x stacked", line):
            rows[match[1]] = float(match[2].replace(",", "")), float(match[3]), float(match[4])
    return found


@pytest.mark.slow
def test_the_speed_of_the_simulator(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sim_speed.py"), "--quick", "--json", "figures.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {workload: list(speeds) for workload, speeds in figures.items()} == SYSTEMS
    assert all(speed > 0 and isfinite(speed) for speeds in figures.values() for speed in speeds.values())
    shown = printed(done.stdout)
    assert {workload: list(rows) for workload, rows in shown.items()} == SYSTEMS
    for workload, speeds in figures.items():
        for system, speed in speeds.items():
            expected = speed, speed / speeds["loop"], speed / speeds["stacked"]
            for value, exact, step in zip(shown[workload][system], expected, (1, 0.1, 0.01), strict=True):
                assert value == pytest.approx(exact, abs=0.51 * step)
