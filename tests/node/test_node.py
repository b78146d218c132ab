"""Nodes on virtual time: rounds, silence, crashes, late joiners, early stopping. Every message is real."""

import asyncio
import re

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import p2pfl
from p2pfl.errors import BudgetExceededError, ConfigurationError
from p2pfl.node.exchange.model_encoding import Published
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.settings import Settings
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.dac import Dac
from p2pfl.policies.dpfl import Dpfl
from p2pfl.policies.local import Local
from p2pfl.policies.random import Random
from p2pfl.policy import Budget, Merge, Update
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Payload
from p2pfl.task import Part, make_task
from tests.support.depth import pairs, spread
from tests.support.federation import LATENCY, play
from tests.support.liars import Liar

NAMES = ("a", "b", "c", "d")


def settings(**options):
    return Settings(**({"rounds": 5, "deadline": 10.0} | options))


async def to_the_end(federation):
    federation.start()
    await federation.done()


# Without faults


@pytest.mark.slow
def test_nodes_complete_all_rounds_with_all_peers():
    federation = play(to_the_end, NAMES, settings())
    for name in NAMES:
        assert sorted(federation.watch[name].weights) == [1, 2, 3, 4, 5]
        assert all(federation.partners(name, round) == set(NAMES) - {name} for round in range(1, 6))
        assert federation.nodes[name].exchange.expired == 0
        assert not federation.nodes[name].exchange.rejected


def test_nodes_average_to_the_same_model():
    federation = play(to_the_end, NAMES, settings(rounds=1))
    params = [node.me.params for node in federation.nodes.values()]
    assert all((p == params[0]).all() for p in params)


@pytest.mark.slow
def test_round_lasts_as_long_as_slowest_node_and_messages():
    federation = play(to_the_end, NAMES, settings(), speeds={"c": 3.0})
    for name in NAMES:
        times = np.diff([federation.watch[name].times[round] for round in range(1, 6)])
        assert times == pytest.approx([3.0 + 2 * LATENCY] * 4, abs=2 * LATENCY)


def test_single_node_learns_alone():
    federation = play(to_the_end, ("a",), settings())
    assert sorted(federation.watch["a"].weights) == [1, 2, 3, 4, 5]
    assert federation.watch["a"].result["test_mse"] < 5000


@pytest.mark.slow
def test_disconnected_topology_exchanges_within_components():
    federation = play(to_the_end, (*NAMES, "e"), settings(), edges=[("a", "b"), ("c", "d")])
    assert federation.partners("a", 5) == {"b"}
    assert federation.partners("d", 5) == {"c"}
    assert federation.partners("e", 5) == set()


@pytest.mark.slow
def test_nodes_learn_only_with_neighbours():
    federation = play(to_the_end, NAMES, settings(), edges=[("a", "b"), ("b", "c"), ("c", "d")])
    assert federation.partners("b", 3) == {"a", "c"}
    assert federation.partners("a", 3) == {"b"}


def test_zero_rounds_still_give_a_result():
    federation = play(to_the_end, NAMES, settings(rounds=0))
    assert all(federation.watch[name].weights == {} for name in NAMES)
    assert all(federation.watch[name].result for name in NAMES)


# Asynchronous


@pytest.mark.slow
def test_asynchronous_nodes_do_not_wait_for_each_other():
    federation = play(to_the_end, NAMES, settings(mode="asynchronous"), speeds={"d": 4.0})
    ends = {name: federation.watch[name].times[5] for name in NAMES}
    assert ends["a"] < 6
    assert ends["d"] > 20
    assert all(node.exchange.expired == 0 for node in federation.nodes.values())


@pytest.mark.slow
def test_stale_models_are_left_out():
    mode = settings(mode="asynchronous", rounds=12)
    fresh = play(to_the_end, NAMES, mode, speeds={"d": 4.0})
    stale = play(to_the_end, NAMES, settings(mode="asynchronous", rounds=12, max_staleness=2.5), speeds={"d": 4.0})
    taken = [sum("d" in f.partners("a", round) for round in range(1, 13)) for f in (fresh, stale)]
    assert taken[0] == 9  # from the first model that d publishes
    assert 0 < taken[1] < 9


# Silence


@pytest.mark.slow
def test_silent_peer_costs_one_deadline():
    async def test(federation):
        federation.start()
        await federation.round("a", 5)
        federation.cable.cut.add("d")
        await federation.round("a", 29)
        for name in ("a", "b", "c"):
            reason = federation.nodes[name].exchange.view.suspected["d"]
            assert "deadline" in reason or "in time" in reason
        await federation.done("a", "b", "c")
        federation.running["d"].cancel()

    federation = play(test, NAMES, settings(rounds=30))
    for name in ("a", "b", "c"):
        node, times = federation.nodes[name], federation.watch[name].times
        assert node.exchange.expired == 1
        assert times[30] - times[5] < 25 * 1.1 + 10
        assert federation.partners(name, 30) == {"a", "b", "c"} - {name}
        slow = [round for round in range(6, 31) if times[round] - times[round - 1] > 1.5]
        assert len(slow) <= 2  # the round of the silence, and possibly one that waits for nodes which waited


