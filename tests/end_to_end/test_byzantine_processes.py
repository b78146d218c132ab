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
ROUNDS = 12
TOML = f"""rounds = {ROUNDS}
deadline = 60.0
members = 6
robust = "clip-loss"
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "byzantine_member:Member"}}
"""


def clean():
    """Return the accuracy of the same federation without attackers, in the simulator."""
    task = {"name": "digits", "judged_on": "all"}
    table = {"nodes": 6, "rounds": ROUNDS, "task": task, "policy": "fedavg", "robust": "clip-loss"}
    (result,) = p2pfl.simulate(table)
    return result.summary["test"]["mean"]


def test_two_attackers_of_six_processes_cost_little(tmp_path):
    with processes(tmp_path, NAMES, TOML, path=MEMBER.parent) as federation:
        for name, folder in federation.folders.items():
            shutil.copy(MEMBER, folder)
            if name not in HONEST:
                (folder / "attack").write_text("scale")
        federation.start(until_done=False)
        federation.until(lambda: all(federation.status(name)["state"] == "serving" for name in HONEST), "they are done")
        assert [process.poll() for process in federation.running.values()] == [None] * 6
        states = [federation.status(name) for name in HONEST]
    assert all({"attacker-1", "attacker-2"} <= set(state["history"][-1]["weights"]) for state in states)
    assert statistics.mean(state["best"]["test"] for state in states) > clean() - 0.02
