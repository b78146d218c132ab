"""A committee elects the coordinator of many members: real runners with real signatures on virtual time."""

import asyncio
import json
from collections import Counter
from math import inf
from types import SimpleNamespace
from typing import ClassVar

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.coordination.election_runner import (
    ElectionRunner,
    MemoryVotes,
    VoteSigner,
    committee_electorate,
    timing_of,
)
from p2pfl.node.exchange.rounds import StartWait
from p2pfl.node.federation import agreement, loading
from p2pfl.node.federation.membership_sync import Neighbourhood
from p2pfl.node.folder import config
from p2pfl.node.settings import Settings
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.protocols import term_certificates
from p2pfl.protocols.election import LAST, TIMING, Ballot, Term
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation as FederationFile
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.term_certificates import Certificate
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run
from tests.support.federation import Federation
from tests.support.logs import log_to
from tests.support.processes import federate

LATENCY = 0.02
ADMISSION = Identity.from_seed(b"admission".ljust(32))
FILE = FederationFile.sign({"name": "many", "rounds": 10, "committee": 5}, ADMISSION)
NAMES = [f"n{k:03}" for k in range(200)]
KEYS = {name: Identity.from_seed(name.encode().ljust(32)) for name in NAMES}
FIRST = NAMES[:5]  # the committee


def log_of(names=NAMES, roles=None):
    log = Membership(FILE)
    for name in names:
        log.append(ADMISSION, "add", name, KEYS[name].public, (roles or {}).get(name, "participant"))
    return log


WHOLE = log_of()


class Hall:
    """Members with links between all that are present.

    Attributes:
        sent: number of messages by sender and kind.
        apart: names that are cut off from the others.
    """

    def __init__(self, log, present):
        self.logs = {name: log.copy() for name in present}
        self.sent, self.heard, self.refused, self.apart, self.off = Counter(), Counter(), [], set(), set()
        self.votes = {name: MemoryVotes() for name in present}
        self.runners, self.tasks = {}, {}

    def start(self, *names, **options):
        for name in names or self.logs:
            self.off.discard(name)
            self.runners[name] = runner = ElectionRunner(
                name,
                committee_electorate(self.logs[name]),
                self.votes[name],
                incarnation=1,
                seed=0,
                clock=asyncio.get_running_loop().time,
                signer=VoteSigner(KEYS[name], FILE.id),
                **options,
            )
            runner.connect(
                lambda to, message, payload=b"", name=name: self.send(name, to, message, payload),
                lambda elected: None,
                lambda name=name: [other for other in self.runners if other != name and self.reach(name, other)],
            )
            self.tasks[name] = asyncio.create_task(runner.run())

    def reach(self, one, other):
        return not {one, other} & self.off and (one in self.apart) == (other in self.apart) and other in self.runners

    def send(self, name, to, message, payload):
        self.sent[name, type(message).__name__] += 1
        if self.reach(name, to):
            asyncio.get_running_loop().call_later(LATENCY, self.deliver, name, to, message, payload)

    def deliver(self, name, to, message, payload):
        if not self.reach(name, to):
            return
        self.heard[to, type(message).__name__] += 1
        try:
            if isinstance(message, m.CommitteeMessage):
                self.runners[to].receive_of_committee(name, message, payload)
            else:
                self.runners[to].receive(name, message)
        except ProtocolError as error:
            self.refused.append((name, to, str(error)))

    def kill(self, *names):
        for name in names:
            self.tasks.pop(name).cancel()
            self.off.add(name)

    def append(self, *names, action=None):
        """Let members learn of a new entry that `action` adds."""
        first = self.logs[names[0]]
        before = first.membership_version
        action(first)
        entries = first.after(before, 1 << 20)
        for name in names:
            self.logs[name].extend(entries)
            self.runners[name].change(committee_electorate(self.logs[name]))

    def coordinators(self, *names):
        return {self.runners[name].coordinator for name in names or self.runners if name not in self.off}

    async def elected(self, *names, but=None, within=30.0):
        """Wait until members agree on a coordinator other than `but`; return it."""
        async with asyncio.timeout(within):
            while len(found := self.coordinators(*names)) != 1 or found & {None, but}:
                await asyncio.sleep(0.05)
        (name,) = found
        return name

    def close(self):
        for task in self.tasks.values():
            task.cancel()