@pytest.mark.slow
def test_absent_peer_costs_only_the_wait_at_start():
    async def test(federation):
        federation.start("a", "b", "c")
        await federation.done()

    federation = play(test, NAMES, settings(rounds=10))
    for name in ("a", "b", "c"):
        assert federation.watch[name].times[10] < 10 + 10 * 1.1
        assert federation.nodes[name].exchange.expired == 0


@pytest.mark.slow
def test_returning_peer_takes_part_again():
    async def test(federation):
        federation.start()
        await federation.round("a", 5)
        federation.cable.cut.add("d")
        await federation.round("a", 15)
        federation.cable.cut.discard("d")
        back = asyncio.get_running_loop().time()
        await federation.done()
        heard = [r for r in range(16, 41) if federation.watch["a"].times[r] > back and "d" in federation.partners("a", r)]
        assert federation.watch["a"].times[heard[0]] - back < 8  # the longest pause between probes, and two rounds

    federation = play(test, NAMES, settings(rounds=40))
    assert all("d" in federation.partners(name, 40) for name in ("a", "b", "c"))
    assert all(node.exchange.view.suspected.get("d", "has left") == "has left" for node in federation.nodes.values())


@pytest.mark.slow
def test_silent_peer_does_not_separate_others():
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]

    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        federation.cable.cut.add("c")
        await federation.done("a", "b", "d", "e")
        federation.running["c"].cancel()

    federation = play(test, (*NAMES, "e"), settings(rounds=12), edges=edges)
    for name in ("a", "b", "d", "e"):
        exchange = federation.nodes[name].exchange
        assert {id for id in exchange.view.suspected if not exchange.peers[id].stopped} <= {"c"}
        assert federation.partners(name, 12) == set(federation.neighbours(name)) - {"c"}


# Crashes and late joiners


@pytest.mark.slow
def test_killed_node_continues_at_round_of_others(tmp_path):
    async def test(federation):
        federation.start()
        await federation.round("d", 4)
        await federation.kill("d")
        await federation.round("a", 14)
        federation.start("d")
        await asyncio.sleep(0)
        back = asyncio.get_running_loop().time()
        await federation.done()
        with_d = [r for r in range(15, 31) if "d" in federation.partners("a", r)]
        first_after = next(r for r in range(15, 31) if federation.watch["a"].times[r] > back)
        assert with_d[0] <= first_after + 2

    federation = play(test, NAMES, settings(rounds=30), folder=tmp_path)
    done = sorted(federation.watch["d"].weights)
    assert done[:4] == [1, 2, 3, 4]
    assert done[4] > 13  # it continued at the round of the others
    assert done[-1] == 30


@pytest.mark.slow
def test_node_killed_in_first_round_does_not_prepare_twice(tmp_path):
    begun = []

    class Prepared(Dpfl):
        async def prepare(self, me, peers):
            begun.append(me.id)
            return await super().prepare(me, peers)

    def policy():
        return Prepared(initial_epochs=1, epochs=2)

    async def test(federation):
        federation.start()
        while federation.nodes["d"].exchange.round == 0:  # until it has published the model of its first round
            await asyncio.sleep(0.001)
        omega = federation.nodes["d"].policy.omega
        await federation.kill("d")
        federation.start("d")
        await federation.done()
        assert federation.nodes["d"].policy.omega == omega

    interrupted = play(test, NAMES, settings(), folder=tmp_path, policy=policy)
    assert sorted(begun) == list(NAMES)
    whole = play(to_the_end, NAMES, settings(), policy=policy)
    for name in NAMES:
        assert interrupted.nodes[name].me.params.tobytes() == whole.nodes[name].me.params.tobytes()
        assert sorted(interrupted.watch[name].weights) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_node_resumes_from_last_finished_round(tmp_path):
    restored = []

    async def test(federation):
        federation.start()
        await federation.round("d", 4)
        params = federation.nodes["d"].me.params
        await federation.kill("d")
        federation.watch["d"].restored = lambda node: restored.append((node.round, node.me.params))
        federation.start("d")
        while not restored:
            await asyncio.sleep(0.001)
        ((round, found),) = restored
        assert round == 4
        assert (found == params).all()
        for name in NAMES:
            federation.running[name].cancel()

    play(test, NAMES, settings(rounds=30), folder=tmp_path)


