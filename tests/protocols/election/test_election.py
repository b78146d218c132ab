"""Elections: each rule alone, then all rules in a disturbed world (see tests/support/elections.py).

Elections that several rules shape together are told in testdata/election; see test_election_scripts.py.
"""

import os
from collections import Counter

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pfl.protocols.election import FURTHEST, LAST, Ballot, Election, Electorate, Term, Timing
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, FrameSigner
from tests.support.elections import BrokenInvariantError, CommitteeWorld, DisturbedWorld, Schedule

BEAT, LEASE, PATIENCE = 0.4, 1.6, 2.0
SEEDS = int(os.environ.get("P2PFL_ELECTION_SEEDS", "8"))  # of 600 virtual seconds each


def electorate(names="abc", eligible=None, membership_version=1):
    return Electorate(membership_version, frozenset(names), tuple(names if eligible is None else eligible))


def member(me="a", names="abc", eligible=None, ballot=Ballot(), now=0.0, draw=0.0):  # noqa: B008
    return Election(me, electorate(names, eligible), ballot, lambda: draw, now)


def sent(step, kind=object):
    return [(name, message) for name, message in step.send if isinstance(message, kind)]


def grant_of(message, **changes):
    """Return the answer that grants a vote."""
    return msgspec.structs.replace(m.Voted(message.membership_version, message.term, message.trial, True), **changes)


def candidate(names="abc", others="b", **options):
    """Return a candidate: a member whose first wait is over and whose pre-vote `others` grant, and its last step."""
    a = member("a", names, **options)
    step = a.tick(PATIENCE)
    for name in others:
        step = a.receive(name, m.Voted(1, step.send[0][1].term if step.send else 1, True, True), PATIENCE)
    assert a.role == "candidate"
    return a, step


def coordinator(names="abc", others="b", now=PATIENCE):
    """Return an elected coordinator whose first beat `others` have answered."""
    a, _ = candidate(names, others)
    for name in others:
        a.receive(name, m.Voted(1, 1, False, True), now)
    for name in others:
        a.receive(name, m.Following(1, 1, 1), now)
    assert a.leads(now)
    return a


def follower(me="c", of="a", now=10.0, term=1, **options):
    c = member(me, **options)
    c.receive(of, m.Leading(1, term, 1), now)
    assert c.coordinator(now) == of
    return c


# Majorities


def test_single_member_coordinates_after_first_wait():
    a = member("a", "a")
    assert a.next_tick() == PATIENCE
    assert a.tick(PATIENCE - 0.01) == (None, ())
    assert a.problem(1.0) == "no coordinator yet"
    assert a.tick(PATIENCE) == (Ballot(Term(1, 1), "a"), ())
    for now in (2.0, 5.0, 5000.0):
        assert a.leads(now)
        assert a.coordinator(now) == "a"
        assert a.problem(now) == ""


def test_two_members_lose_coordinator_when_one_is_silent():
    a = coordinator("ab")
    assert a.coordinator(2.1) == "a"
    assert a.coordinator(PATIENCE + LEASE) is None
    a.tick(PATIENCE + LEASE)
    assert a.role == "follower"
    assert a.problem(4.0) == "no coordinator: 1 of 2 members reachable, 2 needed"
    for _ in range(50):
        a.tick(a.next_tick())
    assert a.role == "standing"
    assert a.problem(100.0) == "no coordinator: 1 of 2 members reachable, 2 needed"