def hold(test, log=WHOLE, present=NAMES):
    async def main():
        hall = Hall(log, present)
        hall.start()
        await test(hall)
        hall.close()
        return hall

    return run(main())


# Elections


def test_committee_elects_for_200_members_of_whom_120_are_absent():
    async def test(hall):
        name = await hall.elected()
        assert name in FIRST
        assert asyncio.get_running_loop().time() < 3 * TIMING.patience
        assert {runner.term for runner in hall.runners.values()} == {Term(5, 1)}  # the version that completed the committee
        hall.sent.clear()
        hall.heard.clear()
        await asyncio.sleep(10)
        assert set(hall.sent) == {(name, "Leading"), *((other, "Following") for other in FIRST[:4] if other != name)}
        assert hall.sent[name, "Leading"] <= (len(FIRST) - 1) * 26  # a beat in 0.4 s to each, however many members there are
        assert not [sender for sender, _ in hall.heard if sender not in FIRST]

    absent = {FIRST[4], *NAMES[81:]}
    hall = hold(test, present=[name for name in NAMES if name not in absent])
    assert len(hall.logs) == 80
    assert hall.refused == []


def test_committee_elects_without_a_member_that_is_offline_for_ever_and_replaces_it():
    async def test(hall):
        first = await hall.elected()
        learning = [FIRST[0], *(name for name in hall.logs if name != FIRST[0])]
        hall.append(*learning, action=lambda log: log.append_committee(ADMISSION, [*FIRST[:3], "n007", "n008"]))
        await asyncio.sleep(1)
        again = await hall.elected()
        assert hall.runners[again].term == Term(201, 1)
        assert again in {*FIRST[:3], "n007", "n008"}
        hall.kill(*{first, again})
        third = await hall.elected(but=again)
        assert third not in {first, again}
        assert hall.runners["n020"].term.membership_version == 201

    hold(test, present=[*FIRST[:3], *NAMES[5:30]])  # two members of five are offline


def test_leader_that_is_killed_is_replaced_for_all():
    async def test(hall):
        first = await hall.elected()
        hall.kill(first)
        second = await hall.elected(but=first)
        assert second in FIRST
        assert {hall.runners[name].term for name in hall.logs if name != first} == {Term(5, 2)}
        hall.start(first)
        assert await hall.elected() == second

    hold(test, present=NAMES[:40])


def test_part_without_majority_of_committee_has_no_coordinator():
    async def test(hall):
        first = await hall.elected()
        hall.apart = {first, next(name for name in FIRST if name != first), *NAMES[20:30]}
        others = [name for name in hall.logs if name not in hall.apart]
        second = await hall.elected(*others, but=first)
        await asyncio.sleep(5)
        assert not hall.runners[first].leads(hall.runners[first].term)
        assert hall.coordinators(*(set(FIRST) & hall.apart)) == {None}
        problem = hall.runners[first].seen.problem
        assert problem == "no coordinator: 2 of 5 members of the committee reachable, 3 needed"
        for name in NAMES[20:30]:
            hall.runners[first].correct(name, Term(5, 1))  # as an answer to a submission
        await asyncio.sleep(1)
        assert hall.coordinators(*NAMES[20:30]) == {None}
        hall.apart = set()
        assert await hall.elected() == second

    hold(test, present=NAMES[:30])