def one_neighbour():
    return Random(neighbours=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "robust"), [(Random, "none"), (Dac, "none"), (one_neighbour, "median-clip"), (CoordinatedFedAvg, "cs+")]
)
def test_stopped_and_resumed_run_equals_uninterrupted_run(tmp_path, policy, robust):
    async def in_two(federation):
        federation.start()
        await asyncio.gather(*(federation.round(name, 3) for name in NAMES))
        for node in federation.nodes.values():
            node.stop()
        await federation.done()
        assert {node.round for node in federation.nodes.values()} == {4}
        federation.start()
        await federation.done()

    whole = play(to_the_end, NAMES, settings(rounds=8, robust=robust), policy=policy)
    halves = play(in_two, NAMES, settings(rounds=8, robust=robust), policy=policy, folder=tmp_path)
    for name in NAMES:
        assert (whole.nodes[name].me.params == halves.nodes[name].me.params).all()
        assert whole.watch[name].weights == halves.watch[name].weights
        assert whole.watch[name].metrics == halves.watch[name].metrics
        assert whole.watch[name].result == halves.watch[name].result


@pytest.mark.slow
def test_restart_keeps_distances_of_assignments(tmp_path):
    found = []

    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        federation.nodes["a"].stop()
        await federation.done("a")
        found.append(federation.nodes["a"].peers.state())
        federation.watch["a"].restored = lambda node: found.append(node.peers.state())
        federation.start("a")
        await federation.done()

    play(test, NAMES, settings(rounds=6, robust="median-clip"), folder=tmp_path, policy=CoordinatedFedAvg)
    before, after = found
    assert before.assigned
    assert after == before


@pytest.mark.slow
def test_node_serves_same_model_after_crash(tmp_path):
    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        while (4, "trained") not in federation.nodes["d"].exchange.outbox.models:
            await asyncio.sleep(0.01)
        before = federation.nodes["d"].exchange.outbox.models[4, "trained"].update
        await federation.kill("d")
        federation.start("d")
        await asyncio.sleep(0.5)  # it has started round 4 again and trains
        after = federation.nodes["d"].exchange.outbox.models[4, "trained"].update
        assert (before.params == after.params).all()
        assert {k: v.tolist() for k, v in before.extras.items()} == {k: v.tolist() for k, v in after.extras.items()}
        await federation.done()

    play(test, NAMES, settings(rounds=8), folder=tmp_path, policy=Dac)


@pytest.mark.slow
def test_late_joiner_starts_at_round_of_others():
    async def test(federation):
        federation.start("a", "b", "c")
        await federation.round("a", 8)
        federation.start("d")
        await federation.done()

    federation = play(test, NAMES, settings(rounds=20))
    first = min(federation.watch["d"].weights)
    assert first > 7
    assert "d" in federation.partners("a", first + 2)
    assert federation.watch["a"].times[20] - federation.watch["a"].times[8] < 12 * 1.1 + 5


@pytest.mark.slow
def test_finished_node_started_again_learns_nothing_more(tmp_path):
    async def test(federation):
        federation.start()
        await federation.done()
        params = federation.nodes["a"].me.params
        federation.start("a")
        await federation.done("a")
        assert (federation.nodes["a"].me.params == params).all()
        assert federation.nodes["a"].round == 5

    play(test, NAMES, settings(), folder=tmp_path)


# Stopping early


class Stubborn(Local):
    """Policy that always publishes the initial model, so that nothing improves."""

    async def round(self, me, peers):
        await me.train()
        await peers.publish(me.initial)
        await peers.models(peers.ids)
        return Merge(me.initial, {me.id: 1.0})


@pytest.mark.slow
def test_node_stopped_early_still_serves_last_model():
    async def test(federation):
        federation.policy = Stubborn
        federation.start("d")
        federation.policy = Random
        federation.start("a", "b", "c")
        await federation.done()

    federation = play(test, NAMES, settings(rounds=20, patience=3))
    assert max(federation.watch["d"].weights) == 5  # its best is round 1; the model of round 4 is evaluated in round 5
    assert federation.nodes["d"].early_stopping.round == 1
    last = max(federation.watch["a"].weights)
    assert last > 7
    assert "d" in federation.partners("a", last)
    assert all(node.exchange.expired == 0 for node in federation.nodes.values())


@pytest.mark.slow
def test_result_is_best_model_on_validation():
    federation = play(to_the_end, NAMES, settings(rounds=6), policy=lambda: Random(neighbours=1, reported_stage="trained"))
    for name in NAMES:
        losses = {r: stages["trained"]["validation_loss"] for r, stages in federation.watch[name].metrics.items()}
        assert sorted(losses) == [1, 2, 3, 4, 5, 6]
        best = min(losses, key=losses.get)
        assert federation.nodes[name].early_stopping.round == best
        assert federation.watch[name].result["validation_loss"] == losses[best]


