"""Topologies: the shape and the seed of each named graph, invalid arguments, and neighbours."""

import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl._util import binding
from p2pfl.errors import ConfigurationError
from p2pfl.topologies import BUILDERS, build, neighbours

RANDOM = {
    "k-regular": {},
    "rings": {},
    "small-world": {},
    "watts-strogatz": {},
    "erdos-renyi": {"p": 0.4},
    "barabasi-albert": {},
    "scale-free": {},
    "clusters": {"within": 0.8, "links": 2},
}
FIXED = ("complete", "ring", "torus", "star", "ring-with-leaves", "two-worlds")


def degrees(graph):
    return [degree for _, degree in graph.degree]


def edges(graph):
    return {frozenset(edge) for edge in graph.edges}


def refusal(name, n, options):
    """Return the error that a user of a scenario reads, without its prefix; the builder raises the same."""
    with pytest.raises(ConfigurationError) as refused:
        binding.build("topology", BUILDERS[name], options, n=n, seed=0)
    text = str(refused.value)
    assert "\n" not in text
    with pytest.raises(ValueError) as raised:  # noqa: PT011, the text is compared below
        build(name, n, 0, **options)
    assert text == f"topology: {raised.value}"
    return str(raised.value)


# Shapes


def test_every_builder_is_covered():
    assert set(BUILDERS) == {*FIXED, *RANDOM}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("n", [9, 12, 100])
def test_build_numbers_nodes_from_0_and_sets_the_name(name, n):
    graph = build(name, n, 3, **RANDOM.get(name, {}))
    assert list(graph.nodes) == list(range(n))
    assert graph.graph["name"] == name
    assert not graph.is_directed()
    assert not graph.is_multigraph()
    assert nx.number_of_selfloops(graph) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_complete_graph_joins_all_nodes(n):
    graph = build("complete", n, 0)
    assert degrees(graph) == [n - 1] * n
    assert neighbours(graph) == [tuple(j for j in range(n) if j != i) for i in range(n)]


@pytest.mark.parametrize("n", [3, 4, 11])
def test_ring_joins_each_node_to_the_next(n):
    graph = build("ring", n, 0)
    assert edges(graph) == {frozenset((i, (i + 1) % n)) for i in range(n)}
    assert degrees(graph) == [2] * n


def test_ring_of_one_or_two_nodes():
    assert list(build("ring", 1, 0).edges) == []
    assert list(build("ring", 2, 0).edges) == [(0, 1)]


@given(st.integers(1, 24), st.integers(0, 10), st.integers(0, 2**32 - 1))
def test_k_regular_graph_has_k_neighbours_or_is_refused(n, degree, seed):
    if degree < n and n * degree % 2 == 0:
        assert degrees(build("k-regular", n, seed, degree=degree)) == [degree] * n
    else:
        assert f"degree must be at least 0 and below {n} for {n} nodes" in refusal("k-regular", n, {"degree": degree})


def test_k_regular_graph_has_degree_4_by_default():
    assert degrees(build("k-regular", 9, 0)) == [4] * 9