def test_member_that_returns_asks_for_the_certificate():
    async def test(hall):
        first = await hall.elected()
        hall.kill("n030")
        await asyncio.sleep(1)
        hall.start("n030")
        assert await hall.elected("n030", within=2.0) == first
        assert hall.sent["n030", "WhichTerm"] <= 4

    hold(test, present=NAMES[:31])


def test_member_that_returns_asks_at_once_however_large_the_models_are():
    slow = timing_of(11_000_000, 600.0)

    async def test(hall):
        hall.close()
        hall.start(timing=slow)
        first = await hall.elected(within=10 * slow.patience)
        hall.sent.clear()
        hall.kill("n007")
        hall.start("n007", timing=slow)
        hall.off.add("n007")  # its links come later
        await asyncio.sleep(2.5)
        hall.off.discard("n007")
        assert await hall.elected("n007", within=10.0) == first
        assert hall.sent["n007", "WhichTerm"] <= len(FIRST)

    assert slow.patience > 300
    hold(test, log_of(NAMES[:8]), present=NAMES[:8])


def test_members_are_as_before_up_to_the_size_of_a_committee():
    async def test(hall):
        await hall.elected()

    hall = hold(test, log_of(NAMES[:4]), NAMES[:4])
    assert {runner.term for runner in hall.runners.values()} == {Term(4, 1)}
    chosen = hall.runners["n000"].election.electorate
    assert (chosen.members, chosen.majority, chosen.earlier) == (frozenset(NAMES[:4]), 3, ())


def test_member_outside_the_committee_follows_in_spite_of_a_lost_vote():
    async def test(hall):
        hall.votes["n010"].ballot = Ballot(Term(5, LAST))
        hall.kill("n010")
        hall.start("n010")
        first = await hall.elected()
        assert first in FIRST
        hall.append("n010", action=lambda log: log.append(ADMISSION, "add", "new", KEYS["n150"].public))
        assert hall.coordinators("n010") == {first}
        assert hall.votes["n010"].ballot == Ballot(Term(5, LAST))

    hold(test, log_of(NAMES[:20]), present=NAMES[:12])


def test_member_of_the_committee_whose_vote_was_lost_follows_and_does_not_vote():
    async def test(hall):
        first = await hall.elected()
        lost = next(name for name in FIRST if name != first)
        hall.kill(lost)
        hall.votes[lost].ballot = Ballot(Term(5, LAST))
        hall.start(lost)
        assert await hall.elected(within=2.0) == first
        hall.sent.clear()
        hall.kill(first)
        second = await hall.elected(but=first)
        assert second != lost
        hall.kill(next(name for name in FIRST if name not in {first, second, lost}))
        await asyncio.sleep(3 * TIMING.patience)  # two of five are left that vote
        assert not [kind for name, kind in hall.sent if name == lost and kind != "WhichTerm"]
        assert hall.votes[lost].ballot == Ballot(Term(5, LAST))
        assert not hall.runners[second].leads(hall.runners[second].term)
        left = [name for name in hall.logs if name not in hall.off]
        new = [name for name in NAMES[:8] if name not in hall.off][:5]
        hall.append(*left, action=lambda log: log.append_committee(ADMISSION, new, lost=True))
        await hall.elected(*left)
        assert hall.votes[lost].ballot.term.membership_version == 21  # it votes again

    hold(test, log_of(NAMES[:20]), present=NAMES[:12])


def test_former_member_of_the_committee_votes_although_it_has_seen_a_certificate_of_the_present_one():
    """The coordinator of that certificate may be lost before any other member of its committee has heard of it."""

    async def test(hall):
        await hall.elected()
        hall.append(*hall.logs, action=lambda log: log.append_committee(ADMISSION, NAMES[5:10]))
        hall.apart = set(NAMES[5:10])  # a candidate there finds no voters of the former committee
        term, version = Term(201, 1), 201
        votes = {n: term_certificates.sign_vote(KEYS[n], FILE.id, term, KEYS["n005"].public) for n in NAMES[5:8]}
        for name in FIRST:
            certificate = Certificate("n005", votes).encode()
            hall.runners[name].receive_of_committee("n005", m.TermCertificate(*term), certificate)
        hall.kill("n005")
        await asyncio.sleep(5)
        hall.apart = set()
        assert await hall.elected(but="n005") in NAMES[6:10]
        assert hall.runners["n000"].term.membership_version == version

    hold(test, present=NAMES[:12])


