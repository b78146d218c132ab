"""Secure sums between nodes: models as without them, and nothing but sums with the threshold, whoever is lost when."""

import asyncio
import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.secure_rounds import OpenedRounds, SavedOpenedRounds, SecureRounds, SecureSums
from p2pfl.node.exchange.message_exchange import payload_limit
from p2pfl.node.settings import Settings, check_policy
from p2pfl.node.status.snapshot import exchange_state
from p2pfl.policies import POLICIES, make_policy
from p2pfl.policies.apfl import Apfl
from p2pfl.policies.coordinated import CoordinatedFedAvg, CoordinatedFedProx
from p2pfl.policies.ditto import Ditto
from p2pfl.policies.fedpref import FedPref
from p2pfl.policies.fedrep import FedRep
from p2pfl.policies.per_fedavg import PerFedAvg
from p2pfl.policy import Submission, needs_only_mean
from p2pfl.protocols import secure_sums
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.secure_sums import SumContext, SumMember
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, FrameVerifier, Payload
from p2pfl.protocols.wire.payload import encode_assignment
from p2pfl.sim.simulation.clock import run
from tests.support.council import FEDERATION, HONEST, KEYS, SAMPLES, SIZE, council, own
from tests.support.council import NAMES as NAMES_OF_COUNCIL
from tests.support.depth import many
from tests.support.federation import LATENCY, Watch, play
from tests.support.logs import log_to

NAMES = ("alice", "bob", "carol", "dave", "erin")
ROUNDS = 4


def settings(**changes):
    return Settings(**{"rounds": ROUNDS, "deadline": 16.0, "secure_sums": True} | changes)


async def to_the_end(federation):
    federation.start()
    await federation.done()


def models(federation):
    return {name: node.me.params for name, node in federation.nodes.items()}


@pytest.mark.parametrize("policy", [CoordinatedFedAvg, Ditto])
def test_models_equal_those_without_secure_sums(policy):
    secure, plain = (play(to_the_end, NAMES, settings(secure_sums=on), policy=policy) for on in (True, False))
    for name in NAMES:
        assert secure.watch[name].weights == plain.watch[name].weights
        assert len(secure.watch[name].weights[ROUNDS]) == len(NAMES)
        np.testing.assert_allclose(models(secure)[name], models(plain)[name], rtol=0, atol=2e-6)
    assert not any(node.exchange.rejected for node in secure.nodes.values())


