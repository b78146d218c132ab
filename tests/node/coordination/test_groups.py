"""Members of the committee compute the means of groups for the coordinator."""

import asyncio
import itertools
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.coordinator import StepResult
from p2pfl.node.coordination.election_runner import TIMING, ElectionRunner, MemoryVotes, committee_electorate
from p2pfl.node.coordination.groups import (
    GroupMean,
    group_of,
    group_payload,
    mean_of_group,
    read_group,
    spread,
    summers,
    without_repeated,
)
from p2pfl.node.coordination.submissions import submission_payload
from p2pfl.node.federation.agreement import Agreement, check_groups
from p2pfl.node.settings import Settings
from p2pfl.policies.coordinated import CoordinatedFedAvg, together
from p2pfl.policies.ditto import Ditto
from p2pfl.policy import Submission, needs_only_mean
from p2pfl.protocols.election import Electorate
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened
from p2pfl.sim.scenario.devices import Speed
from p2pfl.sim.simulation.clock import run
from tests.node.coordination.test_committee import CommitteeFederation

NAMES = "abcdefgh"
FIVE = Electorate(5, frozenset("abcde"), tuple("abcde"), participants=frozenset(NAMES))


def submissions(names=NAMES, size=50):
    rng = np.random.default_rng(0)
    return [Submission(name, 3, rng.normal(size=size).astype(np.float32), 10 * (k + 1)) for k, name in enumerate(names)]


def test_mean_of_means_is_the_mean_of_all():
    every = submissions()
    means = [mean_of_group([s for s in every if s.sender in group], group[0]) for group in ("abe", "cg", "dfh")]
    flat, result = together(every)["a"], spread(StepResult(together(means), {}, {}), means, means)
    assert set(result.assignments) == set("acd")
    one = result.assignments["c"]
    np.testing.assert_allclose(
        one.params, flat.params, rtol=0, atol=4 * np.finfo(np.float32).eps * np.abs(flat.params).max()
    )
    assert list(one.weights) == sorted(NAMES)
    for name, weight in flat.weights.items():
        assert one.weights[name] == pytest.approx(weight, rel=1e-12)
    assert mean_of_group(every[::-1], "a").params.tobytes() == mean_of_group(every, "a").params.tobytes()


def test_each_member_counts_once():
    a, *_, h = every = submissions()
    first, second = mean_of_group(every[:4], "b"), mean_of_group(every[3:6], "c")
    kept, refused = without_repeated([a, second, h, first])
    assert [each.sender for each in kept] == ["b", "h"]
    assert list(refused) == ["c"]
    result = spread(StepResult(together(kept), {}, dict(refused)), kept, [a, second, h, first])
    assert set(result.assignments) == {"a", "b", "h"}
    assert set(result.assignments["a"].weights) == set("abcdh")


def test_groups_follow_from_names_and_committee():
    assert summers(FIVE, "c", 100) == ("c",)
    assert summers(FIVE, "c", 3) == ("c", "a", "b")
    assert summers(FIVE, "c", 1) == ("c", "a", "b", "d", "e")  # not more than the committee has members
    chosen = summers(FIVE, "c", 3)
    assert [group_of(name, chosen) for name in "cab"] == ["c", "a", "b"]
    many = [group_of(f"n{k}", chosen) for k in range(3_000)]
    assert all(900 < many.count(name) < 1_100 for name in chosen)


def test_bound_of_the_coordinator_shrinks_with_groups():
    everyone = frozenset(f"n{k}" for k in range(700))
    chosen = Electorate(7, frozenset(sorted(everyone)[:7]), ("n0",), participants=everyone)
    runner = ElectionRunner("n0", chosen, MemoryVotes(), incarnation=1, seed=0, size=1_000, group_size=100)
    assert runner.bound == (700, 8_000 * 107, 6 / TIMING.beat)