def test_lost_majority_is_replaced_only_with_the_word_of_the_admission_key():
    async def test(hall):
        await hall.elected()
        hall.kill(*FIRST[:3])
        await asyncio.sleep(5)
        left = [name for name in hall.logs if name not in FIRST[:3]]
        new = [*FIRST[3:], *NAMES[10:13]]
        hall.append(*left, action=lambda log: log.append_committee(ADMISSION, new))
        await asyncio.sleep(20)
        assert hall.coordinators(*left) == {None}
        problem = next(p for name in new if "agree" in (p := hall.runners[name].seen.problem))
        assert problem == (
            "no coordinator: 2 members of the committee of version 5 agree to its change, 3 needed; if they have stopped for"
            " good, name the new one with --lost"
        )
        hall.append(*left, action=lambda log: log.append_committee(ADMISSION, new, lost=True))
        assert await hall.elected(*left) in new

    hold(test, present=NAMES[:20])


def test_coordinator_steps_down_when_the_members_become_too_many_for_its_memory():
    async def test(hall):
        for name in FIRST[:4]:
            hall.kill(name)
            hall.start(name, size=1_000, memory=8_000 * 20)
        hall.kill(FIRST[4])
        assert await hall.elected() in FIRST[:4]
        hall.start(FIRST[4])
        await asyncio.sleep(3)
        hall.append(*hall.logs, action=lambda log: log.append(ADMISSION, "add", "new", KEYS["n150"].public))
        await asyncio.sleep(4 * TIMING.patience)
        assert await hall.elected() == FIRST[4]

    hold(test, log_of(NAMES[:20]), present=NAMES[:8])


def test_member_whose_memory_is_too_small_does_not_stand():
    async def test(hall):
        for name in FIRST[:4]:
            hall.kill(name)
            hall.start(name, size=1_000, memory=8_000 * 200 - 1)
        assert await hall.elected() == FIRST[4]
        assert hall.runners[FIRST[0]].bound == (200, 8_000 * 200, 4 / TIMING.beat)

    hold(test, present=NAMES[:6])


@pytest.mark.parametrize(
    "lie",
    [m.Vote(5, 9, False), m.Vote(5, 1000, False), m.Following(5, 9, 0), m.Leading(5, 9, 1), m.Voted(5, 9, True, False)],
)
def test_one_member_of_the_committee_deposes_nobody_for_the_members_outside(lie):
    async def test(hall):
        first = await hall.elected()
        liar = next(name for name in FIRST if name != first)
        await asyncio.sleep(2 * TIMING.patience)  # no promise of the start holds any more
        for name in NAMES[5:30]:
            hall.runners[name].receive(liar, lie)
        assert hall.coordinators(*NAMES[5:30]) == {first}
        assert {hall.votes[name].ballot for name in NAMES[5:30]} == {Ballot(Term(5, 1))}
        await asyncio.sleep(1)
        assert not [name for name, kind in hall.sent if name in NAMES[5:30] and kind != "WhichTerm"]

    hold(test, present=NAMES[:30])


# Certificates


