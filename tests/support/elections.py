"""Election of a coordinator in a world of lost, late and duplicate messages, partitions, crashes and slow clocks.

Everything is drawn from one seed, and time is a number. Only what members write, send and claim is checked.
"""

import heapq
from collections import Counter
from random import Random
from typing import NamedTuple

from p2pfl.protocols.election import TIMING, Ballot, Election, Electorate, Quorum, Term
from p2pfl.protocols.wire import messages as m

CYCLE, CHAOS = 30.0, 18.0  # virtual seconds: length of a cycle, and of its disturbed part
HEALED_WITHIN = 10.0
SLOWEST, FASTEST = 0.9, 1.1
LATEST = 3.0  # seconds, longest delay of a message
# A coordinator sends beats until its lease ends; a member that received the last one waits for its patience.
MINORITY_KNOWS = (TIMING.lease + TIMING.beat + TIMING.patience) / SLOWEST + LATEST


class BrokenInvariantError(Exception):
    """An invariant does not hold."""


class Certified(NamedTuple):
    """Certificate of a term, whose signatures are valid."""

    term: Term
    coordinator: str


class DisturbedWorld:
    """
    Attributes:
        calm: number of other disturbances beside the first six for each change of the membership.

    Args:
        seed: with an odd seed the membership changes, too; with every third seed the last member only votes.
        election, electorate, keep: parts of the product, which tests replace by faulty ones; `keep` returns the ballot
            as it is on disk.
    """

    calm = 6

    def __init__(self, seed, n=5, election=Election, electorate=Electorate, keep=lambda ballot: ballot):
        self.rng = Random(seed)
        self.changes = seed % 2 == 1
        self.names = [f"n{i}" for i in range(n)]
        self.voters = set(self.names[-1:]) if n > 2 and seed % 3 == 0 else set()
        self.electorate = electorate
        self.epochs = [self.first()]  # the log
        self.logs = dict.fromkeys(self.names, self.epochs[0])  # the part of the log on each member's disk
        self.make, self.keep = election, keep
        self.now, self.count, self.queue = 0.0, 0, []
        self.rates = {name: self.rng.uniform(SLOWEST, FASTEST) for name in self.names}
        self.offsets = {name: self.rng.uniform(0, 1e6) for name in self.names}
        self.disks = {name: Ballot() for name in self.names}
        self.members = {}
        self.pending = dict.fromkeys(self.names, float("inf"))  # when a tick is due
        self.frozen = dict.fromkeys(self.names, 0.0)
        self.side = dict.fromkeys(self.names, 0)
        self.deaf = set()  # pairs (sender, recipient) that are cut in this direction only
        self.divided_at = None
        self.loss = self.doubled = self.late = 0.0
        self.crash = 0.0
        self.healed_at = None
        self.figures = Counter()
        self.slowest_heal = 0.0
        # Observations, which survive crashes of members.
        self.coordinators, self.votes = {}, {}
        self.known = dict.fromkeys(self.names, Term(0, 0))
        self.obeyed = dict.fromkeys(self.names, Term(0, 0))
        self.leading = set()
        for name in self.names:
            self.start(name)
        self.at(0.5, self.act)

    # The world

    def first(self):
        return self.electorate(1, frozenset(self.names), self.eligible(self.names))

    def eligible(self, names):
        return tuple(name for name in names if name not in self.voters)

    def run(self, seconds):
        for k in range(int(seconds / CYCLE)):
            self.at(k * CYCLE, self.disturb, (k * CYCLE + CHAOS,))
            self.at(k * CYCLE + CHAOS, self.heal)
        while self.queue and self.queue[0][0] < seconds:
            self.now, _, what, args = heapq.heappop(self.queue)
            what(*args)
            if len(self.leading) > 1:
                self.check_leases()
            if self.healed_at is not None:
                self.check_healed()
        return self

    def at(self, time, what, args=()):
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, what, args))

    def clock(self, name):
        return self.offsets[name] + self.rates[name] * self.now

    def disturb(self, until):
        choice = self.rng.choice
        self.loss, self.doubled, self.late, self.crash = choice([0, 0.05, 0.3]), 0.05, choice([0.05, 0.3]), choice([0, 0.1])
        time = self.now
        while (time := time + self.rng.expovariate(0.4)) < until:
            what = [self.divide, self.deafen, self.join, self.kill, self.behead, self.freeze]
            if self.changes:
                what = [*what, *what[: self.calm], self.reform]
            self.at(time, self.rng.choice(what))

    def divide(self):
        self.end_division()
        self.side = {name: self.rng.randrange(self.rng.choice([2, 2, 3])) for name in self.names}
        self.divided_at = self.now
        self.figures["partitions"] += 1

    def join(self):
        self.end_division()
        self.side, self.deaf = dict.fromkeys(self.names, 0), set()

    def end_division(self):
        """End a partition; check that a minority knows by now that it has no coordinator."""
        if self.divided_at is not None and self.now - self.divided_at > MINORITY_KNOWS:
            for name, member in self.members.items():
                known = member.electorate.members
                size = sum(self.side[other] == self.side[name] for other in known)
                if name in known and size <= len(known) // 2 and self.frozen[name] + MINORITY_KNOWS < self.now:
                    if member.coordinator(self.clock(name)) is not None:
                        raise BrokenInvariantError(f"{name} has a coordinator in a minority")
                    assert member.problem(self.clock(name))
                    self.figures["minorities"] += 1
        self.divided_at = None

    def deafen(self):
        self.deaf = {(a, b) for a in self.names for b in self.names if self.rng.random() < 0.3}

    def kill(self):
        self.stop(self.rng.choice(self.names))

    def behead(self):
        for name in self.names:
            if name in self.leading:
                self.stop(name)

    def freeze(self):
        """Halt a process; messages to it wait."""
        name = self.rng.choice(self.names)
        self.frozen[name] = max(self.frozen[name], self.now + self.rng.uniform(0.5, 8))
        self.figures["freezes"] += 1

    def reform(self):
        """Revoke a member, or admit one again; each member learns of it at its own time."""
        last = self.epochs[-1]
        out = [name for name in self.names if name not in last.members]
        members = last.members ^ {self.rng.choice(out or self.names)} or last.members
        order = self.rng.sample(self.names, len(self.names))
        new = type(last)(last.membership_version + 1, members, self.eligible(name for name in order if name in members))
        self.epochs.append(new)
        for name in self.names:
            self.at(self.now + self.rng.choice([0.1, self.rng.uniform(0, 5)]), self.learn, (name, new))
        self.figures["changes"] += 1

    def learn(self, name, electorate):
        if self.frozen[name] > self.now:
            self.at(self.frozen[name], self.learn, (name, electorate))
        elif electorate.membership_version > self.logs[name].membership_version and name in self.members:
            self.logs[name] = electorate
            self.carry_out(name, self.members[name].change(electorate, self.clock(name)))
            if name in self.members:
                self.schedule(name)

    def heal(self):
        self.join()
        self.loss, self.doubled, self.late, self.crash = 0.02, 0.02, 0.0, 0.0
        self.frozen = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            self.start(name)
            self.learn(name, self.epochs[-1])
            self.schedule(name)  # the member may have been halted until later
        self.healed_at = self.now

    # Members

    def start(self, name):
        if name not in self.members:
            clock = self.clock(name)
            self.members[name] = self.make(name, self.logs[name], self.disks[name], self.rng.random, clock)
            self.schedule(name)

    def stop(self, name):
        if self.members.pop(name, None) is not None:
            self.leading.discard(name)
            self.figures["crashes"] += 1
            self.at(self.now + self.rng.choice([0.01, self.rng.uniform(0, 8)]), self.start, (name,))

    def schedule(self, name):
        due = self.now + max(0.0, self.members[name].next_tick() - self.clock(name)) / self.rates[name] + 1e-6
        if due < self.pending[name]:
            self.pending[name] = due
            self.at(due, self.tick, (name, due))

    def tick(self, name, due):
        if due != self.pending[name]:
            return
        self.pending[name] = float("inf")
        if self.frozen[name] > self.now:
            self.pending[name] = self.frozen[name]
            self.at(self.frozen[name], self.tick, (name, self.frozen[name]))
        elif name in self.members:
            member = self.members[name]
            if member.next_tick() <= self.clock(name):
                self.carry_out(name, member.tick(self.clock(name)))
            if name in self.members:
                self.schedule(name)

    def deliver(self, sender, name, message):
        if self.side[sender] != self.side[name] or (sender, name) in self.deaf:
            return
        if self.frozen[name] > self.now:
            self.at(self.frozen[name], self.deliver, (sender, name, message))
        elif name in self.members:
            self.figures["messages"] += 1
            if isinstance(message, Term):
                self.obey(sender, name, message)
            elif isinstance(message, Certified):
                self.certify(name, message)
            else:
                self.carry_out(name, self.members[name].receive(sender, message, self.clock(name)))
                if name in self.members:
                    self.schedule(name)

    def carry_out(self, name, step):
        if step.write is not None:
            if self.rng.random() < self.crash:
                return self.stop(name)
            self.check_written(name, step.write)
            self.disks[name] = self.keep(step.write)
            if self.rng.random() < self.crash:
                return self.stop(name)
        for recipient, message in step.send:
            self.check_sent(name, recipient, message)
            self.transmit(name, recipient, message)
            if self.rng.random() < self.crash * self.bound(message):
                return self.stop(name)
        if self.members[name].role == "coordinator":
            self.leading.add(name)
        else:
            self.leading.discard(name)

    def bound(self, message):
        """Return how much more often a member crashes after it has sent a binding message: a vote, or a promise."""
        match message:
            case m.Vote(trial=False) | m.Voted(trial=False, granted=True):
                return 5
            case m.Following():
                return 0.2
        return 0

    def transmit(self, sender, recipient, message):
        if self.side[sender] != self.side[recipient] or (sender, recipient) in self.deaf:
            return
        rng = self.rng
        for _ in range(2 if rng.random() < self.doubled else 1):
            if rng.random() >= self.loss:
                delay = rng.uniform(0, LATEST) if rng.random() < self.late else rng.uniform(0.005, 0.15)
                self.at(self.now + delay, self.deliver, (sender, recipient, message))

    def act(self):
        """Send orders from every member that may act as the coordinator."""
        for name in sorted(self.leading):
            if self.frozen[name] <= self.now and self.members[name].leads(self.clock(name)):
                for other in sorted(self.members[name].electorate.members):
                    if other != name:
                        self.transmit(name, other, self.members[name].term)
        self.at(self.now + 0.5, self.act)

    # Invariants

    def obey(self, sender, name, term):
        if self.members[name].obeys(sender, term):
            self.figures["acts"] += 1
            if term < max(self.obeyed[name], self.known[name]):
                raise BrokenInvariantError(f"{name} acts on term {term}, which is over")
            self.obeyed[name] = term
        else:
            self.figures["refused"] += 1

    def check_written(self, name, ballot):
        if ballot.term < self.known[name]:
            raise BrokenInvariantError(f"{name} goes back to term {ballot.term}")
        self.known[name] = ballot.term
        if ballot.vote:
            self.vote(name, ballot.vote, ballot.term)

    def check_sent(self, name, recipient, message):
        term = Term(message.membership_version, message.term)
        known = self.known[name]
        match message:
            case m.Vote(trial=True) | m.Voted(trial=True, granted=True):
                if term <= known:
                    raise BrokenInvariantError(f"{name} would have a vote given in term {term}, and knows {known}")
            case m.Vote():
                self.vote(name, name, term)
            case m.Voted(granted=True):
                self.vote(name, recipient, term)
            case m.Leading():
                self.check_leading(name, term)
        if term < known:
            raise BrokenInvariantError(f"{name} says something of term {term}, which is over")

    def check_leading(self, name, term):
        if self.coordinators.setdefault(term, name) != name:
            raise BrokenInvariantError(f"two coordinators in term {term}")
        electorate = self.epochs[term.membership_version - 1]
        votes = sum(self.votes.get((voter, term)) == name for voter in electorate.members)
        if 2 * votes <= len(electorate.members):
            raise BrokenInvariantError(f"{name} leads term {term} with {votes} votes of {len(electorate.members)}")
        if name not in electorate.eligible:
            raise BrokenInvariantError(f"{name} leads term {term}, and may not")
        self.figures["elections"] = len(self.coordinators)

    def vote(self, name, candidate, term):
        if self.votes.setdefault((name, term), candidate) != candidate:
            raise BrokenInvariantError(f"{name} changes its vote in term {term}")

    def check_leases(self):
        epochs = Counter(
            self.members[name].term.membership_version for name in self.leading if self.members[name].leads(self.clock(name))
        )
        if max(epochs.values(), default=0) > 1:
            raise BrokenInvariantError("two leases overlap")

    def check_healed(self):
        if len(self.leading) == 1:
            (leader,) = self.leading
            if all(self.members[name].coordinator(self.clock(name)) == leader for name in self.epochs[-1].members):
                self.slowest_heal = max(self.slowest_heal, self.now - self.healed_at)
                self.figures["heals"] += 1
                self.healed_at = None
                return
        if self.now > self.healed_at + HEALED_WITHIN:
            raise BrokenInvariantError(f"no coordinator within {HEALED_WITHIN} s of {self.healed_at}")


