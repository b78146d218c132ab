"""Policies for nodes that do not wait: AD-PSGD, stochastic gradient push, and weights by staleness."""

import networkx as nx
import numpy as np
import pytest
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import regression
from p2pfl.policies.ad_psgd import AdPsgd
from p2pfl.policies.fedasync import FedAsync, weights_by_staleness
from p2pfl.policies.sgp import Sgp
from p2pfl.policy import Update
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.testing import run_in_memory
from tests.support.simulated import run

LR = 0.1
TARGETS = {"a": 0.0, "b": 3.0, "c": 9.0}


def number(part=None, seed=0, *, target=None):
    """Task with one weight w and the loss mean (w - y)^2: its gradient is 2 (w - y)."""
    y = np.full((1, 1), part.index if target is None else target, np.float32)
    return regression(lambda: nn.Linear(1, 1, bias=False), (np.ones_like(y), y), optimizer=SGD(LR), batch_size=1)


class Once(Sgp):
    """Trains in the first round only, so that all that follows is averaging."""

    async def train(self, me):
        trained = await super().train(me)
        return trained if me.round == 1 else me.params


def once():
    return Once()


def simulate(graph=None, **changes):
    task = {"name": "tests.p2pfl.policies.test_policies_asynchronous:number"}
    base = {"nodes": 6, "task": task, "evaluate_every": 0}
    return run(resolve(base | changes, [], "test", ".").runs[0], graph=graph)


# AD-PSGD


def test_ad_psgd_averages_with_current_model_and_applies_the_gradient_before_the_average():
    tasks = {id: number(target=TARGETS[id]) for id in "ab"}
    cast, history = run_in_memory({id: AdPsgd() for id in tasks}, tasks, 2)
    a = b = float(cast["a"].initial[0])
    a = a - LR * 2 * (a - 0.0)  # the neighbour has published nothing yet
    assert history[0]["a"].weights == {"a": 1.0}
    b = (a + b) / 2 - LR * 2 * (b - 3.0)
    a = (a + b) / 2 - LR * 2 * (a - 0.0)
    b = (a + b) / 2 - LR * 2 * (b - 3.0)
    assert [float(cast[id].params[0]) for id in "ab"] == pytest.approx([a, b], rel=1e-5)
    assert history[1]["b"].weights == {"a": 0.5, "b": 0.5}


def test_ad_psgd_is_refused_where_nodes_wait():
    with pytest.raises(ConfigurationError, match='AdPsgd needs mode = "asynchronous": its nodes take models of rounds'):
        simulate(policy={"name": "ad-psgd"})


def test_fast_nodes_of_ad_psgd_do_not_wait_for_a_slow_one():
    found = simulate(policy={"name": "ad-psgd"}, mode="asynchronous", rounds=8, compute={"slowdown": [1.0, 9.0]})
    table = found.recorder.rounds_table()
    ends = [table["virtual_time"][table["node"] == node] for node in range(6)]
    assert all(np.allclose(np.diff(each), each[0]) for each in ends)  # nothing but its own training takes time
    assert max(each[0] for each in ends) > 2 * min(each[0] for each in ends)
    assert set(table["models_in"].tolist()) == {0, 1}


# Stochastic gradient push


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_sgp_reaches_the_plain_mean_on_a_directed_graph(mode):
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (0, 4), (2, 0), (5, 1)])
    name = {"name": "tests.p2pfl.policies.test_policies_asynchronous:once"}
    options = {"mode": mode, "policy": name, "rounds": 150, "compute": {"slowdown": [1.0, 4.0]}}
    found = simulate(graph, **options, end={"seconds": 150.0})
    start = float(next(iter(found.nodes.values())).me.initial[0])
    mean = np.mean([start - LR * 2 * (start - target) for target in range(6)])
    assert [float(node.me.params[0]) for node in found.nodes.values()] == pytest.approx([mean] * 6, rel=1e-4)
    weights = [node.policy.weight for node in found.nodes.values()]
    assert max(weights) > 1.5 * min(weights)  # without them the nodes would not reach the mean


@pytest.mark.parametrize("policy", ["sgp", "gradient-tracking"])
def test_result_without_evaluations_is_the_model(policy):
    """It is not what the policy publishes at the stage `merged`: the sum of all shares, or the tracked step."""
    found = simulate(policy={"name": policy}, rounds=3)  # evaluates the last model only
    for node in found.nodes.values():
        assert node.result.tobytes() == node.me.params.tobytes()


def test_sgp_can_damp_its_steps_by_its_weight():
    graph, moved = nx.DiGraph([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2)]), {}
    for damped in (False, True):
        found = simulate(graph, nodes=3, rounds=2, policy={"name": "sgp", "damped": damped})
        assert sum(node.policy.weight for node in found.nodes.values()) == pytest.approx(3.0)
        moved[damped] = [float(node.me.params[0]) for node in found.nodes.values()]
    assert moved[False] != moved[True]


def test_sgp_keeps_the_sum_of_weights_and_its_state():
    tasks = {id: number(target=TARGETS[id]) for id in TARGETS}
    policies = {id: Sgp() for id in tasks}
    cast, history = run_in_memory(policies, tasks, 3)
    assert sum(policy.weight for policy in policies.values()) == pytest.approx(3.0)
    assert history[-1]["a"].weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert [float(me.params[0]) for me in cast.values()] == pytest.approx([float(cast["a"].params[0])] * 3)  # complete graph
    again = Sgp()
    again.restore(policies["a"].state())
    assert again.state() == policies["a"].state()
    assert (again.weight, again.sent[1], set(again.seen)) == (policies["a"].weight, policies["a"].sent[1], {"b", "c"})


