"""Processes among which two members attack through a policy of their own, over TLS."""

import shutil
import statistics
from pathlib import Path

import pytest

import p2pfl
from tests.support.processes import processes

pytestmark = pytest.mark.slow

MEMBER = Path(__file__).parents[2] / "benchmarks" / "byzantine_member.py"
HONEST = ("honest-1", "honest-2", "honest-3", "honest-4")
NAMES = (*HONEST, "attacker-1", "attacker-2")
ROUNDS = 8
TOML = f"""rounds = {ROUNDS}
deadline = 60.0
members = 6
robust = "median-clip"
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "byzantine_member:Member"}}
"""


def clean():
    """Return the accuracy of the same federation without attackers, in the simulator."""
    task = {"name": "digits", "judged_on": "all"}
    table = {"nodes": 6, "rounds": ROUNDS, "task": task, "policy": "fedavg", "robust": "median-clip"}
    (result,) = p2pfl.simulate(table)
    return result.summary["test"]["mean"]


def test_two_attackers_of_six_processes_cost_little(tmp_path):
    with processes(tmp_path, NAMES, TOML, path=MEMBER.parent) as federation:
        for name, folder in federation.folders.items():
            shutil.copy(MEMBER, folder)
            if name not in HONEST:
                (folder / "attack").write_text("ipm")
        federation.start(until_done=False)
        federation.until(lambda: all(federation.status(name)["state"] == "serving" for name in HONEST), "they are done")
        assert [process.poll() for process in federation.running.values()] == [None] * 6
        rows = [federation.status(name)["history"][-1] for name in HONEST]
    assert all({"attacker-1", "attacker-2"} <= set(row["weights"]) for row in rows)
    assert statistics.mean(row["test"] for row in rows) > clean() - 0.02
