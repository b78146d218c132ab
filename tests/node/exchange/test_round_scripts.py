"""Rounds of synchronous nodes, written as text; see testdata and tests/support/scripts.py.

nodes a b c            the nodes: none has finished a round. The federation has 100 rounds
observer d             a node whose round counts for nobody
at a 50                a has finished round 50, and has announced it
finish a [5 times]     a finishes its round: lists the next one, and what it announces before; then it publishes
claim b 80             b announces round 80, whatever it does
late a [no]            a's last submission came too late for its coordinator (or no longer)
receive a              a receives a model of its round
offline b, online b    b has left, or is back
"""

from pathlib import Path

import pytest

from p2pfl.node.exchange.model_encoding import Outbox
from p2pfl.node.exchange.rounds import Pacing, is_awaited, keeps_up
from tests.support.scripts import World, check, scripts_in

SCRIPTS = scripts_in(Path(__file__).parent / "testdata")
ROUNDS = 100


class Nodes(World):
    """Nodes that know at once which rounds the others announce."""

    def __init__(self):
        super().__init__()
        self.pacing, self.finished, self.announced, self.offline, self.observers = {}, {}, {}, set(), set()

    def do_nodes(self, *names):
        for name in names:
            self.add(name)

    def do_observer(self, name):
        self.observers.add(name)
        self.add(name)

    def add(self, name):
        self.pacing[name] = Pacing(ROUNDS, voice=name not in self.observers)
        self.finished[name] = self.announced[name] = 0

    def do_at(self, name, round):
        self.finished[name] = self.announced[name] = int(round)

    def do_claim(self, name, round):
        self.announced[name] = int(round)

    def do_late(self, name, no=""):
        self.pacing[name].late = not no

    def do_receive(self, name):
        self.pacing[name].record_exchange()

    def do_offline(self, name):
        self.offline.add(name)

    def do_online(self, name):
        self.offline.remove(name)

    def do_finish(self, name, times="1", _times=""):
        for _ in range(int(times)):
            self.finish(name)

    def finish(self, name):
        others = {other: self.announced[other] for other in sorted({*self.pacing} - {name} - self.offline)}
        pacing, finished, announced = self.pacing[name], self.finished[name], self.announced[name]
        round = pacing.following(finished, announced, [others[other] for other in others if other not in self.observers])
        said = pacing.enter(round, finished, announced, Outbox(synchronous=True))
        way = "next" if round == finished + 1 else "forward" if round > finished else "back"
        before = f"announces {said}, " if said is not None else ""
        awaited = [other for other, reached in others.items() if is_awaited(reached, round)]
        alike = [other for other, reached in others.items() if keeps_up(reached, round, synchronous=True)]
        self.say(f"{name}: {before}{way} to round {round}, waits for {words(awaited)}, learns with {words(alike)}")
        self.finished[name], self.announced[name] = round, round


def words(names):
    return " and ".join(names) or "nobody"


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_rounds_follow_script(script):
    check(script, Nodes())