def said(weight, *values, dtype=np.float64):
    return Update("b", 1, "merged", np.array(values, np.float32), 1, {"weight": np.array(weight, dtype)})


def test_sgp_counts_what_is_new_once():
    policy, found = Sgp(), []
    # the second publication is the first one again, and before the fourth the sender has begun anew
    for weight, ratio in ((2.0, 3.0), (2.0, 3.0), (5.0, 4.0), (1.0, 4.0), (2.0, 4.0)):
        values, gained = policy.new_since_last(said([weight], ratio))
        found.append((float(values[0]), gained))
    assert found == [(6.0, 2.0), (0.0, 0.0), (14.0, 3.0), (0.0, 0.0), (4.0, 1.0)]


@pytest.mark.parametrize(
    "update", [said([np.nan], 1.0), said([-1.0], 1.0), said([1.0, 2.0], 1.0), said([1], 1.0, dtype=np.int64)]
)
def test_sgp_ignores_invalid_weights(update):
    policy = Sgp()
    assert policy.new_since_last(update)[1] == 0.0
    assert not policy.seen


def test_sgp_refuses_a_robust_rule():
    with pytest.raises(ConfigurationError, match='sgp needs robust = "none"'):
        simulate(policy={"name": "sgp"}, rounds=1, robust="median")


def test_sgp_refuses_a_codec_that_loses_digits():
    with pytest.raises(ConfigurationError, match=r'adds up what it receives, .*; set codec\.name = "float32", got'):
        simulate(policy={"name": "sgp"}, rounds=1, codec={"name": "float16"})


def test_sgp_ends_before_its_steps_grow_without_bound():
    policies = {id: Sgp() for id in "ab"}
    policies["a"].weight = policies["b"].weight = 1e-7  # as after rounds in which nobody has fetched the shares
    with pytest.raises(ConfigurationError, match="remove the members that stay away"):
        run_in_memory(policies, {id: number(target=TARGETS[id]) for id in "ab"}, 1)


def test_sgp_refuses_a_graph_for_each_round():
    with pytest.raises(ConfigurationError, match='use the policy dsgd with weights = "graph"'):
        simulate(policy={"name": "sgp"}, rounds=1, topology={"name": "base-k"})


# Weights by staleness


def test_weights_fall_with_the_rounds_that_a_model_is_behind():
    cast, _ = run_in_memory({"a": FedAsync()}, {"a": number(target=1.0)}, 5)
    updates = [Update(id, round, "trained", np.zeros(1, np.float32), 1) for id, round in (("b", 5), ("c", 2), ("d", 7))]
    found = weights_by_staleness(cast["a"], updates, 0.5)
    assert found == pytest.approx({id: each / 3.5 for id, each in {"a": 1, "b": 1, "c": 0.5, "d": 1}.items()})
    assert weights_by_staleness(cast["a"], updates, 0.0) == pytest.approx(dict.fromkeys("abcd", 0.25))


def test_fedasync_of_nodes_that_wait_is_fedavg():
    found = [simulate(policy={"name": name}, rounds=3).recorder.trace.digest() for name in ("fedasync", "fedavg")]
    assert found[0] == found[1]


def test_fedasync_gives_slow_nodes_less_weight():
    found = simulate(policy={"name": "fedasync"}, mode="asynchronous", rounds=10, compute={"slowdown": [1.0, 9.0]})
    edges, rounds = found.recorder.edges_table(), found.recorder.rounds_table()
    slow = int(rounds["node"][rounds["virtual_time"].argmax()])
    late = edges["round"] > 5
    of_slow = edges["weight"][late & (edges["src"] == slow) & (edges["dst"] != slow)]
    assert len(of_slow)
    assert of_slow.mean() < edges["weight"][late & (edges["src"] != slow)].mean()


@pytest.mark.parametrize(
    ("made", "options"),
    [
        *((AdPsgd, each) for each in ({"steps": -1}, {"epochs": 0})),
        *((Sgp, each) for each in ({"steps": -1}, {"epochs": 0})),
        *((FedAsync, each) for each in ({"exponent": -1.0}, {"exponent": np.nan}, {"neighbours": -1}, {"steps": -1})),
    ],
)
def test_invalid_options_are_refused(made, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        made(**options)


# Live nodes exchange what simulated ones compute


@pytest.mark.parametrize("policy", ["ad-psgd", "sgp", "fedasync"])
def test_modelled_exchange_equals_messages(policy):
    options = {"policy": {"name": policy}, "mode": "asynchronous", "rounds": 5, "compute": {"slowdown": [1.0, 5.0]}}
    options |= {"network": {"latency": 0.3}, "topology": {"name": "ring"}, "trainer": "one-by-one"}
    modelled, wire = (simulate(fidelity=fidelity, **options) for fidelity in ("modelled", "wire"))
    for name, node in modelled.nodes.items():
        assert node.me.params.tobytes() == wire.nodes[name].me.params.tobytes()
        assert node.exchange.traffic.sent["update"] == wire.nodes[name].exchange.traffic.sent["update"] > 0
    assert not any(node.exchange.rejected for node in wire.nodes.values())