def test_coordinator_receives_no_model():
    """Every frame of a model's size is twice as large as a model, and no two rounds or members show the same bytes."""
    federation = play(to_the_end, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    for node in federation.nodes.values():
        sent = node.exchange.traffic.as_dict()["sent"]
        assert sent["update"] == 0
        assert sent["submit"] == 0 or sent["submit"] > ROUNDS * 8 * node.me.layout.size


def lose(federation, name, arrives, round):
    """Cut off a member when its masked model of a round is under way, before or after it arrives."""
    cable, size = federation.cable, OVERHEAD + 8 * federation.tasks[name].layout.shared.size
    usual, sent = cable.arrival, []

    def arrival(source, target, bytes, now):
        if (source, bytes) != (name, size):
            return usual(source, target, bytes, now)
        sent.append(now)
        if len(sent) != round:
            return usual(source, target, bytes, now)
        cable.cut.add(name)
        return now + LATENCY if arrives else None

    cable.arrival = arrival


@pytest.mark.parametrize("arrives", [False, True])
def test_member_lost_with_its_masked_model(arrives):
    """Before its masked model arrives it is not in the sum; afterwards it is, without its help."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        (coordinator,) = {node.exchange.election.coordinator for node in federation.nodes.values()}
        lost.append(next(name for name in NAMES if name != coordinator))
        lose(federation, lost[0], arrives, 1)
        await federation.done(*(name for name in NAMES if name not in lost))
        federation.running[lost[0]].cancel()

    lost = []
    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    others = set(NAMES) - set(lost)
    for name in others:
        weights = federation.watch[name].weights
        assert weights[1].keys() == set(NAMES)
        assert weights[2].keys() == (set(NAMES) if arrives else others)
        assert weights[ROUNDS].keys() == others


def test_sum_below_threshold_is_not_opened():
    """With two of five members gone, three are fewer than the four that are needed: all keep their models."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        for name in ("dave", "erin"):
            federation.cable.cut.add(name)
        await federation.done("alice", "bob", "carol")
        for name in ("dave", "erin"):
            federation.running[name].cancel()

    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    for name in ("alice", "bob", "carol"):
        assert federation.watch[name].weights[ROUNDS] == {name: 1.0}
        sums = exchange_state(federation.nodes[name].exchange)["secure_sums"]
        assert sums["assigned"] >= 1
        assert sums["assigned"] + sums["missed"] == ROUNDS
    problems = [
        exchange_state(federation.nodes[name].exchange)["secure_sums"]["problem"] for name in ("alice", "bob", "carol")
    ]
    assert f"round {ROUNDS}: the secure sum is not opened: fewer than 4 members have come to the step 'roster'" in problems


def test_lower_threshold_opens_with_fewer():
    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        for name in ("e", "f"):
            federation.cable.cut.add(name)
        await federation.done("alice", "b", "c", "d")
        for name in ("e", "f"):
            federation.running[name].cancel()

    federation = play(test, ["alice", *"bcdef"], settings(secure_threshold=4), policy=CoordinatedFedAvg, period=1.0)
    assert federation.watch["alice"].weights[ROUNDS].keys() == {"alice", "b", "c", "d"}


def test_member_that_has_opened_does_not_submit_again():
    """A coordinator that is lost after it has opened the sum: its successor gets nothing for the same models."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        (lost,) = {node.exchange.election.coordinator for node in federation.nodes.values()}
        who.append(lost)
        cable, usual = federation.cable, federation.cable.arrival
        weights = dict.fromkeys(NAMES, 0.2)
        size = OVERHEAD + 4 * federation.tasks[lost].layout.shared.size + len(encode_assignment(weights, {}))

        def arrival(source, target, bytes, now):
            if (source, bytes) == (lost, size):  # the first assignment of round 2
                cable.cut.add(lost)
            return usual(source, target, bytes, now)

        cable.arrival = arrival
        await federation.done(*(name for name in NAMES if name != lost))
        federation.running[lost].cancel()

    who = []
    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    others = set(NAMES) - set(who)
    for name in others:
        weights = federation.watch[name].weights
        assert weights[1].keys() == set(NAMES)
        assert weights[2] == {name: 1.0}
        assert weights[ROUNDS].keys() == others


def test_restarted_node_does_not_submit_where_it_has_opened(tmp_path):
    """The round is in the facts of its folder, and only later rounds are submitted."""
    SavedOpenedRounds(tmp_path, FEDERATION).save(1)
    assert SavedOpenedRounds(tmp_path, FEDERATION).round == 1

    async def main():
        options = {"secure": True, "opened": {"alice": SavedOpenedRounds(tmp_path, FEDERATION)}}
        async with council(CoordinatedFedAvg(), **options) as (here, mallory):
            for round in (1, 2):
                member = Member(here, mallory, round)
                playing = asyncio.create_task(member.run())
                member.announce()
                await here.round(round)
                playing.cancel()
            return here

    here = run(main())
    assert here.assigned["alice"][1] is None
    assert here.assigned["bob"][1].weights.keys() == set(NAMES_OF_COUNCIL) - {"alice"}
    assert here.assigned["bob"][2].weights.keys() == set(NAMES_OF_COUNCIL)
    assert SavedOpenedRounds(tmp_path, FEDERATION).round == 2


def test_newest_signed_round_is_never_lowered(tmp_path):
    """A node that has gone back further than its newest checkpoint refuses every round up to it."""
    opened = SavedOpenedRounds(tmp_path, FEDERATION)
    opened.save(10)
    opened.save(5)
    assert opened.round == SavedOpenedRounds(tmp_path, FEDERATION).round == 10
    assert SavedOpenedRounds(tmp_path, b"f" * 16).round == 0  # another federation has other rounds

    lines = []
    sums = SecureSums(KEYS["alice"], FEDERATION, 0, opened, log=log_to(lines))
    rounds = SecureRounds(None, None, sums, size=SIZE, trained=SIZE, deadline=1.0)
    assert [
        round for round in (1, 7, 8, 9, 10, 11) if rounds.accepts(Submission("alice", round, own("alice", round), 10))
    ] == [11]
    assert len(lines) == 5
    assert "already signed the secure sum of round 10; it takes part again after that round" in str(lines[0])


def test_member_that_has_signed_does_not_submit_again():
    """A coordinator that is lost after it has all signatures, before any member has opened the sum."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        (lost,) = {node.exchange.election.coordinator for node in federation.nodes.values()}
        who.append(lost)
        cable, usual = federation.cable, federation.cable.arrival
        signatures = OVERHEAD + len(msgpack.encode([(place, bytes(64)) for place in range(len(NAMES))]))

        def arrival(source, target, bytes, now):
            if (source, bytes) == (lost, signatures):  # the first request to open, of round 2
                cable.cut.add(lost)
            return usual(source, target, bytes, now)

        cable.arrival = arrival
        await federation.done(*(name for name in NAMES if name != lost))
        federation.running[lost].cancel()

    who = []
    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    assert who[0] in federation.cable.cut
    others = set(NAMES) - set(who)
    for name in others:
        weights = federation.watch[name].weights
        assert weights[1].keys() == set(NAMES)
        assert weights[2] == {name: 1.0}
        assert weights[ROUNDS].keys() == others


def test_node_that_cannot_save_does_not_open():
    class Full(OpenedRounds):
        def save(self, round):
            raise OSError(28, "No space left on device")

    async def main():
        async with council(CoordinatedFedAvg(), secure=True, opened={"alice": Full()}) as (here, mallory):
            member = Member(here, mallory)
            playing = asyncio.create_task(member.run())
            member.announce()
            await here.round(1)
            playing.cancel()
            return here

    here = run(main())
    weights = here.assigned["bob"][1].weights  # the other four have opened it; alice's model is in it
    assert weights.keys() == set(NAMES_OF_COUNCIL)
    assert here.opened["bob"].round == 1
    assert here.opened["alice"].round == 0


def test_sparse_graph_gives_the_same_models(monkeypatch):
    """Eighteen nodes with eight helpers each, and the same without secure sums."""
    monkeypatch.setattr(secure_sums, "COMPLETE", 4)
    secure_sums.helpers_of.cache_clear()
    try:
        assert secure_sums.helpers_of(18) == 8
        secure, plain = (
            play(to_the_end, "abcdefghijklmnopqr", settings(secure_sums=on, rounds=2), policy=CoordinatedFedAvg)
            for on in (True, False)
        )
    finally:
        secure_sums.helpers_of.cache_clear()
    for name in secure.names:
        assert secure.watch[name].weights == plain.watch[name].weights
        assert len(secure.watch[name].weights[2]) == 18
        np.testing.assert_allclose(models(secure)[name], models(plain)[name], rtol=0, atol=2e-6)


class Seen(Watch):
    """Watch of what a node has submitted, and has been assigned, by round."""

    def __init__(self):
        super().__init__()
        self.submitted, self.given = {}, {}

    def published(self, id, round, stage, params):
        self.submitted[round] = params

    def assigned(self, id, round, assignment):
        self.given[round] = assignment


@given(st.integers(0, 2**32))
@settings_of_hypothesis(max_examples=many(4, 40), deadline=None)
def test_lost_frames_spoil_no_mean(seed):
    """Check that, whatever is lost, a node is assigned the mean of the models of at least the threshold, or nothing."""

    async def test(federation):
        federation.watch = {name: Seen() for name in NAMES}
        usual, draws = federation.cable.arrival, random.Random(seed)

        def arrival(source, target, bytes, now):
            lost = federation.watch["alice"].times and draws.random() < 0.02
            return None if lost else usual(source, target, bytes, now)

        federation.cable.arrival = arrival
        federation.start()
        await federation.done()

    federation = play(test, NAMES, settings(rounds=6, secure_threshold=4), policy=CoordinatedFedAvg, period=1.0)
    samples = {name: task.n_samples for name, task in federation.tasks.items()}
    assert federation.watch["alice"].given
    for watch in federation.watch.values():
        for round, assignment in watch.given.items():
            members = assignment.weights
            assert len(members) >= 4
            total = sum(samples[name] for name in members)
            mean = sum(federation.watch[name].submitted[round] * np.float64(samples[name] / total) for name in members)
            np.testing.assert_allclose(assignment.params, mean, rtol=1e-6, atol=1e-7)


# A member that breaks the rules


class Member:
    """Mallory's part in a sum: she answers each step as she likes."""

    def __init__(self, here, mallory, round=1):
        self.here, self.mallory, self.round, self.term = here, mallory, round, here.term
        keys = {name: KEYS[name].public for name in KEYS}
        context = SumContext(FEDERATION, self.term.membership_version, self.term.number, round)
        params = own("mallory", round)
        arguments = ("mallory", KEYS["mallory"], context, params, SAMPLES["mallory"])
        self.sum = SumMember(*arguments, keys=keys.get, threshold=4, source=os.urandom)
        others = {name: key for name, key in keys.items() if name != "mallory"}
        self.verifier = FrameVerifier(others, KEYS["mallory"].public, FEDERATION, payload_limit(SIZE, True))
        self.seen = len(mallory.heard)

    def send(self, step, payload):
        message = m.SumAnswer(1, self.round, self.term.membership_version, self.term.number, step)
        self.mallory.send(self.here.leader(), message, Payload.of(payload))

    def announce(self, change=bytes):
        self.send("announce", change(self.sum.announcement.encode()))

    async def run(self, changed=None, change=bytes):
        """Take part; the answer to one step is changed."""
        while True:
            await asyncio.sleep(0.01)
            frames, self.seen = self.mallory.heard[self.seen :], len(self.mallory.heard)
            for frame in frames:
                opened = self.verifier.open(frame)
                if isinstance(opened.message, m.SumRequest):
                    step = opened.message.step
                    answer = self.sum.answer(step, bytes(opened.payload))
                    self.send(step, change(answer) if step == changed else answer)


@pytest.mark.parametrize("n_samples", [True, "x", 1.5, -1, 2**40])
def test_announcement_without_number_of_samples_is_refused(n_samples):
    """The others open the sum without the member, whose roster nobody could read."""

    async def main():
        async with council(CoordinatedFedAvg(), secure=True) as (here, mallory):
            member = Member(here, mallory)
            leader = here.nodes[here.leader()]
            leader.peering.peers["mallory"].public_info = {"n_samples": n_samples}
            member.announce()
            await here.round(1)
            return here

    here = run(main())
    assert here.rejected("malformed") == 1
    assert here.assigned["alice"][1].weights.keys() == set(HONEST)


def with_mallory(changed, change=bytes, announced=bytes):
    """Let mallory take part in a round of four honest members; return the council after it."""

    async def main():
        async with council(CoordinatedFedAvg(), secure=True) as (here, mallory):
            member = Member(here, mallory)
            playing = asyncio.create_task(member.run(changed, change))
            member.announce(announced)
            await here.round(1)
            playing.cancel()
            return here

    return run(main())


def mean_of(names):
    total = sum(SAMPLES[name] for name in names)
    return sum(own(name, 1) * np.float64(SAMPLES[name] / total) for name in names)


@pytest.mark.parametrize(
    ("changed", "change", "counted", "cause"),
    [
        (None, bytes, True, ""),
        ("roster", lambda answer: answer[:-1], False, "malformed"),
        ("shares", lambda answer: answer[:-1], False, "wrong length"),
        ("survivors", lambda answer: bytes(64), True, "wrong signature"),
        ("open", lambda answer: b"x", True, "malformed"),
    ],
)
def test_wrong_answer_of_a_member_costs_only_its_part(changed, change, counted, cause):
    here = with_mallory(changed, change)
    names = NAMES_OF_COUNCIL if counted else HONEST
    for name in HONEST:
        assigned = here.assigned[name][1]
        assert assigned.weights.keys() == set(names)
        np.testing.assert_allclose(assigned.params, mean_of(names), rtol=1e-6)
    assert sum(here.rejected(each) for each in ("malformed", "wrong length", "wrong signature")) == bool(cause)
    assert not cause or here.rejected(cause) == 1


def test_wrong_shares_of_a_member_are_left_out():
    def lie(answer):
        return msgpack.encode([(owner, bytes(33)) for owner, _ in msgpack.decode(answer)])

    here = with_mallory("open", lie)
    assert here.rejected("wrong share") == len(HONEST)
    (said,) = [line for line in here.lines if "wrong shares" in line]
    assert said == "round 1: 4 wrong shares in the secure sum, probably from mallory"
    assert here.assigned["alice"][1].weights.keys() == set(NAMES_OF_COUNCIL)
    np.testing.assert_allclose(here.assigned["alice"][1].params, mean_of(NAMES_OF_COUNCIL), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda announced: announced[:-1], "wrong length"),
        (lambda announced: announced[:-1] + bytes([announced[-1] ^ 1]), "wrong signature"),
        (lambda announced: bytes(160), "wrong signature"),
    ],
)
def test_wrong_announcement_is_refused(change, cause):
    here = with_mallory(None, announced=change)
    assert here.rejected(cause) == 1
    assert here.assigned["alice"][1].weights.keys() == set(HONEST)