@pytest.mark.parametrize("what", ["forged", "short", "by a stranger", "ineligible", "too long", "two voters, one key"])
def test_invalid_certificate_is_refused(what):
    term = Term(5, 3)

    def vote(name, of="n001", signer=None):
        return term_certificates.sign_vote(KEYS[signer or name], FILE.id, term, KEYS[of].public)

    votes = {name: vote(name) for name in FIRST[:3]}
    coordinator, words = "n001", "not signed by its key"
    if what == "forged":
        votes["n000"] = vote("n000", of="n002")
    elif what == "short":
        votes, words = {name: vote(name) for name in FIRST[:2]}, "2 votes for n001 in term 5.3, 3 are needed"
    elif what == "by a stranger":
        votes["n009"], words = vote("n009"), "n009, who is not in the committee"
    elif what == "ineligible":
        coordinator, words = "n009", "n009 cannot be elected"
        votes = {name: vote(name, of="n009") for name in FIRST[:3]}
    elif what == "too long":
        votes, words = {name: vote(name) for name in NAMES[:10]}, "length <= 9"
    else:
        votes["n002"] = vote("n000")

    async def test(hall):
        hall.runners["n010"].begin()
        payload = Certificate(coordinator, votes).encode()
        with pytest.raises(ProtocolError, match=words):
            hall.runners["n010"].receive_of_committee("n011", m.TermCertificate(*term), payload)
        assert hall.runners["n010"].coordinator is None

    hold(test, present=NAMES[:12])


def test_certificate_of_an_ended_term_or_of_another_federation_is_refused():
    async def test(hall):
        first = await hall.elected()
        old = hall.runners["n010"].certificate
        hall.kill(first)
        await hall.elected(but=first)
        runner = hall.runners["n010"]
        with pytest.raises(ProtocolError, match=r"lower term: a certificate of the ended term 5\.1"):
            runner.receive_of_committee("n011", m.TermCertificate(*old[0]), old[1].encode())
        other = {
            name: term_certificates.sign_vote(KEYS[name], bytes(16), Term(5, 9), KEYS["n001"].public) for name in FIRST[:3]
        }
        with pytest.raises(ProtocolError, match="not signed by its key"):
            runner.receive_of_committee("n011", m.TermCertificate(5, 9), Certificate("n001", other).encode())
        assert runner.term == Term(5, 2)

    hold(test, present=NAMES[:12])


def test_second_certificate_of_a_term_is_refused():
    term = Term(5, 4)

    def certificate(of, voters):
        votes = {name: term_certificates.sign_vote(KEYS[name], FILE.id, term, KEYS[of].public) for name in voters}
        return Certificate(of, votes).encode()

    async def test(hall):
        runner = hall.runners["n010"]
        runner.begin()
        runner.receive_of_committee("n011", m.TermCertificate(*term), certificate("n001", FIRST[:3]))
        assert runner.obeys("n001", term)
        with pytest.raises(ProtocolError, match="has voted twice"):
            runner.receive_of_committee("n011", m.TermCertificate(*term), certificate("n002", FIRST[2:]))
        assert runner.obeys("n001", term)

    hold(test, present=NAMES[:12])


def test_unsigned_vote_and_unknown_voter_do_not_count():
    async def test(hall):
        hall.apart = {"n000"}
        runner = hall.runners["n000"]
        while runner.election is None or runner.election.role != "standing":
            await asyncio.sleep(0.05)
        for name in ("n001", "n002"):
            runner.receive(name, m.Voted(5, 1, True, True))
        assert runner.election.role == "candidate"
        with pytest.raises(ProtocolError, match="n001 does not sign its vote"):
            runner.receive("n001", m.Voted(5, 1, False, True))
        with pytest.raises(ProtocolError, match=r"the vote of n001 in term 5\.1 is not signed by its key"):
            runner.receive_of_committee("n001", m.SignedVote(5, 1), bytes(64))
        for name in NAMES[5:20]:
            runner.receive_of_committee(name, m.SignedVote(5, 1), bytes(64))
        assert runner.election.role == "candidate"

    hold(test, present=NAMES[:20])


# The committee in the log