@given(st.integers(3, 30), st.sampled_from([2, 4, 6]), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_small_world_is_connected_and_keeps_number_of_edges(n, degree, rewire, seed):
    if degree < n:
        graph = build("small-world", n, seed, degree=degree, rewire=rewire)
        assert nx.is_connected(graph)
        assert graph.number_of_edges() == n * degree // 2


def test_small_world_without_rewiring_is_a_ring_lattice():
    graph = build("small-world", 9, 0, degree=4, rewire=0.0)
    assert neighbours(graph)[0] == (1, 2, 7, 8)
    assert neighbours(graph)[5] == (3, 4, 6, 7)
    assert degrees(graph) == [4] * 9


def test_small_world_rewire_is_the_share_of_moved_edges():
    ring = edges(build("small-world", 500, 0, degree=8, rewire=0.0))
    left = [len(edges(build("small-world", 500, 0, degree=8, rewire=rewire)) - ring) for rewire in (0.1, 0.5, 1.0)]
    expected = np.array([0.1, 0.5, 1.0]) * len(ring)
    assert left == pytest.approx(expected, abs=5 * np.sqrt(0.25 * len(ring)))


def test_small_world_default_degree_and_rewire():
    graph = build("small-world", 500, 0)
    assert graph.number_of_edges() == 500 * 4 // 2
    assert 40 < len(edges(graph) - edges(build("small-world", 500, 0, rewire=0.0))) < 160  # a tenth of 1,000 edges


def test_small_world_equals_watts_strogatz():
    assert edges(build("small-world", 20, 5)) == edges(build("watts-strogatz", 20, 5))


def test_erdos_renyi_with_p_0_or_1():
    assert neighbours(build("erdos-renyi", 6, 0, p=0.0)) == [()] * 6
    assert edges(build("erdos-renyi", 6, 0, p=1.0)) == edges(build("complete", 6, 0))


@pytest.mark.parametrize(("options", "p"), [({}, 0.1), ({"p": 0.3}, 0.3)])
def test_erdos_renyi_joins_pairs_with_given_probability(options, p):
    pairs = 200 * 199 / 2
    joined = build("erdos-renyi", 200, 0, **options).number_of_edges()
    assert joined == pytest.approx(p * pairs, abs=5 * np.sqrt(p * (1 - p) * pairs))


@pytest.mark.parametrize(("n", "rows", "columns"), [(9, 3, 3), (12, 3, 4), (100, 10, 10), (21, 3, 7)])
def test_torus_is_a_wrapped_grid(n, rows, columns):
    found = edges(build("torus", n, 0))
    right = {frozenset((r * columns + c, r * columns + (c + 1) % columns)) for r in range(rows) for c in range(columns)}
    below = {frozenset((r * columns + c, (r + 1) % rows * columns + c)) for r in range(rows) for c in range(columns)}
    assert found == right | below
    assert degrees(build("torus", n, 0)) == [4] * n


@pytest.mark.parametrize("n", [1, 2, 7])
def test_star_has_node_0_as_centre(n):
    assert edges(build("star", n, 0)) == {frozenset((0, k)) for k in range(1, n)}


@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_barabasi_albert_is_connected_with_expected_edges(n, new, seed):
    if new < n:
        graph = build("barabasi-albert", n, seed, edges=new)
        assert nx.is_connected(graph)
        assert graph.number_of_edges() == new + (n - new - 1) * new  # a star, then the further nodes
    else:
        assert refusal("barabasi-albert", n, {"edges": new}).startswith(f"edges must be from 1 to {n - 1}")


def test_scale_free_graph_has_hubs():
    assert max(degrees(build("scale-free", 500, 0))) > 4 * np.mean(degrees(build("scale-free", 500, 0)))


def test_scale_free_equals_barabasi_albert():
    assert edges(build("barabasi-albert", 20, 5)) == edges(build("scale-free", 20, 5))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_clusters_are_complete_groups_joined_in_a_ring(n, groups, links, seed):
    if n // groups < 2:
        return
    graph = build("clusters", n, seed, groups=groups, links=links)
    group = [k * groups // n for k in range(n)]
    between = {}
    for i, j in graph.edges:
        if group[i] != group[j]:
            pair = frozenset((group[i], group[j]))
            between[pair] = between.get(pair, 0) + 1
    around = {frozenset((g, (g + 1) % groups)) for g in range(groups)} if groups > 1 else set()
    assert between == dict.fromkeys(around, links)
    assert all(graph.has_edge(i, j) for i in range(n) for j in range(i) if group[i] == group[j])
    assert nx.is_connected(graph)


def test_ring_with_leaves_gives_each_node_of_the_ring_its_leaves():
    graph = build("ring-with-leaves", 16, 0, ring=5)
    assert neighbours(graph)[0] == (1, 4, 5, 10, 15)
    assert neighbours(graph)[3] == (2, 4, 8, 13)
    assert {degree for node, degree in graph.degree if node >= 5} == {1}
    assert "ring must be from 3 to 8 for 8 nodes" in refusal("ring-with-leaves", 8, {"ring": 9})


def test_two_worlds_are_cliques_that_others_watch():
    around = neighbours(build("two-worlds", 9, 0, core=7, links=2))
    assert around[0] == (1, 2, 3, 4, 7, 8)
    assert around[2] == (0, 1, 3, 5, 7, 8)
    assert around[7] == around[8] == tuple(range(7))
    assert "links must be from 1 to 3" in refusal("two-worlds", 8, {"core": 7, "links": 4})
    assert "core must be from 2 to 8 for 8 nodes, or 0 for all" in refusal("two-worlds", 8, {"core": 9})


def test_clusters_with_partial_groups_stay_connected():
    for seed in range(20):
        graph = build("clusters", 40, seed, groups=4, within=0.5)
        assert nx.is_connected(graph)
        inside = graph.number_of_edges() - 4
        assert inside == pytest.approx(0.5 * 4 * 45, abs=5 * np.sqrt(0.25 * 180))


# Seeds


@pytest.mark.parametrize("name", BUILDERS)
def test_build_with_same_seed_ignores_global_generators(name):
    graphs = []
    for other in (1, 2):
        random.seed(other)
        np.random.seed(other)  # the seed that NetworkX falls back to
        graphs.append(build(name, 30, 7, **RANDOM.get(name, {})))
    assert list(graphs[0].edges) == list(graphs[1].edges)


@pytest.mark.parametrize("name", RANDOM)
def test_random_graph_depends_on_seed(name):
    found = {frozenset(edges(build(name, 30, seed, **RANDOM[name]))) for seed in range(10)}
    assert len(found) == 10


@pytest.mark.parametrize("name", FIXED)
def test_fixed_graph_ignores_seed(name):
    assert len({frozenset(edges(build(name, 30, seed))) for seed in range(3)}) == 1


# Impossible graphs


@pytest.mark.parametrize(
    ("name", "n", "options", "message"),
    [
        (
            "k-regular",
            8,
            {"degree": 8},
            "degree must be at least 0 and below 8 for 8 nodes, and nodes * degree must be even, got 8",
        ),
        (
            "k-regular",
            5,
            {"degree": 3},
            "degree must be at least 0 and below 5 for 5 nodes, and nodes * degree must be even, got 3",
        ),
        ("k-regular", 8, {"degree": -2}, "degree must be at least 0 and below 8 for 8 nodes"),
        ("k-regular", 3, {}, "degree must be at least 0 and below 3 for 3 nodes"),
        ("small-world", 8, {"degree": 1}, "degree must be even, from 2 to 7 for 8 nodes, got 1"),
        ("small-world", 8, {"degree": 5}, "degree must be even, from 2 to 7 for 8 nodes, got 5"),
        ("small-world", 2, {}, "a small world needs 3 nodes or more, got 2"),
        ("small-world", 8, {"degree": 8}, "degree must be even, from 2 to 7 for 8 nodes, got 8"),
        ("small-world", 8, {"rewire": -0.1}, "rewire must be from 0 to 1, got -0.1"),
        ("small-world", 8, {"rewire": float("nan")}, "rewire must be from 0 to 1, got nan"),
        ("watts-strogatz", 8, {"rewire": 1.5}, "rewire must be from 0 to 1, got 1.5"),
        ("torus", 10, {}, "a torus needs rows * columns nodes, both 3 or more; 10 is not such a product, the next is 12"),
        ("torus", 1, {}, "a torus needs rows * columns nodes, both 3 or more; 1 is not such a product, the next is 9"),
        ("barabasi-albert", 5, {"edges": 0}, "edges must be from 1 to 4 for 5 nodes, got 0"),
        ("scale-free", 5, {"edges": 5}, "edges must be from 1 to 4 for 5 nodes, got 5"),
        ("clusters", 5, {"groups": 6}, "groups must be from 1 to 5 for 5 nodes, got 6"),
        ("clusters", 5, {"groups": 0}, "groups must be from 1 to 5 for 5 nodes, got 0"),
        (
            "clusters",
            9,
            {"links": 10},
            "links must be from 1 to 9, the number of pairs between two neighbouring groups, got 10",
        ),
        (
            "clusters",
            9,
            {"links": 0},
            "links must be from 1 to 9, the number of pairs between two neighbouring groups, got 0",
        ),
        ("clusters", 9, {"within": -0.1}, "within must be from 0 to 1, got -0.1"),
        ("clusters", 9, {"within": 0.0}, "no connected graph found in 100 attempts; increase within, which is 0.0"),
        ("erdos-renyi", 8, {"p": 1.01}, "p must be from 0 to 1, got 1.01"),
        ("erdos-renyi", 8, {"p": float("inf")}, "p must be from 0 to 1, got inf"),
        ("erdos-renyi", 8, {"p": float("nan")}, "p must be from 0 to 1, got nan"),
    ],
)
def test_build_of_impossible_graph_reports_one_line(name, n, options, message):
    assert refusal(name, n, options).startswith(message)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ring", {"degree": 3}, "unknown key 'topology.degree'; known: none"),
        ("k-regular", {"degre": 3}, "unknown key 'topology.degre'; did you mean 'topology.degree'?"),
        ("k-regular", {"degree": "many"}, "topology.degree must be a whole number, got 'many'"),
        ("k-regular", {"degree": 2.5}, "topology.degree must be a whole number, got 2.5"),
        ("erdos-renyi", {"p": "half"}, "topology.p must be a number, got 'half'"),
        ("complete", {"n": 3}, "unknown key 'topology.n'; known: none"),
        ("erdos-renyi", {"seed": 3}, "unknown key 'topology.seed'; known: topology.p"),
    ],
)
def test_unknown_topology_option_reports_one_line(name, options, message):
    with pytest.raises(ConfigurationError) as refused:
        binding.build("topology", BUILDERS[name], options, n=8, seed=0)
    assert str(refused.value) == message


