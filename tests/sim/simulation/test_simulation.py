"""Simulations: determinism, and equality of the modelled exchange and the exchange by messages."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from msgspec.structs import replace

import p2pfl
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.policies.random import Random
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim import columns
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.network import Links, Network
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.simulation.plan import names, plan, plan_topology
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import make_task
from tests.support.depth import many, spread
from tests.support.simulated import run

ROOT = Path(__file__).parents[3]
SMALL = {"nodes": 12, "rounds": 4, "task": {"name": "concept-shift"}, "policy": {"name": "dac", "neighbours": 3}}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


def params(result):
    return {name: node.me.params.tobytes() for name, node in result.nodes.items()}


def trace(result):
    return result.recorder.trace.digest()


def notes_of(result):
    """Return the notes of a run, without that on few test samples."""
    return [note for note in result.notes if "test sample" not in note]


def bytes_by_kind(result):
    """Return the bytes that each node has sent and received, without control messages."""
    counts = {name: node.exchange.traffic.as_dict() for name, node in result.nodes.items()}
    for name, ways in counts.items():
        traffic = result.nodes[name].exchange.traffic
        for way in ways.values():
            way.pop("control")
        ways["preparation"] = {"sent": traffic.sent["preparation"], "received": traffic.received["preparation"]}
    return counts


def test_complete_topology_is_planned_without_edges():
    complete = scenario(topology={"name": "complete"})
    assert not any(graph.number_of_edges() for graph in plan_topology(complete, None, names(12))[1:])
    planned = plan(complete)
    given = plan(scenario(), nx.complete_graph(12))
    assert [*planned.topology.neighbours] == [*given.topology.neighbours]
    assert planned.topology.properties == given.topology.properties


@pytest.mark.slow
def test_complete_topology_gives_the_results_of_its_graph():
    assert trace(run(scenario(topology={"name": "complete"}))) == trace(run(scenario(), graph=nx.complete_graph(12)))


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [1, 2**25])
def test_records_are_the_same_in_parts_of_any_size(monkeypatch, mapped):
    slow = {"compute": {"slowdown": [1.0, 30.0]}, "network": {"latency": 0.3}, "topology": {"name": "ring"}}
    options = slow | {"rounds": 8, "deadline": 2.0, "task": {"name": "digits"}}  # some nodes repeat rounds
    whole = run(scenario(**options)).recorder
    monkeypatch.setattr(columns, "PART", 7)
    monkeypatch.setattr(columns, "MAPPED", mapped)
    held: list[int] = []
    simulation = Simulation(scenario(**options))
    parts = simulation.run(lambda rounds: held.append(simulation.recorder.held)).recorder
    assert parts.counts[0] > 7
    assert max(held) < 7
    for table in ("rounds_table", "edges_table"):
        expected, found = (getattr(each, table)() for each in (whole, parts))
        assert list(expected) == list(found)
        for name, column in expected.items():
            np.testing.assert_array_equal(column, found[name])
    entire, counts = parts.after((0, 0, 0)), tuple(count // 2 for count in parts.counts)
    for first, all_rows, later in zip(counts, entire[:2], parts.after(counts)[:2], strict=False):
        assert all((column[first:] == later[name]).all() for name, column in all_rows.items())
    assert [round for round, _ in entire[2]]
    assert {len(stages["merged"]) for _, stages in entire[2]} == {4}  # loss and accuracy on two splits


# Modelled exchange and exchange with messages

WORLDS = {
    "instant": {},
    "sequential, scored by peers": {
        "policy": {
            "name": "dac",
            "neighbours": 3,
            "schedule": "sequential",
            "similarity": "inverse-loss",
            "score_on": "peer",
        }
    },
    "latency, slow nodes": {"network": {"latency": 0.03}, "compute": {"slowdown": [1.0, 10.0]}},
    "many latencies": {"network": {"latency": [0.01, 0.3]}, "compute": {"slowdown": [1.0, 10.0]}},
    "bandwidth": {"network": {"latency": 0.03, "bandwidth": 2000.0}, "topology": {"name": "small-world"}},
    "asynchronous": {"mode": "asynchronous", "compute": {"slowdown": [1.0, 10.0]}},
    "asynchronous, latency": {
        "mode": "asynchronous",
        "network": {"latency": 0.3},
        "compute": {"slowdown": [1.0, 10.0]},
        "max_staleness": 5.0,
    },
    "ring": {"topology": {"name": "ring"}, "compute": {"slowdown": [1.0, 3.0]}},
    "disconnected": {"topology": {"name": "erdos-renyi", "p": 0.12}},
    "prepared under a budget": {
        "policy": {"name": "dpfl", "initial_epochs": 2, "period": 2},
        "budget": {"models": [1, 4], "held": 4, "bytes": 5000},
        "network": {"latency": [0.01, 0.3]},
    },
    "early stopping": {"patience": 1, "rounds": 12, "policy": {"name": "random", "neighbours": 2}},
}


@cache
def modelled_and_wire(world):
    options = {"trainer": "one-by-one"} | WORLDS[world]
    return [run(scenario(fidelity=fidelity, **options)) for fidelity in ("modelled", "wire")]


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_modelled_exchange_equals_wire(world):
    modelled, wire = modelled_and_wire(world)
    assert params(modelled) == params(wire)
    assert bytes_by_kind(modelled) == bytes_by_kind(wire)
    assert modelled.expired == wire.expired == 0
    assert not any(node.exchange.rejected for node in wire.nodes.values())
    for name in modelled.nodes:
        assert modelled.recorder.results[name] == wire.recorder.results[name]


CODECS = {
    "float16": {"name": "float16"},
    "bfloat16": {"name": "bfloat16"},
    "int8": {"name": "int8"},
    "top-k": {"name": "top-k", "share": 0.2},
    "top-k, few copies": {"name": "top-k", "share": 0.3, "copies": 4},
}
CODED_WORLDS = {
    "more rounds than are remembered": {"rounds": 14},
    "sequential": WORLDS["sequential, scored by peers"],
    "asynchronous, latency": WORLDS["asynchronous, latency"],
    "bandwidth": WORLDS["bandwidth"],
    "early stopping": WORLDS["early stopping"],
}


def coded_pairs():
    """Yield every world with a stateful and with a stateless codec, and every codec in at least one world."""
    worlds = list(CODED_WORLDS)
    yield from [("top-k, few copies", world) for world in worlds]
    yield from [("int8", world) for world in worlds[1:]]
    yield from [
        ("top-k", worlds[0]),
        ("top-k", "asynchronous, latency"),
        ("float16", "sequential"),
        ("bfloat16", "bandwidth"),
    ]


@cache
def uncoded(world):
    return params(run(scenario(trainer="one-by-one", **CODED_WORLDS[world])))


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "world"), spread(coded_pairs(), 2))
def test_modelled_exchange_with_codec_equals_wire(codec, world):
    options = {"trainer": "one-by-one", "codec": CODECS[codec]} | CODED_WORLDS[world]
    modelled, wire = (run(scenario(fidelity=fidelity, **options)) for fidelity in ("modelled", "wire"))
    assert params(modelled) == params(wire)
    assert bytes_by_kind(modelled) == bytes_by_kind(wire)
    assert modelled.expired == wire.expired == 0
    assert not any(node.exchange.rejected for node in wire.nodes.values())
    assert uncoded(world) != params(modelled)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["instant", "asynchronous", "latency, slow nodes", "ring"])
def test_modelled_and_wire_take_the_same_virtual_time(world):
    times = []
    for result in modelled_and_wire(world):
        table = result.recorder.rounds_table()
        order = np.lexsort((table["round"], table["node"]))
        times.append(table["virtual_time"][order])
    # With messages, a handshake of one round trip precedes the run.
    assert np.allclose(times[0] - times[0].min(), times[1] - times[1].min(), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "latency", "schedule"),
    [
        (0, 0.0, "synchronous"),
        (4, 0.1, "synchronous"),
        (2, 0.0, "sequential"),
        (0, 0.1, "sequential"),
        (4, 0.0, "sequential"),
    ],
)
def test_modelled_and_wire_skip_slow_node_equally(slow, latency, schedule):
    """The slow node misses deadlines; the models published by then are served in both fidelities."""
    policy = {"name": "random", "neighbours": 4, "schedule": schedule}
    options = {"nodes": 5, "rounds": 8, "policy": policy, "deadline": 5.0, "network": {"latency": latency}}
    models = []
    for fidelity in ("modelled", "wire"):
        simulation = Simulation(scenario(fidelity=fidelity, trainer="one-by-one", **options))
        trainer = simulation.trainers[slow]
        trainer.speed = trainer.speed._replace(pass_s=20.0)
        result = simulation.run()
        assert result.expired == 8  # each of the others waits once for its model and once for its pace
        table = result.recorder.rounds_table()
        models.append(table["models_in"][np.lexsort((table["round"], table["node"]))].reshape(5, 8).tolist())
    assert models[0] == models[1]
    quick = [row for k, row in enumerate(models[0]) if k != slow]
    assert all(count == 3 for row in quick for count in row[1:])
    assert models[0][slow] == [4] * 8


class Nosy(Random):
    """Policy that ignores the topology: it asks itself, all nodes, and one that does not exist."""

    asks_scores = True

    def candidates(self, me, peers):
        return ["nobody", *names(12)]

    async def round(self, me, peers):
        merged = await super().round(me, peers)
        self.losses = await peers.remote_losses(self.candidates(me, peers), me.params)
        return merged


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_topology_limits_models_that_a_policy_receives(fidelity):
    policy = {"name": "tests.sim.simulation.test_simulation:Nosy", "neighbours": 13}
    result = run(scenario(policy=policy, topology={"name": "ring"}, fidelity=fidelity))
    edges = result.recorder.edges_table()
    assert {*zip(edges["src"].tolist(), edges["dst"].tolist(), strict=True)} == {
        ((k + step) % 12, k) for k in range(12) for step in (-1, 1)
    }
    assert all(tuple(node.policy.losses) == node.exchange.view.neighbours for node in result.nodes.values())
    assert all(node.exchange.expired == 0 for node in result.nodes.values())


@pytest.mark.slow
def test_directed_topology_modelled_equals_wire():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (3, 0)])
    modelled, wire = (
        run(scenario(fidelity=fidelity, trainer="one-by-one", nodes=4, policy={"name": "random"}), graph=graph)
        for fidelity in ("modelled", "wire")
    )
    assert params(modelled) == params(wire)
    assert bytes_by_kind(modelled) == bytes_by_kind(wire)
    assert wire.expired == 0
    assert wire.nodes["node-0"].exchange.view.ids == ("node-2", "node-3")


# Determinism


@pytest.mark.slow
def test_trace_depends_on_seed():
    first, again, other = (run(scenario(seed=seed)) for seed in (0, 0, 1))
    assert trace(first) == trace(again)
    assert params(first) == params(again)
    assert trace(first) != trace(other)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"mode": "asynchronous", "compute": {"slowdown": [1.0, 10.0]}}])
def test_trace_ignores_order_of_nodes(options):
    order = np.random.default_rng(0).permutation(12).tolist()
    straight, shuffled = run(scenario(**options)), run(scenario(**options), order=order)
    assert trace(straight) == trace(shuffled)
    assert params(straight) == params(shuffled)


@pytest.mark.slow
def test_node_speeds_do_not_affect_synchronous_models():
    single = {"trainer": "one-by-one"}  # a stack of another size may differ in the last bits
    equal, unequal = run(scenario(**single)), run(scenario(compute={"slowdown": [1.0, 5.0]}, **single))
    assert params(equal) == params(unequal)
    assert equal.virtual_s < unequal.virtual_s


@pytest.mark.slow
def test_trace_is_equal_in_other_processes():
    code = (
        "import sys; from p2pfl.sim.scenario.scenario import resolve; from tests.support.simulated import run;"
        "import torch; torch.set_num_threads(1);"
        f"print(run(resolve({SMALL!r}, [], 'test', '.').runs[0]).recorder.trace.digest())"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],  # not forked: the seed of hashes is read when Python starts
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in many(["1"], ["1", "2"])
    ]
    assert {*printed, trace(run(scenario()))} == {printed[0]}


@pytest.mark.slow
def test_engines_give_equal_results():
    file = load("dac-synthetic", ["form=smoke"])
    file = replace(file.only("cosine"), seeds=(0, 1))
    local, process = (run_all(file, engine) for engine in ("local", "process"))
    assert len(local) == len(process) == 8
    for a, b in zip(local, process, strict=True):
        assert a.summary | {"time": 0} == b.summary | {"time": 0}
        assert all(np.array_equal(a.rounds[key], b.rounds[key], equal_nan=True) for key in a.rounds)
        assert all(np.array_equal(a.edges[key], b.edges[key]) for key in a.edges)


def test_resolved_scenario_has_the_same_runs():
    file = load("digits-gossip", ["form=smoke", "rounds=2"])
    again = resolve(file.to_toml(), [], "again", ".")
    assert again.runs == file.runs
    assert again.seeds == file.seeds


# Batches


def test_synchronous_nodes_train_in_one_batch():
    result = run(scenario(policy={"name": "random"}))
    assert result.batches["train"] == (4, 48)
    assert result.batches["mean"] == (4, 48)


@pytest.mark.slow
def test_asynchronous_nodes_of_different_speeds_train_in_batches():
    result = run(
        scenario(nodes=100, rounds=6, mode="asynchronous", compute={"slowdown": [1.0, 10.0]}, policy={"name": "random"})
    )
    batches, jobs = result.batches["train"]
    assert jobs == 600
    assert jobs / batches >= 20
    evaluations, models = result.batches["evaluate"]
    assert evaluations <= batches + 2 * len(result.nodes)  # with trainings, except the last ones of each node
    assert models == jobs + len(result.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("task", [{"name": "concept-shift"}, {"name": "digits", "labels": 3}])
def test_stacked_runs_equal_one_by_one_runs(mode, task):
    options = {"mode": mode, "task": task, "rounds": 1, "policy": {"name": "random"}, "compute": {"slowdown": [1.0, 10.0]}}
    stacked, single = (run(scenario(trainer=trainer, **options)) for trainer in ("stacked", "one-by-one"))
    if task["name"] == "digits":
        assert len({task.n_samples for task in Simulation(scenario(**options)).plan.tasks}) > 1  # unequal sample counts
    for name in stacked.nodes:
        a, b = stacked.nodes[name].me.params, single.nodes[name].me.params
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


# Faults of the network


LINKS = {
    "jitter": {"jitter": 0.2},
    "bandwidth": {"bandwidth": 5000.0},
    "loss": {"loss": 0.05},
    "heavy loss": {"loss": 0.4},
}


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("links", LINKS)
def test_no_request_is_served_again_after_its_deadline(links, mode):
    options = {"nodes": 4, "rounds": 8, "mode": mode, "deadline": 1.5, "network": {"latency": 0.05, **LINKS[links]}}
    result = run(scenario(**options))  # conftest.py asserts that no more models are served than requested
    traffic = [node.exchange.traffic for node in result.nodes.values()]
    assert result.virtual_s > 4 * 1.5
    assert 0 < sum(each.received["models"] for each in traffic) <= sum(each.sent["get"] for each in traffic) / OVERHEAD


@pytest.mark.slow
def test_run_with_lost_frames_completes():
    result = run(scenario(rounds=20, network={"loss": 0.02}))
    assert result.expired > 0
    assert all(node.round == 20 for node in result.nodes.values())
    again = run(scenario(rounds=20, network={"loss": 0.02}))
    assert trace(result) == trace(again)


@pytest.mark.slow
def test_wire_run_with_lost_final_messages_completes():
    result = run(scenario(rounds=2, fidelity="wire", network={"latency": 0.1, "loss": 0.2}))
    assert all(node.round == 2 for node in result.nodes.values())


@pytest.mark.slow
def test_too_slow_nodes_skip_rounds_and_complete():
    result = run(scenario(rounds=12, deadline=1.5, compute={"seconds": 1.0, "slowdown": [1.0, 40.0]}))
    assert result.expired > 0
    assert all(node.round == 12 for node in result.nodes.values())
    rounds = result.recorder.rounds_table()
    assert len(rounds["round"]) < 12 * 12  # the slowest nodes have skipped some rounds


def test_links_share_bandwidth_of_a_node():
    links = Links(Network(latency=1.0, bandwidth=100.0), seed=0)
    assert links.arrival("a", "b", 200, 0.0) == 5.0  # out 2 s, on the way 1 s, in 2 s
    assert links.arrival("a", "c", 100, 0.0) == 5.0  # out after the first, from 2 s to 3 s
    assert links.arrival("d", "b", 100, 0.0) == 6.0  # in after the first, from 5 s to 6 s
    assert links.arrival("d", "b", 100, 10.0) == 13.0


def test_links_draw_latency_once_per_pair():
    links = Links(Network(latency=(0.1, 0.9)), seed=0)
    assert links.latency("a", "b") == links.latency("b", "a") != links.latency("a", "c")
    assert links.arrival("a", "b", 10, 5.0) == 5.0 + links.latency("a", "b")


def test_links_have_the_given_loss_and_jitter():
    links = Links(Network(jitter=2.0, loss=0.25), seed=0)
    arrivals = [links.arrival("a", f"b{k}", 10, 0.0) for k in range(4000)]
    late = [when for when in arrivals if when is not None]
    assert 1 - len(late) / len(arrivals) == pytest.approx(0.25, abs=0.03)
    assert np.mean(late) == pytest.approx(1.0, abs=0.05)
    assert max(late) < 2.0


def test_link_keeps_the_order_of_its_frames():
    links = Links(Network(jitter=2.0), seed=0)
    arrivals = [links.arrival("a", "b", 10, 0.01 * k) for k in range(100)]
    assert arrivals == sorted(arrivals)
    assert links.arrival("b", "a", 10, 0.0) < arrivals[-1]  # the other direction is a link of its own


# From Python


@pytest.mark.slow
def test_simulate_accepts_any_networkx_graph():
    graph = nx.Graph([("hub", "x"), ("hub", "y"), ("hub", "z")])
    graph.add_node("alone")
    (result,) = p2pfl.simulate(SMALL | {"policy": {"name": "random"}}, graph=graph, seeds=[3])
    assert result.summary["nodes"] == 5
    edges = set(zip(result.edges["src"].tolist(), result.edges["dst"].tolist(), strict=True))
    assert edges == {(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)}


@pytest.mark.slow
def test_simulate_directed_graph_sets_direction_of_models():
    (result,) = p2pfl.simulate(SMALL | {"policy": {"name": "random"}}, graph=nx.DiGraph([(0, 1), (1, 2)]))
    edges = set(zip(result.edges["src"].tolist(), result.edges["dst"].tolist(), strict=True))
    assert edges == {(0, 1), (1, 2)}


def test_names_sort_in_numeric_order():
    assert names(11)[:3] == ("node-00", "node-01", "node-02")
    assert sorted(names(1001)) == [*names(1001)]


def own_layout(part, seed):
    return make_task("concept-shift", {"dimensions": 10 + part.index // 3}, part, seed)


def test_simulation_refuses_different_layouts():
    with pytest.raises(ConfigurationError, match=r"node-3 and node-0 differ in their layout: 12 values .* 11"):
        Simulation(scenario(nodes=4, task={"name": "tests.sim.simulation.test_simulation:own_layout"}))


def test_diverging_run_names_node_and_round():
    with pytest.raises(DivergenceError, match=r"node-\d+ diverged in round \d"):
        run(scenario(rounds=40, task={"name": "concept-shift", "lr": 5.0}))


def test_unstackable_module_is_trained_one_by_one_with_a_note():
    task = {"name": "tests.sim.simulation.test_simulation:with_layer", "layer": "BatchNorm1d"}
    result = run(scenario(nodes=3, rounds=1, task=task, policy={"name": "random"}))
    assert notes_of(result) == [
        "trained one by one: layer 1 (BatchNorm1d) changes its buffers in training; GroupNorm and LayerNorm do not"
    ]


@pytest.mark.slow
def test_module_with_dropout_is_stacked():
    task = {"name": "tests.sim.simulation.test_simulation:with_layer", "layer": "Dropout"}
    stacked, single = (
        run(scenario(nodes=3, rounds=3, task=task, policy={"name": "random"}, trainer=trainer))
        for trainer in ("stacked", "one-by-one")
    )
    assert notes_of(stacked) == []
    assert stacked.batches["train"] == (3, 9)
    for name in stacked.nodes:
        assert stacked.nodes[name].result == pytest.approx(single.nodes[name].result, rel=1e-4, abs=1e-6)


def with_layer(part, seed, layer: str):
    from torch import nn

    rng = np.random.default_rng(part.index)
    data = rng.normal(size=(8, 3)), rng.integers(0, 2, 8)
    middle = {"Dropout": nn.Dropout, "BatchNorm1d": lambda: nn.BatchNorm1d(4)}[layer]
    return p2pfl.classification(lambda: nn.Sequential(nn.Linear(3, 4), middle(), nn.Linear(4, 2)), data, data, data)


def test_nodes_with_missing_split_are_trained_one_by_one():
    result = run(
        scenario(
            nodes=3, rounds=2, task={"name": "tests.sim.simulation.test_simulation:unvalidated"}, policy={"name": "random"}
        )
    )
    assert result.notes == ["trained one by one: some nodes lack a split that others have"]
    losses = [result.recorder.results[name].get("validation_loss") for name in result.nodes]
    assert [loss is None for loss in losses] == [True, False, False]


def unvalidated(part, seed):
    made = make_task("concept-shift", {}, part, seed)
    if part.index == 0:
        del made.data["validation"]
    return made


@pytest.mark.parametrize(("side", "stacked"), [(8, True), (32, False)])
def test_large_convolutions_on_cpu_are_trained_one_by_one(side, stacked):
    task = {"name": "tests.sim.simulation.test_simulation:convolving", "side": side}
    result = run(scenario(nodes=2, rounds=1, task=task, policy={"name": "random"}))
    assert notes_of(result) == (
        [] if stacked else ["trained one by one: large convolutions are computed one by one on a CPU"]
    )


def convolving(part, seed, side: int):
    from torch import nn

    rng = np.random.default_rng(part.index)
    data = rng.normal(size=(4, 1, side, side)), rng.integers(0, 2, 4)
    parts = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return p2pfl.classification(lambda: nn.Sequential(*parts), data, data, data)


@pytest.mark.slow
def test_summary_of_run_without_rounds_is_json():
    (result,) = p2pfl.simulate(SMALL | {"rounds": 0})
    json.dumps(result.summary)
    assert result.summary["collaboration"] == {"edges": 0, "within_group": None, "weight_within_group": None}


@pytest.mark.slow
def test_run_with_too_few_samples_adds_a_note():
    task = {"name": "images", "samples": 40}
    many, few = (
        run(resolve({"nodes": n, "rounds": 0, "task": task, "policy": {"name": "local"}}, [], "few", ".").runs[0])
        for n in (10, 100)
    )
    assert many.notes == []
    assert few.notes == ["100 of 100 nodes have fewer than 40 training samples; the minimum is 11"]


def test_nodes_with_equal_modules_share_one_template():
    digits = Simulation(scenario(nodes=3, task={"name": "digits"}))
    first, *others = digits.plan.tasks
    assert all(task.template is first.template and task.layout is first.layout for task in others)


def test_rounds_table_bytes_of_a_node_sum_up_to_its_traffic():
    finished = run(scenario(policy={"name": "random", "neighbours": 3}))
    table = finished.recorder.rounds_table()
    for k, node in enumerate(finished.nodes.values()):
        rows, traffic = table["node"] == k, node.exchange.traffic
        sums = table["bytes_in"][rows].sum(), table["bytes_out"][rows].sum()
        assert sums == (traffic.received_in_rounds, traffic.sent_in_rounds)
        assert table["bytes_in"][rows].min() > 0


def test_stopped_nodes_keep_no_stack_of_other_nodes_in_memory():
    table = {"nodes": 6, "rounds": 60, "patience": 2, "task": {"name": "digits", "samples": 20, "lr": 1.0}, "policy": "dac"}
    simulation = Simulation(resolve(table, [], "study", ".").runs[0], singly="of a cohort, nodes are rows of one stack")
    nodes = simulation.run().nodes.values()
    assert max(node.round for node in nodes) < 60
    for node in nodes:
        kept = [node.me.params, node.result, *node.peers.published.values()]
        kept += [model.update.params for model in node.exchange.outbox.models.values()]
        assert [params.base for params in kept] == [None] * len(kept)