def test_committee_is_the_first_admitted_and_eligible_members_come_first():
    log = log_of(NAMES[:10], {"n003": "observer", "n008": "coordinator-eligible"})
    chosen = committee_electorate(log)
    assert chosen.members == {"n008", "n000", "n001", "n002", "n004"}
    assert chosen.eligible == ("n008",)
    assert chosen.participants == set(NAMES[:10]) - {"n003"}
    assert [quorum.membership_version for quorum in chosen.earlier] == [6]
    assert chosen.earlier[0].members == {"n000", "n001", "n002", "n004", "n005"}


def test_changes_of_other_members_leave_terms_alone():
    log = log_of(NAMES[:9])
    before = committee_electorate(log)
    log.append(ADMISSION, "add", "n009", KEYS["n009"].public)
    log.append(ADMISSION, "remove", "n007", KEYS["n007"].public)
    log.append_extension(ADMISSION, 20)
    after = committee_electorate(log)
    assert (after.membership_version, after.members) == (before.membership_version, before.members) == (5, frozenset(FIRST))
    log.append(ADMISSION, "remove", "n002", KEYS["n002"].public)
    changed = committee_electorate(log)
    assert (changed.membership_version, changed.members) == (13, {"n000", "n001", "n003", "n004", "n005"})
    assert changed.earlier[-1].members == {"n000", "n001", "n003", "n004"}  # a former member counts as absent
    assert changed.earlier[-1].majority == 3


def test_replaced_key_begins_a_committee_version():
    log = log_of(NAMES[:6])
    new = Identity.from_seed(b"another".ljust(32)).public
    log.append(ADMISSION, "replace", "n001", new)
    chosen = committee_electorate(log)
    assert (chosen.membership_version, chosen.keys["n001"]) == (7, new)
    assert chosen.earlier[0].members == set(FIRST) - {"n001"}


def test_named_committee_counts_and_a_revoked_one_is_filled_up():
    log = log_of(NAMES[:12])
    log.append_committee(ADMISSION, NAMES[6:11])
    assert committee_electorate(log).members == frozenset(NAMES[6:11])
    log.append(ADMISSION, "remove", "n008", KEYS["n008"].public)
    assert committee_electorate(log).members == {"n006", "n007", "n009", "n010", "n000"}
    again = Membership(FILE, log.encode())
    assert committee_electorate(again) == committee_electorate(log) == committee_electorate(log.copy())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (NAMES[:4], "a committee of 4, where 5 are needed"),
        ([*NAMES[:4], "n000"], "different members"),
        ([*NAMES[:4], "n006"], "no observers"),
        ([*NAMES[:4], "n100"], "n100 is not a member"),
    ],
)
def test_invalid_committee_is_refused(names, words):
    log = log_of(NAMES[:7], {"n006": "observer"})
    with pytest.raises(FederationError, match=words):
        log.append_committee(ADMISSION, names)
    assert log.membership_version == 7


def test_federation_without_committee_refuses_its_entries_and_messages():
    log = Membership(FederationFile.sign({"name": "few", "rounds": 1}, ADMISSION))
    log.append(ADMISSION, "add", "n000", KEYS["n000"].public)
    with pytest.raises(FederationError, match="has no committee"):
        log.append_committee(ADMISSION, ["n000"])
    runner = ElectionRunner("n000", committee_electorate(log), MemoryVotes(), incarnation=1, seed=0, clock=lambda: inf)
    with pytest.raises(ProtocolError, match="has no committee"):
        runner.receive_of_committee("n001", m.WhichTerm(1, 1), b"")


# Rounds