@pytest.mark.parametrize(
    ("changes", "policy", "words"),
    [
        ({"committee": 0}, CoordinatedFedAvg, "a committee, such as"),
        ({}, Ditto, ""),
        ({"secure_sums": True}, CoordinatedFedAvg, "secure_sums = false"),
        ({"robust": "median"}, CoordinatedFedAvg, 'robust = "none"'),
        ({"policy": {"name": "fedpref"}}, None, "a policy whose step is the mean"),
    ],
)
def test_groups_need_a_committee_and_a_plain_mean(changes, policy, words):
    tables = {"name": "test", "edges": "all", "task": {"name": "digits"}, "policy": {"name": "coordinated-fedavg"}}
    tables |= {"model": {"layout": "", "values": 1, "initial": ""}, "committee": 7, "group_size": 100, "robust": "none"}
    agreed = msgspec.convert(tables | changes, Agreement, strict=False)
    only_mean = policy is not None and needs_only_mean(policy())
    if not words:
        check_groups(agreed, only_mean)
        return
    with pytest.raises(ConfigurationError, match=f"group_size = 100 needs {words}"):
        check_groups(agreed, only_mean)


@pytest.mark.parametrize(
    ("samples", "words"),
    [({}, "without members"), ({"a": 1, "z": 1}, "b counts z, who is not in its group"), ({"a": np.nan}, "invalid group")],
)
def test_invalid_mean_of_group_is_refused(samples, words):
    mean = np.zeros(4, np.float32).tobytes()
    opened = Opened("b", m.GroupMean(1, 3, 5, 1), memoryview(mean + msgspec.msgpack.encode(list(samples.items()))), 1)
    with pytest.raises(ProtocolError, match=words):
        read_group("b", opened, opened.message, 4, lambda name: 1 if name in NAMES else None)


# Rounds


class GroupedFederation(CommitteeFederation):
    group_size = 2

    def coordination(self, name, policy):
        return super().coordination(name, policy)._replace(group_size=self.group_size)


class FlatFederation(CommitteeFederation):
    group_size = 0


def play(kind, test, rounds=3):
    async def main():
        federation = kind(NAMES, Settings(rounds=rounds, deadline=20.0), policy=CoordinatedFedAvg, period=1.0)
        async with asyncio.timeout(1000):
            await test(federation)
        return federation

    return run(main())


async def to_the_end(federation):
    federation.start()
    await federation.done()


def test_rounds_with_groups_equal_rounds_without():
    grouped, flat = play(GroupedFederation, to_the_end), play(FlatFederation, to_the_end)
    for name in NAMES:
        weights = grouped.watch[name].weights
        assert all(set(each) == set(NAMES) for each in weights.values())
        assert sorted(weights) == [1, 2, 3]
        there, here = flat.nodes[name].me.params, grouped.nodes[name].me.params
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)
        assert not grouped.nodes[name].exchange.rejected
    leader = grouped.nodes["h"].exchange.election.coordinator
    received = grouped.nodes[leader].exchange.coordination
    assert received.groups.summers()[0] == leader
    chosen = received.groups.summers()
    assert len(chosen) == 4
    alone = [name for name in NAMES if group_of(name, chosen) == leader and name != leader]
    assert grouped.nodes[leader].exchange.traffic.received["models"] == 3 * (len(alone) + len(chosen) - 1)


@pytest.mark.parametrize("who", ["summer", "coordinator"])
def test_others_go_on_together_after_loss_of_a_summer_or_the_coordinator(who):
    async def test(federation):
        federation.start()
        await federation.round("h", 2)
        groups = federation.nodes["h"].exchange.coordination.groups
        federation.gone = groups.summers()[1 if who == "summer" else 0]
        await federation.kill(federation.gone)
        federation.cable.cut.add(federation.gone)
        await federation.done(*(set(NAMES) - {federation.gone}))

    federation = play(GroupedFederation, test, rounds=6)
    left = set(NAMES) - {federation.gone}
    for name in left:
        assert set(federation.watch[name].weights[6]) == left


def test_mean_of_group_of_a_member_outside_the_committee_is_refused():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        here = federation.nodes["h"].exchange
        leader, term = here.election.coordinator, here.election.term
        mean = GroupMean("h", 2, federation.nodes["h"].me.params, 100, samples={"g": 100})
        here.peering.send(here.peers[leader], m.GroupMean(99, 2, *term), group_payload(mean))
        await federation.done()
        federation.leader = leader

    federation = play(GroupedFederation, test, rounds=3)
    assert federation.nodes[federation.leader].exchange.rejected["not asked for"] == 1
    assert set(federation.watch["g"].weights[3]) == set(NAMES)


