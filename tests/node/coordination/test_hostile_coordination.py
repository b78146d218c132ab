"""Member that breaks the rules of elections and coordinated rounds: its messages are dropped and counted."""

import asyncio

import numpy as np
import pytest

from p2pfl.node.coordination.coordinator import AT_ONCE, Coordinator, PendingSubmission, StepResult
from p2pfl.policies.cfl import Cfl
from p2pfl.policies.clusters import MOST_SPLITS
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.fedpref import FedPref
from p2pfl.policy import Submission
from p2pfl.protocols.election import LAST, Electorate, Term
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Payload
from p2pfl.protocols.wire.payload import EXTRAS_LIMIT, encode_assignment
from p2pfl.sim.simulation import clock
from tests.support.council import DEADLINE, HONEST, LAYOUT, NAMES, SAMPLES, SIZE, council, own

NOT_FINITE = np.full(SIZE, np.nan)
GOOD = np.zeros(SIZE)


def mean(round, names=HONEST):
    return np.average([own(name, round) for name in names], axis=0, weights=[SAMPLES[name] for name in names])


def assert_joint(here, round, names=HONEST):
    """Check that every honest node was assigned the mean of the honest nodes' models of a round."""
    for name in HONEST:
        assignment = here.assigned[name][round]
        assert assignment is not None, (name, round)
        assert set(assignment.weights) == set(names)
        np.testing.assert_allclose(assignment.params, mean(round, names), rtol=1e-6)


def attack(policy, *attacks, cause="", times=None, **options):
    """Run a round without attack, then one round per attack; check that the honest nodes' steps are as without mallory."""

    async def main():
        async with council(policy, **options) as (here, mallory):
            leader, term = here.leader(), here.term
            await here.round(1)  # mallory is silent, so later rounds do not wait for it
            for round, attack in enumerate(attacks, 2):
                attack(here, mallory, round)
                began = asyncio.get_running_loop().time()
                await here.round(round)
                assert_joint(here, round)
                assert asyncio.get_running_loop().time() - began < DEADLINE
            assert (here.leader(), here.term) == (leader, term)
            if cause:
                assert here.rejected(cause) >= len(attacks)

    clock.run(main())


def test_previous_extras_that_do_not_fit_are_left_out():
    """A coordinator can assign extras that with a node's own are too large to submit."""

    async def main():
        async with council(CoordinatedFedAvg()) as (here, _):
            await here.round(1)  # mallory is silent
            await here.round(2, previous={"junk": np.zeros(EXTRAS_LIMIT // 8)})
            assert_joint(here, 2)

    clock.run(main())


def test_coordinator_without_lease_answers_nobody():
    """A process that was halted for longer than its lease finishes a step before it notices that it leads no more."""

    async def main():
        async with council(CoordinatedFedAvg()) as (here, _):
            leader = here.nodes[here.leader()]
            other = here.nodes[next(name for name in HONEST if name != here.leader())]
            await here.round(1)  # mallory is silent
            sent, usual, lease = [], leader.peering.send, leader.election.leads

            def send(peer, message, *payload):
                sent.append(message)
                usual(peer, message, *payload)

            leader.peering.send = send
            leader.election.leads = lambda term: False
            waiting = asyncio.create_task(here.round(2))
            await asyncio.sleep(DEADLINE / 2)
            assert not any(isinstance(message, m.Assigned) for message in sent)
            leader.election.leads = lease  # it was in time after all
            await waiting
            assert_joint(here, 2)
            leader.election.leads = lambda term: False
            sent.clear()
            repeated = [Submission(n.peering.name, 2, own("bob", 2), SAMPLES[n.peering.name]) for n in (leader, other)]
            for node, submission in zip((leader, other), repeated, strict=True):
                assert await node.submit(submission) is None
            assert not any(isinstance(message, m.Assigned) for message in sent)

    clock.run(main())


# Submissions


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"params": NOT_FINITE}, "not finite"),
        ({"start": np.full(SIZE, -np.inf)}, "not finite"),
        ({"params": np.zeros(SIZE - 1)}, "wrong length"),
        ({"params": np.zeros(SIZE + 1)}, "wrong length"),
        ({"rest": b"\xc1"}, "wrong length"),
        ({"rest": bytes((1 << 20) + 1)}, "wrong length"),
        ({"rest": b"\x92\x91\x94\xa1a\xa2f4\x91\x04\xc4\x00\x90"}, "malformed"),
        ({"params": np.full(SIZE, 3e38)}, "too large"),
        ({"start": np.full(SIZE, 3e38)}, "too large"),
        ({"n_samples": 2**32 - 1}, "differs"),
        ({"term": 0}, "lower term"),
        ({"term": LAST}, "not the coordinator"),
        ({"membership_version": 2}, "not the coordinator"),
    ],
)
def test_coordinator_drops_invalid_submission(said, cause):
    def submit(here, mallory, round):
        mallory.submit(round, **said)

    attack(CoordinatedFedAvg(), submit, submit, cause=cause)