class CommitteeFederation(Federation):
    """Eight members with a committee of five, each with the links that it needs.

    Attributes:
        room: number of submissions that the memory of each of some members permits, by name.
    """

    room: ClassVar = {}
    group_size = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.log = Membership(FILE)
        for name in self.names:
            self.log.append(ADMISSION, "add", name, self.keys[name].public)
        self.committee = set(self.names[:5])
        self.lines = []

    def neighbours(self, name):
        others = [other for other in self.names if other != name]
        return others if name in self.committee else [other for other in others if other in self.committee]

    def revoke(self, name):
        """Remove a member; all others learn of it at once."""
        self.log.append(ADMISSION, "remove", name, self.keys[name].public)
        for other in set(self.names) - {name}:
            exchange = self.nodes[other].exchange
            if name in exchange.peers:
                exchange.peering.remove(name, "revoked")
            exchange.election.change(committee_electorate(self.log))

    def election(self, name):
        return ElectionRunner(
            name,
            committee_electorate(self.log),
            self.ballots(name),
            incarnation=self.incarnations[name],
            seed=self.settings.seed,
            clock=asyncio.get_running_loop().time,
            signer=VoteSigner(self.keys[name], FILE.id),
            size=1,
            memory=8 * self.room.get(name, inf),
            group_size=self.group_size,
            log=log_to(self.lines),
        )


def test_members_outside_the_committee_take_part_in_rounds_and_follow_a_successor():
    async def test(federation):
        federation.start()
        await federation.round("h", 2)
        first = federation.nodes["h"].exchange.election.coordinator
        assert first in federation.committee
        await federation.kill(first)
        federation.cable.cut.add(first)
        federation.first = first
        await federation.done(*(set("abcdefgh") - {first}))

    async def main():
        federation = CommitteeFederation("abcdefgh", Settings(rounds=6, deadline=20.0), policy=CoordinatedFedAvg, period=1.0)
        async with asyncio.timeout(1000):
            await test(federation)
        return federation

    federation = run(main())
    weights = federation.watch["h"].weights
    assert set(weights[1]) == set("abcdefgh")
    assert set(weights[6]) == set("abcdefgh") - {federation.first}
    for name in set("abcdefgh") - {federation.first}:
        assert {seen.term for _, seen in federation.watch[name].elected_at if seen.coordinator} == {Term(5, 1), Term(5, 2)}


# Links and commands


def test_links_of_members_and_commands(tmp_path, capsys):
    names = [f"n{k}" for k in range(9)]
    for name in names:
        config.create(tmp_path / name, name, task="concept-shift", policy="coordinated-fedavg")
    federate(tmp_path, names, committee=5)

    def around(name):
        return set(Neighbourhood(loading.load(tmp_path / name), (), coordinated=True).members())

    assert around("n2") == set(names) - {"n2"}
    assert around("n6") == {*names[:5], "n5", "n7"}
    assert around("n8") == {*names[:5], "n7"}
    ready = loading.load(tmp_path / "n0")
    assert ready.agreement.committee == 5
    command = ["federation", "committee", str(tmp_path / "n0"), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"committee": names[:5]}
    assert main([*command, "--members", *names[1:6]]) == 0
    assert json.loads(capsys.readouterr().out) == {"committee": names[1:6]}
    assert around("n0") == set(names) - {"n0"}  # a member of the former committee is asked for its vote, too
    assert main([*command, "--members", *names[:2]]) == 2
    assert "a committee of 2, where 5 are needed" in capsys.readouterr().err
    assert main([*command, "--lost"]) == 2
    assert "--lost needs --members" in capsys.readouterr().err


def test_committee_needs_a_coordinated_policy_and_five_to_nine_members(tmp_path):
    config.create(tmp_path / "a", "a", task="concept-shift", policy="random")
    own = loading.LoadedNode(tmp_path / "a", config.load(tmp_path / "a"), None, None)
    tables = agreement.draft("test", own.config, loading.task_of(own), demand={"committee": 7})
    with pytest.raises(ConfigurationError, match="committee = 7 needs a coordinated policy"):
        agreement.check_tables(own.config, tables)
    with pytest.raises(ConfigurationError, match="from 5 to 9"):
        agreement.check_tables(own.config, tables | {"committee": 4}, coordinated=True)
    agreement.check_tables(own.config, tables, coordinated=True)


