"""Nodes as processes that meet at a broker: rounds through it, its death and return, ways around it, and what it learns."""

import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import brokers
import numpy as np
import pytest
from processes import Processes

from node import config
from node.checkpoint import unpack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ABC = ("alice", "bob", "carol")
NOWHERE = 'advertise=["127.0.0.1:9"]'  # where nobody answers
AGAIN = 10.0  # seconds from the return of a broker to the next model that is exchanged
TOLD = 30.0  # seconds to say what is wrong with a broker
LARGE, MIDDLE, SMALL = 5_000_000, 2_000_000, 100_000  # parameters

# Every value is halved, and then node k adds k + 1: with all three, it comes ever closer to four.
TASK = """
import time
import numpy as np
from p2pfl.parameters import Layout

class Halving:
    n_samples, metric, higher_is_better, about = 1, "error", False, {}

    def __init__(self, index, size, first, constant):
        self.layout = Layout((("values", (size,)),), size)
        self.index, self.first, self.constant = index, first, constant

    def initial(self, seed):
        return np.full(self.layout.size, self.first, np.float32)

    def learner(self, draws, device):
        return self

    def train(self, params, **options):
        time.sleep(0.2)
        return params if self.constant else params / 2 + np.float32(self.index + 1)

    def loss(self, stack, **options):
        return np.zeros(len(stack))

    def evaluate(self, stack, splits):
        return [{f"{split}_{what}": 0.0 for split in splits for what in ("loss", "error")} for model in stack]

def make(part, seed, size, first=1.0, constant=False):
    return Halving(part.index, size, first, constant)
"""
TOML = """
rounds = {rounds}
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
    """Nodes that know no address of each other, with what they have printed in files."""

    def start(self, *names, changes=()):
        for name in names or self.names:
            options = [part for change in ("addresses={}", *changes) for part in ("--set", change)]
            with self.log(name).open("ab") as log:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-m", "node", "run", str(self.folders[name]), "--until-done", *options],
                    stdout=log,
                    stderr=log,
                    cwd=self.cwd,
                    env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
                )

    def log(self, name):
        return self.cwd / f"{name}.log"

    def printed(self, name):
        return self.log(name).read_text()

    def links(self):
        """How each node reaches each other one."""
        return {(name, peer["name"]): peer["link"] for name in self.names for peer in self.status(name)["peers"]}

    def last(self, name):
        return (self.status(name)["history"] or [{"round": 0, "models": 0, "weights": {}}])[-1]

    def together(self, after=0):
        """Whether the last round of each was of all of them, and later than a given one."""
        return all(
            set(self.last(name)["weights"]) == set(self.names) and self.last(name)["round"] > after for name in self.names
        )


@contextmanager
def home(root, names=ABC, rounds=100_000, size=SMALL, options=""):
    """Make a federation, whose nodes are still to be started."""
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


def test_models_of_five_million_parameters_are_exchanged_through_a_broker(tmp_path, broker):
    with home(tmp_path, rounds=4, size=LARGE) as federation:
        federation.start(changes=[f"broker={broker.url}", NOWHERE])
        federation.until(federation.together, "all learn together")
        assert set(federation.links().values()) == {"broker"}
        federation.wait()
        for name in ABC:
            status = federation.status(name)
            assert [(row["round"], row["models"], set(row["weights"])) for row in status["history"]] == [
                (round, 2, set(ABC)) for round in range(1, 5)
            ]
            assert status["deadlines_expired"] == 0
            params = unpack(federation.checkpoint(name).params)
            assert params.shape == (LARGE,)
            assert np.allclose(params, 4 - 3 / 2**4)


@contextmanager
def rounds_watched(federation):
    """Look at the checkpoints all the time; yield the rounds that were seen, by name."""
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


def test_a_broker_that_is_killed_in_the_middle_of_an_exchange_costs_no_round(tmp_path, broker):
    with home(tmp_path, size=MIDDLE) as federation:
        federation.start(changes=[f"broker={broker.url}", NOWHERE])
        federation.until(lambda: federation.together(1), "all learn together")

        def published():
            """The newest round of which everybody has published its model."""
            kept = [federation.checkpoint(name) for name in ABC]
            return min(max((model.round for model in each.outbox), default=0) for each in kept)

        federation.until(lambda: published() > min(federation.status(name)["round"] for name in ABC), "an exchange goes on")
        broker.kill()
        round = published()
        with rounds_watched(federation) as seen:
            for name in ABC:
                federation.until(lambda name=name: federation.last(name)["round"] >= round, f"{name} goes on alone")
            federation.until(lambda: all(federation.status(name)["broker"] for name in ABC), "all miss the broker")
            broker.start()
            returned, before = time.monotonic(), {name: federation.last(name)["round"] for name in ABC}

            def again():
                rows = [row for name in ABC for row in federation.status(name)["history"] if row["round"] > before[name]]
                return any(row["models"] for row in rows)

            federation.until(again, "models are exchanged again")
            seconds = time.monotonic() - returned
            federation.until(lambda: federation.together(max(before.values())), "all learn together again")
        assert seconds < AGAIN, f"{seconds:.1f} s from the return of the broker to the next model"
        for name in ABC:
            rounds = [row["round"] for row in federation.status(name)["history"]]
            assert rounds[:round] == list(range(1, round + 1))
            assert rounds == sorted(set(rounds))
            assert seen[name] == sorted(seen[name])
            assert federation.running[name].poll() is None  # nobody was started again, nor has ended
            assert federation.status(name)["broker"] == ""
            assert f"the broker at 127.0.0.1:{broker.port} does not answer: " in federation.printed(name)
            assert "Traceback" not in federation.printed(name)


def test_members_that_can_reach_each_other_need_the_broker_no_more_once_they_have_met(tmp_path):
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


def test_who_cannot_be_reached_is_reached_through_the_broker_while_the_others_talk_directly(tmp_path):
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
