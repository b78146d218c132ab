"""Loss, latency and bandwidth of single links: from the edges of a topology's file, and from `network.links`."""

import json

import msgspec
import networkx as nx
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.scenario.scenario import resolve, restore
from p2pfl.sim.simulation.plan import plan
from tests.support.simulated import run

SMALL = {
    "rounds": 3,
    "deadline": 5.0,
    "task": {"name": "concept-shift"},
    "policy": {"name": "random", "neighbours": 2},
}
TABLE = "source,target,loss,latency\ngate,barn,0.0,0.01\ngate,mill,0.3,0.02\nmill,barn,,0.5\n"


def planned(network, tmp_path=None, content=TABLE, name="field.csv", **options):
    """Return the plan of a run; its topology is a file with this content, if there is a folder for it."""
    table = SMALL | {"network": network} | options
    if tmp_path is not None:
        (tmp_path / name).write_text(content)
        table |= {"topology": {"file": str(tmp_path / name)} | options.get("topology", {})}
    return plan(resolve(table, [], "test", ".").runs[0])


def trace(**options):
    return run(resolve(SMALL | {"nodes": 5} | options, [], "test", ".").runs[0]).recorder.trace.digest()


def test_edges_of_a_table_give_loss_and_latency(tmp_path):
    found = planned({"loss": "edges", "latency": "edges"}, tmp_path)
    links = found.links(0)
    assert found.topology.labels == ["gate", "barn", "mill"]
    assert [links.loss("node-0", "node-2"), links.loss("node-2", "node-0"), links.loss("node-0", "node-1")] == [0.3, 0.3, 0]
    assert (links.latency("node-1", "node-2"), links.longest) == (0.5, float("inf"))
    assert "1 of 3 edges have no loss, which counts as 0" in found.notes


def test_latencies_of_edges_alone_keep_links_steady(tmp_path):
    links = planned({"latency": "edges"}, tmp_path).links(0)
    assert (links.steady, links.loses, links.longest) == (True, False, 0.5)


@pytest.mark.parametrize("form", ["graphml", "gml", "json", "edgelist"])
def test_edges_of_every_format_give_the_same_loss(tmp_path, form):
    graph = nx.path_graph(3)
    nx.set_edge_attributes(graph, {(0, 1): 0.25, (1, 2): 0.5}, "loss")
    file = tmp_path / f"path.{form}"
    if form == "json":
        file.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    else:
        {"graphml": nx.write_graphml, "gml": nx.write_gml, "edgelist": nx.write_edgelist}[form](graph, file)
    links = planned({"loss": "edges"}, tmp_path, file.read_text(), file.name).links(0)
    assert [links.loss("node-0", "node-1"), links.loss("node-2", "node-1")] == [0.25, 0.5]


def test_directed_edges_give_each_direction_its_loss(tmp_path):
    content = "source,target,loss\na,b,0.1\nb,a,0.4\nb,c,0.2\n"
    links = planned({"loss": "edges"}, tmp_path, content, topology={"directed": True}).links(0)
    assert [links.loss("node-0", "node-1"), links.loss("node-1", "node-0")] == [0.1, 0.4]
    assert links.loss("node-2", "node-1") == 0.2  # requests against the direction of the only edge


@pytest.mark.parametrize(
    ("content", "network", "text"),
    [
        (
            "source,target,loss\na,b,high\nb,c,0.1\n",
            {"loss": "edges"},
            "the loss of the edge between a and b must be",
        ),
        ("source,target,loss\na,b,1.0\nb,c,0.1\n", {"loss": "edges"}, "got '1.0'"),
        ("source,target,loss\na,b,0.1\nb,a,0.4\n", {"loss": "edges"}, "got '0.1 and 0.4'"),
        ("source,target\na,b\nb,c\n", {"loss": "edges"}, "needs a topology from a file whose edges have the attribute loss"),
        (TABLE, {"links": [{"nodes": ["mil"], "loss": 0.1}]}, "unknown node 'mil'; did you mean 'mill'?"),
        (TABLE, {"links": [{"nodes": [3], "loss": 0.1}]}, "nodes must be numbers from 0 to 2, or names, got 3"),
        (
            TABLE,
            {"links": [{"nodes": [0], "loss": 0.1}, {"nodes": ["gate"], "loss": 0}]},
            "two entries give node-0 a loss",
        ),
        (TABLE, {"links": [{"loss": 0.1}]}, "needs `nodes`, a list of nodes, or `between`"),
        (TABLE, {"links": [{"nodes": [0]}]}, "needs a loss, a latency or a bandwidth"),
        (TABLE, {"links": [{"between": [0, 1], "bandwidth": 9}]}, "give it to `nodes`"),
        (TABLE, {"links": [{"nodes": [0], "loss": 1.0}]}, "loss must be at least 0 and below 1, got 1.0"),
    ],
)
def test_values_that_cannot_be_used_are_refused_in_one_line(tmp_path, content, network, text):
    with pytest.raises(ConfigurationError) as refused:
        planned(network, tmp_path, content)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unused_losses_of_edges_are_noted(tmp_path):
    assert any('network.loss = "edges" uses it' in note for note in planned({}, tmp_path).notes)


def test_links_of_two_nodes_go_before_those_of_one(tmp_path):
    rules = [{"nodes": ["gate", 1], "loss": 0.1}, {"nodes": ["mill"], "loss": 0.2, "bandwidth": 50.0}]
    rules.append({"between": ["gate", "mill"], "loss": 0.05, "latency": 2.0})
    links = planned({"links": rules}, tmp_path).links(0)
    assert [links.loss("node-0", "node-1"), links.loss("node-1", "node-2"), links.loss("node-2", "node-0")] == [
        0.1,
        0.2,
        0.05,
    ]
    assert [links.latency("node-0", "node-2"), links.latency("node-0", "node-1")] == [2.0, 0.0]
    assert [links.bandwidth("node-2"), links.bandwidth("node-0")] == [50.0, 0.0]


def test_range_draws_one_loss_for_each_pair():
    links = planned({"loss": [0.1, 0.4]}, nodes=4).links(0)
    assert 0.1 <= links.loss("node-0", "node-1") == links.loss("node-1", "node-0") != links.loss("node-0", "node-2") <= 0.4


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_equal_loss_of_all_links_is_that_of_the_network(fidelity):
    uniform = trace(network={"loss": 0.2}, fidelity=fidelity)
    assert trace(network={"links": [{"nodes": [0, 1, 2, 3, 4], "loss": 0.2}]}, fidelity=fidelity) == uniform
    assert trace(network={"links": [{"nodes": [0], "loss": 0.2}]}, fidelity=fidelity) != uniform


def test_restored_scenario_keeps_its_links(tmp_path):
    file = resolve(SMALL | {"network": {"links": [{"nodes": [1], "loss": 0.2}]}}, [], "test", ".")
    assert restore(msgspec.toml.decode(msgspec.toml.encode(file.to_toml())), tmp_path).runs == file.runs