def test_member_outside_the_committee_begins_with_its_share_of_the_needed_members():
    class Peering:
        round = 0

        def __init__(self):
            fields = {"introduced": False, "problem": "", "round": 0, "stopped": False}
            self.peers = {name: SimpleNamespace(**fields) for name in NAMES[:7]}

        def introduced_peers(self):
            return [peer for peer in self.peers.values() if peer.introduced]

        async def until(self, condition, seconds):
            async with asyncio.timeout(None if seconds == inf else seconds):
                while not condition():
                    await asyncio.sleep(0.1)

    known = [50]

    async def main():
        peering = Peering()
        wait = StartWait(peering, lambda: False, lambda: known[0])
        running = asyncio.create_task(wait.run(100, 5.0))
        for peer in [*peering.peers.values()][:4]:
            peer.introduced = True
        await asyncio.sleep(10)
        assert wait.waiting.needed == 100  # the log has half of the members that are needed
        known[0] = 199
        await asyncio.sleep(10)
        assert wait.waiting.needed != 100  # 100 of 199 members are needed, and so 4 of 7 peers
        running.cancel()

    run(main())


class LostFederation(CommitteeFederation):
    """The same, where all members have links, and each records the assignments of others that it takes.

    Attributes:
        taken: by member: the round, the term and the model of each assignment.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.taken = {name: [] for name in self.names}

    def neighbours(self, name):
        return [other for other in self.names if other != name]

    def make(self, name, **options):
        node = super().make(name, **options)
        client = node.exchange.coordination.client

        def take(peer, opened, message, usual=client.take_assigned):
            pending = client.pending
            usual(peer, opened, message)
            if message.given and pending is not None and pending.answer.done():
                term = Term(message.membership_version, message.term)
                self.taken[name].append((message.round, term, bytes(opened.payload)))

        client.take_assigned = take
        return node

    def leaders(self):
        elections = {name: node.exchange.election for name, node in self.nodes.items()}
        return {name for name, election in elections.items() if election.leads(election.term)}


def test_two_leases_after_lost_members_that_live_give_no_member_two_models_of_a_round():
    """Half of the members hear that the others have stopped for good, while those go on with the former coordinator."""
    here, there = set("abc"), set("defgh")

    async def test(federation):
        federation.start()
        await federation.round("h", 2)
        federation.cable.sides = dict.fromkeys(there, "there")
        await asyncio.sleep(20)
        assert federation.leaders() <= here  # with the majority of the committee
        federation.log.append_committee(ADMISSION, sorted(there), lost=True)
        for name in there:
            federation.nodes[name].exchange.election.change(committee_electorate(federation.log))
        while len(federation.leaders()) < 2:
            await asyncio.sleep(0.1)
        await federation.round("h", 16)
        await federation.round("a", 16)
        assert {len(federation.leaders() & side) for side in (here, there)} == {1}
        federation.cable.sides = {}
        for name in sorted(here):
            await asyncio.sleep(0.3)  # the log reaches them one after the other
            federation.nodes[name].exchange.election.change(committee_electorate(federation.log))
        await federation.done()

    async def main():
        settings = Settings(rounds=30, deadline=20.0)
        federation = LostFederation("abcdefgh", settings, policy=CoordinatedFedAvg, period=1.0)
        async with asyncio.timeout(2000):
            await test(federation)
        return federation

    federation = run(main())
    models = {}
    for name, taken in federation.taken.items():
        rounds, terms = [round for round, *_ in taken], [term for _, term, _ in taken]
        assert len(set(rounds)) == len(rounds), name
        assert terms == sorted(terms), name
        for round, term, model in taken:
            models.setdefault((round, term), set()).add(model)
    assert {len(found) for found in models.values()} == {1}
    both = {round for round, _ in models if len({term for other, term in models if other == round}) > 1}
    assert len(both) > 3  # the two parts have made different steps of these rounds
    for name in "abcdefgh":
        assert set(federation.watch[name].weights[30]) == set("abcdefgh")