@pytest.mark.slow
def test_auto_result_is_best_model_of_both_stages():
    federation = play(to_the_end, NAMES, settings(rounds=6), policy=lambda: Random(neighbours=2, reported_stage="auto"))
    for name in NAMES:
        losses = {
            (stage, round): metrics["validation_loss"]
            for round, stages in federation.watch[name].metrics.items()
            for stage, metrics in stages.items()
        }
        best = federation.nodes[name].early_stopping
        assert losses[best.stage, best.round] == min(losses.values()) == federation.watch[name].result["validation_loss"]
        for stage, (loss, round) in best.by_stage.items():
            assert loss == losses[stage, round] == min(losses[stage, each] for each in range(1, 7))


# Pacing, invariants and faults


@pytest.mark.slow
@pytest.mark.parametrize("speed", spread([0.2, 1.0], 2))
def test_node_ahead_of_others_returns_to_their_round(speed):
    async def test(federation):
        federation.start()
        await federation.round("a", 5)
        federation.cable.cut.add("d")
        await federation.round("a", 20)
        federation.ahead = federation.nodes["d"].round
        federation.cable.cut.discard("d")
        federation.healed = max(federation.watch["a"].weights)
        await federation.done()

    federation = play(test, NAMES, settings(rounds=130), speeds={"d": speed}, period=1.0)
    assert all(federation.watch[name].skips == [] for name in "abc")
    back = [finished - following for finished, following in federation.watch["d"].skips]
    assert bool(back) == (federation.ahead > 24)
    assert all(jump <= 4 for jump in back[1:])  # to the round of peers whose links came back later than that of the first
    apart = [r for r in range(federation.healed, 131) if "d" not in federation.partners("a", r)]
    assert len(apart) <= 2 + 10 + 4  # with the deadline, and the longest pause between two dials, in rounds of a second
    assert all(set(federation.watch[name].weights[130]) == set(NAMES) for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", spread([5.0, 6.0, 6.5, 7.5], 2))
def test_nodes_ignore_rounds_claimed_before_outage(seconds):
    """After the outage, the first message may be a ping, which does not carry the current round of its sender."""

    async def test(federation):
        federation.start()
        await federation.round("a", 20)
        federation.cable.sides = {name: name for name in federation.names}  # each node alone, as without a broker
        await asyncio.sleep(seconds)
        federation.apart = {name: federation.nodes[name].round for name in federation.names}
        federation.cable.sides = {}
        federation.rounds_apart = await rounds_until_together(federation, federation.names)
        for task in federation.running.values():
            task.cancel()

    speeds = dict.fromkeys("abc", 0.2)
    federation = play(test, "abc", settings(rounds=1000), speeds=speeds, period=1.0)
    assert min(federation.apart.values()) > 20
    for name in "abc":
        assert [skip for skip in federation.watch[name].skips if skip[1] < federation.apart[name]] == []


@pytest.mark.slow
def test_slower_half_skips_ahead_after_partition_heals():
    async def test(federation):
        federation.start()
        await federation.round("a", 5)
        federation.cable.sides = {"c": "south", "d": "south"}
        await federation.round("a", 30)
        federation.cable.sides = {}
        await federation.done()

    federation = play(test, NAMES, settings(rounds=60), speeds={"c": 3.0, "d": 3.0}, period=1.0)
    assert federation.watch["a"].skips == federation.watch["b"].skips == []
    assert [len(federation.watch[name].skips) for name in "cd"] == [1, 1]
    assert all(set(federation.watch["a"].weights[round]) == set(NAMES) for round in range(45, 61))
    assert all(set(federation.watch[name].weights[60]) == set(NAMES) for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(("claimed", "honest"), pairs([2**32 - 1, 40, 0], ["abc", "ab", "a"]))
def test_lie_about_round_does_not_move_others(honest, claimed):
    async def test(federation):
        federation.start(*honest)
        async with Liar(federation, "d") as liar:
            await federation.round("a", 5)
            liar.claim(claimed)
            await federation.round("a", 8)
            await liar.come_back(claimed)
            await federation.round("a", 12)
            await liar.come_back(federation.nodes["a"].round + 3)  # as far ahead as a fast node could be
            for name in honest:
                await federation.round(name, 20)
        await federation.done()

    federation = play(test, [*honest, "d"], settings(rounds=20, members=len(honest)))
    for name in honest:
        assert (federation.nodes[name].exchange.pacer.far_ahead["d"] > 0) == (claimed > 20)
        assert sorted(federation.watch[name].weights) == list(range(1, 21))
        forward = [skip for skip in federation.watch[name].skips if skip[1] > skip[0]]
        assert forward == []
        if len(honest) > 1:
            assert federation.watch[name].skips == []


async def rounds_until_together(federation, names):
    """Return the number of rounds of the first node until all nodes learn with all others in one round."""
    begun = federation.nodes[names[0]].round
    for round in range(begun + 1, begun + 40):
        for name in names:
            while max(federation.watch[name].weights) < round:
                await asyncio.sleep(0.1)
        if all(set(federation.watch[name].weights.get(round, {})) == set(names) for name in names):
            return round - begun
    raise AssertionError({name: federation.nodes[name].round for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("slow", spread(["bcd", "b", "abcd"], 2))
def test_slow_nodes_synchronise_again_within_ten_rounds(slow):
    async def test(federation):
        federation.start()
        await federation.round("a", 5)
        for name in slow:
            federation.trainers[name].seconds = 25.0
        await asyncio.sleep(25)
        for name in slow:
            federation.trainers[name].seconds = 1.0
        await asyncio.sleep(25)
        federation.rounds_apart = await rounds_until_together(federation, NAMES)
        for task in federation.running.values():
            task.cancel()

    assert play(test, NAMES, settings(rounds=1000), period=1.0).rounds_apart <= 10


@pytest.mark.slow
def test_killed_nodes_synchronise_again_within_ten_rounds(tmp_path):
    rng = np.random.default_rng(0)

    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        for _ in range(40):
            name = str(rng.choice(list(NAMES)))
            await asyncio.sleep(rng.uniform(0, 3))
            await federation.kill(name)
            await asyncio.sleep(rng.uniform(0, 3))
            federation.start(name)
        await asyncio.sleep(5)
        federation.rounds_apart = await rounds_until_together(federation, NAMES)
        for task in federation.running.values():
            task.cancel()

    assert play(test, NAMES, settings(rounds=10_000), period=1.0, folder=tmp_path).rounds_apart <= 10


@pytest.mark.slow
def test_killed_third_of_federation_reconnects_within_seconds(tmp_path):
    names = [f"n{k:02}" for k in range(12)]

    async def test(federation):
        def whole():
            return all(len(node.exchange.view.ids) == len(names) - 1 for node in federation.nodes.values())

        federation.start()
        await federation.round("n00", 3)
        for name in names[:4]:
            await federation.kill(name)
        await asyncio.sleep(20)
        federation.start(*names[:4])
        back = asyncio.get_running_loop().time()
        while not whole():
            await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().time() - back < 10
        for task in federation.running.values():
            task.cancel()

    play(test, names, settings(rounds=1000, deadline=30.0, adaptive=True), period=1.0, folder=tmp_path)


@pytest.mark.slow
def test_observers_do_not_set_pace_of_participants():
    async def test(federation):
        federation.start(*"ab")
        for name in "ab":
            federation.nodes[name].exchange.view.remove("d")
            federation.nodes[name].exchange.view.remove("c")
        federation.start(*"cd")
        await federation.done()

    federation = play(test, NAMES, settings(rounds=30), speeds={"c": 0.2, "d": 0.2})
    assert all(federation.watch[name].skips == [] for name in "ab")


@pytest.mark.slow
def test_participants_do_not_wait_for_slow_observer():
    async def test(federation):
        federation.start(*"ab")
        for name in "ab":
            federation.nodes[name].exchange.view.remove("c")
        federation.start("c")
        await federation.round("a", 30)
        federation.seconds = asyncio.get_running_loop().time()
        for task in federation.running.values():
            task.cancel()

    alone, watched = (play(test, "abc", settings(rounds=100), speeds={"c": speed}) for speed in (1.0, 1.9))
    assert watched.seconds == pytest.approx(alone.seconds, abs=1.0)


@pytest.mark.slow
def test_late_leaf_catches_up_with_only_neighbour_by_halves():
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "d")]

    async def test(federation):
        federation.start(*"bcd")
        await federation.round("b", 31)
        federation.start("a")
        await federation.done()

    federation = play(test, NAMES, settings(rounds=40), edges=edges)
    skips = federation.watch["a"].skips
    assert skips[0] == (0, 20)
    assert len(skips) <= 4
    assert federation.partners("a", 40) == {"b"}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["synchronous", "sequential"])
def test_admitted_member_takes_part_and_revoked_one_does_not(schedule):
    async def test(federation):
        federation.start("a", "b", "c")
        for name in "abc":
            federation.nodes[name].exchange.peering.remove("d", "revoked")
        await federation.round("a", 5)
        for name in "abc":
            member = Member(federation.keys["d"].public, ("memory:d",))
            federation.nodes[name].exchange.peering.add("d", member)
        federation.start("d")
        await federation.round("a", 15)
        for name in "abc":
            federation.nodes[name].exchange.peering.remove("d", "revoked")
        await federation.done("a", "b", "c")
        await federation.kill("d")

    def policy():
        return Random(neighbours=3, schedule=schedule)

    federation = play(test, NAMES, settings(rounds=25), policy=policy)
    weights = federation.watch["a"].weights
    assert all("d" not in weights[round] for round in (1, 2, 3, 4, 5))
    assert "d" in weights[12]
    assert all("d" not in weights[round] for round in range(18, 26))
    for name in "abc":
        exchange = federation.nodes[name].exchange
        assert "d" not in exchange.peers
        assert exchange.rejected["revoked"] == 1  # its link was cut
        assert exchange.rejected["stranger"] > 0  # and it tried again


class Pipe:
    """Link whose other end reads only when the test does so."""

    key, session, version, dialled, direct, joining, remote = None, bytes(16), 6, True, True, False, "b"

    def __init__(self):
        self.backlog, self.said = 0, []

    def send(self, parts):
        frame = b"".join(parts)
        self.said.append(frame)
        self.backlog += len(frame)


def test_node_sends_two_models_at_once_and_then_the_newest():
    async def test(federation):
        a, b = federation.make("a").exchange, federation.make("b").exchange
        peer = a.peers["b"]
        peer.link = pipe = Pipe()
        for round in (1, 2):
            params = np.full(a.encoder.layout.size, round, np.float32)
            update = Update("a", round, "trained", params, 50, {}, size=OVERHEAD + 4 * a.encoder.layout.size)
            a.outbox.add(Published(update, 0.0))
        for number, round in ((11, 1), (12, 2), (13, 1), (14, 2)):
            a.models.serve(peer, m.Get(number, round, "trained"))
        pipe.backlog = 0
        a.peering.drained(pipe)
        federation.said = [b.peering.verifier.open(frame).message for frame in pipe.said]
        a.peering.drained(pipe)  # no request is left

    said = play(test, ("a", "b"), settings()).said
    answers = [(type(message).__name__, message.request) for message in said]
    assert answers == [("ModelUpdate", 11), ("ModelUpdate", 12), ("NotAvailable", 13), ("ModelUpdate", 14)]
    assert said[2].reason == "busy"


@pytest.mark.slow
def test_policy_that_exceeds_budget_ends_node():
    class Greedy(Random):
        async def round(self, me, peers):
            await peers.publish(await me.train())
            await peers.models(peers.ids)
            return Merge(me.params, {})  # reached only after all others have ended

    with pytest.raises(BudgetExceededError, match="3 models in a round, but the budget is 2"):
        play(to_the_end, NAMES, settings(), budget=Budget(models=2), policy=Greedy)
    with pytest.raises(BudgetExceededError, match="the budget is 100 bytes"):
        play(to_the_end, NAMES, settings(), budget=Budget(bytes=100), policy=Greedy)


def test_policy_that_returns_wrong_array_ends_node():
    class Wrong(Local):
        async def round(self, me, peers):
            return Merge(np.zeros(3), {})

    with pytest.raises(ConfigurationError, match="Wrong returned an invalid model: float64 of shape"):
        play(to_the_end, ("a",), settings(), policy=Wrong)


def test_error_in_policy_ends_node_with_that_error():
    class Broken(Local):
        async def round(self, me, peers):
            raise ZeroDivisionError("of the policy")

    with pytest.raises(ZeroDivisionError, match="of the policy"):
        play(to_the_end, NAMES, settings(), policy=Broken)


def test_nodes_with_different_layouts_refuse_each_other():
    async def test(federation):
        federation.start("a")
        federation.start("b", task=make_task("concept-shift", {"dimensions": 12}, Part(1, 2), 0))
        await federation.done()

    with pytest.raises(ConfigurationError, match=r"layout differs: this node has 1[13] values .* the peer has 1[13] values"):
        play(test, ("a", "b"), settings())


@pytest.mark.slow
def test_node_with_other_settings_is_left_out():
    async def test(federation):
        federation.start("a", "b")
        federation.start("c", agreed={"policy.tau": "3.0"})
        await federation.done("a", "b")

    federation = play(test, ("a", "b", "c"), settings())
    exchange = federation.nodes["a"].exchange
    assert exchange.view.suspected == {"c": "policy.tau differs: this node has not set, the peer has 3.0"}
    assert federation.partners("a", 5) == {"b"}
    assert exchange.rejected["differs"] >= 1


# Malicious peers


def hostile(script, policy=Random, **options):
    """Run a script as b against node a of a federation with c, and return the federation."""

    async def test(federation):
        federation.start("a", "c")
        peer = federation.make("b").exchange.peering
        transport = federation.network.transport("b")
        key = federation.keys["a"].public

        class Listener:
            def received(self, link, frame):
                opened = peer.verifier.open(frame)
                if opened.sender == "a":
                    script(lambda message, payload=b"": say(link, message, payload), opened.message)

            def lost(self, link, reason): ...

        def say(link, message, payload=b""):
            link.send(peer.signer.seal(message, key, Payload.of(payload)))

        await transport.listen(Listener())
        await asyncio.sleep(0.01)
        link = await transport.dial("memory:a", key)
        say(link, m.Hello(), peer.introducer.parameters().parts[0])
        while federation.watch["a"].result is None:
            await asyncio.sleep(0.1)
        for name in ("a", "c"):  # they would serve b forever
            await federation.kill(name)

    return play(test, ("a", "b", "c"), settings(**options), policy=policy)


def answer(params, extras=b"", **change):
    def script(say, message):
        if isinstance(message, m.Get):
            said = m.ModelUpdate(message.request, message.round, message.stage, 50, False, 0.0)
            say(replace(said, **change), params.tobytes() + extras)
        if isinstance(message, m.RoundReached):  # keep up, so that a does not drop b as slow
            say(message)

    return script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "cause"),
    [
        (np.full(11, np.nan, np.float32), "not finite"),
        (np.full(11, np.inf, np.float32), "not finite"),
        (np.full(11, 1e38, np.float32), "too large"),
        (np.zeros(10, np.float32), "wrong length"),
        (np.zeros(12, np.float32), "wrong length"),
    ],
)
def test_invalid_models_are_counted_and_dropped(params, cause):
    assert_dropped(answer(params), cause)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"round": 77}, "not asked for"),
        ({"stage": "prepared"}, "not asked for"),
        ({"n_samples": 4_000_000_000}, "differs"),
    ],
)
def test_model_other_than_requested_is_counted_and_dropped(change, cause):
    assert_dropped(answer(np.zeros(11, np.float32), **change), cause)