def claim(samples, sender=None):
    """Return a test in which a member of the committee sends the mean of a group that it has made up, in round 2."""

    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        groups = federation.nodes["h"].exchange.coordination.groups
        federation.leader, federation.liar, *_ = groups.summers()
        federation.groups = {name: group_of(name, groups.summers()) for name in NAMES}
        here = federation.nodes[federation.liar].exchange
        theirs = samples(federation)
        mean = GroupMean(federation.liar, 2, federation.nodes["h"].me.params, sum(theirs.values()), samples=theirs)
        term = here.election.term
        here.peering.send(here.peers[federation.leader], m.GroupMean(99, 2, *term), group_payload(mean))
        await federation.done()

    return test


def everyone(federation):
    return dict.fromkeys(NAMES, 100)


def test_summer_that_claims_members_of_other_groups_is_refused():
    federation = play(GroupedFederation, claim(everyone))
    leader = federation.nodes[federation.leader].exchange
    assert leader.rejected["differs"] == 1
    mine = {name for name, summer in federation.groups.items() if summer == federation.liar}
    for name in set(NAMES) - mine:
        assert set(federation.watch[name].weights[2]) >= set(NAMES) - mine
    for name in NAMES:
        assert set(federation.watch[name].weights[3]) == set(NAMES)


def test_member_that_tells_its_summer_and_the_coordinator_other_samples_costs_nobody_the_round():
    """Neither does it win anything: its group has no more weight than its members have told the coordinator."""

    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        federation.group = {name for name in NAMES if group_of(name, chosen) == group_of("h", chosen)}
        summer = federation.nodes[group_of("h", chosen)].exchange.peers["h"]
        # as if it had introduced itself so there, and nowhere else
        summer.public_info = {**summer.public_info, "n_samples": 10**6}
        federation.nodes["h"].exchange.peering.public_info["n_samples"] = 10**6
        federation.nodes["h"].me.n_samples = 10**6
        await federation.done()

    federation = play(GroupedFederation, test, rounds=4)
    before, after = (federation.watch["a"].weights[round] for round in (1, 4))
    assert set(after) == set(NAMES)
    assert sum(before[name] for name in federation.group) == pytest.approx(sum(after[name] for name in federation.group))


def test_member_that_submits_to_all_summers_costs_nobody_the_round():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        here = federation.nodes["h"].exchange
        chosen, term = here.coordination.groups.summers(), here.election.term
        own = here.peering.public_info["n_samples"]
        payload = submission_payload(Submission("h", 2, federation.nodes["h"].me.params, own))
        federation.chosen = chosen
        for name in chosen:
            if name != group_of("h", chosen):
                here.peering.send(here.peers[name], m.Submit(90, 2, *term, own, False), payload)
        await federation.done()

    federation = play(GroupedFederation, test)
    refusing = set(federation.chosen[1:]) - {group_of("h", federation.chosen)}
    for name in NAMES:
        assert [set(weights) for weights in federation.watch[name].weights.values()] == 3 * [set(NAMES)]
        assert federation.nodes[name].exchange.rejected["not the coordinator"] == (name in refusing)


def test_members_submit_to_the_coordinator_if_their_summer_does_not_follow_it():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        federation.deaf = next(name for name in chosen[1:] if any(group_of(other, chosen) == name for other in "fgh"))
        federation.group = {name for name in NAMES if group_of(name, chosen) == federation.deaf} - {federation.deaf}
        federation.cable.one_way.add((chosen[0], federation.deaf))  # it hears no beat
        await federation.done(*(set(NAMES) - {federation.deaf}))

    federation = play(GroupedFederation, test, rounds=4)
    for name in set(NAMES) - {federation.deaf}:
        assert set(federation.watch[name].weights[4]) == set(NAMES) - {federation.deaf}
        assert not federation.nodes[name].exchange.expired


