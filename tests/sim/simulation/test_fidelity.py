"""Modelled network and network of messages over links with loss, jitter, a bandwidth and outages, beyond many deadlines.

Both send the same frames in the same order, except for the introductions of the nodes, which the modelled network lacks.
Here these take no time, so the same frames are lost and delayed. Then the two may differ only in the order of events at
the same time, and in the moment at which a node that waits notices a change. Without a missed deadline neither changes
a result. After one, some requests may go to other peers: the tests permit `TOLERANCE` of them, over some seeds. A model
that is still under way at the end of a run counts as received in the modelled network only.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.clock import DeadlockError
from p2pfl.sim.simulation.simulation import Simulation
from tests.support.depth import many, pairs, spread
from tests.support.simulated import LOOKED_AT

NODES, ROUNDS = 6, 16
SEEDS = 3
TOLERANCE = 0.12  # share of the requests
SMALL = {
    "nodes": NODES,
    "rounds": ROUNDS,
    "trainer": "one-by-one",
    "task": {"name": "concept-shift"},
    "policy": {"name": "random", "neighbours": 3},
    "compute": {"slowdown": [1.0, 1.2]},
}


class TestLinks(Links):
    """Links of a scenario on which introductions take no time, and which lose all frames of a node during its outages.

    Args:
        outages: node, begin and end of each outage, in seconds.
    """

    __test__ = False

    def __init__(self, scenario, outages=(), introduced=True):
        super().__init__(scenario.network, scenario.seed)
        self.outages = outages
        self.introduced = introduced

    def arrival(self, source, target, size, now):
        if self.introduced and now == 0.0:
            return now
        when = super().arrival(source, target, size, now)
        out = any(node in (source, target) and begin <= now < end for node, begin, end in self.outages)
        return None if out else when


def run(fidelity, outages=(), introduced=True, **options):
    scenario = resolve(SMALL | options | {"fidelity": fidelity}, [], "test", ".").runs[0]
    return Simulation(scenario, links=TestLinks(scenario, outages, introduced), singly=LOOKED_AT).run()


def figures(result):
    """Return the figures that must agree: the numbers of requests, of models and of missed deadlines, and the bytes."""
    traffic = [node.exchange.traffic for node in result.nodes.values()]
    rounds = result.recorder.rounds_table()
    return {
        "requests": sum(each.sent["get"] for each in traffic) // OVERHEAD,
        "served": sum(each.sent["models"] for each in traffic),
        "received": sum(each.received["models"] for each in traffic),
        "in time": int(rounds["models_in"].sum()),
        "bytes": sum(each.sent_in_rounds + each.sent["preparation"] for each in traffic),
        "deadlines": result.expired,
    }


def bits(result):
    """Return the parameters of each node, and the models and bytes by kind that it has sent and received for learning."""

    def without_control(node):
        return {way: counts | {"control": 0} for way, counts in node.exchange.traffic.as_dict().items()}

    return {name: (node.me.params.tobytes(), without_control(node)) for name, node in result.nodes.items()}


def times(result):
    """Return the virtual time of each round of each node."""
    table = result.recorder.rounds_table()
    return table["virtual_time"][np.lexsort((table["round"], table["node"]))]


def assert_equal(modelled, wire):
    assert figures(modelled) == figures(wire)
    assert bits(modelled) == bits(wire)
    np.testing.assert_allclose(times(modelled), times(wire), atol=1e-9)


def total(results):
    """Return the sums of the figures of several runs."""
    each = [figures(result) for result in results]
    return {name: sum(one[name] for one in each) for name in each[0]}


def assert_close(modelled, wire):
    found, expected = total(modelled), total(wire)
    most = TOLERANCE * expected["requests"]
    bytes_each = found["bytes"] / found["requests"]
    for name, value in expected.items():
        unit = bytes_each if name == "bytes" else 1
        assert abs(found[name] - value) <= most * unit, f"{name}: {found[name]} modelled, {value} on the wire"


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_deadlock_names_waiting_nodes_and_the_deadline(fidelity):
    world = {"nodes": 3, "rounds": 3, "deadline": float("inf"), "network": {"jitter": 0.01}}
    with pytest.raises(DeadlockError) as caught:
        run(fidelity, [("node-1", 1.5, float("inf"))], **world)
    assert re.fullmatch(
        r"deadlock at 2\.\d+ s of virtual time: no event is left, but 3 of 3 nodes wait: node-0 in round 1, .*; with"
        r" deadline = inf they wait for ever for a missing answer: set a finite one, such as deadline = 30",
        str(caught.value),
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", spread(["divshare", "mosaic"], 2))
def test_fragments_over_slow_links_modelled_equal_wire(policy):
    options = {"policy": {"name": policy, "fragments": 4, "receivers": 3}, "mode": "asynchronous"}
    modelled, wire = (run(fidelity, network={"jitter": 0.5}, **options) for fidelity in ("modelled", "wire"))
    ours, theirs = bits(modelled), bits(wire)
    if policy == "divshare":  # it ends while fragments are under way, which only messages count
        ours, theirs = ({name: params for name, (params, _) in each.items()} for each in (ours, theirs))
    assert ours == theirs
    np.testing.assert_allclose(times(modelled), times(wire), atol=1e-9)


LINKS = {
    "latencies": {},
    "loss": {"loss": 0.05},
    "jitter below the deadline": {"jitter": 0.5},
    "jitter as long as the deadline": {"jitter": 3.0},
    "bandwidth": {"bandwidth": 8000.0},
    "scarce bandwidth": {"bandwidth": 3000.0},
    "outages": {},
}


@pytest.mark.slow
@pytest.mark.parametrize(("links", "mode"), pairs(LINKS, ["synchronous", "asynchronous"]))
def test_links_of_one_kind_modelled_equal_wire(links, mode):
    outages = [("node-2", 4.3, 9.1), ("node-4", 7.7, 12.9)] if links == "outages" else []
    lossy = {"loss": 1e-9} if outages else {}  # a run in which the last messages may be lost ends without them
    network = {"latency": [0.01, 0.04], **lossy, **LINKS[links]}
    modelled, wire = (run(fidelity, outages, mode=mode, deadline=3.0, network=network) for fidelity in ("modelled", "wire"))
    assert wire.virtual_s > 5 * 3.0
    assert_equal(modelled, wire)


@st.composite
def worlds(draw):
    deadline = draw(st.sampled_from([2.0, 3.0, 5.0]))
    kinds = draw(st.sets(st.sampled_from(["loss", "jitter", "bandwidth", "outages"]), min_size=1))
    network = {"latency": [0.01, 0.04], "loss": draw(st.floats(0.01, 0.2)) if "loss" in kinds else 1e-9}
    if "jitter" in kinds:
        network["jitter"] = deadline * draw(st.floats(0.01, 1.0))
    if "bandwidth" in kinds:
        network["bandwidth"] = draw(st.floats(3000.0, 20000.0))
    outages = []
    if "outages" in kinds:
        for node, begin, length in draw(
            st.lists(st.tuples(st.integers(0, NODES - 1), st.floats(1.0, 20.0), st.floats(0.5, 3.0)), min_size=1, max_size=3)
        ):
            outages.append((f"node-{node}", begin, begin + length * deadline))
    options = {
        "mode": draw(st.sampled_from(["synchronous", "asynchronous"])),
        "topology": {"name": draw(st.sampled_from(["complete", "ring"]))},
    }
    return options | {"deadline": deadline, "network": network, "outages": outages}


@pytest.mark.slow
@settings(max_examples=many(2, 8), derandomize=True)
@given(worlds())
def test_links_of_several_kinds_modelled_agree_with_wire(world):
    modelled, wire = ([run(fidelity, seed=seed, **world) for seed in range(SEEDS)] for fidelity in ("modelled", "wire"))
    for one, other in zip(modelled, wire, strict=True):
        assert other.virtual_s > 3 * world["deadline"]
        if other.expired == 0:
            assert_equal(one, other)
    assert_close(modelled, wire)


@pytest.mark.slow
@pytest.mark.parametrize("network", spread([{"loss": 0.1}, {"loss": 0.01}, {"jitter": 2.5}, {"bandwidth": 8000.0}], 2))
def test_introductions_change_totals_little(network):
    """Compare totals only: with introductions other frames are lost, and the first round starts later."""
    options = {"deadline": 4.0, "network": {"latency": 0.05, **network}, "introduced": False}
    modelled, wire = ([run(fidelity, seed=seed, **options) for seed in range(SEEDS)] for fidelity in ("modelled", "wire"))
    assert_close(modelled, wire)
