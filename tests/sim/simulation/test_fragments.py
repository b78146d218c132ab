"""Policies that fetch fragments: simulations with and without messages are equal, and bytes are those of the frames."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.scenario.scenario import resolve
from tests.support.simulated import run

WORLD = {
    "nodes": 6,
    "rounds": 4,
    "trainer": "one-by-one",
    "task": {"name": "concept-shift"},  # 11 values
    "policy": {"name": "mosaic", "fragments": 4, "receivers": 2},
}


def play(**options):
    return run(resolve(WORLD | options, [], "test", ".").runs[0])


def bits(result):
    """Return each node's parameters and its traffic; messages also count what a modelled network lacks as `control`."""
    traffic = {
        name: {way: counts | {"control": 0} for way, counts in node.exchange.traffic.as_dict().items()}
        for name, node in result.nodes.items()
    }
    return {name: node.me.params.tobytes() for name, node in result.nodes.items()}, traffic


WORLDS = {
    "links without delay": {},
    "delays and a bandwidth": {"network": {"latency": 0.01, "bandwidth": 8000.0}},
    "asynchronous": {"mode": "asynchronous", "compute": {"slowdown": [1.0, 2.0]}},
    "a budget": {"budget": {"models": 1}},
    "a sparse topology": {"topology": "ring"},
    "a robust rule, and detection": {"robust": "median", "distrust": 10},
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_modelled_network_equals_messages(world):
    modelled, wire = (play(fidelity=fidelity, **WORLDS[world]) for fidelity in ("modelled", "wire"))
    assert bits(modelled) == bits(wire)
    assert modelled.expired == wire.expired == 0
    if "network" not in WORLDS[world]:  # sums of delays differ in their last bits
        assert modelled.recorder.trace.digest() == wire.recorder.trace.digest()


SLOW = {"mode": "asynchronous", "compute": {"slowdown": [1.0, 2.0]}, "network": {"latency": 0.3, "bandwidth": 8000.0}}


@pytest.mark.slow
def test_nodes_that_do_not_wait_lose_no_time_on_slow_links_and_average_what_has_come():
    going, waiting = play(policy={"name": "divshare", "fragments": 4, "receivers": 2}, **SLOW), play(**SLOW)
    assert going.virtual_s == play(policy={"name": "local"}, **SLOW).virtual_s
    assert waiting.virtual_s > going.virtual_s + 2
    rounds, edges = going.recorder.rounds_table(), going.recorder.edges_table()
    assert rounds["models_in"][rounds["round"] == 1].max() == 0  # nothing has been asked for before the end of round 1
    assert len(edges["src"]) > 30


def test_bytes_and_models_are_those_of_the_fragments():
    result = play()
    frames = 4 * 2 * OVERHEAD + 2 * 4 * 11  # each fragment from two peers
    for node in result.nodes.values():
        traffic, tracker = node.exchange.traffic, node.peers.budget_tracker
        assert traffic.received["update"] == traffic.sent["update"] == 4 * frames
        assert (traffic.received["models"], tracker.round_models) == (0, 4 * 2)
    assert set(result.recorder.rounds_table()["models_in"].tolist()) == {2}
    edges = result.recorder.edges_table()
    assert edges["bytes"].sum() == 4 * 6 * frames
    into = [edges["weight"][(edges["dst"] == node) & (edges["round"] == 1)].sum() for node in range(6)]
    np.testing.assert_allclose(into, 2 / 3, rtol=1e-6)  # the rest is the own model's


def test_one_fragment_is_epidemic_learning_with_whole_models():
    result = play(policy={"name": "mosaic", "fragments": 1, "receivers": 2, "division": "contiguous"}, rounds=1)
    trained = {name: node.peers.published["trained"] for name, node in result.nodes.items()}
    edges = result.recorder.edges_table()
    for k, (name, node) in enumerate(result.nodes.items()):
        senders = [f"node-{src}" for src in edges["src"][edges["dst"] == k]]
        assert len(senders) == 2
        mean = np.mean([trained[each] for each in (name, *senders)], axis=0)
        np.testing.assert_allclose(node.me.params, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_fragments_that_are_lost_are_left_out_and_the_others_are_used():
    result = play(network={"loss": 0.2}, deadline=5.0, rounds=6)
    assert result.expired > 0
    received = [node.exchange.traffic.received["update"] for node in result.nodes.values()]
    assert 0 < sum(received) < sum(node.exchange.traffic.sent["update"] for node in result.nodes.values())
    weights = result.recorder.edges_table()["weight"]
    assert ((weights > 0) & (weights < 0.5)).any()


@pytest.mark.slow
def test_attackers_that_send_each_node_other_fragments_are_convicted():
    attack = {"name": "dissensus", "share": 0.25}
    result = play(nodes=8, attack=attack, robust="trimmed", distrust=5)
    attackers = result.recorder.view.attackers
    convicted = {
        name: {id for id, kinds in node.exchange.conduct.penalties.items() if kinds["equivocation"]}
        for name, node in result.nodes.items()
        if name not in attackers
    }
    assert len(attackers) == 2
    assert all(found == set(attackers) for found in convicted.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": {"name": "int8"}}, 'the policy Mosaic fetches fragments of models, which need codec.name = "float32"'),
        ({"robust": "krum"}, "a robust rule of single values, which are median and trimmed, or none; got 'krum'"),
        ({"policy": {"name": "mosaic", "fragments": 12}}, "a model of 11 values cannot have 12 fragments"),
        ({"policy": {"name": "divshare", "division": "halves"}}, "must be one of contiguous, strided, random, layers"),
    ],
)
def test_what_cannot_serve_fragments_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        play(**options)
    assert "\n" not in str(refused.value)