@pytest.mark.slow
def test_array_too_large_for_numpy_is_counted_and_dropped():
    shape = 0, 2**24, 2**24, 2**24
    assert_dropped(answer(np.zeros(11, np.float32), msgspec.msgpack.encode([["x", "f8", shape, b""]])), "malformed")


@pytest.mark.slow
def test_loss_instead_of_model_is_counted_and_dropped():
    def script(say, message):
        if isinstance(message, m.Get):
            say(m.Scored(message.request, 1.0))
        if isinstance(message, m.RoundReached):
            say(message)

    assert_dropped(script, "not asked for")


@pytest.mark.slow
def test_model_instead_of_loss_is_counted_and_dropped():
    honest = answer(np.zeros(11, np.float32))

    def script(say, message):
        honest(say, message)
        if isinstance(message, m.Score):
            say(m.ModelUpdate(message.request, message.round, "trained", 50, False, 0.0), bytes(44))

    federation = hostile(script, policy=lambda: Dac(similarity="inverse-loss", score_on="peer"))
    assert federation.nodes["a"].exchange.rejected["not asked for"] >= 4
    assert "b" not in federation.nodes["a"].policy.known.measured


def assert_dropped(script, cause):
    federation = hostile(script)
    exchange = federation.nodes["a"].exchange
    assert exchange.rejected[cause] >= 4
    assert exchange.expired == 0 or exchange.expired == 1
    assert all(federation.partners("a", round) == {"c"} for round in range(1, 6))