CLUSTERS = [
    {"cluster": np.array([0])},
    {"cluster": np.array([2]), "figures": np.zeros(4)},
    {"cluster": np.zeros((1, 1), np.int64), "figures": np.zeros(4)},
    {"cluster": np.zeros(100_000, np.int64), "figures": np.zeros(4)},
    {"cluster": np.array([0]), "figures": np.full(4, np.nan)},
    {"cluster": np.array([0]), "figures": np.array([1e308, 0, 0, 0])},
    {"cluster": np.array([0]), "figures": np.zeros(0)},
]


@pytest.mark.parametrize("previous", CLUSTERS)
def test_policy_survives_forged_previous_assignment(previous):
    async def main():
        async with council(FedPref()) as (here, mallory):
            for round in (1, 2):
                mallory.submit(round, start=own("mallory", 0), previous=previous)
                await here.round(round)
                for name in HONEST:
                    assert set(here.assigned[name][round].weights) <= set(HONEST)
            assert here.rejected("submission") == 2

    clock.run(main())


@pytest.mark.parametrize("policy", [FedPref(epsilon=1e9, patience=1), Cfl(epsilon_1=1e9, epsilon_2=0.0)])
def test_claimed_deepest_cluster_is_never_split_further(policy):
    """The claim pulls other members into that cluster.

    If the cluster were split again, their next submissions would break the rules. That includes the submission of the
    coordinator itself, whose node would end.
    """
    deepest = {"cluster": np.zeros(MOST_SPLITS, np.int64), "figures": np.array([0.0, 100.0, 0.0, 0.0])}
    held = {name: {} for name in HONEST} | {"mallory": deepest}
    for round in (1, 2):
        there = [Submission(n, round, own(n, round), 10, {}, held[n], own(n, 0)) for n in NAMES]
        assignments, _ = policy.step(there, {}, LAYOUT)  # each time as in a new term
        held = {name: assignment.extras for name, assignment in assignments.items()}
    assert all(said["cluster"].size <= MOST_SPLITS for said in held.values())


def test_coordinator_drops_submission_without_required_model():
    async def main():
        async with council(FedPref()) as (here, mallory):
            mallory.submit(1)
            await here.round(1)
            assert set(here.assigned["alice"][1].weights) <= set(HONEST)
            assert here.rejected("submission") == 1

    clock.run(main())


def test_submissions_for_future_rounds_move_no_participant():
    def far(here, mallory, round):
        mallory.submit(2**32 - 1)
        mallory.submit(round + 5)

    attack(CoordinatedFedAvg(), far, far, far)


def test_submissions_for_many_rounds_take_bounded_memory():
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            for round in range(1, 100):
                mallory.submit(round)
            await asyncio.sleep(0.01)
            coordinator = here.nodes[here.leader()].coordination.coordinator
            assert coordinator.waiting == AT_ONCE
            await here.round(1)
            assert_joint(here, 1)

    clock.run(main())


