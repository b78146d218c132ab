"""Graphs as rows: those of NetworkX, from the same seeds."""

import networkx as nx
import numpy as np
import pytest

from p2pfl.topologies import BUILDERS, neighbours, properties, rows

GRAPHS = [
    ("ring", 5, {}),
    ("torus", 12, {}),
    ("k-regular", 30, {"degree": 4}),
    ("k-regular", 12, {"degree": 9}),
    ("k-regular", 8, {"degree": 7}),
    ("k-regular", 40, {"degree": 1}),
    ("k-regular", 40, {"degree": 2}),
    ("k-regular", 300, {"degree": 10}),
    ("rings", 40, {"degree": 6}),
    ("rings", 2, {}),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "n", "options"), GRAPHS)
def test_rows_are_the_neighbours_in_the_graph(name, n, options, seed):
    graph, found = BUILDERS[name](n, seed, **options), rows.ROWS[name](n, seed, **options)
    ends = zip(found.starts, found.starts[1:], strict=False)
    assert [tuple(found.peers[a:b].tolist()) for a, b in ends] == neighbours(graph)
    assert len(np.unique(rows.components(found))) == nx.number_connected_components(graph)


@pytest.mark.parametrize(
    ("name", "n", "options"),
    [("ring", 2101, {}), ("torus", 2500, {}), ("k-regular", 2200, {"degree": 3}), ("rings", 2200, {})],
)
def test_properties_of_rows_are_those_of_the_graph(name, n, options):
    assert rows.properties(rows.ROWS[name](n, 3, **options)) == properties(BUILDERS[name](n, 3, **options))


def test_graph_of_small_components_is_measured_as_a_graph():
    assert rows.properties(rows.k_regular(2200, 0, degree=1)) is None


def test_invalid_degree_is_refused_as_by_the_builder():
    for build in (BUILDERS["k-regular"], rows.k_regular):
        with pytest.raises(ValueError, match="degree must be at least 0 and below 5"):
            build(5, 0, degree=3)