@pytest.mark.slow
def test_unsolicited_answers_are_dropped():
    def script(say, message):
        for request in range(5):
            say(m.ModelUpdate(request + 10_000, 1, "trained", 50, False, 0.0), bytes(44))
            say(m.Scored(request + 10_000, 1.0))
            say(m.NotAvailable(request + 10_000, 1, "gone"))

    federation = hostile(script)
    assert all("b" not in federation.partners("a", round) for round in range(1, 6))


@pytest.mark.slow
def test_claim_of_far_future_round_is_ignored():
    def script(say, message):
        if isinstance(message, m.RoundReached):
            say(m.RoundReached(2**32 - 1))

    federation = hostile(script)
    assert sorted(federation.watch["a"].weights) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_concurrent_loss_requests_are_limited_per_peer():
    busy = []

    def script(say, message):
        if isinstance(message, m.RoundReached):
            for request in range(20):
                say(m.Score(request, 1), bytes(44))
        if isinstance(message, m.NotAvailable):
            busy.append(message.reason)

    hostile(script, policy=lambda: Dac(similarity="inverse-loss", score_on="peer"))
    assert busy.count("busy") >= 18


# Regressions


@pytest.mark.slow
def test_slow_peer_costs_one_deadline_and_is_served_at_the_end():
    async def test(federation):
        federation.start()
        await federation.done()

    federation = play(test, NAMES, settings(rounds=8, deadline=5.0), speeds={"b": 20.0})
    quick = [name for name in federation.names if name != "b"]
    for name in quick:
        assert federation.nodes[name].exchange.expired <= 2  # one for its model, one for its round
        assert federation.watch[name].times[8] < 8 * 1.1 + 2 * 5.0 + 1
        assert all("b" not in federation.partners(name, round) for round in range(1, 9))
    for round in federation.watch["b"].weights:  # the others still serve their last models
        assert federation.partners("b", round) == set(quick)


