"""Pareto simulated annealing over preferences: each step by hand, and determinism from the seed and the values."""

from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.annealing import Annealing, Schedule, acceptance, closest, ranges, spread_weights


def array(*rows):
    return np.array(rows, np.float64)


def annealing(seed=0, **schedule):
    return Annealing(2, Schedule(**schedule), seed)


# The steps, by hand


def test_acceptance_of_better_and_worse_values():
    weights = array(0.5, 0.5)
    assert acceptance(array(0, 0), array(0.2, 0), weights, 0.1) == 1.0
    assert acceptance(array(0, 0), array(-0.2, 0), weights, 0.1) == pytest.approx(exp(-1))
    assert acceptance(array(0, 0), array(-0.4, 0.2), weights, 0.1) == pytest.approx(exp(-1))
    assert acceptance(array(0, 0), array(-1e6, 0), weights, 1e-6) == 0.0


def test_spread_weights_grow_where_solution_is_no_worse():
    moved = spread_weights(array(0.5, 0.3, 0.2), array(1, 2, 3), array(1, 1, 4), alpha=2.0)
    assert moved.tolist() == pytest.approx([1.0 / 1.7, 0.6 / 1.7, 0.1 / 1.7])


def test_closest_considers_only_non_dominated_neighbours():
    values = array([0, 0], [0.1, 0.1], [-0.1, -0.1], [0, 0], [1, -1], [-0.5, 0.5])
    assert closest(values, 0) == 5
    assert closest(values[:4], 0) is None
    assert closest(array([0, 0], [1, -1], [-1, 1]), 0) == 1  # the first of several


def test_ranges_of_constant_objective_is_one():
    assert ranges(array([1, 5], [3, 5])).tolist() == [2.0, 1.0]


# The search


def test_search_first_iteration_is_the_starting_sample():
    search = annealing(samples=4)
    first = search.propose()
    assert first.shape == (4, 2)
    assert first.sum(1) == pytest.approx(1)
    assert search.tell(first, first * 3) == [True] * 4
    assert search.preferences.tolist() == first.tolist()
    assert search.values.tolist() == (first * 3).tolist()


def test_search_neighbours_lie_one_step_away_on_the_simplex():
    search = annealing(samples=500, step=0.01)
    search.tell(first := search.propose(), first)
    second = search.propose()
    assert (second >= 0).all()
    assert second.sum(1) == pytest.approx(1)
    assert 0 < np.abs(second - first).max() < 0.05
    inside = (first > 0.1).all(1)
    assert np.std((second - first)[inside, 0]) == pytest.approx(0.01 / np.sqrt(2), rel=0.15)  # along the simplex


def test_search_accepts_better_and_rejects_much_worse():
    search = annealing(samples=2, temperature=1e-6)
    search.tell(first := search.propose(), array([0, 1], [1, 0]))
    second = search.propose()
    assert search.tell(second, array([0.1, 1.1], [-5, -5])) == [True, False]
    assert search.preferences.tolist() == [second[0].tolist(), first[1].tolist()]
    assert search.values.tolist() == [[0.1, 1.1], [1, 0]]


def test_search_draws_weights_once_and_moves_them_apart():
    search = annealing(samples=2, temperature=1e-9, alpha=2.0)
    values = array([0, 1], [1, 0])
    search.tell(search.propose(), values)
    search.tell(search.propose(), values - 5)
    drawn = search.weights.copy()
    assert drawn.sum(1) == pytest.approx(1)
    search.tell(search.propose(), values - 5)
    for k, signs in enumerate(([0.5, 2], [2, 0.5])):
        assert search.weights[k].tolist() == pytest.approx(drawn[k] * signs / (drawn[k] * signs).sum())


def test_search_without_neighbour_redraws_weights():
    search = annealing(samples=2, temperature=1e-9)
    values = array([1, 1], [0, 0])
    search.tell(search.propose(), values)
    seen = []
    for _ in range(3):
        search.tell(search.propose(), values - 5)
        seen.append(search.weights[0].tolist())
    assert seen[0] != seen[1] != seen[2]


def test_search_temperature_falls_with_each_step():
    search = annealing(samples=1, temperature=0.4, cooling=0.5)
    seen = []
    for _ in range(4):
        search.tell(search.propose(), array([0, 0]))
        seen.append(search.temperature)
    assert seen == [0.4, 0.2, 0.1, 0.05]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 4))
def test_search_depends_only_on_seed_and_values(seed, samples, objectives):
    def proposals(asked):
        search = Annealing(objectives, Schedule(samples=samples), seed)
        seen = []
        for _ in range(4):
            for _ in range(asked):
                proposed = search.propose()
            seen.append(proposed.tolist())
            search.tell(proposed, np.sqrt(proposed))
        return seen

    assert proposals(1) == proposals(2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"iterations": 0}, "search.iterations must be from 1 to 100,000, got 0"),
        ({"samples": 10**9}, "search.samples must be from 1 to 10,000, got 1000000000"),
        ({"step": 0.0}, "search.step must be more than 0 and at most 1, got 0.0"),
        ({"temperature": 0.0}, "search.temperature must be more than 0, and finite, got 0.0"),
        ({"cooling": 1.5}, "search.cooling must be more than 0 and at most 1, got 1.5"),
        ({"alpha": 1.0}, "search.alpha must be more than 1, and finite, got 1.0"),
    ],
)
def test_invalid_schedule_is_refused(given, words):
    with pytest.raises(ConfigurationError) as error:
        Schedule(**given).check()
    assert str(error.value) == words