@pytest.mark.parametrize(("n", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_majority_is_more_than_half_of_all_members(n, needed):
    names = "abcdef"[:n]
    assert electorate(names).majority == needed
    a = member("a", names)
    step = a.tick(PATIENCE)
    for name in names[1:needed]:
        assert a.role == "standing"
        step = a.receive(name, m.Voted(1, 1, True, True), PATIENCE)
    for name in names[1:needed]:
        assert a.role == "candidate"
        assert not sent(step, m.Leading)
        step = a.receive(name, m.Voted(1, 1, False, True), PATIENCE)
    assert a.role == "coordinator"
    for name in names[1:needed]:
        assert not a.leads(PATIENCE)
        a.receive(name, m.Following(1, 1, 1), PATIENCE)
    assert a.leads(PATIENCE)


def test_repeated_grants_of_one_member_count_once():
    a = member("a", "abcde")
    a.tick(PATIENCE)
    for _ in range(5):
        a.receive("b", m.Voted(1, 1, True, True), PATIENCE)
    assert a.role == "standing"


# Pre-vote


def test_isolated_member_does_not_raise_term():
    a = member(names="abcde", draw=0.5)
    for _ in range(200):
        assert a.tick(a.next_tick()).write is None
    assert a.term == Term(1, 0)


@pytest.mark.parametrize("number", [0, 6, 7])
def test_pre_vote_for_term_not_later_is_refused(number):
    c = member("c", ballot=Ballot(Term(1, 7)))
    assert c.receive("a", m.Vote(1, number, True), 3.0) == (None, (("a", m.Voted(1, 7, True, False)),))
    assert sent(c.receive("a", m.Vote(1, 8, True), 3.0)) == [("a", m.Voted(1, 8, True, True))]


def test_follower_of_live_coordinator_grants_no_vote():
    c = follower(now=10.0)
    asked = (m.Vote(1, 2, True), m.Vote(1, 2, False))
    for question in asked:
        told = m.Voted(1, 1, question.trial, False)
        assert c.receive("b", question, 10.0 + PATIENCE - 0.01) == (None, (("b", told),))
    assert c.coordinator(10.0 + PATIENCE - 0.01) == "a"
    assert c.coordinator(10.0 + PATIENCE) is None
    for question in asked:
        assert sent(c.receive("b", question, 10.0 + PATIENCE)) == [("b", grant_of(question))]


def test_coordinator_with_lease_grants_no_vote():
    a = coordinator()
    until = PATIENCE + LEASE
    assert sent(a.receive("b", m.Vote(1, 2, False), until - 0.01)) == [("b", m.Voted(1, 1, False, False))]
    assert a.receive("b", m.Vote(1, 2, False), until).write == Ballot(Term(1, 2), "b")
    assert not a.leads(until)


def test_refused_pre_vote_reports_later_term():
    a = member()
    a.tick(PATIENCE)
    assert a.receive("b", m.Voted(1, 9, True, False), PATIENCE).write == Ballot(Term(1, 9))
    assert a.role == "follower"
    assert sent(a.tick(a.next_tick()))[0] == ("b", m.Vote(1, 10, True))


def test_standing_member_asks_silent_members_again():
    a = member(names="abcd")
    assert [name for name, _ in a.tick(PATIENCE).send] == ["b", "c", "d"]
    a.receive("c", m.Voted(1, 0, True, False), PATIENCE)
    assert a.next_tick() == PATIENCE + BEAT
    assert [name for name, _ in a.tick(PATIENCE + BEAT).send] == ["b", "d"]


# Votes


def test_member_votes_once_per_term():
    c = member("c")
    c.receive("a", m.Vote(1, 1, False), 3.0)
    assert c.receive("b", m.Vote(1, 1, False), 3.0) == (None, (("b", m.Voted(1, 1, False, False)),))
    assert c.receive("a", m.Vote(1, 1, False), 3.0) == (None, (("a", m.Voted(1, 1, False, True)),))
    assert c.receive("b", m.Vote(1, 2, False), 3.0).write == Ballot(Term(1, 2), "b")


def test_candidate_votes_for_no_other_member():
    a, _ = candidate()
    assert sent(a.receive("b", m.Vote(1, 1, False), PATIENCE)) == [("b", m.Voted(1, 1, False, False))]


def test_vote_survives_crash():
    c = member("c", ballot=Ballot(Term(1, 1), "a"), now=100.0)
    assert sent(c.receive("b", m.Vote(1, 1, False), 103.0)) == [("b", m.Voted(1, 1, False, False))]
    assert sent(c.receive("a", m.Vote(1, 1, False), 103.0)) == [("a", m.Voted(1, 1, False, True))]


def test_restarted_member_grants_no_vote_until_promise_expires():
    c = member("c", ballot=Ballot(Term(1, 1), "a"), now=100.0)
    for trial in (True, False):
        assert sent(c.receive("b", m.Vote(1, 2, trial), 101.99)) == [("b", m.Voted(1, 1, trial, False))]
    assert sent(c.receive("b", m.Vote(1, 2, False), 102.0)) == [("b", m.Voted(1, 2, False, True))]


def test_restarted_coordinator_does_not_continue():
    a = member("a", ballot=Ballot(Term(1, 1), "a"), now=100.0)
    a.receive("b", m.Following(1, 1, 0), 100.0)
    a.receive("b", m.Voted(1, 1, False, True), 100.0)
    assert a.coordinator(100.0) is None
    assert sent(a.tick(102.0))[0] == ("b", m.Vote(1, 2, True))


@pytest.mark.parametrize(("trial", "term"), [(True, 1), (False, 1), (False, 2)])
def test_grant_of_another_question_does_not_count(trial, term):
    a, _ = candidate("abcde", "bc")
    while a.role == "candidate":  # then it stands again for term 2
        a.tick(a.next_tick())
    assert (a.role, a.term) == ("standing", Term(1, 1))
    for name in "bcde":
        a.receive(name, m.Voted(1, term, trial, True), 5.0)
    assert (a.role, a.term) == ("standing", Term(1, 1))


def test_loser_of_split_vote_follows_winner_at_once():
    a = follower("a", "b", now=10.0)
    for beat in range(2, 30):
        a.receive("b", m.Leading(1, 1, beat), 10.0)
    a.tick(12.0)
    a.receive("c", m.Voted(1, 2, True, True), 12.0)
    assert (a.role, a.term) == ("candidate", Term(1, 2))
    assert sent(a.receive("c", m.Leading(1, 2, 1), 12.1)) == [("c", m.Following(1, 2, 1))]
    assert a.coordinator(12.1) == "c"


# Terms


def test_message_of_lower_term_is_refused_with_later_term():
    c = member("c", ballot=Ballot(Term(1, 7)))
    assert c.receive("a", m.Vote(1, 6, False), 3.0) == (None, (("a", m.Voted(1, 7, False, False)),))
    assert c.receive("a", m.Leading(1, 6, 5), 3.0) == (None, (("a", m.Following(1, 7, 0)),))
    assert c.coordinator(3.0) is None
    assert not c.obeys("a", Term(1, 6))


def test_later_term_is_written_before_coordinator_is_answered():
    c = member("c", ballot=Ballot(Term(1, 7), "b"))
    assert c.receive("a", m.Leading(1, 9, 1), 1.0) == (Ballot(Term(1, 9)), (("a", m.Following(1, 9, 1)),))


@pytest.mark.parametrize("message", [m.Following(1, 2, 0), m.Leading(1, 2, 1)])
def test_coordinator_steps_down_at_later_term(message):
    a = coordinator()
    assert a.receive("c", message, 2.1).write == Ballot(Term(1, 2))
    assert a.role == "follower"
    assert not a.leads(2.1)


def test_obeys_accepts_only_coordinator_of_own_term():
    c = follower(term=3)
    assert c.obeys("a", Term(1, 3))
    assert not c.obeys("b", Term(1, 3))
    assert not c.obeys("a", Term(1, 2))
    assert not c.obeys("a", Term(1, 4))
    c.receive("b", m.Vote(1, 4, False), 20.0)
    assert not c.obeys("a", Term(1, 3))
    assert coordinator().obeys("a", Term(1, 1))


def test_member_in_last_term_does_not_stand():
    a = member(ballot=Ballot(Term(1, LAST)))
    for _ in range(5):
        assert a.tick(a.next_tick()) == (None, ())
    assert (
        a.problem(99.0) == "no coordinator: the last possible term is used; elections continue when the membership changes"
    )


# Lease


def test_lease_counts_from_newest_beat_answered_by_majority():
    a = coordinator("abcde", "bc")
    a.tick(2.4)  # beat 2
    a.tick(2.8)  # beat 3
    a.receive("b", m.Following(1, 1, 3), 3.0)
    assert a.leads(2.0 + LEASE - 0.01)
    assert not a.leads(2.0 + LEASE)  # b, c and a itself have confirmed beat 1
    a.receive("d", m.Following(1, 1, 2), 3.5)
    assert a.leads(2.4 + LEASE - 0.01)
    assert not a.leads(2.4 + LEASE)
    a.receive("b", m.Following(1, 1, 1), 3.5)  # a late answer changes nothing
    assert a.leads(2.4 + LEASE - 0.01)


def test_coordinator_halted_beyond_lease_does_not_lead():
    a = coordinator()
    assert not a.leads(60.0)
    assert a.coordinator(60.0) is None
    assert a.tick(60.0) == (None, ())
    assert a.role == "follower"


def test_coordinator_without_majority_steps_down_with_reason():
    a = coordinator("abcde", "bc")
    now = PATIENCE
    while a.role == "coordinator":
        now = a.next_tick()
        for name, message in a.tick(now).send:
            if name == "b":
                a.receive("b", m.Following(1, 1, message.beat), now)
    assert PATIENCE + LEASE <= now < PATIENCE + LEASE + BEAT
    assert a.problem(now) == "no coordinator: 2 of 5 members reachable, 3 needed"
    assert a.term == Term(1, 1)


def test_overtaken_beat_does_not_renew_promise():
    c = follower(now=10.0)
    c.receive("a", m.Leading(1, 1, 5), 10.1)
    for beat in (4, 5):
        assert c.receive("a", m.Leading(1, 1, beat), 12.0) == (None, ())
    assert c.coordinator(12.1) is None


def test_member_would_elect_only_the_coordinator_that_it_follows():
    for name, granted in (("a", True), ("b", False)):
        c = follower(now=10.0)
        step = c.receive(name, m.Vote(1, 2, True), 10.0)
        assert step.send == ((name, m.Voted(1, 2 if granted else 1, True, granted)),)


def test_new_coordinator_waits_a_lease_for_the_first_answer():
    a, _ = candidate()
    a.receive("b", m.Voted(1, 1, False, True), PATIENCE)
    for now, role in (
        (PATIENCE + 0.1, "coordinator"),
        (PATIENCE + LEASE - 0.01, "coordinator"),
        (PATIENCE + LEASE, "follower"),
    ):
        a.tick(now)
        assert (a.role, a.leads(now)) == (role, False)


def test_member_that_stood_back_for_another_asks_no_more():
    b = member("b")
    assert sent(b.tick(PATIENCE), m.Vote)
    assert sent(b.receive("a", m.Vote(1, 1, True), PATIENCE), m.Voted)
    assert b.role == "follower"
    assert b.tick(PATIENCE + BEAT) == (None, ())


def test_lease_may_be_two_beats():
    assert Timing(beat=0.8, lease=1.6, patience=2.0).lease == 1.6


def test_timing_rejects_invalid_combination():
    for wrong in ({"lease": 2.0}, {"lease": 2.5}, {"beat": 0}, {"beat": 1.0}, {"patience": float("nan")}):
        with pytest.raises(ValueError, match="at least two beats"):
            Timing(**wrong)


# Eligibility


def test_ineligible_member_votes_but_never_stands():
    c = member("c", eligible="ab")
    for _ in range(20):
        assert c.tick(c.next_tick()) == (None, ())
    now = c.next_tick()
    assert sent(c.receive("a", m.Vote(1, 1, False), now)) == [("a", m.Voted(1, 1, False, True))]


@pytest.mark.parametrize("message", [m.Vote(1, 5, True), m.Vote(1, 5, False), m.Leading(1, 5, 1)])
def test_candidacy_of_ineligible_member_is_rejected(message):
    b = member("b", eligible="ab")
    with pytest.raises(ProtocolError, match="election: c cannot be elected"):
        b.receive("c", message, 3.0)
    assert b.ballot == Ballot(Term(1, 0))


def test_electorate_without_eligible_member_is_reported():
    assert member(eligible="").problem(9.0) == "no coordinator: no member can be elected"


def test_preferred_of_two_standing_members_goes_first():
    a, b = member("a", eligible="ba"), member("b", eligible="ba")
    a.tick(PATIENCE)
    b.tick(PATIENCE)
    assert sent(b.receive("a", m.Vote(1, 1, True), 2.1)) == [("a", m.Voted(1, 0, True, False))]
    assert b.role == "standing"
    assert sent(a.receive("b", m.Vote(1, 1, True), 2.1)) == [("b", m.Voted(1, 1, True, True))]
    assert a.role == "follower"
    assert a.next_tick() > 2.1 + BEAT


def test_preferred_member_not_standing_supports_another():
    b = member("b", eligible="ba")
    assert sent(b.receive("a", m.Vote(1, 1, True), 2.0)) == [("a", m.Voted(1, 1, True, True))]


def test_coordinator_is_not_deposed_for_preferred_member():
    c = follower("c", "b", eligible="ab")
    assert sent(c.receive("a", m.Vote(1, 2, True), 10.5)) == [("a", m.Voted(1, 1, True, False))]
    assert c.coordinator(10.5) == "b"


# Malicious members and strangers


def test_messages_of_strangers_and_self_are_ignored():
    c = member("c")
    for name in ("x", "c"):
        assert c.receive(name, m.Vote(1, 1, False), 3.0) == (None, ())
        assert c.receive(name, m.Leading(1, 1, 1), 3.0) == (None, ())


def test_second_coordinator_in_term_is_rejected():
    c = follower(of="a")
    with pytest.raises(ProtocolError, match=r"b and a both coordinate term 1\.1") as refused:
        c.receive("b", m.Leading(1, 1, 1), 10.1)
    assert refused.value.cause == "election"
    assert c.coordinator(10.1) == "a"
    with pytest.raises(ProtocolError, match="both coordinate"):
        coordinator().receive("b", m.Leading(1, 1, 1), 2.1)


def test_answer_to_unsent_beat_is_rejected():
    a = coordinator()
    with pytest.raises(ProtocolError, match="was not sent"):
        a.receive("b", m.Following(1, 1, 2), 2.1)


# Changes of membership


def test_new_membership_version_starts_term_without_votes():
    c = member("c", ballot=Ballot(Term(1, 7), "a"))
    step = c.change(electorate("abcd", membership_version=2), 3.0)
    assert step == (Ballot(Term(2, 0)), ())
    assert Term(2, 0) > Term(1, LAST)
    assert c.receive("d", m.Vote(2, 1, False), 3.0).write == Ballot(Term(2, 1), "d")
    assert c.receive("a", m.Vote(1, 9, False), 3.0) == (None, ())  # of an older membership version
    assert c.receive("a", m.Vote(3, 1, False), 3.0) == (None, ())  # of an unknown membership version
    assert c.change(electorate("abc", membership_version=1), 3.0) == (None, ())
    assert "d" in c.electorate.members


def test_coordinator_continues_after_member_is_added():
    a, c = coordinator(), follower("c", "a", now=2.0)
    wider = electorate("abcd", membership_version=2)
    step = a.change(wider, 2.2)
    assert step.write == Ballot(Term(2, 1), "a")
    assert not a.leads(2.2)
    c.change(wider, 2.2)
    assert sent(c.receive("b", m.Vote(2, 1, False), 2.3)) == [("b", m.Voted(2, 0, False, False))]  # its promise holds
    question = dict(step.send)["c"]
    assert sent(c.receive("a", question, 2.3)) == [("a", m.Voted(2, 1, False, True))]
    for name in "cd":
        a.receive(name, grant_of(question), 2.4)
    for name in "cd":
        a.receive(name, m.Following(2, 1, 1), 2.4)
    assert a.leads(2.5)


@pytest.mark.parametrize(("names", "eligible"), [("bcd", "bcd"), ("abc", "bc")])
def test_coordinator_that_loses_eligibility_stops_at_once(names, eligible):
    a = coordinator()
    a.change(electorate(names, eligible, membership_version=2), 2.2)
    assert not a.leads(2.2)
    for _ in range(20):
        assert a.tick(a.next_tick()) == (None, ())
    if "a" not in names:
        assert a.problem(9.0) == "no coordinator: this node has no vote"


def test_votes_of_revoked_members_do_not_count():
    a = coordinator("abcde", "bc")
    step = a.change(electorate("abde", membership_version=2), 2.2)
    a.receive("c", m.Voted(2, 1, False, True), 2.3)
    a.receive("b", m.Voted(2, 1, False, True), 2.3)
    assert a.role == "candidate"
    a.receive("d", grant_of(step.send[0][1]), 2.3)
    assert a.role == "coordinator"


def test_last_remaining_member_coordinates_alone():
    a = coordinator("ab")
    assert a.change(electorate("a", membership_version=2), 2.2).write == Ballot(Term(2, 1), "a")
    assert a.leads(2.2)


def test_member_with_outdated_log_gives_no_vote():
    a = member("a", "a", ballot=Ballot(Term(2, 7), "b"))
    for _ in range(5):
        assert a.tick(a.next_tick()) == (None, ())
    assert a.change(electorate("ab", membership_version=2), 20.0) == (None, ())
    assert a.ballot == Ballot(Term(2, 7), "b")
    assert sent(a.receive("b", m.Vote(2, 7, False), 20.0)) == [("b", m.Voted(2, 7, False, True))]


# On the wire


@pytest.mark.parametrize(
    "message",
    [
        m.Vote(LAST, LAST, False),
        m.Voted(LAST, LAST, False, True),
        m.Leading(LAST, LAST, LAST),
        m.Following(LAST, LAST, LAST),
    ],
)
def test_election_messages_fit_into_header_and_are_limited(message):
    signer = FrameSigner(Identity.from_seed(b"a" * 32), b"f" * 16, b"l" * 16, LAST)
    assert sum(map(len, signer.seal(message, b"k" * 32))) == OVERHEAD
    decode = msgspec.msgpack.Decoder(m.ElectionMessage).decode
    encoded = msgspec.msgpack.encode(message)
    assert decode(encoded) == message
    fields = msgspec.msgpack.decode(encoded)
    for position, wrong in ((1, -1), (1, 2**32), (2, -1), (2, 2**32), (3, "x"), (0, "elect")):
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode([*fields[:position], wrong, *fields[position + 1 :]]))
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode([*fields, 0]))