@pytest.mark.slow
def test_finished_federation_continues_with_more_rounds(tmp_path):
    async def test(federation):
        federation.start()
        await federation.done()
        federation.settings = settings(rounds=6)
        federation.start()
        await federation.done()

    federation = play(test, NAMES, settings(rounds=3), folder=tmp_path, policy=lambda: Random(neighbours=9))
    for name in federation.names:
        assert all(federation.partners(name, round) == set(federation.names) - {name} for round in range(1, 7))
        assert federation.nodes[name].exchange.expired == 0


def test_node_refuses_checkpoint_of_another_policy(tmp_path):
    async def test(federation):
        federation.start("a")
        await federation.done()
        federation.policy = Dac
        federation.start("a")
        await federation.done()

    with pytest.raises(
        ConfigurationError, match=r"has policy 'p2pfl.policies.random:Random', the configuration has '.*:Dac'"
    ):
        play(test, ("a",), settings(rounds=1), folder=tmp_path)


@pytest.mark.slow
def test_pending_evaluation_keeps_its_round_after_restart(tmp_path):
    async def test(federation):
        federation.start("a")
        await federation.round("a", 8)
        federation.nodes["a"].stop()
        await federation.done()
        federation.start("a")
        await federation.done()

    federation = play(test, ("a",), settings(rounds=11, evaluate_every=5), folder=tmp_path)
    assert sorted(federation.watch["a"].metrics) == [5, 10, 11]