def test_model_without_mask_is_refused_among_secure_sums():
    async def main():
        async with council(CoordinatedFedAvg(), secure=True) as (here, mallory):
            mallory.submit()
            await here.round(1)
            return here

    here = run(main())
    assert here.rejected("not asked for") == 1
    assert here.assigned["alice"][1].weights.keys() == set(HONEST)


def test_step_of_a_secure_sum_is_refused_without_them():
    async def main():
        async with council(CoordinatedFedAvg()) as (here, mallory):
            term = here.term
            mallory.tell_all(m.SumRequest(1, 1, term.membership_version, term.number, "roster"), Payload.of(b"\x90"))
            message = m.SumAnswer(1, 1, term.membership_version, term.number, "announce")
            mallory.tell_all(message, Payload.of(bytes(160)))
            await here.round(1)
            return here

    assert run(main()).rejected("not asked for") == 2 * len(HONEST)


def test_step_from_another_than_the_coordinator_is_refused():
    async def main():
        async with council(CoordinatedFedAvg(), secure=True) as (here, mallory):
            term, playing = here.term, asyncio.create_task(here.round(1))
            await asyncio.sleep(0.01)
            for number in range(1, 20):  # one of them is that of the announcement
                mallory.tell_all(
                    m.SumRequest(number, 1, term.membership_version, term.number, "roster"), Payload.of(b"\x90")
                )
            await playing
            return here

    here = run(main())
    assert here.rejected("not asked for") > 0
    assert here.assigned["alice"][1].weights.keys() == set(HONEST)