class FakeBackend:
    """Backend of a coordinator with participants a, b and c; it completes each step immediately."""

    def __init__(self):
        self.timers, self.here = [], 0
        self.answers = {}

    def later(self, seconds, callback):
        self.timers.append(callback)

    def known_participants(self):
        return {"a", "b", "c"}

    def credible_round(self):
        return self.here

    def coordinates(self, term):
        return True

    leads = coordinates

    def compute(self, submissions, state, then):
        there = sorted(s.sender for s in submissions)
        then(StepResult(dict.fromkeys(there, there), {}, {}))

    def submit(self, coordinator, sender, round):
        entry = Submission(sender, round, GOOD, 1)
        coordinator.take(
            Term(1, 1), PendingSubmission(entry, lambda answer: self.answers.__setitem__((sender, round), answer))
        )


def test_round_opened_early_gets_full_deadline_later():
    backend = FakeBackend()
    coordinator = Coordinator(backend, DEADLINE)
    for round in (1, 5, 6):
        backend.submit(coordinator, "c", round)
    assert backend.answers == {("c", 1): None}
    (early,) = backend.timers
    backend.submit(coordinator, "a", 1)
    early()
    assert ("a", 1) not in backend.answers  # b may still come
    early, whole = backend.timers
    whole()
    assert backend.answers["a", 1] == ["a"]
    assert coordinator.away == {"b"}


def test_participant_far_ahead_waits_for_others():
    backend = FakeBackend()
    coordinator = Coordinator(backend, DEADLINE)
    backend.submit(coordinator, "c", 9)
    for backend.here in range(8):
        for name in "ab":
            backend.submit(coordinator, name, backend.here + 1)
        assert backend.answers["a", backend.here + 1] == ["a", "b"]
    assert ("c", 9) not in backend.answers
    backend.here = 8
    for name in "ab":
        backend.submit(coordinator, name, 9)
    assert backend.answers["c", 9] == ["a", "b", "c"]


@pytest.mark.slow
def test_repeated_submissions_count_once():
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            for _ in range(100):
                mallory.submit(1)
            await here.round(1)
            assert_joint(here, 1, NAMES)

    clock.run(main())


def test_submission_sent_again_is_rejected_as_replay():
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            frame = mallory.submit(1)
            for _ in range(3):
                mallory.links[here.leader()].send([frame])
            await here.round(1)
            assert here.rejected("replay") == 3
            mallory.links[here.leader()].send([frame])
            await here.round(2)
            assert_joint(here, 2)

    clock.run(main())


# Assignments


def assignment(params, weights=None, extras=None):
    return Payload.of(np.asarray(params, "<f4").tobytes(), encode_assignment(weights or {"mallory": 1.0}, extras or {}))


@pytest.mark.parametrize(
    ("term", "cause"), [({}, "not asked for"), ({"term": 0}, "lower term"), ({"term": LAST}, "not asked for")]
)
def test_assignment_of_non_coordinator_is_rejected(term, cause):
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            now = here.term
            number = {"membership_version": now.membership_version, "term": now.number} | term

            def guess():
                for name in HONEST:
                    if (pending := here.nodes[name].coordination.client.pending) is not None:
                        said = m.Assigned(pending.number, 1, given=True, **number)
                        mallory.send(name, said, assignment(np.zeros(SIZE)))

            asyncio.get_running_loop().call_later(1.0, guess)
            await here.round(1)  # the coordinator waits for mallory
            assert_joint(here, 1)
            assert here.rejected(cause) == 4

    clock.run(main())


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (assignment(NOT_FINITE), "not finite"),
        (assignment(np.zeros(SIZE - 1)), "wrong length"),
        (assignment(np.full(SIZE, 3e38)), "too large"),
        (assignment(GOOD, {"nobody": 1.0}), "differs"),
        (assignment(GOOD, {f"member-{k}": 1.0 for k in range(10_000)}), "differs"),
        (Payload.of(np.zeros(SIZE, "<f4").tobytes()), "wrong length"),
        (Payload.of(np.zeros(SIZE, "<f4").tobytes(), b"\x92\xdf\xff\xff\xff\xff"), "wrong length"),
    ],
)
def test_invalid_assignment_costs_only_its_round(said, cause):
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            number = here.term.number + 1
            mallory.tell_all(m.Leading(1, number, 1))
            await here.until(lambda: here.leader() == "mallory")

            def assign():
                for name in HONEST:
                    mallory.send(
                        name, m.Assigned(here.nodes[name].coordination.client.pending.number, 1, 1, number, True), said
                    )

            asyncio.get_running_loop().call_later(0.1, assign)
            await here.round(1)
            assert set(here.assigned["alice"].values()) == {None}
            assert here.rejected(cause) == len(HONEST)
            await here.until(lambda: here.leader() in HONEST)  # mallory's lease has expired
            await here.round(2)
            assert_joint(here, 2)

    clock.run(main())