@pytest.mark.slow
def test_stopped_node_is_not_treated_as_finished():
    async def test(federation):
        federation.start()
        await federation.round("a", 2)
        federation.nodes["b"].stop()
        await federation.done("b")
        await asyncio.sleep(0.1)
        assert not federation.nodes["a"].exchange.peers["b"].stopped
        assert federation.nodes["a"].exchange.view.ids == ("c", "d")
        await federation.done("a", "c", "d")

    play(test, NAMES, settings())


def test_node_stopped_while_waiting_for_peers_ends_at_once():
    async def test(federation):
        federation.start("a")
        await asyncio.sleep(1.0)
        federation.nodes["a"].stop()
        await federation.done()
        assert asyncio.get_running_loop().time() < 2.0

    play(test, NAMES, settings())


@pytest.mark.slow
def test_sequential_schedule_on_line_does_not_deadlock():
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    federation = play(to_the_end, NAMES, settings(rounds=8), edges=edges, policy=lambda: Random(schedule="sequential"))
    assert [federation.nodes[name].exchange.expired for name in federation.names] == [0, 0, 0, 0]


def test_policy_state_that_cannot_be_saved_is_reported(tmp_path):
    class Hoarder(Local):
        def state(self):
            return {"array": np.zeros(3)}

    with pytest.raises(ConfigurationError, match=r"policy .*Hoarder must consist of numbers, strings"):
        play(to_the_end, ("a",), settings(), policy=Hoarder, folder=tmp_path)


class NotAsynchronous(Random):
    def round(self, me, peers):
        return Merge(me.params, {me.id: 1.0})


class WithoutAwait(Random):
    async def round(self, me, peers):
        await peers.publish(me.train())


class AsksUndeclared(Random):
    async def round(self, me, peers):
        await peers.remote_losses(peers.ids, me.params)


class SubmitsWithoutStep(Random):
    async def round(self, me, peers):
        await peers.submit(me.params)


class OfNoStage(Random):
    def __post_init__(self):
        self.reported_stage = "mergd"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (AsksUndeclared, "a policy that calls `peers.remote_losses` must set `asks_scores = True`"),
        (SubmitsWithoutStep, "`peers.submit` needs a coordinated policy: one with a method `step`"),
        (NotAsynchronous, "a method of NotAsynchronous is not asynchronous; write `async def`"),
        (WithoutAwait, "publish takes a model, got a Future; is an `await` missing?"),
        (OfNoStage, "reported_stage of OfNoStage must be one of auto, trained, merged, got 'mergd'"),
    ],
)
def test_mistake_in_a_policy_is_named(policy, message):
    table = {"nodes": 2, "rounds": 1, "task": "digits", "policy": policy}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        p2pfl.simulate(table, progress=False)


def test_policy_that_returns_none_ends_node():
    class Forgetful(Local):
        async def round(self, me, peers):
            await me.train()

    with pytest.raises(ConfigurationError, match="Forgetful returned NoneType, not a Merge"):
        play(to_the_end, ("a",), settings(), policy=Forgetful)
