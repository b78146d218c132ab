"""Nodes on separate machines at one switch: discovery, partitions, address changes, and confidentiality."""

import json
import os
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2pfl.node.checkpoint import FileStore
from p2pfl.node.folder import config
from tests.support import forked, readme
from tests.support.depth import spread
from tests.support.namespaces import PATH, machines, until
from tests.support.pages import block

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = {1: "laptop", 2: "pi-1", 3: "pi-2"}
ALL = set(NAMES.values())
LEARNING = 240  # seconds of real time before a test fails

# A model that never changes and takes a while to train; only the network is tested.
CONSTANT = """
import time
import numpy as np
from p2pfl.learner import Learner, answers
from p2pfl.parameters import Layout
from p2pfl.queries import Evaluate, Loss, Train
from p2pfl.task import Task

class Constant(Task, Learner):
    layout, n_samples, metric, higher_is_better, public_info = Layout((("values", (5000,)),), 5000), 1, "error", False, {}

    def initial(self, seed):
        return np.full(5000, 1.2345, np.float32)

    def learner(self, draws, device):
        return self

    @answers(Train)
    def _train(self, query):
        time.sleep(SECONDS)
        return self.initial(0)

    @answers(Loss)
    def _losses(self, query):
        return np.zeros(len(query.stack))

    @answers(Evaluate)
    def _figures(self, query):
        return [{f"{split}_{what}": 0.0 for split in query.splits for what in ("loss", "error")} for _ in query.stack]

def constant(part, seed):
    return Constant()
"""


class Homes:
    """Laptop and two Pis, each with a node in its own folder.

    Attributes:
        running: processes of nodes, by name.
    """

    def __init__(self, net, root):
        self.net, self.root = net, root
        self.running = {}
        path = f"{forked.commands()}:{PATH}"
        self._here = {"cwd": root, "env": os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}}

    def do(self, i, commands):
        """Run commands on a machine; if the last one runs a node, it continues in the background."""
        *lines, last = commands.strip().splitlines()
        if last.startswith("p2pfl-node run "):
            self._do(i, lines)
            self.start(i, last.split()[2])
        else:
            self._do(i, [*lines, last])

    def _do(self, i, lines):
        for line in lines:
            self.net.run(i, ["bash", "-c", line], **self._here)

    def start(self, i, name):
        with (self.root / f"{name}.log").open("ab") as log:
            command = ["p2pfl-node", "run", name]
            self.running[name] = self.net.start(i, command, stdout=log, stderr=log, **self._here)
        self.until(lambda: self.net.listens(i, 4100), f"{name} listens")

    def federate(self, *changes, seconds=(0.1, 0.1, 0.1)):
        """Create and start nodes with the constant model and practically unlimited rounds.

        Args:
            changes: changes of the agreed settings.
            seconds: training time of the model of each node.
        """
        for i, name in NAMES.items():
            self.do(i, f"p2pfl-node init {name} --task constant:constant --policy random")
            (self.root / name / "constant.py").write_text(f"SECONDS = {seconds[i - 1]}\n{CONSTANT}")
        options = " ".join(f"--set {change}" for change in ("members=3", "rounds=100000", *changes))
        self.do(1, f"p2pfl-node federation create laptop --backup backup {options}\np2pfl-node run laptop")
        for i in (2, 3):
            self.do(1, f"p2pfl-node invite laptop {NAMES[i]} >token")
            self.do(i, f"p2pfl-node join {NAMES[i]} <token\np2pfl-node run {NAMES[i]}")
        self.until(self.together, "all three learn together")

    def status(self, name):
        try:
            return json.loads((self.root / name / config.STATUS).read_text())
        except FileNotFoundError:
            return {"round": 0, "state": "starting", "history": [], "peers": []}

    def rounds(self):
        return {name: self.status(name)["round"] for name in NAMES.values()}

    def peers(self, name):
        return {peer["name"]: peer for peer in self.status(name)["peers"]}

    def partners(self, name):
        """Return the nodes whose models were averaged in a node's last round, itself included."""
        history = self.status(name)["history"]
        return set(history[-1]["weights"]) if history else set()

    def together(self):
        return all(self.partners(name) == ALL for name in NAMES.values())

    def until_rounds_later(self, count, what):
        begun = self.rounds()
        self.until(lambda: all(now >= begun[name] + count for name, now in self.rounds().items()), what)

    def until(self, condition, what):
        """Wait for a condition while all nodes run; return the seconds that it took."""

        def check():
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} has ended: {(self.root / f'{name}.log').read_text()}"
            return condition()

        return until(check, lambda: f"{what}: {[self.status(name) | {'history': []} for name in NAMES.values()]}", LEARNING)


@contextmanager
def homes(root):
    with machines(3) as net:
        federation = Homes(net, root)
        try:
            yield federation
        finally:
            for process in federation.running.values():
                process.kill()
                process.wait()