# In a disturbed world


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_elections_in_disturbed_world_keep_invariants(n):
    for seed in range(3):
        DisturbedWorld(seed, n).run(600)


@pytest.mark.slow
def test_disturbed_world_is_reproducible_from_seed():
    first, again = DisturbedWorld(7).run(300), DisturbedWorld(7).run(300)
    assert first.figures == again.figures
    assert first.coordinators == again.coordinators


@pytest.mark.parametrize("kind", [m.Vote, m.Voted, m.Leading, m.Following])
def test_election_rejects_far_term_of_one_member(kind):
    more = {m.Vote: (False,), m.Voted: (False, False), m.Leading: (1,), m.Following: (0,)}[kind]
    a = member()
    with pytest.raises(ProtocolError, match="b claims term 5000, far ahead of 0") as refused:
        a.receive("b", kind(1, 5000, *more), 1.0)
    assert refused.value.cause == "election"
    assert a.term == Term(1, 0)
    a.receive("b", kind(1, FURTHEST, *more), 1.0)


def test_election_accepts_far_term_of_majority():
    a = member(names="abcde")
    for name, number in (("b", 9000), ("c", 8000), ("c", 8100)):
        with pytest.raises(ProtocolError):
            a.receive(name, m.Following(1, number, 0), 1.0)
    with pytest.raises(ProtocolError):
        a.receive("e", m.Following(1, 100_000, 0), 1.0)  # three of five claims, but this one is still further
    assert a.term == Term(1, 8100)
    a.receive("d", m.Leading(1, 8101, 1), 1.0)
    assert a.coordinator(1.0) == "d"


