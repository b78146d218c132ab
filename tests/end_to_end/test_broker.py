"""Node processes at a broker: rounds through it, its restart, direct links, and the data that it sees."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

import aiomqtt
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from p2pfl.node.checkpoint import unpack
from p2pfl.node.folder import config
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Invitation
from tests.support import brokers, forked
from tests.support.depth import spread
from tests.support.logs import messages
from tests.support.processes import Processes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ABC = ("alice", "bob", "carol")
NOWHERE = 'advertise=["127.0.0.1:9"]'  # an address without a listener
SLOW, SLOW_BUFFER = 1_500_000, 1 << 16  # bytes per second, and bytes in flight
LARGE, MIDDLE, SMALL = 5_000_000, 2_000_000, 100_000  # parameters

# Node k halves every value and adds k + 1; with all three nodes, values converge to four.
TASK = """
import time
import numpy as np
from p2pfl.learner import Learner, answers
from p2pfl.parameters import Layout
from p2pfl.queries import Evaluate, Loss, Train
from p2pfl.task import Task

class Halving(Task, Learner):
    n_samples, metric, higher_is_better, public_info = 1, "error", False, {}

    def __init__(self, index, size, first, constant):
        self.layout = Layout((("values", (size,)),), size)
        self.index, self.first, self.constant = index, first, constant

    def initial(self, seed):
        return np.full(self.layout.size, self.first, np.float32)

    def learner(self, draws, device):
        return self

    @answers(Train)
    def _train(self, query):
        time.sleep(0.2)
        return query.params if self.constant else query.params / 2 + np.float32(self.index + 1)

    @answers(Loss)
    def _losses(self, query):
        return np.zeros(len(query.stack))

    @answers(Evaluate)
    def _figures(self, query):
        return [{f"{split}_{what}": 0.0 for split in query.splits for what in ("loss", "error")} for _ in query.stack]

def make(part, seed, size, first=1.0, constant=False):
    return Halving(part.index, size, first, constant)