def test_coordinator_waits_for_the_members_of_a_lost_summer():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        gone = next(name for name in chosen[1:] if any(group_of(other, chosen) == name for other in "fgh"))
        federation.left = set(NAMES) - {gone}
        slow = next(name for name in "fgh" if group_of(name, chosen) == gone)
        federation.trainers[slow].speed = Speed(3.0)
        await federation.kill(gone)
        federation.cable.cut.add(gone)
        await federation.done(*federation.left)

    federation = play(GroupedFederation, test, rounds=5)
    for name in federation.left:
        assert set(federation.watch[name].weights[4]) == set(federation.watch[name].weights[5]) == federation.left


def limited(room):
    """Return a federation with two groups, and members with room for so many submissions, by name."""

    class LimitedFederation(GroupedFederation):
        group_size = 4

    LimitedFederation.room = room
    return LimitedFederation


def most_held(federation, *names):
    """Record the greatest number of submissions that members hold at once; return the numbers by name and role."""
    most = dict.fromkeys(itertools.product(names, ("coordinates", "sums")), 0)
    for name in names:
        roles = federation.nodes[name].exchange.coordination
        for role, collecting in (("coordinates", roles.coordinator), ("sums", roles.groups.coordinator)):

            def take(term, entry, collecting=collecting, which=(name, role), usual=collecting.take):
                most[which] = max(most[which], 1 + collecting.held_of_others(entry.submission.sender))
                usual(term, entry)

            collecting.take = take
    return most


def test_members_for_whom_a_summer_has_no_room_submit_to_the_coordinator():
    async def test(federation):
        federation.start()
        federation.most = most_held(federation, *"abcde")
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        assert chosen == ("e", "a")
        assert len([name for name in NAMES if group_of(name, chosen) == "a"]) > 2
        await federation.done()

    federation = play(limited({"a": 2}), test, rounds=8)
    assert federation.most["a", "sums"] == 2
    for name in NAMES:  # a member misses a round until the coordinator waits for it
        together = [round for round, weights in federation.watch[name].weights.items() if set(weights) == set(NAMES)]
        assert {6, 7, 8} <= set(together)
        assert not federation.nodes[name].exchange.expired
    assert federation.nodes["a"].exchange.traffic.received["models"] < 2 * 8 + 4  # of two others; they are refused twice
    (line,) = (line for line in federation.lines if "takes no others" in line)
    assert line.startswith("this node can hold the submissions of 2 members with the 0.0 MiB of coordinator_memory")


def test_coordinator_that_stands_in_for_a_lost_summer_holds_no_more_than_its_memory_permits():
    room = 6  # of eight members in two groups: enough to stand, and not for all

    async def test(federation):
        federation.start()
        federation.most = most_held(federation, *"abcde")
        await federation.round("h", 1)
        leader, gone = federation.nodes["h"].exchange.coordination.groups.summers()
        federation.left, federation.leader = set(NAMES) - {gone}, leader
        await federation.kill(gone)
        federation.cable.cut.add(gone)
        await federation.done(*federation.left)

    federation = play(limited(dict.fromkeys("abcde", room)), test, rounds=5)
    assert max(federation.most.values()) <= room
    assert federation.most[federation.leader, "coordinates"] >= room - 1  # it has stood in as far as it could
    for name in federation.left:
        assert len(federation.watch[federation.leader].weights[5]) >= room - 1
        assert not federation.nodes[name].exchange.expired


def test_member_that_submits_for_later_rounds_takes_no_room_of_others():
    class Full(FlatFederation):
        room: ClassVar = dict.fromkeys("abcde", len(NAMES))

    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        here = federation.nodes["h"].exchange
        leader, term, model = here.election.coordinator, here.election.term, federation.nodes["h"].me.params
        payload = submission_payload(Submission("h", 50, model, here.peering.public_info["n_samples"]))
        for round in (50, 51):
            submit = m.Submit(90 + round, round, *term, here.peering.public_info["n_samples"], False)
            here.peering.send(here.peers[leader], submit, payload)
        federation.leader = leader
        await federation.done(*(set(NAMES) - {"h"}))

    federation = play(Full, test, rounds=4)
    honest = set(NAMES) - {"h"}
    for name in honest:
        assert set(federation.watch[name].weights[2]) >= honest
        assert set(federation.watch[name].weights[4]) >= honest


