"""Graphs by round: agreement after the rounds of the theorem, weights, rates, draws, and members who come and go."""

from itertools import pairwise
from math import log, log2

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl._util import binding
from p2pfl.errors import ConfigurationError
from p2pfl.topologies import SCHEDULES, make_schedule, neighbours
from p2pfl.topologies.consensus import consensus_errors, effective_gap, schedule_properties, static_schedule, union
from p2pfl.topologies.graph_properties import spectral_gap
from p2pfl.topologies.schedules import NamedSchedule, all_sources

START = np.random.default_rng(7).standard_normal(200)
"""Numbers of the nodes at the start: a random vector has a part in every direction, so that all of them must vanish."""


def matrix(graph):
    """Return the weights of a round, [n, n]; row i is node i's."""
    found = np.diag(graph.own)
    found[graph.rows, graph.sources] += graph.weights
    return found


def check_rounds(graphs, n, degree):
    """Check all rounds of a rule at once: rows and columns have the sum 1, weights are positive, no source is twice."""
    count = len(graphs)
    shift = np.repeat(np.arange(count) * n, [len(graph.sources) for graph in graphs])
    rows, sources, weights = (
        np.concatenate([getattr(graph, name) for graph in graphs]) for name in ("rows", "sources", "weights")
    )
    own = np.concatenate([graph.own for graph in graphs])
    columns = np.bincount(sources + shift, weights, count * n) + own
    assert np.abs(columns - 1).max() < 1e-12
    assert own.min() > -1e-12
    assert weights.min(initial=1) > 0
    keys = (rows + shift) * n + sources
    assert (keys[1:] > keys[:-1]).all()
    assert (rows != sources).all()
    assert max(graph.degree for graph in graphs) <= degree


@pytest.mark.slow
@pytest.mark.parametrize("degree", range(1, 7))
@pytest.mark.parametrize("name", ["base-k", "simple-base-k"])
def test_base_graphs_reach_consensus_within_the_rounds_of_the_theorem(name, degree):
    for n in range(2, 201):
        schedule = make_schedule(name, n, 0, degree=degree)
        graphs = [schedule.graph(round) for round in range(1, schedule.period + 1)]
        assert len(graphs) <= 2 * log(n) / log(degree + 1) + 2 + 1e-9
        check_rounds(graphs, n, degree)
        values = START[:n]
        for graph in graphs:
            values = graph.mix(values)
        assert np.abs(values - START[:n].mean()).max() < 1e-12  # the claim is 1e-6


@pytest.mark.slow
def test_base_graph_is_not_longer_than_the_simple_one_and_sometimes_shorter():
    rounds = {
        name: np.array([make_schedule(name, n, 0, degree=k).period for n in range(2, 201, 7) for k in (1, 2, 3)])
        for name in ("base-k", "simple-base-k")
    }
    assert (rounds["base-k"] <= rounds["simple-base-k"]).all()
    assert (rounds["base-k"] < rounds["simple-base-k"]).any()


def test_base_2_graph_of_a_power_of_2_is_the_hypercube():
    cube, base = make_schedule("hypercube", 32, 0), make_schedule("base-k", 32, 0)
    assert cube.period == base.period == 5
    for round in range(1, 6):
        assert (matrix(cube.graph(round)) == matrix(base.graph(round))).all()


@pytest.mark.parametrize("n", [2**power for power in range(8)])
@pytest.mark.parametrize("name", ["one-peer-exponential", "hypercube"])
def test_one_peer_reaches_consensus_for_powers_of_2(name, n):
    schedule = make_schedule(name, n, 0)
    assert schedule.period == max(1, int(log2(n)))
    check_rounds([schedule.graph(round) for round in range(1, schedule.period + 1)], n, 1)
    assert consensus_errors(schedule, schedule.period)[-1] < 1e-12
    assert effective_gap(schedule) == 1


def test_one_peer_exponential_does_not_reach_consensus_otherwise():
    assert consensus_errors(make_schedule("one-peer-exponential", 25, 0), 5)[-1] > 1e-2


@pytest.mark.parametrize("n", [8, 20, 100])
def test_gap_of_the_exponential_graph_is_that_of_its_paper(n):
    """Ying et al. 2021, proposition 1: 2 / (1 + ceil(log2(n))) for even n."""
    assert effective_gap(make_schedule("exponential", n, 0)) == pytest.approx(2 / (1 + np.ceil(log2(n))), abs=1e-6)