LISTEN = """
import socket
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].sendall(b"here")
"""
CALL = """
import socket
try:
    print(socket.create_connection(("10.77.0.2", 5000), 2).recv(9).decode())
except OSError:
    print("silence")
"""
SAY = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes.fromhex(sys.argv[1]), ("10.77.0.2", 5000))
"""


@pytest.mark.parametrize("rules", [True, False])
def test_partition_cuts_machines_off_until_it_heals(rules):
    with machines(3, rules) as net, net.start(2, [sys.executable, "-c", LISTEN], stdout=-1) as listener:
        try:
            assert listener.stdout.readline() == b"listening\n"

            def heard():
                return [net.run(i, [sys.executable, "-c", CALL]).stdout.strip() for i in (1, 3)]

            assert heard() == ["here", "here"]
            net.partition((1,), (2, 3))
            assert heard() == ["silence", "here"]
            net.heal()
            net.move(1, "10.77.0.9")
            assert heard() == ["here", "here"]
        finally:
            listener.kill()


def test_readme_federates_two_machines(tmp_path):
    with homes(tmp_path) as federation:
        federation.do(1, readme.block("federation create laptop"))
        federation.do(2, readme.block("join pi"))
        federation.until(lambda: all(federation.status(name)["state"] == "serving" for name in ("laptop", "pi")), "both end")
        for name, other in (("laptop", "pi"), ("pi", "laptop")):
            history = federation.status(name)["history"]
            assert [row["round"] for row in history] == list(range(1, 11))
            assert {name, other} in [set(row["weights"]) for row in history]
            assert federation.peers(name)[other]["link"] == "direct"


def test_page_real_machines_federates_three_machines(tmp_path):
    """No address is configured: a token holds that of the inviter, and mDNS finds the others."""
    with homes(tmp_path) as federation:
        for i, word in ((1, "init laptop"), (1, "invite laptop"), (2, "init pi-1"), (3, "init pi-2")):
            federation.do(i, block("real-machines.md", word))
        federation.until(lambda: all(federation.status(name)["state"] == "serving" for name in ALL), "all are done")
        for name in ALL:
            status = federation.status(name)
            assert [row["round"] for row in status["history"]] == list(range(1, 11))
            assert status["rejected"] == {}
            assert federation.peers(name).keys() == ALL - {name}
            for peer in federation.peers(name).values():
                assert (peer["state"], peer["link"]) == ("connected", "direct")
                assert set(peer["addresses"].values()) <= {"mdns", "node.toml"}  # `join` saves that of the inviting node
                assert peer["bytes_in"] > 0
        federation.do(2, block("real-machines.md", "status pi-1"))


@pytest.mark.parametrize(
    ("mode", "laptop"),
    spread([("synchronous", 0.05), ("asynchronous", 0.2)], 2),
    ids=spread(["synchronous, the lone one is ahead", "asynchronous, the others are ahead"], 2),
)
def test_partition_sides_continue_and_rejoin_after_healing(tmp_path, mode, laptop):
    cut_off = {"laptop": ("pi-1", "pi-2"), "pi-1": ("laptop",), "pi-2": ("laptop",)}
    with homes(tmp_path) as federation:
        federation.federate(f"mode={mode}", seconds=(laptop, 0.1, 0.1))
        federation.net.partition((1,), (2, 3))

        def apart():
            known = [federation.peers(name)[other] for name, others in cut_off.items() for other in others]
            return all(peer["state"] == "suspected" and peer["reason"] for peer in known)

        federation.until(apart, "each side says why it does not reach the other")
        federation.until_rounds_later(20, "both sides go on")
        assert {name: federation.partners(name) for name in ALL} == {
            "laptop": {"laptop"},
            "pi-1": {"pi-1", "pi-2"},
            "pi-2": {"pi-1", "pi-2"},
        }
        federation.net.heal()
        federation.until(federation.together, "all three learn together again")


def test_node_with_changed_address_is_found_again(tmp_path):
    with homes(tmp_path) as federation:
        federation.federate()
        federation.net.move(3, "10.77.0.33")
        federation.until(lambda: not federation.together(), "it is missed")
        federation.until(federation.together, "all three learn together again")
        federation.until_rounds_later(20, "they go on")
        assert federation.together()


def test_network_capture_contains_no_model(tmp_path):
    value = struct.pack("<f", 1.2345) * 7  # is in any 32 bytes of the model, at any offset
    with homes(tmp_path) as federation:
        federation.federate()
        with federation.net.captured(tmp_path / "frames"):
            federation.until_rounds_later(10, "ten rounds are done")
            assert federation.together()
        frames = (tmp_path / "frames").read_bytes()
        assert len(frames) > 10 * 6 * 4 * 5000  # each of three nodes sent its model to two others, ten times
        assert value not in frames
        for name in ALL:
            assert value in (tmp_path / name / config.CHECKPOINT).read_bytes()
            sent = FileStore(tmp_path / name / config.CHECKPOINT).load().outbox
            assert sent
            assert all(value in model.params for model in sent)  # the mean of equal models may differ in its last bit
        with federation.net.captured(tmp_path / "plain"):  # a plaintext value would be in the capture
            federation.net.run(1, [sys.executable, "-c", SAY, value.hex()])
        assert value in (tmp_path / "plain").read_bytes()
