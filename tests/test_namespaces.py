"""Nodes on machines of their own, at one switch: they find each other, are cut off, move, and nobody reads what they say."""

import json
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import machines, until

from node import config
from node.checkpoint import FileStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NAMES = {1: "alice", 2: "bob", 3: "carol"}
ALL = set(NAMES.values())
LEARNING = 240  # seconds of real time after which something has gone wrong

# A model that never changes, and takes a while to train: what is tested is the network.
CONSTANT = """
import time
import numpy as np
from p2pfl.parameters import Layout

class Constant:
    layout, n_samples, metric, higher_is_better, about = Layout((("values", (5000,)),), 5000), 1, "error", False, {}

    def initial(self, seed):
        return np.full(5000, 1.2345, np.float32)

    def learner(self, draws, device):
        return self

    def train(self, params, **options):
        time.sleep(SECONDS)
        return self.initial(0)

    def loss(self, stack, **options):
        return np.zeros(len(stack))

    def evaluate(self, stack, splits):
        return [{f"{split}_{what}": 0.0 for split in splits for what in ("loss", "error")} for model in stack]

def constant(part, seed):
    return Constant()
"""


class Homes:
    """Alice, bob and carol, each with a folder and a machine of its own.

    Args:
        changes: of the text of alice's node.toml, before the federation is made of it.
        options: of `init`.
        seconds: that the constant model of each takes to train.
    """

    def __init__(self, net, root, changes=(), options=(), seconds=(0.1, 0.1, 0.1)):
        self.net, self.root = net, root
        self.running = {}
        for i, name in NAMES.items():
            self.node(i, "init", name, "--part", f"{i - 1}/3", *options)
            (root / name / "constant.py").write_text(f"SECONDS = {seconds[i - 1]}\n{CONSTANT}")
        path = root / "alice" / config.CONFIG
        text = path.read_text()
        for old, new in {"members = 1 ": "members = 3 ", **dict(changes)}.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        path.write_text(text)
        self.node(1, "federation", "create", "alice", "--backup", "backup.pem")

    def node(self, i, *words, **options):
        return self.net.run(i, [sys.executable, "-m", "node", *words], cwd=self.root, **self._from_here(options))

    @staticmethod
    def _from_here(options):
        return options | {"env": {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(ROOT)}}

    def start(self, i):
        name = NAMES[i]
        with (self.root / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "node", "run", name]
            self.running[name] = self.net.start(i, command, cwd=self.root, stdout=log, stderr=log, **self._from_here({}))

    def join(self, i):
        """Bring a token from alice's machine; she may still be starting."""
        token = self.node(1, "invite", "alice").stdout
        until(lambda: self.node(i, "join", NAMES[i], input=token, check=False).returncode == 0, f"{NAMES[i]} has joined")

    def status(self, name):
        try:
            return json.loads((self.root / name / config.STATUS).read_text())
        except FileNotFoundError:
            return {"round": 0, "state": "starting", "history": [], "peers": []}

    def round(self, name):
        return self.status(name)["round"]

    def peer(self, name, other):
        (found,) = [peer for peer in self.status(name)["peers"] if peer["name"] == other] or [{"state": "unknown"}]
        return found

    def together(self, after=()):
        """Whether the last round of each was of all three, and, of some, came after a given one."""
        last = {name: (self.status(name)["history"] or [{"round": 0, "weights": {}}])[-1] for name in ALL}
        return all(set(row["weights"]) == ALL and row["round"] > dict(after).get(name, 0) for name, row in last.items())

    def until(self, condition, what, patience=LEARNING):
        def checked():
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} has ended: {self.log(name)}"
            return condition()

        return until(checked, lambda: f"{what}; {self.describe()}", patience)

    def log(self, name):
        return (self.root / f"{name}.log").read_text()

    def describe(self):
        return "; ".join(f"{name}: {json.dumps(self.status(name) | {'history': []})}" for name in sorted(ALL))


@contextmanager
def homes(root, *args):
    with machines(3) as net:
        federation = Homes(net, root, *args)
        try:
            federation.start(1)
            for i in (2, 3):
                federation.join(i)
                federation.start(i)
            yield federation
        finally:
            for process in federation.running.values():
                process.kill()
                process.wait()


CONSTANTLY = "--task", "constant:constant", "--policy", "random"
FOR_EVER = {"rounds = 10 ": "rounds = 100000 "}