@pytest.mark.parametrize("n", [30, 200])
def test_gap_of_a_graph_that_mixes_slowly_is_that_of_its_matrix(n):
    graph = nx.cycle_graph(n)
    assert effective_gap(static_schedule(graph)) == pytest.approx(spectral_gap(graph), rel=1e-5)


# Random graphs


def ratios(schedule, rounds):
    """Return by which factor each round shrinks the square of the distance from the mean, of a new random start each."""
    rng = np.random.default_rng(3)
    found = []
    for round in range(1, rounds + 1):
        start = rng.standard_normal(schedule.n)
        start -= start.mean()
        after = schedule.graph(round).mix(start)
        found.append(float(after @ after / (start @ start)))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("eta", [0.3, 0.5])
@pytest.mark.parametrize("n", [9, 24, 100])
def test_directed_equidyn_has_its_expected_rate(n, eta):
    """For x of sum 0, with all steps equally likely: E|Wx|^2 = ((1 - eta)^2 + eta^2 (n - 2) / n) |x|^2, by its basis."""
    found = ratios(make_schedule("od-equidyn", n, 5, eta=eta), 1000)
    error = 3.5 * found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - ((1 - eta) ** 2 + eta**2 * (n - 2) / n)) < error < 0.04
    assert found.mean() - error < 1 - 2 * eta * (1 - eta)  # theorem 3 of Song et al.


@pytest.mark.slow
@pytest.mark.parametrize("n", [9, 24, 100])
def test_undirected_equidyn_is_within_its_expected_rate(n):
    found = ratios(make_schedule("ou-equidyn", n, 5), 1000)
    assert found.mean() - 3.5 * found.std(ddof=1) / np.sqrt(len(found)) < 1 - 4 / 3 * 0.25


DOUBLY = [name for name in SCHEDULES if name not in ("epidemic", "hypercube")]


@pytest.mark.parametrize("name", DOUBLY)
@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 90))
def test_weights_are_doubly_stochastic(name, n, seed, round):
    check_rounds([make_schedule(name, n, seed).graph(round)], n, max(1, n - 1))


@given(st.integers(2, 60), st.integers(0, 9), st.integers(1, 90), st.integers(0, 6))
def test_epidemic_sends_to_different_receivers_and_takes_the_mean(n, seed, round, degree):
    graph = make_schedule("epidemic", n, seed, degree=degree).graph(round)
    sent = np.bincount(graph.sources, minlength=n)
    assert (sent == min(degree or (n - 1).bit_length(), n - 1)).all()
    received = np.diff(graph.starts)
    assert np.allclose(graph.weights, 1 / (1 + received[graph.rows]))
    assert np.allclose(graph.own, 1 / (1 + received))


@pytest.mark.slow
def test_epidemic_draws_every_receiver_alike():
    schedule = make_schedule("epidemic", 7, 1, degree=3)
    counts = sum(matrix(schedule.graph(round)) > 0 for round in range(1, 2001)) - 2000 * np.eye(7)
    off = counts[~np.eye(7, dtype=bool)]
    assert np.abs(off - 1000).max() < 5 * np.sqrt(2000 * 0.25)


@pytest.mark.parametrize("n", [2, 7, 30])
def test_matching_leaves_at_most_one_node_alone(n):
    schedule = make_schedule("random-matching", n, 4)
    for round in range(1, 20):
        counts = np.diff(schedule.graph(round).starts)
        assert sorted(counts)[n % 2 :] == [1] * (n - n % 2)
    assert len({matrix(schedule.graph(round)).tobytes() for round in range(1, 20)}) > 1 or n == 2


@pytest.mark.parametrize("name", ["random-permutation", "d-equistatic"])
@pytest.mark.parametrize(("n", "degree"), [(9, 3), (3, 8)])
def test_degree_is_the_number_of_sources_and_at_most_all_others(name, n, degree):
    graph = make_schedule(name, n, 0, degree=degree).graph(1)
    assert (np.diff(graph.starts) == min(degree, n - 1)).all()


# What all rules have in common


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "hypercube"])
@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(0, 3), st.integers(1, 40))
def test_row_of_one_node_is_that_of_the_graph(name, n, seed, round):
    schedule = make_schedule(name, n, seed)
    for node in range(n):
        row, expected = schedule.row(round, node), schedule.graph(round).row(node)
        assert row.sources.tolist() == expected.sources.tolist()
        assert row.weights.tolist() == expected.weights.tolist()


