"""Elections written as text; see testdata/election and tests/support/scripts.py.

The members are real ones (p2pfl.protocols.election); only the network between them is the script's.

    members a b c          the members; the first is preferred. All share one clock, which starts at 0
    start a draw 0.5       starts a, with its ballot on disk; its random draws are all 0.5 (default 0)
    time 2.0               moves the clock, and lets the members act whose time has come. Messages stay in flight
    deliver [a b [vote]]   delivers the messages in flight (those of a to b, of one kind); answers are in flight then
    run 3.0                moves the clock, and delivers all messages at once. Lists only what changes
    lose a b               loses the messages in flight from a to b
    delay a b              holds them back until the event `release`, which puts them in flight again
    partition a | b c      loses each message between the sides from now on
    heal                   ends the partition
    crash c                ends a process; its ballot is kept
    change 2 a b d         gives all members a new version of the membership, with its members
    state                  lists who coordinates, as each member sees it
"""

from math import inf
from pathlib import Path

import pytest

from p2pfl.protocols.election import Ballot, Election, Electorate, Term
from p2pfl.protocols.errors import ProtocolError
from tests.support.scripts import World, check, scripts_in

SCRIPTS = scripts_in(Path(__file__).parent.parent / "testdata" / "election")


def words_of(message):
    """Return a message in words, such as "vote 1.2 trial"."""
    kind, term = type(message).__name__.lower(), f"{message.membership_version}.{message.term}"
    extra = {
        "vote": lambda: ["trial"] if message.trial else [],
        "voted": lambda: ["trial"] * message.trial + ["yes" if message.granted else "no"],
    }.get(kind, lambda: [f"beat {message.beat}"])
    return " ".join([kind, term, *extra()])


class Members(World):
    """Members of an election, their disks, and the network between them."""

    def __init__(self):
        super().__init__()
        self.now, self.quiet = 0.0, False
        self.members, self.disk, self.draws, self.seen, self.flight, self.held, self.sides = {}, {}, {}, {}, [], [], []

    def act(self, name, call):
        """Let a member handle an event, and carry out its step in order: disk first."""
        member = self.members[name]
        before = (member.role, self.seen.get(name))
        try:
            step = call(member)
        except ProtocolError as error:
            self.say(f"{name} refuses: {error}")
            return
        if step.write is not None:
            self.disk[name] = step.write
            self.say(f"{name} writes term {step.write.term}" + (f", vote {step.write.vote}" if step.write.vote else ""))
        after = (member.role, member.coordinator(self.now))
        self.seen[name] = after[1]
        if before == ("coordinator", name) and after[1] != name:
            self.say(f"{name} has lost the lease")
        if after[0] != before[0]:
            self.say(f"{name} is {after[0]}")
        if after[1] != before[1] and after[1] is not None:
            self.say(f"{name} has the lease" if after[1] == name else f"{name} follows {after[1]}")
        for to, message in step.send:
            if not self.quiet:
                self.say(f"{name} -> {to}: {words_of(message)}")
            if not any((name in side) != (to in side) for side in self.sides):
                self.flight.append((name, to, message))

    def do_members(self, *names):
        self.electorate = Electorate(1, frozenset(names), names)

    def do_start(self, name, _draw="draw", value="0"):
        self.draws[name] = float(value) if _draw == "draw" else 0.0
        ballot = self.disk.get(name, Ballot(Term(self.electorate.membership_version, 0)))
        self.members[name] = Election(name, self.electorate, ballot, lambda: self.draws[name], self.now)

    def do_crash(self, name):
        del self.members[name], self.seen[name]

    def due(self):
        return min(((member.next_tick(), name) for name, member in self.members.items()), default=(inf, ""))

    def do_time(self, until):
        while (due := self.due())[0] <= float(until):
            self.now, before = max(self.now, due[0]), len(self.said)
            self.act(due[1], lambda member: member.tick(self.now))
            while self.quiet and self.flight:
                self.do_deliver()
            self.said[before:] = [f"{self.now:.1f}: {line}" for line in self.said[before:]]
        self.now = float(until)

    def do_run(self, until):
        self.quiet = True
        self.do_time(until)
        self.quiet = False

    def do_deliver(self, sender=None, to=None, kind=None):
        chosen, self.flight = self.split(sender, to, kind)
        for name, other, message in chosen:
            if other in self.members:
                self.act(other, lambda member, name=name, message=message: member.receive(name, message, self.now))

    def split(self, sender, to, kind=None):
        """Return the messages in flight that match, and the others."""
        wanted = [
            sender in (None, a) and to in (None, b) and kind in (None, words_of(m).split()[0]) for a, b, m in self.flight
        ]
        pairs = list(zip(self.flight, wanted, strict=True))
        return [message for message, yes in pairs if yes], [message for message, yes in pairs if not yes]

    def do_lose(self, sender, to):
        self.flight = self.split(sender, to)[1]

    def do_delay(self, sender, to):
        self.held, self.flight = self.split(sender, to)

    def do_release(self):
        self.flight, self.held = self.flight + self.held, []

    def do_partition(self, *words):
        self.sides = [set(side.split()) for side in " ".join(words).split("|")]

    def do_heal(self):
        self.sides = []

    def do_change(self, version, *names):
        self.electorate = Electorate(int(version), frozenset(names), names)
        for name in sorted(self.members):
            self.act(name, lambda member: member.change(self.electorate, self.now))

    def do_state(self):
        for name, member in sorted(self.members.items()):
            seen = member.coordinator(self.now)
            known = member.problem(self.now) if seen is None else f"coordinator {seen}"
            self.say(f"{name}: {member.role} in term {member.term}, {known}")


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_election_follows_script(script):
    check(script, Members())
