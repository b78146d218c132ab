"""Nodes on virtual time whose federation gets more rounds: while they run, serve, or are away."""

import asyncio
from contextlib import AsyncExitStack
from math import inf

import pytest
from msgspec.structs import replace

from p2pfl.node.peering.control_messages import MembershipGossip
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.peering.peers import Peer
from p2pfl.node.settings import Settings
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.local import Local
from p2pfl.policies.random import Random
from p2pfl.policy import Merge
from p2pfl.random_streams import RandomStreams
from tests.support.federation import play
from tests.support.liars import Liar
from tests.support.members import ALICE, KnownMembers

NAMES = ("a", "b", "c")


def settings(**options):
    return Settings(**({"rounds": 3, "deadline": 10.0} | options))


def everyone():
    return Random(neighbours=9)


def serve(federation, *names):
    """Start nodes that serve after their last round until they are stopped."""
    for name in names or federation.names:
        federation.nodes[name] = node = federation.make(name)
        peering = node.exchange.peering
        linger = lambda peering=peering: peering.until(lambda: not peering.final, inf)  # noqa: E731
        federation.running[name] = asyncio.create_task(node.run(linger), name=name)


def extend(federation, rounds, *names):
    for name in names or federation.names:
        node = federation.nodes[name]
        node.extend(rounds)
        node.exchange.extend(rounds, resume=not node.done)


async def finished(federation, rounds, *names):
    """Wait until nodes have finished a round and serve."""
    for name in names or federation.names:
        await federation.round(name, rounds)
        while not federation.nodes[name].exchange.outbox.final:
            await asyncio.sleep(0.05)  # virtual seconds


async def end(federation):
    for name in federation.running:
        await federation.kill(name)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["running", "serving"])
def test_extended_run_equals_run_with_more_rounds(when):
    async def test(federation):
        serve(federation)
        await (federation.round("a", 2) if when == "running" else finished(federation, 3))
        extend(federation, 6)
        await finished(federation, 6)
        await end(federation)

    async def whole(federation):
        federation.start()
        await federation.done()

    extended = play(test, NAMES, settings(), policy=everyone)
    expected = play(whole, NAMES, settings(rounds=6), policy=everyone)
    for name in NAMES:
        assert sorted(extended.watch[name].weights) == list(range(1, 7))
        assert (extended.nodes[name].me.params == expected.nodes[name].me.params).all()
        assert extended.watch[name].metrics == expected.watch[name].metrics
        assert extended.watch[name].result == expected.watch[name].result
        assert extended.nodes[name].exchange.expired == 0


@pytest.mark.slow
def test_extension_during_evaluation_of_result_is_run():
    async def test(federation):
        serve(federation)
        watch = federation.watch["a"]
        report = watch.finished

        def finished_and_extended(node, result):
            report(node, result)
            if node.settings.rounds == 3:
                extend(federation, 6)

        watch.finished = finished_and_extended
        await finished(federation, 6)
        await end(federation)

    federation = play(test, NAMES, settings(), policy=everyone)
    assert [federation.nodes[name].round for name in NAMES] == [6, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"policy": CoordinatedFedAvg}, {"edges": [("a", "b"), ("b", "c")]}], ids=str)
def test_serving_nodes_continue_although_one_learns_later(options):
    async def test(federation):
        serve(federation)
        await finished(federation, 3)
        extend(federation, 6, "a", "b")
        await asyncio.sleep(0.5)
        extend(federation, 6, "c")
        await finished(federation, 6)
        await end(federation)

    federation = play(test, NAMES, settings(), **{"policy": everyone, **options})
    around = {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}} if "edges" in options else {name: set(NAMES) for name in NAMES}
    for name in NAMES:
        assert all(federation.partners(name, round) == around[name] - {name} for round in (4, 5, 6))
        assert federation.nodes[name].exchange.expired == 0


@pytest.mark.slow
def test_asynchronous_nodes_continue():
    async def test(federation):
        serve(federation)
        await finished(federation, 3)
        extend(federation, 6)
        await finished(federation, 6)
        await end(federation)

    federation = play(test, NAMES, settings(mode="asynchronous"), policy=everyone)
    assert all(federation.partners(name, 6) == set(NAMES) - {name} for name in NAMES)


class Stubborn(Local):
    """Policy that always publishes the initial model, so that nothing improves."""

    async def round(self, me, peers):
        await me.train()
        await peers.publish(me.initial)
        return Merge(me.initial, {me.id: 1.0})


@pytest.mark.slow
def test_node_that_stopped_early_does_not_continue():
    async def test(federation):
        federation.policy = Stubborn
        serve(federation, "c")
        federation.policy = everyone
        serve(federation, "a", "b")
        await finished(federation, 6, "a", "b")
        extend(federation, 9)
        await finished(federation, 9, "a")
        assert all(node.exchange.outbox.final for node in federation.nodes.values())
        await end(federation)

    federation = play(test, NAMES, settings(rounds=6, patience=3))
    assert [federation.nodes[name].round for name in NAMES] == [9, 6, 5]  # b has no better model since round 3
    assert federation.partners("a", 9) == {"b", "c"}  # they still serve their last models
    assert federation.nodes["a"].exchange.expired == 0


