"""Properties of graphs, against values by hand and NetworkX, and distances between nodes."""

from math import cos, pi, sqrt

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.sim.scenario.network import Links, Network
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.topologies import build, places, properties
from p2pfl.topologies.geography import EARTH, great_circle, spread
from p2pfl.topologies.graph_properties import mixing_matrix, spectral_gap

SMALL = {"rounds": 2, "task": {"name": "concept-shift", "samples": 12}, "policy": {"name": "random", "neighbours": 2}}
NEW_YORK, LOS_ANGELES = (40.7128, -74.0060), (34.0522, -118.2437)
LONDON, SYDNEY = (51.5074, -0.1278), (-33.8688, 151.2093)


# Properties


def test_properties_of_ring_of_4():
    assert properties(build("ring", 4, 0)) == {
        "nodes": 4,
        "edges": 4,
        "directed": False,
        "weighted": False,
        "degree": {"min": 2, "mean": 2.0, "max": 2},
        "components": 1,
        "diameter": 2,
        "spectral_gap": pytest.approx(2 / 3),  # the eigenvalues are 1, 1/3, 1/3 and -1/3
        "clustering": 0.0,
        "largest_component": {"nodes": 4, "diameter": 2, "spectral_gap": pytest.approx(2 / 3)},
        "coordinates": 0,
    }


def test_mixing_matrix_of_path_by_hand():
    # Both edges touch the middle node, which has two neighbours: 1 / (1 + 2).
    assert mixing_matrix(nx.path_graph(3)) == pytest.approx(np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3)


def test_mixing_matrix_of_weighted_edges_by_hand():
    graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 2.0), (1, 2, 1.0)])
    # The sums are 2, 3 and 1, the largest weight 2: 2 / (2 + 3) and 1 / (2 + 3).
    assert mixing_matrix(graph) == pytest.approx(np.array([[0.6, 0.4, 0], [0.4, 0.4, 0.2], [0, 0.2, 0.8]]))
    assert spectral_gap(graph) == pytest.approx(0.6 - sqrt(0.12))
    assert properties(graph)["weighted"]


def test_mixing_matrix_of_directed_graph_by_hand():
    graph = nx.DiGraph([("a", "b"), ("c", "b"), ("b", "a")])
    assert mixing_matrix(graph) == pytest.approx(np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1]]))


def test_mixing_matrix_ignores_unit_of_weights():
    graph = build("small-world", 20, 0)
    plain = mixing_matrix(graph)
    nx.set_edge_attributes(graph, 7.5, "weight")
    assert mixing_matrix(graph) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("graph", "gap"),
    [
        (nx.cycle_graph(3), 1.0),
        (nx.cycle_graph(6), 1 / 3),
        (nx.cycle_graph(100), 2 / 3 * (1 - cos(2 * pi / 100))),
        (nx.path_graph(2), 1.0),
        (nx.path_graph(3), 1 / 3),
        (nx.star_graph(3), 1 / 4),
        (nx.complete_graph(9), 1.0),
        (nx.DiGraph([(0, 1), (1, 2), (2, 0)]), 1 / 2),
        (nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 2)]), 1 / 3),  # equivalent to a path
        (nx.empty_graph(1), 1.0),
        (nx.empty_graph(2), 0.0),
    ],
)
def test_spectral_gap_of_known_graphs(graph, gap):
    assert properties(graph)["spectral_gap"] == pytest.approx(gap, abs=1e-12)
    assert spectral_gap(graph) == pytest.approx(gap, abs=1e-12)


def test_properties_of_disconnected_graph():
    graph = nx.disjoint_union(nx.path_graph(2), nx.path_graph(3))
    graph.add_node("alone")
    found = properties(graph)
    assert found["components"] == 3
    assert found["diameter"] is None
    assert found["spectral_gap"] == 0.0
    assert found["largest_component"] == {"nodes": 3, "diameter": 2, "spectral_gap": pytest.approx(1 / 3)}
    assert found["degree"] == {"min": 0, "mean": 1.0, "max": 2}


def test_properties_of_weakly_connected_directed_graph():
    found = properties(nx.DiGraph([(0, 1), (1, 2), (2, 0), (3, 0)]))
    assert found["directed"]
    assert found["edges"] == 4
    assert found["degree"] == {"min": 0, "mean": 1.0, "max": 2}
    assert found["components"] == 2
    assert found["diameter"] is None
    assert found["largest_component"] == {"nodes": 3, "diameter": 2, "spectral_gap": pytest.approx(1 / 2)}