class CommitteeWorld(DisturbedWorld):
    """A world in which a committee elects the coordinator of all members, and is replaced in part or as a whole.

    The log skips no entry, but members may learn of several at once, and of each at their own time. No two leases may
    overlap, whatever versions they are of.
    """

    calm = 0

    def __init__(self, seed, n=8, **options):
        self.size = 3 + seed % 3
        super().__init__(2 * seed + 1, n, **options)  # odd: the committee changes

    def first(self):
        return self.committee(1, self.rng.sample(self.names, self.size), ())

    def committee(self, version, members, before):
        earlier = tuple(Quorum(each.membership_version, each.majority, each.members) for each in before)
        order = tuple(sorted(members))
        return self.electorate(version, frozenset(members), order, participants=frozenset(self.names), earlier=earlier)

    def reform(self):
        """Replace a member of the committee, or several, or none."""
        last = self.epochs[-1]
        outside = sorted(set(self.names) - last.members)
        count = min(len(outside), self.rng.choice([0, 1, 1, 1, 2, self.size]))
        left = self.rng.sample(sorted(last.members), self.size - count)
        new = self.committee(last.membership_version + 1, [*left, *self.rng.sample(outside, count)], self.epochs)
        self.epochs.append(new)
        for name in self.names:
            self.at(self.now + self.rng.choice([0.1, self.rng.uniform(0, 20)]), self.learn, (name, new))
        self.figures["changes"] += 1

    def act(self):
        for name in sorted(self.leading):
            for other in self.names:
                if other != name and self.frozen[name] <= self.now:
                    self.transmit(name, other, Certified(self.members[name].term, name))
        super().act()

    def certify(self, name, certified):
        member = self.members[name]
        known = certified.term.membership_version == member.electorate.membership_version
        if known and certified.term >= member.term:  # otherwise it is refused
            self.carry_out(name, member.certify(*certified, self.clock(name)))
            if name in self.members:
                self.schedule(name)

    def check_leading(self, name, term):
        super().check_leading(name, term)
        self.figures["committees"] = len({term.membership_version for term in self.coordinators})

    def check_leases(self):
        leading = [name for name in self.leading if self.members[name].leads(self.clock(name))]
        if len(leading) > 1:
            raise BrokenInvariantError(f"the leases of {leading} overlap")