"""
TOML = """
rounds = {rounds}
robust = "none"
members = {members}
deadline = 20.0
evaluate_every = 0
[task]
name = "halving:make"
{options}
[policy]
name = "random"
"""


class Home(Processes):
    """Nodes that know no address of each other and write their output to files."""

    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}  # noqa: RUF012

    def start(self, *names, changes=()):
        for name in names or self.names:
            options = [part for change in ("addresses={}", *changes) for part in ("--set", change)]
            with self.log(name).open("ab") as log:
                self.running[name] = forked.python(
                    [sys.executable, "-m", "p2pfl.node", "run", str(self.folders[name]), "--until-done", *options],
                    stdout=log,
                    stderr=log,
                    cwd=self.cwd,
                    env=self.env,
                )

    def add(self, name, folder):
        self.names.append(name)
        self.folders[name] = folder

    def command(self, *words, given=None):
        """Run a command to its end; return its output."""
        command = [sys.executable, "-m", "p2pfl.node", *words]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, cwd=self.cwd, env=self.env, timeout=60, check=True
        ).stdout

    def log(self, name):
        return self.cwd / f"{name}.log"

    def printed(self, name):
        return messages(self.log(name).read_text())

    def links(self):
        """Return the kind of link between each pair of nodes."""
        return {(name, peer["name"]): peer["link"] for name in self.names for peer in self.status(name)["peers"]}

    def last(self, name):
        return (self.status(name)["history"] or [{"round": 0, "models": 0, "weights": {}}])[-1]

    def together(self, after=0):
        """Return whether the last round of each node is later than `after` and includes models of all nodes."""
        return all(
            set(self.last(name)["weights"]) == set(self.names) and self.last(name)["round"] > after for name in self.names
        )


@contextmanager
def home(root, names=ABC, rounds=100_000, size=SMALL, options=""):
    """Create a federation whose nodes are not started yet."""
    (root / "halving.py").write_text(TASK)
    toml = TOML.format(rounds=rounds, members=len(names), options=f"size = {size}\n{options}")
    federation = Home(root, names, toml, cwd=root, path=root)
    try:
        yield federation
    finally:
        for name, process in federation.running.items():
            process.kill()
            process.wait()
            print(name, [line for line in federation.printed(name).splitlines() if not line.startswith("round ")])


@pytest.fixture(params=["mosquitto", "amqtt"])
def broker(request):
    with getattr(brokers, request.param)() as broker:
        yield broker


@pytest.mark.parametrize(("broker", "size"), spread([("mosquitto", LARGE), ("amqtt", MIDDLE)], 2), indirect=["broker"])
def test_broker_carries_models_of_millions_of_parameters(tmp_path, broker, size):
    with home(tmp_path, rounds=3, size=size) as federation:
        federation.start(changes=[f"broker={broker.url}", NOWHERE])
        federation.until(federation.together, "all learn together")
        assert set(federation.links().values()) == {"broker"}
        federation.wait()
        for name in ABC:
            status = federation.status(name)
            assert [(row["round"], row["models"], set(row["weights"])) for row in status["history"]] == [
                (round, 2, set(ABC)) for round in (1, 2, 3)
            ]
            assert status["deadlines_expired"] == 0
            params = unpack(federation.checkpoint(name).params)
            assert params.shape == (size,)
            assert np.allclose(params, 4 - 3 / 2**3)


@contextmanager
def watch_rounds(federation):
    """Poll the checkpoints in another thread; yield their rounds by node name."""
    seen, done = {name: [] for name in federation.names}, threading.Event()

    def look():
        while not done.wait(0.5):
            for name in federation.names:
                kept = federation.checkpoint(name)
                seen[name].append(kept.round if kept else 0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def test_broker_killed_during_exchange_costs_no_round(tmp_path):
    with brokers.mosquitto() as broker, home(tmp_path, size=MIDDLE) as federation:
        federation.start(changes=[f"broker={broker.url}", NOWHERE])
        federation.until(lambda: federation.together(1), "all learn together")

        def published():
            """Return the newest round for which all nodes have published a model."""
            kept = [federation.checkpoint(name) for name in ABC]
            return min(max((model.round for model in each.outbox), default=0) for each in kept)

        federation.until(lambda: published() > min(federation.status(name)["round"] for name in ABC), "an exchange goes on")
        kept = {name: federation.checkpoint(name).round for name in ABC}
        broker.kill()
        round = published()
        with watch_rounds(federation) as seen:
            for name in ABC:
                federation.until(lambda name=name: federation.last(name)["round"] >= round, f"{name} goes on alone")
            federation.until(lambda: all(federation.status(name)["broker"] for name in ABC), "all miss the broker")
            broker.start()
            before = {name: federation.last(name)["round"] for name in ABC}

            def again():
                rows = [row for name in ABC for row in federation.status(name)["history"] if row["round"] > before[name]]
                return any(row["models"] for row in rows)

            federation.until(again, "models are exchanged again")
            federation.until(lambda: federation.together(max(before.values())), "all learn together again")
        for name in ABC:
            rounds = [row["round"] for row in federation.status(name)["history"]]
            assert rounds[:round] == list(range(1, round + 1))
            assert rounds == sorted(set(rounds))
            assert min(seen[name]) >= kept[name]  # a node ahead alone may return, but not to rounds done with others
            assert federation.running[name].poll() is None  # no node has ended
            assert federation.status(name)["broker"] == ""
            assert f"the broker at 127.0.0.1:{broker.port} does not answer: " in federation.printed(name)
            assert "Traceback" not in federation.printed(name)


def test_members_with_direct_links_do_not_need_broker(tmp_path):
    with brokers.mosquitto() as broker, home(tmp_path) as federation:
        federation.start(changes=[f"broker={broker.url}"])
        federation.until(lambda: list(federation.links().values()) == ["direct"] * 6, "all have direct links")
        federation.until(federation.together, "all learn together")
        broker.kill()
        federation.until(lambda: all(federation.status(name)["broker"] for name in ABC), "all miss the broker")
        before = {name: federation.last(name)["round"] for name in ABC}
        federation.until(lambda: all(federation.last(name)["round"] >= before[name] + 5 for name in ABC), "five rounds more")
        for name in ABC:
            status = federation.status(name)
            assert all(set(row["weights"]) == set(ABC) for row in status["history"] if row["round"] > before[name])
            assert [peer["state"] for peer in status["peers"]] == ["connected", "connected"]
            without = federation.printed(name).partition("does not answer")[2]
            assert not re.search("^without", without, re.MULTILINE)


def test_unreachable_node_uses_broker_and_others_direct_links(tmp_path):
    with brokers.mosquitto() as broker, home(tmp_path) as federation:
        ports = {name: config.load(federation.folders[name]).listen for name in ABC}
        for name, other in (("alice", "bob"), ("bob", "alice"), ("carol", None)):
            known = [f'addresses={{ {other} = "{ports[other]}" }}'] if other else []
            federation.start(name, changes=[f"broker={broker.url}", NOWHERE, *known])
        federation.until(federation.together, "all learn together")
        ways = {frozenset(pair): link for pair, link in federation.links().items()}
        expected = {frozenset(pair): "broker" for pair in (("alice", "carol"), ("bob", "carol"))}
        federation.until(lambda: federation.links()["alice", "bob"] == federation.links()["bob", "alice"] == "direct", "")
        assert {pair: link for pair, link in ways.items() if "carol" in pair} == expected


DENYING = {
    "everything": "topic read #\n",
    "publishing to others": "topic read #\npattern write p2pfl/+/%u/%u\npattern write p2pfl/+/presence/%u\n",
}


@pytest.mark.parametrize("what", DENYING)
def test_broker_that_denies_publishing_is_reported(tmp_path, what):
    names = ABC[:2]
    with (
        brokers.mosquitto(["acl_file {folder}/rules"], {"rules": DENYING[what]}) as broker,
        home(tmp_path, names) as federation,
    ):
        for name in names:
            key = Identity.load(federation.folders[name] / config.KEY).public.hex()
            federation.start(name, changes=[f"broker=mqtt://{key}@127.0.0.1:{broker.port}", NOWHERE])
        federation.until(lambda: any(federation.links()), "they are at work")

        def describe(name):
            return "check its access rules" in federation.status(name).get("broker", "")

        federation.until(lambda: all(map(describe, names)), "all say what is wrong")
        for name in names:
            problem = federation.status(name)["broker"]
            assert f"the broker at 127.0.0.1:{broker.port}" in problem
            assert problem in federation.printed(name).splitlines()
            assert federation.status(name)["round"] == 0


class Relay:
    """Relay between a node and another node or a broker; records all data.

    Args:
        rate: bytes per second, per connection and direction.

    Attributes:
        port: port to dial.
    """

    def __init__(self, port, rate=inf):
        self.seen = []
        self._to, self._rate = port, rate
        self._listening = socket.socket()
        if rate < inf:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.port = self._listening.getsockname()[1]
        self._sockets = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket()
                self._sockets += near, far
                if self._rate < inf:
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
                if far.connect_ex(("127.0.0.1", self._to)):
                    near.close()
                    continue
                for here, there in ((near, far), (far, near)):
                    kept = bytearray()
                    self.seen.append(kept)
                    threading.Thread(target=self._pass, args=(here, there, kept), daemon=True).start()

    def _pass(self, here, there, kept):
        with suppress(OSError):
            while data := here.recv(1 << 16):
                kept += data
                time.sleep(len(data) / self._rate)  # of real time, to limit the rate
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)

    def close(self):
        for each in self._sockets:
            each.close()


@contextmanager
def subscribe_to_all_topics(port):
    """Subscribe to all topics of the broker; yield the list of received (topic, content)."""
    seen, ready, loop = [], threading.Event(), asyncio.new_event_loop()

    async def listen():
        async with aiomqtt.Client("127.0.0.1", port) as client:
            await client.subscribe("#")
            ready.set()
            async for message in client.messages:
                seen.append((str(message.topic), bytes(message.payload)))

    def run():
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()

    task = loop.create_task(listen())
    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(brokers.PATIENCE)
    try:
        yield seen
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def secrets(folder):
    """Yield the private keys in a node's folder: raw, in hexadecimal digits, and as in their files."""
    for path in folder.glob("*.pem"):
        pem = Identity.load(path).private_pem()
        raw = load_pem_private_key(pem, None).private_bytes_raw()
        yield from (raw, raw.hex().encode(), pem.splitlines()[1])