def test_clustering_coefficient_by_hand():
    tailed = nx.Graph([(0, 1), (1, 2), (2, 0), (2, 3)])
    assert properties(tailed)["clustering"] == pytest.approx((1 + 1 + 1 / 3 + 0) / 4)
    assert properties(nx.complete_graph(4))["clustering"] == 1.0
    assert properties(nx.complete_graph(2))["clustering"] == 0.0


@given(st.integers(1, 30), st.floats(0, 0.5), st.integers(0, 2**32 - 1), st.booleans())
def test_properties_equal_networkx(n, p, seed, directed):
    graph = nx.gnp_random_graph(n, p, seed=seed, directed=directed)
    found = properties(graph)
    parts = nx.strongly_connected_components(graph) if directed else nx.connected_components(graph)
    parts = sorted(parts, key=len, reverse=True)
    assert found["edges"] == graph.number_of_edges()
    assert found["components"] == len(parts)
    assert found["largest_component"]["nodes"] == len(parts[0])
    assert found["clustering"] == pytest.approx(nx.average_clustering(graph.to_undirected()))
    diameters = [nx.diameter(graph.subgraph(part)) for part in parts if len(part) == len(parts[0])]
    assert found["largest_component"]["diameter"] in diameters
    assert found["diameter"] == (diameters[0] if len(parts) == 1 else None)
    matrix = mixing_matrix(graph)
    assert matrix.sum(axis=1) == pytest.approx(np.ones(n))
    assert matrix.min() >= 0
    assert directed or (matrix == matrix.T).all()


@pytest.mark.slow
def test_properties_of_large_graph_omit_slow_ones():
    found = properties(build("ring", 2001, 0))
    assert (found["nodes"], found["components"], found["degree"]["max"]) == (2001, 1, 2)
    assert found["diameter"] is found["spectral_gap"] is found["clustering"] is None
    found = properties(build("complete", 2001, 0))
    assert (found["diameter"], found["spectral_gap"], found["clustering"]) == (1, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0, -1.0, "much", float("nan"), float("inf")])
def test_simulate_refuses_invalid_edge_weight(weight):
    graph = nx.Graph()
    graph.add_edge("a", "b", weight=weight)
    with pytest.raises(ConfigurationError) as refused:
        p2pfl.simulate(SMALL, graph=graph)
    words = f"topology: the weight of the edge a-b must be a positive number, got {weight!r}"
    assert str(refused.value) == f"run 'scenario', seed 0: {words}"


@pytest.mark.slow
def test_summary_contains_topology_properties():
    keys = {"nodes": 8, "run": [{"name": "a", "topology": {"name": "ring"}}, {"name": "b", "topology": {"name": "star"}}]}
    ring, star = p2pfl.simulate(SMALL | keys)
    assert ring.summary["topology_properties"] == properties(build("ring", 8, 0))
    assert star.summary["topology_properties"]["degree"] == {"min": 1, "mean": 14 / 8, "max": 7}


# Places


@pytest.mark.parametrize(
    ("one", "other", "kilometres"),
    [
        (NEW_YORK, LOS_ANGELES, 3936),
        (LONDON, NEW_YORK, 5570),
        (LONDON, SYDNEY, 16994),
        ((0.0, 0.0), (0.0, 90.0), pi / 2 * EARTH),
        ((90.0, 0.0), (-90.0, 50.0), pi * EARTH),
        ((0.0, 179.5), (0.0, -179.5), pi / 180 * EARTH),
        (LONDON, LONDON, 0.0),
    ],
)
def test_great_circle_of_known_distances(one, other, kilometres):
    assert great_circle(one, other) == great_circle(other, one) == pytest.approx(kilometres, rel=0.005)


points = st.tuples(st.floats(-90, 90), st.floats(-180, 180))


@given(st.lists(points, min_size=2, max_size=8))
def test_spread_is_mean_and_longest_distance(where):
    far = [great_circle(a, b) for k, a in enumerate(where) for b in where[:k]]
    assert spread(where) == pytest.approx((np.mean(far), max(far)), abs=1e-3)