TALK = """
import socket, sys
host, port, data = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(data, (host, port))
"""
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


@pytest.mark.parametrize("rules", [True, False])
def test_machines_are_cut_off_by_a_partition_and_reached_again_when_it_heals(rules):
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


def test_three_machines_find_each_other_and_learn_together(tmp_path):
    """As a user would make them: nobody writes an address anywhere."""
    with homes(tmp_path) as federation:
        federation.until(lambda: all(federation.status(name)["state"] == "serving" for name in ALL), "all are done")
        for name in ALL:
            status = federation.status(name)
            assert status["round"] == 10
            assert all(set(row["weights"]) == ALL for row in status["history"])
            assert status["rejected"] == {}
            for other in ALL - {name}:
                peer = federation.peer(name, other)
                assert peer["state"] == "connected"
                assert peer["link"] == "direct"
                assert set(peer["addresses"].values()) <= {"mdns"}
        said = federation.node(2, "status", "bob").stdout
        assert said.startswith("bob: serving, round 10 of 10\n")
        assert "ok     multicast: works at " in federation.node(3, "doctor", "carol").stdout


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        ("synchronous", (0.2, 0.1, 0.1)),  # two are ahead, and the third goes on where they are; nobody follows a single one
        ("asynchronous", (0.05, 0.1, 0.1)),
    ],
)
def test_both_sides_of_a_partition_go_on_and_learn_together_soon_after_it_heals(tmp_path, mode, seconds):
    changes = FOR_EVER | {'mode = "synchronous" ': f'mode = "{mode}" '}
    with homes(tmp_path, changes, CONSTANTLY, seconds) as federation:
        federation.until(federation.together, "all three learn together")
        federation.net.partition((1,), (2, 3))
        cut_off = {"alice": ("bob", "carol"), "bob": ("alice",), "carol": ("alice",)}

        def apart():
            known = [federation.peer(name, other) for name, others in cut_off.items() for other in others]
            return all(peer["state"] in ("suspected", "not connected") and peer["reason"] for peer in known)

        federation.until(apart, "each side says why it does not reach the other")
        rounds = {name: federation.round(name) for name in ALL}
        federation.until(lambda: all(federation.round(name) >= rounds[name] + 20 for name in ALL), "both sides have gone on")
        assert set(federation.status("alice")["history"][-1]["weights"]) == {"alice"}
        assert set(federation.status("bob")["history"][-1]["weights"]) == {"bob", "carol"}
        assert not federation.together()
        federation.net.heal()
        seconds = federation.until(federation.together, "all three learn together again")
        assert seconds <= 10, f"all three had each other's models {seconds:.1f} s after the partition had healed"


def test_a_node_whose_address_changes_is_found_again(tmp_path):
    with homes(tmp_path, FOR_EVER, CONSTANTLY) as federation:
        federation.until(federation.together, "all three learn together")
        federation.net.move(3, "10.77.0.33")
        federation.until(lambda: not federation.together(), "carol is missed")
        federation.until(federation.together, "all three learn together again")
        gone = federation.round("alice")
        federation.until(lambda: federation.together({"alice": gone + 20}), "they go on together")


def test_nobody_on_the_network_can_read_a_model(tmp_path):
    # Whatever place in it 32 bytes of the model begin at, these 28 are among them.
    value = struct.pack("<f", 1.2345) * 7
    with homes(tmp_path, FOR_EVER, CONSTANTLY) as federation:
        federation.until(federation.together, "all three learn together")
        with federation.net.captured(tmp_path / "frames"):
            rounds = {name: federation.round(name) for name in ALL}
            federation.until(lambda: federation.together({name: rounds[name] + 10 for name in ALL}), "ten rounds later")
        frames = (tmp_path / "frames").read_bytes()
        assert len(frames) > 10 * 6 * 4 * 5000  # ten rounds, in each of which everyone has sent its model to two others
        assert value not in frames
        for name in ALL:
            assert value in (tmp_path / name / config.CHECKPOINT).read_bytes()
            assert value in FileStore(tmp_path / name / config.CHECKPOINT).load().params
        with federation.net.captured(tmp_path / "plain"):  # what is not encrypted would have been seen
            federation.net.run(1, [sys.executable, "-c", TALK, "10.77.0.2", "9", value.hex()])
        assert value in (tmp_path / "plain").read_bytes()