def test_eavesdropper_at_broker_sees_no_model_and_no_secret(tmp_path):
    names = ABC[:2]
    with brokers.mosquitto() as broker, subscribe_to_all_topics(broker.port) as told:
        wire = Relay(broker.port)
        url = f"mqtt://127.0.0.1:{wire.port}"
        with home(tmp_path, names, options="first = 1.2345\nconstant = true") as federation:
            federation.start(changes=[f"broker={url}", NOWHERE])
            federation.until(federation.together, "both learn together")

            config.create(tmp_path / "carol", "carol", "127.0.0.1:0")
            toml = (federation.folders["alice"] / config.CONFIG).read_text()
            toml = toml.replace('name = "alice"', 'name = "carol"').replace('part = "0/2"', 'part = "1/2"')
            toml = re.sub('listen = ".*"', 'listen = "127.0.0.1:0"', toml)
            (tmp_path / "carol" / config.CONFIG).write_text(toml)
            token = federation.command("invite", str(federation.folders["alice"]), "carol", "--address", url)
            assert federation.command("join", str(tmp_path / "carol"), given=token)
            federation.add("carol", tmp_path / "carol")
            federation.start("carol", changes=[f"broker={url}", NOWHERE])
            federation.until(federation.together, "all three learn together")
            assert set(federation.links().values()) == {"broker"}

            pattern = np.full(8, 1.2345, np.float32).tobytes()
            assert pattern in (federation.folders["alice"] / config.CHECKPOINT).read_bytes()
            hidden = [pattern, Invitation.parse(token).secret, token.strip().encode()]
            hidden += [secret for folder in federation.folders.values() for secret in secrets(folder)]
        wire.close()
    passed = b"".join(bytes(kept) for kept in wire.seen)
    published = b"".join(topic.encode() + content for topic, content in told)
    for seen in (passed, published):
        assert len(seen) > 20 * 4 * SMALL
        assert b"p2pfl/" in seen
        assert [secret for secret in hidden if secret in seen] == []


@pytest.mark.alone
@pytest.mark.parametrize("way", spread(["through a broker", "directly"], 2))
def test_slow_model_transfer_is_not_treated_as_silence(tmp_path, way):
    names = ABC[:2]
    with home(tmp_path, names, rounds=1, size=MIDDLE) as federation, brokers.mosquitto() as broker:
        _, port = split_address(config.load(federation.folders["bob"]).listen)
        wire = Relay(port if way == "directly" else broker.port, SLOW)
        if way == "directly":
            federation.start("alice", changes=[f'addresses={{ bob = "127.0.0.1:{wire.port}" }}'])
            federation.start("bob")
        else:
            federation.start(changes=[f"broker=mqtt://127.0.0.1:{wire.port}", NOWHERE])
        federation.wait()
        wire.close()
        for name in names:
            assert "without" not in federation.printed(name)
            assert [row["models"] for row in federation.status(name)["history"]] == [1]
