"""The README: its files are made, and its commands run. Other tests run those that reproduce papers; this one names them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from p2pfl.node.folder.config import STATUS
from p2pfl.policies import POLICIES
from p2pfl.task import TASKS
from tests.support.namespaces import machines, until
from tests.support.readme import BLOCKS, COMMANDS, FILES, ROOT, TEXT, bash, block


def test_every_block_is_run_by_a_test():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "toml"}
    assert list(FILES) == ["mine.py", "rings.py", "rings.toml", "study.py"]
    real = "federation create laptop", "invite laptop", "join pi-1", "join pi-2", "status pi-1", "broker="
    words = (
        "./scripts",
        *real,
        "digits-gossip",
        "rings.toml",
        "p2pfl-sim reproduce\n",
        "data check",
        "sim_speed",
        "wire.py",
    )
    assert [block(word) for word in words] == COMMANDS


def test_every_command_that_reproduces_is_run_by_a_test():
    by = {
        "reproduce": "test_reproduce.py",
        "reproduce codecs-one-byte-budget --smoke": "test_reproduce.py",
        "reproduce dac-synthetic dac-synthetic-default --short --out runs/table": "test_tables.py",
        "reproduce dpfl-two-groups dpfl-budgets --short --out runs/dpfl": "test_scenarios.py",
        "reproduce fedpref-dst fedpref-teachers --short --out runs/preferences": "test_scenarios.py",
        "reproduce topology-study --short --out runs/topology": "test_scenarios.py",
    }
    assert [f"p2pfl-sim {command}" for command in by] == block("p2pfl-sim reproduce\n").splitlines()


def test_every_policy_and_task_that_is_built_in_is_named():
    assert [name for name in (*POLICIES, *TASKS) if f"`{name}`" not in TEXT] == []


@pytest.mark.parametrize("name", ["mine.py", "rings.py"])
def test_a_policy_and_a_task_take_less_than_thirty_lines(name):
    assert len(FILES[name].splitlines()) < 30


MACHINES = {1: "laptop", 2: "pi-1", 3: "pi-2"}


class Homes:
    """What is typed on three machines at one switch. Files of tokens are carried from one to the other."""

    def __init__(self, net, root):
        self.net, self.root, self.running = net, root, []
        self.environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"}

    def type(self, i, command):
        return self.net.run(i, ["bash", "-ec", command], cwd=self.root, env=self.environment, timeout=LONG).stdout

    def leave_running(self, i, command):
        with (self.root / f"{MACHINES[i]}.log").open("ab") as log:
            self.running.append(
                self.net.start(i, ["bash", "-ec", command], cwd=self.root, env=self.environment, stdout=log, stderr=log)
            )

    def status(self, name):
        path = self.root / name / STATUS
        return json.loads(path.read_text()) if path.exists() else {"state": "", "peers": []}

    def serving(self):
        return all(self.status(name)["state"] == "serving" for name in MACHINES.values())

    def logs(self):
        return "".join(path.read_text() for path in self.root.glob("*.log"))

    def stop(self):
        """As Ctrl-C would."""
        for name in MACHINES.values():
            if (pid := self.status(name).get("pid")) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        for process in self.running:
            process.wait(LONG)
        self.running = []


LONG = 200  # seconds of real time after which something has gone wrong


@pytest.mark.slow
def test_three_machines_through_a_broker(tmp_path):
    """Nobody can be found or dialled except the broker, on a fourth machine. (Without one: test_namespaces.py.)"""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("Mosquitto is not installed")
    (tmp_path / "mosquitto.conf").write_text("listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\n")
    tmp_path.chmod(0o755)
    with machines(4) as net:
        homes = Homes(net, tmp_path)
        broker = net.start(4, [program, "-c", str(tmp_path / "mosquitto.conf")], stderr=subprocess.DEVNULL)
        url = "mqtt://10.77.0.4:1883"
        through = block("broker=").replace("mqtt://broker.example:1883", f"{url} --set mdns=false")

        def without_run(command):
            return command.partition("p2pfl-node run")[0].replace(" init ", f" init --listen 127.0.0.1:4100 --broker {url} ")

        try:
            homes.type(1, without_run(block("federation create laptop")))
            homes.leave_running(1, through.replace("pi-1", "laptop"))
            until(lambda: homes.status("laptop")["state"] == "running", homes.logs, LONG)
            homes.type(1, block("invite laptop"))
            for i, name in ((2, "pi-1"), (3, "pi-2")):
                homes.type(i, without_run(block(f"join {name}")))
                homes.leave_running(i, through.replace("pi-1", name))
            until(homes.serving, homes.logs, LONG)
            assert "through the broker" in homes.type(2, "p2pfl-node status pi-1")
        finally:
            homes.stop()
            broker.terminate()
            broker.wait()


@pytest.mark.slow
def test_real_data(tmp_path):
    if "P2PFL_DATA" not in os.environ:
        pytest.skip("P2PFL_DATA names no folder with data sets")
    said = bash(block("data check"), tmp_path)
    assert "fashion-mnist" in said
    assert "dpfl-table1: 45 runs of 100 nodes" in said
    assert json.loads((tmp_path / "runs" / "smoke" / "summary.json").read_text())["scenario"] == "dac-fmnist-covariate"


@pytest.mark.slow
def test_a_simulation(tmp_path):
    # Without worker processes, which change no result and would each import torch for a second's work.
    said = bash(re.sub(r"p2pfl-sim (run|sweep) ", r"p2pfl-sim \1 --engine local ", block("digits-gossip")), tmp_path)
    assert "dac-synthetic: 11 runs of 99 nodes" in said
    for name in ("gossip", "sweep"):
        left = {path.name for path in (tmp_path / "runs" / name).iterdir()}
        assert left == {"summary.json", "rounds.parquet", "edges.parquet", "scenario.toml", "report.html"}
    assert "policy.neighbours=9, budget.models=5" in (tmp_path / "compared.html").read_text()


@pytest.mark.slow
def test_a_policy_and_a_task_of_ones_own(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    said = bash(re.sub(r"p2pfl-sim run ", "p2pfl-sim run --engine local ", block("rings.toml")), tmp_path)
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