def test_build_of_unknown_name_raises_key_error():
    with pytest.raises(KeyError, match="tourus"):
        build("tourus", 8, 0)


# Neighbours


def test_neighbours_are_sorted_and_symmetric():
    assert neighbours(nx.Graph([(0, 3), (3, 1), (2, 3)])) == [(1,), (0, 2, 3), (1,), (1,)]  # in the order 0, 3, 1, 2


def test_neighbours_of_isolated_node_are_empty():
    graph = nx.path_graph(2)
    graph.add_node("alone")
    assert neighbours(graph) == [(1,), (0,), ()]
    assert neighbours(nx.Graph()) == []


def test_neighbours_use_positions_instead_of_labels():
    graph = nx.Graph([("hub", ("a", 1)), ("hub", 7), (frozenset({2}), "hub")])
    assert list(graph.nodes) == ["hub", ("a", 1), 7, frozenset({2})]
    assert neighbours(graph) == [(1, 2, 3), (0,), (0,), (0,)]


def test_neighbours_treat_numeric_labels_as_labels():
    graph = nx.Graph()
    graph.add_nodes_from([20, 10, 0])
    graph.add_edge(0, 20)
    assert neighbours(graph) == [(2,), (), (0,)]


def test_neighbours_of_networkx_grid():
    graph = nx.grid_2d_graph(2, 3)  # labelled (0, 0), (0, 1), ...
    assert neighbours(graph) == [(1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4)]


def test_neighbours_of_directed_graph_are_predecessors():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c"), ("c", "b")])
    assert neighbours(graph) == [(), (0, 2), (0, 1)]


def test_neighbours_ignore_loops():
    assert neighbours(nx.Graph([(0, 0), (0, 1)])) == [(1,), (0,)]
    assert neighbours(nx.DiGraph([(0, 0), (0, 1)])) == [(), (0,)]


def test_neighbours_count_parallel_edges_once():
    assert neighbours(nx.MultiGraph([(0, 1), (1, 0), (0, 1)])) == [(1,), (0,)]
    assert neighbours(nx.MultiDiGraph([(0, 1), (0, 1), (1, 2)])) == [(), (0,), (1,)]


pairs = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30)


@given(pairs, st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]), st.permutations("abcdefgh"))
def test_neighbours_of_any_graph_match_edges(pairs, kind, labels):
    graph = kind()
    graph.add_nodes_from(labels)
    graph.add_edges_from((labels[i], labels[j]) for i, j in pairs)
    ways = set(pairs) if graph.is_directed() else {*pairs, *((j, i) for i, j in pairs)}
    assert neighbours(graph) == [tuple(j for j in range(8) if (j, i) in ways and j != i) for i in range(8)]