# Elections


def test_ineligible_member_cannot_lead_or_stand():
    def lead(here, mallory, round):
        for term in (here.term.number, here.term.number + 1, LAST):
            mallory.tell_all(m.Leading(1, term, 10**6))
            mallory.tell_all(m.Vote(1, term, False))
            mallory.tell_all(m.Vote(1, term, True))

    attack(CoordinatedFedAvg(), lead, lead, cause="election", eligible=HONEST)


def test_second_coordinator_of_term_is_rejected():
    def lead(here, mallory, round):
        for beat in (1, 2**32 - 1):
            mallory.tell_all(m.Leading(1, here.term.number, beat))

    attack(CoordinatedFedAvg(), lead, lead, cause="election")


def test_answer_to_unsent_beat_does_not_prolong_lease():
    def follow(here, mallory, round):
        mallory.send(here.leader(), m.Following(1, here.term.number, 2**32 - 1))

    attack(CoordinatedFedAvg(), follow, follow, cause="election")


def test_votes_for_last_term_do_not_depose_coordinator():
    def stand(here, mallory, round):
        for trial in (True, False):
            mallory.tell_all(m.Vote(1, LAST, trial))
        mallory.tell_all(m.Voted(1, here.term.number, False, True))
        mallory.tell_all(m.Voted(1, LAST, True, True))
        for membership_version in (0, 2, LAST):
            mallory.tell_all(m.Leading(membership_version, LAST, 1))
            mallory.tell_all(m.Following(membership_version, LAST, 0))

    attack(CoordinatedFedAvg(), stand, stand)


@pytest.mark.parametrize("number", [LAST, 2000])
def test_claimed_far_term_is_rejected_by_all(number):
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            await here.until(lambda: here.leader() in HONEST)
            coordinator = here.leader()
            for message in (m.Leading(1, number, 1), m.Voted(1, number, False, False), m.Following(1, number, 0)):
                mallory.tell_all(message)
            await asyncio.sleep(20)
            assert here.leader() == coordinator
            await here.round(1)
            assert_joint(here, 1)
            for node in here.nodes.values():
                assert node.rejected["election"] == 3

    clock.run(main())


@pytest.mark.slow
def test_node_with_damaged_vote_is_silent_and_others_elect():
    async def main():
        async with council(CoordinatedFedAvg(), damaged=("dave",)) as (here, _):
            *others, dave = (node.election for node in here.nodes.values())
            await here.until(lambda: len({node.coordinator for node in others} - {None}) == 1)
            await asyncio.sleep(60)
            assert {node.coordinator for node in others} < set(HONEST)
            assert max(node.term for node in others) < Term(1, 10)
            assert (dave.coordinator, "vote was lost" in dave.seen.problem) == (None, True)
            for election in (*others, dave):
                election.change(Electorate(2, frozenset(NAMES), NAMES))
            await here.until(lambda: here.leader() is not None)

    clock.run(main())
