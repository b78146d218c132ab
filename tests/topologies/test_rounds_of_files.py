"""Files with a graph for each round: tables, GraphML and JSON, their weights, and what is refused."""

import json

import networkx as nx
import numpy as np
import pytest

from p2pfl.topologies import read
from p2pfl.topologies.consensus import static_schedule
from p2pfl.topologies.graph_properties import mixing_matrix

ROUNDS = {1: [("a", "b"), ("c", "d")], 2: [("b", "c")], 4: [("a", "d"), ("a", "b")]}


def written(folder, name):
    """Write the graphs of ROUNDS in the format of a name."""
    path = folder / name
    if name.endswith(".csv"):
        lines = [f"{a},{b},{round}" for round, edges in ROUNDS.items() for a, b in edges]
        path.write_text("\n".join(["source,target,round", *lines]) + "\n")
        return str(path)
    graph = nx.MultiGraph()
    for round, edges in ROUNDS.items():
        graph.add_edges_from(edges, round=round)
    if name.endswith(".graphml"):
        nx.write_graphml(graph, path)
    else:
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    return str(path)


def edges_of(graph, round):
    names = [graph.nodes[k]["label"] for k in range(len(graph))]
    found = graph.graph["schedule"].graph(round)
    return {frozenset((names[a], names[b])) for a, b in zip(found.rows.tolist(), found.sources.tolist(), strict=True)}


@pytest.mark.parametrize("name", ["contacts.csv", "contacts.graphml", "contacts.json"])
def test_each_round_has_its_edges_and_the_rounds_repeat(tmp_path, name):
    graph = read(written(tmp_path, name))
    schedule = graph.graph["schedule"]
    assert (schedule.period, schedule.directed, graph.number_of_edges()) == (4, False, 4)
    for round in range(1, 13):
        expected = {frozenset(edge) for edge in ROUNDS.get((round - 1) % 4 + 1, [])}
        assert edges_of(graph, round) == expected
    assert "one graph for each of 4 rounds, which then repeat, 1 of them without edges" in graph.graph["facts"].line
    assert graph.graph["facts"].dropped["parallel edges"] == 0


def test_weights_are_those_of_the_mixing_matrix():
    for graph in (nx.gnp_random_graph(12, 0.3, seed=1), nx.gnp_random_graph(12, 0.3, seed=2, directed=True)):
        for source, target in graph.edges:
            graph.edges[source, target]["weight"] = 1.0 + (source * target) % 5
        found = static_schedule(graph).graph(7)
        dense = np.diag(found.own)
        dense[found.rows, found.sources] = found.weights
        assert np.allclose(dense, mixing_matrix(graph))


def test_direction_and_weights_count_in_each_round(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("source,target,weight,round\na,b,2,1\nb,a,1,2\nc,b,2,1\na,b,3,1\n")
    graph = read(str(path), directed=True)
    first, second = (graph.graph["schedule"].graph(round) for round in (1, 2))
    assert (first.rows.tolist(), first.sources.tolist()) == ([1, 1], [0, 2])
    assert first.weights.tolist() == [3 / 8, 2 / 8]  # the greatest of parallel edges: 3 + 2, and 3 for the own model
    assert (second.rows.tolist(), second.sources.tolist()) == ([0], [1])
    assert graph.graph["facts"].dropped["parallel edges"] == 1


@pytest.mark.parametrize("round", ["0", "1.5", "now", "-1", "10001", ""])
def test_other_rounds_are_refused_in_one_line(tmp_path, round):
    path = tmp_path / "contacts.csv"
    path.write_text(f"source,target,round\na,b,1\nb,c,{round}\n")
    with pytest.raises(ValueError, match="its round must be a whole number from 1 to 10,000") as refused:
        read(str(path))
    assert "\n" not in str(refused.value)
    assert "rename it" in str(refused.value)