def test_election_ignores_unsolicited_votes():
    a = coordinator()
    a.receive("c", m.Voted(1, 2, False, False), PATIENCE)
    assert a.leads(PATIENCE)


@pytest.mark.slow
def test_elections_in_many_disturbed_worlds_keep_invariants():
    figures, slowest = Counter(), 0.0
    for seed in range(SEEDS):
        world = DisturbedWorld(seed).run(600)
        figures += world.figures
        slowest = max(slowest, world.slowest_heal)
    print(dict(figures), f"slowest heal {slowest:.1f} s")
    assert figures["heals"] == 20 * SEEDS
    for what in ("elections", "partitions", "minorities", "crashes", "freezes", "acts", "refused"):
        assert figures[what] > SEEDS, what


@pytest.mark.slow
def test_elections_by_changing_committees_keep_invariants():
    figures, slowest = Counter(), 0.0
    for seed in range(SEEDS):
        world = CommitteeWorld(seed).run(300)
        figures += world.figures
        slowest = max(slowest, world.slowest_heal)
    print(dict(figures), f"slowest heal {slowest:.1f} s")
    assert figures["heals"] == 10 * SEEDS
    for what in ("committees", "elections", "partitions", "minorities", "crashes", "freezes", "acts", "changes"):
        assert figures[what] > SEEDS, what