def test_members_do_not_submit_to_a_summer_that_has_ended():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        federation.ended = next(name for name in chosen[1:] if any(group_of(other, chosen) == name for other in "fgh"))
        ended = federation.nodes[federation.ended].exchange
        for name in set(NAMES) - {federation.ended}:
            ended.peering.tell(ended.peers[name], m.Bye(2, leaving=False))
        await federation.done()

    federation = play(GroupedFederation, test, rounds=4)
    for name in set(NAMES) - {federation.ended}:
        assert all(set(each) >= set(NAMES) - {federation.ended} for each in federation.watch[name].weights.values())
        times = federation.watch[name].times
        assert max(times[round + 1] - times[round] for round in (1, 2, 3)) < 2


@pytest.mark.parametrize(
    ("kind", "slow", "lost"),
    [(FlatFederation, "leader", 0), (GroupedFederation, "summer", 0), (GroupedFederation, "leader", 1)],
)
def test_submission_of_a_member_that_is_revoked_before_the_step_does_not_count(kind, slow, lost):
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        leader = federation.nodes["h"].exchange.election.coordinator
        summer = group_of("h", summers(committee_electorate(federation.log), leader, 2))
        federation.trainers[leader if slow == "leader" else summer].speed = Speed(3.0)
        await federation.round("h", 2)
        await asyncio.sleep(2)  # it has submitted, and its summer or the coordinator waits for the slow one
        federation.revoke("h")
        federation.summer = summer
        await federation.done(*(set(NAMES) - {"h"}))

    federation = play(kind, test, rounds=5)
    left = set(NAMES) - {"h"}
    without = {federation.summer} if lost else set()  # the mean was made with the model of a former member
    for name in left:
        third, last = federation.watch[name].weights[3], federation.watch[name].weights[5]
        assert set(third) == ({name} if name in without else left - without)
        assert set(last) == left
        assert not federation.nodes[name].exchange.rejected["malformed"]


@pytest.mark.parametrize("who", ["summer", "coordinator"])
def test_round_of_a_node_that_has_ended_is_not_closed(who):
    """An error in a callback of the loop would end the test."""

    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        leader = federation.nodes["h"].exchange.election.coordinator
        summer = group_of("h", summers(committee_electorate(federation.log), leader, 2))
        gone = leader if who == "coordinator" else summer
        federation.trainers[gone].speed = Speed(3.0)
        await federation.round("h", 2)
        await asyncio.sleep(2)  # others have submitted to it
        await federation.kill(gone)
        federation.cable.cut.add(gone)
        await federation.done(*(set(NAMES) - {gone}))
        await asyncio.sleep(2 * federation.settings.deadline)

    play(GroupedFederation, test, rounds=4)


def test_coordinator_waits_for_the_same_members_while_it_has_no_lease():
    async def test(federation):
        federation.start()
        await federation.round("h", 1)
        chosen = federation.nodes["h"].exchange.coordination.groups.summers()
        leader = chosen[0]
        election, groups = (here := federation.nodes[leader].exchange).election, here.coordination.groups
        waited_for = groups.expected()
        federation.cable.one_way |= {(name, leader) for name in NAMES}
        while election.leads(election.term):
            await asyncio.sleep(0.01)
        assert election.coordinates(election.term)
        assert groups.expected() == waited_for == {*chosen, *(name for name in NAMES if group_of(name, chosen) == leader)}

    play(GroupedFederation, test)


def test_payload_of_a_mean_is_read_as_it_was_made():
    mean = mean_of_group(submissions(size=4), "b")
    parts = b"".join(bytes(part) for part in group_payload(mean).parts)
    opened = Opened("b", m.GroupMean(1, 3, 5, 1), memoryview(parts), 1)
    again = read_group("b", opened, opened.message, 4, mean.samples.get)
    assert (again.samples, again.n_samples, again.params.tolist()) == (mean.samples, 360, mean.params.tolist())
    fewer = read_group("b", opened, opened.message, 4, {**mean.samples, "a": 3}.get)
    assert (fewer.samples, fewer.n_samples) == (mean.samples, 353)