def test_row_of_one_node_of_the_hypercube():
    schedule = make_schedule("hypercube", 16, 0)
    assert [schedule.row(round, 5).sources.tolist() for round in range(1, 6)] == [[4], [7], [1], [13], [4]]
    assert schedule.row(3, 5).weights.tolist() == schedule.graph(3).row(5).weights.tolist() == [0.5]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "hypercube"])
def test_graph_depends_on_n_seed_and_round_alone(name):
    rounds = [*range(1, 100), 3, 99, 1]
    one, other = make_schedule(name, 13, 2), make_schedule(name, 13, 2)
    forward = {round: matrix(one.graph(round)).tobytes() for round in rounds}
    assert {round: matrix(other.graph(round)).tobytes() for round in reversed(rounds)} == forward
    drawn = not one.period
    another = make_schedule(name, 13, 3)
    different = any(matrix(another.graph(round)).tobytes() != forward[round] for round in range(1, 9))
    assert different == (drawn or name == "d-equistatic")
    assert len(set(forward.values())) > (5 if drawn else one.period - 1)


@pytest.mark.parametrize("name", ["base-k", "one-peer-exponential", "epidemic"])
def test_union_has_all_sources_of_the_rounds(name):
    schedule = make_schedule(name, 11, 0)
    starts, sources = all_sources(schedule, 4)
    for node in range(11):
        expected = {k for round in range(1, 5) for k in schedule.row(round, node).sources.tolist()}
        assert sources[starts[node] : starts[node + 1]].tolist() == sorted(expected)


def test_properties_are_those_of_a_round_and_of_the_period():
    found = schedule_properties(make_schedule("one-peer-exponential", 16, 0))
    assert (found["degree"], found["period"], found["spectral_gap"]) == ({"min": 1, "mean": 1.0, "max": 1}, 4, 1.0)
    assert (found["edges"], found["directed"], found["components"]) == (64, True, 1)
    assert neighbours(union(make_schedule("one-peer-exponential", 16, 0)))[0] == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("name", "n", "options", "words"),
    [
        ("hypercube", 25, {}, "needs a power of 2 as its number of nodes, such as 32, got 25; base-k with degree = 1"),
        ("base-k", 8, {"degree": 0}, "degree must be 1 or more, got 0"),
        ("epidemic", 8, {"degree": -1}, "degree must be 0 or more, got -1"),
        ("od-equidyn", 8, {"eta": 1.0}, "eta must be above 0 and below 1, got 1.0"),
        ("ou-equidyn", 8, {"eta": 0.0}, "eta must be above 0 and below 1, got 0.0"),
    ],
)
def test_refusals_are_one_line_with_the_remedy(name, n, options, words):
    with pytest.raises(ConfigurationError) as refused:
        binding.build("topology", SCHEDULES[name], options, n=n, seed=0)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


# Members who come and go


def test_members_compute_the_same_graphs_when_three_of_25_leave_and_two_join():
    """No member asks another one: each has a rule of its own, and has learned of the changes in an order of its own."""
    before = [f"member-{k:02d}" for k in range(25)]
    after = sorted({*before, "anna", "member-11b"} - {"member-00", "member-12", "member-24"})
    steps = [before, before[1:], sorted([*before[1:], "anna"]), after]
    for name in DOUBLY:
        views = []
        for member in after:
            known = NamedSchedule(lambda n, name=name: make_schedule(name, n, 9), steps[len(views) % 3])
            for names in steps[1:]:
                known.change(names[::-1])
            views.append((member, known))
        for round in (5, 6, 7):
            weights = np.zeros((24, 24))
            for k, (member, known) in enumerate(views):
                row = known.row(member, round)
                assert list(row) == sorted(row)
                for source, weight in row.items():
                    weights[k, after.index(source)] = weight
            weights += np.diag(1 - weights.sum(axis=1))
            assert np.allclose(weights.sum(axis=0), 1)
            assert (weights == matrix(make_schedule(name, 24, 9).graph(round))).all() or np.allclose(
                weights, matrix(make_schedule(name, 24, 9).graph(round)), atol=1e-15
            )


def test_observer_has_the_sources_of_the_next_member():
    known = NamedSchedule(lambda n: make_schedule("base-k", n, 0, degree=2), ["a", "c", "e"])
    assert known.row("b", 1) == known.row("c", 1)
    assert known.row("z", 1) == known.row("a", 1)
    assert NamedSchedule(lambda n: make_schedule("base-k", n, 0), []).row("z", 1) == {}


def test_errors_fall_from_round_to_round():
    errors = consensus_errors(make_schedule("random-matching", 30, 0), 30)
    assert errors[0] == 1
    assert all(later <= earlier for earlier, later in pairwise(errors))