NAMES = [f"n{k}" for k in range(6)]
SUBSETS = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)
MOVES = st.one_of(
    st.tuples(st.just("meet"), SUBSETS, st.sampled_from([0.1, 0.5, 2.1, 4.1])),
    st.tuples(st.just("learn"), SUBSETS, st.integers(1, 4)),
    st.tuples(st.just("restart"), SUBSETS, st.just(0)),
)


@given(
    st.lists(st.sets(st.sampled_from(NAMES), min_size=3, max_size=5), min_size=4, max_size=4), st.lists(MOVES, max_size=30)
)
@example([{"n0", "n1", "n2"}, {"n0", "n3", "n4"}, {"n3", "n4", "n5"}, {"n0", "n1", "n2"}], [])
def test_no_schedule_lets_two_lead(committees, moves):
    Schedule(committees).carry_out(moves)


# Planted bugs


class NeedsNoFormerCommittee(Election):
    def _earlier(self):
        return []


class NeedsOnlyTheLastCommittee(Election):
    def _earlier(self):
        return super()._earlier()[-1:]


@pytest.mark.parametrize("planted", [NeedsNoFormerCommittee, NeedsOnlyTheLastCommittee])
def test_schedule_finds_two_leases_without_votes_of_all_former_committees(planted):
    committees = [{"n0", "n1", "n2"}, {"n0", "n3", "n4"}, {"n3", "n4", "n5"}, {"n3", "n4", "n5"}]
    new, old = ["n3", "n4", "n5"], ["n0", "n1", "n2"]
    moves = [("learn", new, 3), *(move for _ in range(12) for move in (("meet", old, 0.5), ("meet", new, 0.5)))]
    Schedule(committees).carry_out(moves)
    with pytest.raises(BrokenInvariantError, match="overlap"):
        Schedule(committees, planted).carry_out(moves)