@pytest.mark.slow
def test_absent_member_joins_in_round_of_others(tmp_path):
    """It comes back with the former number of rounds, and learns of the new one from a peer."""

    async def test(federation):
        serve(federation)
        await federation.round("c", 2)
        await federation.kill("c")
        await finished(federation, 3, "a", "b")
        extend(federation, 20, "a", "b")
        await federation.round("a", 8)
        serve(federation, "c")
        await asyncio.sleep(0.1)
        extend(federation, 20, "c")
        await finished(federation, 20)
        await end(federation)

    federation = play(test, NAMES, settings(), policy=everyone, folder=tmp_path, period=1.0)
    assert federation.watch["c"].skips[0][0] <= 3
    assert 4 not in federation.watch["c"].weights
    assert all(federation.partners(name, 20) == set(NAMES) - {name} for name in NAMES)


@pytest.mark.slow
def test_nodes_started_again_after_last_round_wait_for_members(tmp_path):
    async def test(federation):
        federation.start()
        await federation.done()
        federation.settings = replace(federation.settings, rounds=6)
        federation.start("a")
        await asyncio.sleep(50)
        federation.start("b")
        await asyncio.sleep(50)
        assert [max(federation.watch[name].weights) for name in "ab"] == [3, 3]
        federation.start("c")
        await federation.done()

    federation = play(test, NAMES, settings(members=3), policy=everyone, folder=tmp_path)
    assert all(federation.partners(name, round) == set(NAMES) - {name} for name in NAMES for round in (4, 5, 6))


@pytest.mark.slow
def test_node_started_again_does_not_wait_if_others_are_ahead(tmp_path):
    async def test(federation):
        serve(federation)
        await finished(federation, 3)
        await end(federation)
        serve(federation, "a", "b")
        await asyncio.sleep(20)
        extend(federation, 9, "b")  # it waits for c, too, but not for long
        federation.nodes["b"].exchange.peering.round = 4
        extend(federation, 9, "a")
        await federation.round("a", 9)
        await end(federation)

    federation = play(test, NAMES, settings(members=3), policy=everyone, folder=tmp_path)
    assert federation.partners("a", 9) == {"b"}


@pytest.mark.slow
def test_revoked_member_is_not_waited_for(tmp_path):
    async def test(federation):
        federation.start()
        await federation.done()
        federation.settings = replace(federation.settings, rounds=6)
        federation.start("a", "b")
        await asyncio.sleep(50)
        for name in "ab":
            federation.nodes[name].exchange.peering.remove("c", "revoked")
        await federation.done("a", "b")

    federation = play(test, NAMES, settings(members=3), policy=everyone, folder=tmp_path)
    assert federation.partners("a", 6) == {"b"}


def test_gossip_knows_which_peers_have_more_entries():
    access, peer = KnownMembers(ALICE, membership_version=3), Peer("b", Member(bytes(32)))
    gossip = MembershipGossip(access, None, RandomStreams(0, "a"))
    seen = []
    for peer.membership_version in (2, 3, 4):
        seen.append(gossip.lacks_entries(peer))
    assert seen == [False, False, True]
    assert not MembershipGossip(None, None, RandomStreams(0, "a")).lacks_entries(peer)


@pytest.mark.slow
def test_node_does_not_end_while_peer_has_entries_for_it():
    """The missing entries may be an extension, which a node with --until-done would miss."""

    async def test(federation):
        serve(federation, "b", "c")
        federation.start("a")
        node = federation.nodes["a"]
        gossip = node.exchange.peering.gossip
        lacking = {"b"}
        gossip.lacks_entries = lambda peer: peer.name in lacking
        await finished(federation, 3)
        await asyncio.sleep(5)
        assert not federation.running["a"].done()
        lacking.clear()
        node.exchange.peering.notify()
        await federation.done("a")
        await end(federation)

    play(test, NAMES, settings())


@pytest.mark.slow
def test_node_that_stopped_early_stays_stopped_after_restart(tmp_path):
    """The last evaluation of b is its best one."""

    async def test(federation):
        federation.policy = Stubborn
        federation.start("c")
        federation.policy = everyone
        federation.start("a", "b")
        await federation.done()
        before = federation.nodes["b"].round
        assert before == federation.nodes["b"].early_stopping.round < 10
        federation.settings = replace(federation.settings, rounds=20)
        federation.start("b")
        await federation.done("b")
        assert federation.nodes["b"].round == before

    play(test, NAMES, settings(rounds=10, patience=3), folder=tmp_path)


@pytest.mark.slow
def test_claims_of_later_rounds_take_no_node_past_its_last():
    """Most members claim rounds after the last one, and no extension is known."""

    async def test(federation):
        federation.start("a")
        async with AsyncExitStack() as stack:
            for name in ("b", "c", "d"):
                liar = await stack.enter_async_context(Liar(federation, name))
                liar.follows = False
                liar.claim(40)
            while not federation.nodes["a"].exchange.outbox.final:
                await asyncio.sleep(0.05)  # virtual seconds
        await federation.done()

    federation = play(test, (*NAMES, "d"), settings(members=4))
    assert federation.nodes["a"].round == max(federation.watch["a"].weights) == 3
