"""Runs on a graph that changes in each round: with messages and without, the edges of each round, and refusals."""

import networkx as nx
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.plan import check
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.topologies import make_schedule, read

SMALL = {
    "nodes": 9,
    "rounds": 5,
    "task": {"name": "digits", "samples": 24},
    "policy": {"name": "dsgd"},
    "topology": {"name": "base-k", "degree": 2},
}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", [{"name": "base-k"}, {"name": "epidemic", "degree": 2}, {"name": "one-peer-exponential"}]
)
def test_run_with_messages_equals_modelled_run(topology):
    found = {}
    for fidelity in ("modelled", "wire"):
        run = Simulation(scenario(topology=topology, fidelity=fidelity, trainer="one-by-one")).run()
        edges = run.recorder.edges_table()
        found[fidelity] = (
            {name: node.me.params.tobytes() for name, node in run.nodes.items()},
            {name: column.tolist() for name, column in edges.items()},
            [node.exchange.traffic.sent["update"] for node in run.nodes.values()],
            run.recorder.trace.digest(),
        )
    assert found["modelled"] == found["wire"]


def test_nodes_learn_from_the_sources_of_each_round_with_their_weights():
    run = Simulation(scenario(nodes=7, topology={"name": "simple-base-k"})).run()
    edges, schedule = run.recorder.edges_table(), make_schedule("simple-base-k", 7, 0)
    for round in range(1, 6):
        graph, here = schedule.graph(round), edges["round"] == round
        order = np.lexsort((edges["src"][here], edges["dst"][here]))
        assert edges["dst"][here][order].tolist() == graph.rows.tolist()
        assert edges["src"][here][order].tolist() == graph.sources.tolist()
        assert np.allclose(edges["weight"][here][order], graph.weights)


@pytest.mark.slow
def test_models_are_equal_after_a_period_without_training():
    """The weights of the graph bring the models of nodes that start apart to their mean; those of Metropolis do not."""
    noisy = {"name": "dsgd", "start_noise": 1.0}
    idle = {"name": "digits", "samples": 24, "lr": 0.0}
    spread = {}
    for weights in ("auto", "graph", "metropolis"):
        policy = {**noisy, "weights": weights}
        period = make_schedule("base-k", 11, 0, degree=2).period
        run = Simulation(
            scenario(nodes=11, rounds=period, task=idle, policy=policy, topology={"name": "base-k", "degree": 2})
        ).run()
        models = np.array(run.state.last)
        spread[weights] = np.abs(models - models.mean(axis=0)).max()
    assert spread["auto"] == spread["graph"] < 1e-5 < 1e-3 < spread["metropolis"]


def test_properties_have_the_period_and_the_degree_of_a_round():
    found = Simulation(scenario()).plan.topology.properties
    assert (found["period"], found["degree"]["max"], found["weighted"]) == (2, 2, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": {"name": "dpfl"}}, "the policy Dpfl selects its peers once"),
        ({"policy": {"name": "random", "graph": "fixed"}}, "the policy Random selects its peers once"),
        ({"topology": {"name": "ring"}, "policy": {"name": "dsgd", "weights": "graph"}}, "such as base-k"),
        ({"topology": {"name": "hypercube"}}, "needs a power of 2"),
        ({"attack": {"name": "dissensus", "nodes": [1]}}, "a topology that never changes"),
        ({"topology": {"name": "base-k", "k": 2}}, "topology.degree"),
    ],
)
def test_refusals_are_one_line(changes, words):
    with pytest.raises(ConfigurationError) as refused:
        check(scenario(**changes))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_graphs_of_a_file_take_turns(tmp_path):
    path = tmp_path / "contacts.csv"
    path.write_text("source,target,round\na,b,1\nc,d,1\nb,c,2\n")
    run = Simulation(scenario(nodes=4, topology={"name": "file", "file": str(path)})).run()
    edges = run.recorder.edges_table()
    for round in range(1, 6):
        here = edges["round"] == round
        found = sorted(zip(edges["dst"][here].tolist(), edges["src"][here].tolist(), strict=True))
        assert found == ([(0, 1), (1, 0), (2, 3), (3, 2)] if round % 2 else [(1, 2), (2, 1)])


def test_rounds_of_a_graph_of_ones_own_are_noted_or_refused(tmp_path):
    graph = nx.path_graph(4)
    nx.set_edge_attributes(graph, 1, "round")
    (note,) = [each for each in Simulation(scenario(nodes=4), graph).notes if "round" in each]
    assert note.startswith("the edges of the graph have a round, which is not used")
    path = tmp_path / "contacts.csv"
    path.write_text("source,target,round\na,b,1\nc,d,1\nb,c,2\n")
    with pytest.raises(ConfigurationError, match="must be the scenario's"):
        Simulation(scenario(nodes=4), read(str(path)))
