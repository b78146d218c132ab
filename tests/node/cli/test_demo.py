"""Demo: processes that learn together and alone, and end with the demo.

Nodes that are processes of their own have no torch, which a node takes long to import; copies of a process have it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from p2pfl.node.cli import demo as local_broker
from p2pfl.node.cli import demo as node_demo
from p2pfl.policies import POLICIES
from tests.support import forked, without_torch
from tests.support.processes import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="looks for what is left of a group of processes"),
]


@contextmanager
def demo(folder, *options, python=sys.executable):
    """Run a demo in its own process group; its temporary files are in `folder`."""
    path = without_torch.PYTHONPATH if python == sys.executable else str(without_torch.ROOT)
    process = subprocess.Popen(
        [python, "-m", "p2pfl.node", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_end(process, folder):
    """Wait for the end, check that no process or file is left, and return the output."""
    out, err = process.communicate(timeout=PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert list(folder.iterdir()) == []
    return out, err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("nope", f"unknown policy 'nope'; known: {', '.join(sorted(POLICIES))}\n"),
        (
            "nowhere:Policy",
            "policy 'nowhere:Policy' cannot be imported: No module named 'nowhere'; its file nowhere.py must be in the"
            " folder of the scenario or of the node\n",
        ),
    ],
)
def test_demo_reports_invalid_policy_before_starting(tmp_path, policy, message):
    with demo(tmp_path, "--policy", policy) as process:
        out, err = wait_for_end(process, tmp_path)
    assert (process.returncode, out, err) == (2, "", message)


@pytest.mark.slow
def test_demo_compares_three_nodes_together_and_alone(tmp_path):
    with demo(tmp_path, "--nodes", "3", "--rounds", "3") as process:
        out, err = wait_for_end(process, tmp_path)
    assert (process.returncode, err) == (0, "")
    names = ("alice", "bob", "carol")
    rounds = re.findall(r"^(together|alone): (\w+), round (\d), accuracy 0\.\d{3}, (\d) models, (\S+) \w+ in, ", out, re.M)
    expected = [(way, name, str(round)) for way in ("together", "alone") for name in names for round in (1, 2, 3)]
    assert sorted((way, name, round) for way, name, round, *_ in rounds) == sorted(expected)
    assert {(way, models) for way, *_, models, _ in rounds} == {("together", "2"), ("alone", "0")}
    assert all((float(size) > 0) == (way == "together") for way, *_, size in rounds)

    table = re.findall(r"^\W+ (\w+)" + 4 * r" +\W+ +([01]\.\d{3})" + " ", out, re.M)
    assert [name for name, *_ in table] == [*names, "mean"]
    for column in (1, 2, 3, 4):
        *values, mean = (float(row[column]) for row in table)
        assert mean == pytest.approx(sum(values) / 3, abs=0.0011)
    assert re.search(r"node +\W+ +alone +\W+ +together +\W+ +trained +\W+ +merged", out)
    assert all(together in stages for _, _, together, *stages in table[:3])
    alone, together = map(float, table[3][1:3])
    assert together > alone + 0.1  # the gain is real
    gain = re.search(r"^gain by learning together: ([+-]\d\.\d{3})$", out, re.M)
    assert float(gain[1]) == pytest.approx(together - alone, abs=0.0011)


@pytest.mark.slow
def test_demo_with_json_prints_one_object(tmp_path):
    with demo(
        tmp_path, "--nodes", "2", "--rounds", "2", "--policy", "random", "--json", python=forked.executable()
    ) as process:
        out, err = wait_for_end(process, tmp_path)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    assert set(found["accuracy"]) == set(found["nodes"]) == {"alice", "bob"}
    for name, accuracy in found["accuracy"].items():
        assert set(accuracy) == {"together", "alone", "trained", "merged"}
        assert all(0 <= value <= 1 for value in accuracy.values())
        node = found["nodes"][name]
        assert (node["state"], node["round"]) == ("finished", 2)
        assert node["result"]["test_accuracy"] == accuracy["together"]
        assert set(node["history"][-1]["weights"]) == {"alice", "bob"}


@pytest.fixture
def restored_sigterm_handler():
    """Restore the handler of SIGTERM, which the demo replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["Mosquitto", "amqtt"])
def test_demo_through_broker_finishes(tmp_path, monkeypatch, capsys, restored_sigterm_handler, installed):
    if installed == "Mosquitto" and not (shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")):
        pytest.skip("Mosquitto is not installed")
    if installed == "amqtt":
        monkeypatch.setattr(local_broker.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", forked.executable())
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert node_demo.demo(2, 2, "random", as_json=True, through_broker=True) == 0
    states = json.loads(capsys.readouterr().out)["nodes"]
    assert set(states) == {"alice", "bob"}
    for state in states.values():
        assert state["state"] == "finished", state["output"]
        assert set(state["history"][-1]["weights"]) == set(states)
        assert {peer["link"] for peer in state["peers"]} <= {"broker", ""}  # "": the peer has left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGINT, "the demo"), (signal.SIGINT, "everyone, as a terminal does"), (signal.SIGTERM, "the demo")],
)
def test_interrupted_demo_ends_its_nodes(tmp_path, number, whom):
    with demo(tmp_path, "--nodes", "2", "--rounds", "300") as process:
        assert process.stdout.readline().startswith("together: ")
        if whom == "the demo":
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        out, err = wait_for_end(process, tmp_path)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert "alone" not in out