# Settings


def test_policies_that_need_only_the_mean():
    found = {name for name in POLICIES if needs_only_mean(make_policy(name, {}))}
    personal = {"ditto", "apfl", "per-fedavg", "fedrep", "pfedme", "fedala"}
    assert found == {"coordinated-fedavg", "coordinated-fedprox", "fedbn"} | personal


@pytest.mark.parametrize("policy", [CoordinatedFedAvg, CoordinatedFedProx, Ditto, Apfl, PerFedAvg, FedRep])
def test_policy_that_needs_only_the_mean_has_secure_sums(policy):
    check_policy(settings(), policy())


def test_policy_that_compares_models_refuses_secure_sums():
    with pytest.raises(
        ConfigurationError, match="the policy FedPref compares the models that are submitted; secure sums are"
    ):
        check_policy(settings(), FedPref())
    with pytest.raises(ConfigurationError, match="the policy FedAvg has no coordinator; secure sums are"):
        check_policy(settings(), make_policy("fedavg", {}))


def test_subclass_does_not_inherit_the_mean():
    class Own(CoordinatedFedAvg):
        pass

    with pytest.raises(ConfigurationError, match="the policy Own compares the models"):
        check_policy(settings(), Own())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"robust": "clip-loss"}, 'secure sums hide the models that a robust rule compares; set robust = "none"'),
        ({"secure_sums": False, "secure_threshold": 3}, "secure_threshold needs secure_sums = true"),
        ({"secure_threshold": -1}, "secure_threshold must be 0 or more"),
    ],
)
def test_settings_that_contradict_secure_sums_are_refused(changes, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(**changes).check()


def test_member_refuses_a_roster_if_the_threshold_has_changed_since_it_announced_itself():
    """With a committee the term goes on when members are added, and 2 threshold > n + c must hold for all of them."""

    async def main():
        async with council(CoordinatedFedAvg(), secure=True) as (here, _):
            exchange = here.nodes["bob" if here.leader() == "alice" else "alice"]
            election, sums = exchange.election, exchange.coordination.sums
            submission = Submission(exchange.name, 1, own(exchange.name, 1), SAMPLES[exchange.name])
            assert sums.accepts(submission)
            sums.announce(submission, here.term)
            more = frozenset(NAMES_OF_COUNCIL) | {f"n{k}" for k in range(5)}
            election.change(replace(election.electorate, participants=more))
            with pytest.raises(ProtocolError, match="differs: the threshold is 7, and was 4"):
                await sums.answer("roster", msgpack.encode([]))

    run(main())