def place(*nodes, edges=()):
    graph = nx.Graph()
    for name, *point in nodes:
        graph.add_node(name, **dict(zip(("Latitude", "Longitude"), point, strict=False)))
    graph.add_edges_from(edges)
    return graph


def test_places_estimate_node_at_middle_of_neighbours():
    graph = place(("a", 0, 10), ("b", 0, 30), ("c",), ("d",), ("e",), edges=["ac", "bc", "cd"])
    found = places(graph)
    assert found.points[:2] == ((0.0, 10.0), (0.0, 30.0))
    assert found.points[2] == pytest.approx((0.0, 20.0))
    assert found.points[3] == found.points[2]  # placed through c only, after c
    assert found.points[4] is None
    assert (found.estimated, found.unknown) == ((2, 3), (4,))


def test_places_middle_crosses_the_date_line():
    graph = place(("a", 0, 170), ("b", 0, -170), ("c",), edges=["ac", "bc"])
    assert abs(places(graph).points[2][1]) == pytest.approx(180)


def test_places_middle_of_opposite_points_is_unknown():
    graph = place(("a", 0, 0), ("b", 0, 180), ("c",), edges=["ac", "bc"])
    assert places(graph).unknown == (2,)


def test_places_ignore_directions_of_edges():
    graph = nx.DiGraph(place(("a", 0, 10), ("b", 0, 30), ("c",), ("d",)))
    graph.add_edges_from(["ac", "db"])
    assert places(graph).points[2:] == (pytest.approx((0, 10)), pytest.approx((0, 30)))


@pytest.mark.parametrize("point", [(91, 0), (0, 181), ("north", 0), (float("nan"), 0)])
def test_places_refuse_invalid_coordinates(point):
    with pytest.raises(ValueError, match="the latitude and longitude of b must be from -90 to 90 and -180 to 180, got"):
        places(place(("a", 0, 0), ("b", *point)))


# Latencies


def simulated(graph, **keys):
    (scenario,) = resolve(SMALL | {"nodes": len(graph)} | keys, [], name="study", folder=".").runs
    return Simulation(scenario, graph)


@pytest.mark.parametrize("stretch", [1.0, 1.5])
def test_geographic_latency_follows_great_circle(stretch):
    graph = place(("NY", *NEW_YORK), ("LA", *LOS_ANGELES), ("London", *LONDON), edges=[("NY", "LA"), ("NY", "London")])
    links = simulated(graph, network={"latency": "geography", "stretch": stretch}).links
    assert links.latency("node-0", "node-1") == pytest.approx(stretch * 3936 / 200_000, rel=0.005)
    assert links.latency("node-1", "node-0") == links.latency("node-0", "node-1")
    assert links.latency("node-1", "node-2") == pytest.approx(stretch * great_circle(LOS_ANGELES, LONDON) / 200_000)
    assert links.arrival("node-1", "node-0", 10**9, now=5.0) == 5.0 + links.latency("node-0", "node-1")
    assert links.longest == pytest.approx(links.latency("node-1", "node-2"))
    assert links.longest >= links.latency("node-1", "node-2")
    assert links.steady
    assert not links.instant


def test_node_without_place_has_mean_latency():
    graph = place(("NY", *NEW_YORK), ("LA", *LOS_ANGELES), ("London", *LONDON), ("?",))
    simulation = simulated(graph, network={"latency": "geography"})
    far = [great_circle(NEW_YORK, LOS_ANGELES), great_circle(NEW_YORK, LONDON), great_circle(LOS_ANGELES, LONDON)]
    assert simulation.links.latency("node-3", "node-0") == pytest.approx(np.mean(far) / 200_000)
    assert simulation.notes == [
        "nodes without coordinates (no neighbour has any; their latency is the mean of all other pairs): node-3 (?)"
    ]


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_round_takes_geographic_latency(fidelity):
    graph = place(("NY", *NEW_YORK), ("LA", *LOS_ANGELES), edges=[("NY", "LA")])
    simulation = simulated(graph, network={"latency": "geography"}, fidelity=fidelity, rounds=1)
    run = simulation.run()
    there = simulation.links.latency("node-0", "node-1")
    (times,) = {tuple(run.recorder.rounds_table()["virtual_time"])}
    introduction = there if fidelity == "wire" else 0.0
    assert times == pytest.approx(
        (introduction + 1.0 + 2 * there,) * 2, abs=1e-9
    )  # a membership version, a request and a model


