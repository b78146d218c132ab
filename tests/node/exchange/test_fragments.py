"""Fragments between nodes that exchange real messages, on virtual time."""

from itertools import count

import numpy as np
import pytest

from p2pfl.fragments import Fragments
from p2pfl.node.exchange.model_encoding import encode_values
from p2pfl.node.settings import Settings
from p2pfl.policies.mosaic import DivShare, Mosaic
from p2pfl.policies.random import Random
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Payload, read_proof
from tests.support.federation import federation_id, play

NAMES = ("a", "b", "c", "d")
HALVES = Fragments("contiguous", 2)  # of 11 values


def mosaic():
    return Mosaic(fragments=4, receivers=3)  # every fragment of everyone


def partners(federation, name):
    return {id for weights in federation.watch[name].weights.values() for id, weight in weights.items() if weight} - {name}


def cheating(change, policy=mosaic, **settings):
    """Run a federation in which `change` has changed node b."""

    async def test(federation):
        federation.start()
        change(federation.nodes["b"].exchange)
        await federation.done()

    return play(test, NAMES, Settings(**{"rounds": 4, "deadline": 10.0} | settings), policy=policy)


def test_nodes_fetch_parts_of_models_and_charge_their_frames():
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        exchange = federation.nodes["a"].exchange
        before = exchange.traffic.received["update"]
        found = await exchange.fetch_fragments({"c": [0], "b": [0, 1]}, 1, HALVES, "trained")
        assert [(each.sender, each.name, each.size) for each in found] == [
            ("b", "0", OVERHEAD + 20),
            ("b", "1", OVERHEAD + 24),
            ("c", "0", OVERHEAD + 20),
        ]
        assert exchange.traffic.received["update"] - before == sum(each.size for each in found)
        model = federation.nodes["b"].exchange.outbox.models[1, "trained"].update.params
        np.testing.assert_array_equal(np.concatenate([each.values for each in found[:2]]), model)
        await federation.done()

    federation = play(test, NAMES, Settings(rounds=2, deadline=10.0), policy=mosaic)
    assert partners(federation, "a") == {"b", "c", "d"}


def shorter(exchange):
    part = exchange.models.encode_part

    def cut(model, fragments, number):
        return Payload.of(bytes(part(model, fragments, number).parts[0])[:-1])

    exchange.models.encode_part = cut


def infinite(exchange):
    exchange.models.encode_part = lambda model, fragments, number: Payload.of(
        encode_values(np.full_like(model.update.params[exchange.models.divide(fragments)[number]], np.inf))
    )


def other_part(exchange):
    send = exchange.peering.send

    def change(peer, message, payload=EMPTY):
        if isinstance(message, m.FragmentUpdate):
            message = m.FragmentUpdate(*(getattr(message, key) for key in message.__struct_fields__[:-1]), 0)
        send(peer, message, payload)

    exchange.peering.send = change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "cause"), [(shorter, "wrong length"), (infinite, "not finite"), (other_part, "not asked for")]
)
def test_wrong_parts_are_refused_and_the_others_used(change, cause):
    federation = cheating(change)
    exchange = federation.nodes["a"].exchange
    assert exchange.rejected[cause] >= 4
    assert exchange.expired == 0
    assert {"c", "d"} <= partners(federation, "a") <= ({"b", "c", "d"} if change is other_part else {"c", "d"})


def test_node_without_fragments_refuses_requests_for_them():
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        a, b = (federation.nodes[name].exchange for name in "ab")
        assert await a.fetch_fragments({"b": [0]}, 1, HALVES, "trained") == []
        assert b.rejected == {"not allowed": 1}
        await federation.done()

    play(test, NAMES, Settings(rounds=2, deadline=10.0), policy=Random)


@pytest.mark.slow
def test_malformed_request_is_refused_without_an_answer():
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        a, b = (federation.nodes[name].exchange for name in "ab")
        for division, parts, wanted in (
            ("strided", 2, b"\4"),
            ("strided", 12, b"\1"),
            ("layers", 3, b"\1"),
            ("random", 2, b"\0"),
        ):
            a.peering.send(a.peers["b"], m.GetFragments(next(a.peering.numbers), 1, "trained", division, parts, wanted))
        await federation.round("a", 2)
        assert b.rejected == {"malformed": 4}
        await federation.done()

    play(test, NAMES, Settings(rounds=3, deadline=10.0), policy=mosaic)


def test_node_whose_policy_fetches_no_fragments_differs():
    """A node of an earlier version names models only, as one whose policy fetches none."""

    async def test(federation):
        federation.start("a", "b", "d")
        federation.policy = Random
        federation.start("c")
        await federation.done("a", "b", "d")
        problem = federation.nodes["a"].exchange.peers["c"].problem
        assert "model collection" in problem
        assert "models or fragments fetched from peers" in problem

    federation = play(test, NAMES, Settings(rounds=2, deadline=10.0), policy=mosaic)
    assert partners(federation, "a") == {"b", "d"}


@pytest.mark.slow
def test_node_that_does_not_wait_learns_on_while_a_peer_is_silent():
    async def test(federation):
        federation.start()
        await federation.round("a", 2)
        await federation.kill("b")
        for name in "acd":
            await federation.round(name, 6)

    federation = play(
        test,
        NAMES,
        Settings(rounds=6, deadline=10.0, mode="asynchronous"),
        policy=lambda: DivShare(fragments=4, receivers=3),
    )
    for name in "acd":
        times = [federation.watch[name].times[round] for round in range(1, 7)]
        np.testing.assert_allclose(np.diff(times), 1.0)  # the seconds of a training
        assert {"a", "b", "c", "d"} - {name} == partners(federation, name)


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_node_that_does_not_wait_asks_peers_on_probation_once_in_a_round(names):
    asked, learned = [], set()

    async def test(federation):
        federation.start()
        await federation.round("a", 2)
        server = federation.nodes["b"].exchange.models
        serve = server.serve
        server.serve = lambda peer, get: asked.append((peer.name, get.round))
        await federation.round("a", 12)
        server.serve = serve
        await federation.round("a", 16)
        federation.watch["a"].weights.clear()
        await federation.done()
        learned.update(partners(federation, "a"))

    settings = Settings(rounds=24, deadline=2.5, mode="asynchronous")
    play(test, names, settings, policy=lambda: DivShare(fragments=4, receivers=len(names) - 1), period=1.0)
    assert {round for name, round in asked if name == "a"} >= set(range(7, 12))
    assert len(set(asked)) == len(asked)
    assert "b" in learned


@pytest.mark.slow
def test_different_parts_for_different_peers_are_a_proof():
    def equivocate(exchange):
        numbers = count(1)
        exchange.models.encode_part = lambda model, fragments, number: Payload.of(
            encode_values(model.update.params[exchange.models.divide(fragments)[number]] + np.float32(1e-3 * next(numbers)))
        )

    federation = cheating(equivocate, robust="median", distrust=3, rounds=8)
    convicted = [name for name in "acd" if federation.nodes[name].exchange.conduct.proofs]
    assert convicted == ["a", "c", "d"]
    for name in convicted:
        exchange = federation.nodes[name].exchange
        (proof,) = exchange.conduct.proofs.values()
        one, other = read_proof(proof, federation_id("test"))
        assert one.sender == other.sender == federation.keys["b"].public
        assert one.part == other.part is not None
        assert exchange.view.left_out == {"b": "distrusted: equivocation"}