class HalfIsMajority(Electorate, frozen=True):
    @property
    def majority(self):
        return len(self.members) // 2


class IgnoresTerms(Election):
    def _stale(self, term):
        return False


class ObeysAnyTerm(Election):
    def obeys(self, sender, term):
        return sender == self._coordinator


class TriesStaleTerms(Election):
    def _would_grant(self, sender, term, now):
        return not self._has_promised(sender, now)


class VotesAgain(Election):
    def _grant(self, sender, term, now):
        if term == self.term and not self._has_promised(sender, now):
            self.ballot = Ballot(term, sender)
        return super()._grant(sender, term, now)


class BreaksPromises(Election):
    def _has_promised(self, candidate, now):
        return False


class CountsOldGrants(Election):
    def _on_vote(self, sender, term, answer, now):
        asked_for = Term(self.term.membership_version, self.term.number + answer.trial)
        super()._on_vote(sender, asked_for if answer.granted else term, answer, now)


class LeadsUnasked(Election):
    def _may_stand(self, now):
        return now >= self._promised_until and self.me in self.electorate.members


class LeadsTooLong(Election):
    def _lease_end(self, now):
        return super()._lease_end(now) + PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize("planted", [NeedsNoFormerCommittee, BreaksPromises])
def test_committee_world_finds_planted_bug(planted):
    with pytest.raises(BrokenInvariantError, match=r"overlap|minority"):
        for seed in range(200):
            CommitteeWorld(seed, election=planted).run(300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"keep": lambda ballot: Ballot(ballot.term)}, "changes its vote"),
        ({"electorate": HalfIsMajority}, "with . votes of"),
        ({"election": IgnoresTerms}, "over|both coordinate|changes its vote"),
        ({"election": ObeysAnyTerm}, "acts on term"),
        ({"election": TriesStaleTerms}, "would have a vote given"),
        ({"election": VotesAgain}, "changes its vote|two coordinators"),
        ({"election": BreaksPromises}, "overlap"),
        ({"election": LeadsTooLong}, "overlap|minority"),
        ({"election": CountsOldGrants}, "with . votes of"),
        ({"election": LeadsUnasked}, "cannot be elected"),
    ],
    ids=[
        *("vote not persisted", "quorum off by one", "term not checked", "any term obeyed", "stale pre-vote", "two votes"),
        *("promises broken", "lease too long", "old grants counted", "ineligible"),
    ],
)
def test_invariant_checks_find_planted_bug(planted, found):
    with pytest.raises((BrokenInvariantError, ProtocolError), match=found):
        for seed in range(200):
            DisturbedWorld(seed, **planted).run(600)