def test_jitter_and_bandwidth_add_to_geographic_latency():
    network = Network(latency="geography", jitter=0.5, bandwidth=100.0)
    links = Links(network, 0, {"a": NEW_YORK, "b": LOS_ANGELES})
    least = great_circle(NEW_YORK, LOS_ANGELES) / 200_000
    assert least + 4.0 <= links.arrival("a", "b", 200, now=0.0) <= least + 4.5
    assert not links.steady
    without = Links(Network(latency="geography", jitter=0.5), 0, {"a": NEW_YORK, "b": LOS_ANGELES})
    assert without.longest == pytest.approx(least + 0.5)


def atlantic(folder):
    """Write a file with three places named after cities, without links, and return network options for it."""
    points = {"NY": NEW_YORK, "LA": LOS_ANGELES, "London": LONDON}
    graph = nx.Graph()
    for name, (latitude, longitude) in points.items():
        graph.add_node(name, latitude=latitude, longitude=longitude)
    nx.write_graphml(graph, folder / "places.graphml")
    return {"latency": "geography", "places": "places.graphml"}


def test_places_file_applies_to_any_topology(tmp_path):
    network = atlantic(tmp_path)
    for name in ("ring", "complete"):
        file = resolve(
            SMALL | {"nodes": 3, "topology": {"name": name}, "network": network}, [], name="study", folder=str(tmp_path)
        )
        assert file.runs[0].network.places == str(tmp_path / "places.graphml")
        assert resolve(file.to_toml(), [], name="again", folder="elsewhere").runs == file.runs
        simulation = Simulation(file.runs[0])
        assert simulation.links.latency("node-1", "node-2") == pytest.approx(great_circle(LOS_ANGELES, LONDON) / 200_000)
        assert simulation.plan.topology.labels == ["NY", "LA", "London"]
        assert simulation.plan.topology.name == name
    simulation = simulated(nx.path_graph(["x", "y", "z"]), network=file.to_toml()["run"][0]["network"])
    assert simulation.plan.topology.labels == ["x", "y", "z"]


def test_invalid_places_file_is_refused(tmp_path):
    network = atlantic(tmp_path)

    def refused(changes, **keys):
        with pytest.raises(ConfigurationError) as error:
            Simulation(resolve(SMALL | {"nodes": 3} | keys, changes, name="study", folder=str(tmp_path)).runs[0])
        return str(error.value)

    assert (
        refused([], nodes=4, network=network) == "network.places: places.graphml has 3 places, but the topology has 4 nodes;"
        " set nodes = 3, or a network without places"
    )
    assert refused(["network.places=away.graphml"], network=network).startswith(
        "study: network.places: the file away.graphml does not exist"
    )
    assert refused(["network.places=3"], network=network) == "study: network.places must be a string, got 3"
    only = 'study: network.places needs network.latency = "geography"'
    assert refused(["network.places=places.graphml"]) == only
    assert refused([], network=network | {"latency": 0.1}) == only


@pytest.mark.slow
def test_geographic_latency_without_coordinates_is_refused():
    scenario = SMALL | {"nodes": 4, "network": {"latency": "geography"}}
    for graph in (None, place(("a", 0, 0), ("b",), ("c",), ("d",))):
        with pytest.raises(ConfigurationError) as refused:
            p2pfl.simulate(scenario, graph=graph)
        assert str(refused.value) == (
            "run 'scenario': "
            'network.latency = "geography" needs coordinates of the nodes:'
            " fewer than two nodes of the topology have coordinates (attributes latitude and longitude)"
        )


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"latency": "geography", "stretch": 0.0}, "network.stretch must be a positive number, got 0.0"),
        ({"latency": "geography", "stretch": float("nan")}, "network.stretch must be a positive number, got nan"),
        ({"latency": 0.1, "stretch": 2.0}, 'network.stretch needs network.latency = "geography"'),
        ({"latency": "earth"}, "network.latency must be one of geography, edges, a number, a pair [low, high], got 'earth'"),
    ],
)
def test_invalid_network_options_are_refused(network, message):
    with pytest.raises(ConfigurationError) as refused:
        p2pfl.simulate(SMALL | {"network": network})
    assert message in str(refused.value)