class Schedule:
    """Members whose meetings, knowledge of the log and restarts are given move by move.

    Between two moves all clocks advance, and nobody hears anybody. In a meeting, those who meet exchange all messages
    until none is left; nobody else hears them. After each move at most one member may lead.

    Args:
        committees: the members of the committee by its version, from 1.
    """

    def __init__(self, committees, election=Election):
        self.make = election
        self.names = [f"n{k}" for k in range(6)]
        quorums = [Quorum(k, len(each) // 2 + 1, frozenset(each)) for k, each in enumerate(committees, 1)]
        self.log = [
            Electorate(
                q.membership_version, q.members, tuple(sorted(q.members)), None, frozenset(self.names), tuple(quorums[:k])
            )
            for k, q in enumerate(quorums)
        ]
        self.rng, self.now = Random(0), 0.0
        self.disks, self.versions = dict.fromkeys(self.names, Ballot()), dict.fromkeys(self.names, 1)
        self.coordinators, self.members, self.pending = {}, {}, []
        for name in self.names:
            self.start(name)

    def start(self, name):
        electorate = self.log[self.versions[name] - 1]
        self.members[name] = self.make(name, electorate, self.disks[name], self.rng.random, self.now)

    def carry_out(self, moves):
        for move, names, how in moves:
            self.now += 0.05
            if move == "learn":
                for name in names:
                    if how > self.versions[name]:
                        self.versions[name] = how
                        self.take(name, self.members[name].change(self.log[how - 1], self.now))
            elif move == "restart":
                for name in names:
                    self.start(name)
            else:
                self.meet(names, how)
            self.check()
            self.pending.clear()

    def meet(self, names, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            for name in names:
                if self.members[name].next_tick() <= self.now:
                    self.take(name, self.members[name].tick(self.now))
            while self.pending:
                sender, name, message = self.pending.pop(0)
                if name in names:
                    self.take(name, self.members[name].receive(sender, message, self.now))
            for name in names:
                if self.members[name].role == "coordinator":
                    for other in names:
                        self.certify(other, self.members[name].term, name)
            self.check()

    def certify(self, name, term, coordinator):
        member = self.members[name]
        if term.membership_version == member.electorate.membership_version and term >= member.term:
            self.take(name, member.certify(term, coordinator, self.now))

    def take(self, name, step):
        if step.write is not None:
            assert step.write.term >= self.disks[name].term
            self.disks[name] = step.write
        self.pending += [(name, to, message) for to, message in step.send]

    def check(self):
        for name, member in self.members.items():
            if member.role == "coordinator" and self.coordinators.setdefault(member.term, name) != name:
                raise BrokenInvariantError(f"two coordinators in term {member.term}")
        leading = [name for name, member in self.members.items() if member.leads(self.now)]
        if len(leading) > 1:
            raise BrokenInvariantError(f"the leases of {leading} overlap")
