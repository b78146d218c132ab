"""Preferences: points of the simplex, drawn from the seed or set by the node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.preferences import lattice, nearest, preference_of, validate_preference
from p2pfl.task import Part

DRAWN = [
    {"name": "dirichlet"},
    {"name": "dirichlet", "alpha": 0.1},
    {"name": "gaussian", "deviation": 0.5},
    {"name": "equidistant"},
]


def of_all(count, objectives, distribution, seed=0):
    return np.array([preference_of(Part(k, count), seed, objectives, (), distribution)[0] for k in range(count)])


@pytest.mark.parametrize("distribution", DRAWN)
@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_preferences_lie_on_the_simplex(distribution, objectives):
    points = of_all(30, objectives, distribution)
    assert points.shape == (30, objectives)
    assert (points >= 0).all()
    assert points.sum(1) == pytest.approx(np.ones(30))
    assert len(np.unique(points, axis=0)) > 5


@pytest.mark.parametrize("distribution", DRAWN[:3])
def test_preferences_depend_on_seed_and_part(distribution):
    some, again, other = (of_all(5, 3, distribution, seed) for seed in (0, 0, 1))
    assert (some == again).all()
    assert (some != other).any(1).all()
    alone = preference_of(Part(3, 5), 0, 3, (), distribution)[0]
    assert (alone == some[3]).all()


@pytest.mark.slow
def test_dirichlet_is_uniform_with_alpha_1():
    points = of_all(4000, 3, {"name": "dirichlet"})
    assert points.mean(0) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert points.var(0) == pytest.approx([1 / 18] * 3, abs=0.005)  # (1/3)(2/3) / (3 + 1)


@pytest.mark.slow
def test_gaussian_preferences_have_deviation_along_simplex():
    points = of_all(4000, 2, {"name": "gaussian", "deviation": 0.1})
    assert points.mean(0) == pytest.approx([0.5, 0.5], abs=0.01)
    assert points.std(0) == pytest.approx([0.1 / np.sqrt(2)] * 2, abs=0.005)  # components across it are removed
    assert (of_all(3, 4, {"name": "gaussian", "deviation": 0.0}) == 0.25).all()


def test_equidistant_preferences_of_two_are_evenly_spaced():
    assert of_all(5, 2, {"name": "equidistant"})[:, 0] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_equidistant_preferences_fill_a_lattice_of_equal_size():
    points = of_all(20, 4, {"name": "equidistant"})
    assert sorted(map(tuple, points)) == sorted(map(tuple, lattice(3, 4)))


def test_equidistant_preferences_take_the_corners_first():
    points = of_all(8, 3, {"name": "equidistant"})  # from a lattice of ten
    assert {(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)} <= set(map(tuple, points))
    assert len(np.unique(points, axis=0)) == 8


def test_one_objective_has_all_the_weight():
    assert (of_all(3, 1, {"name": "equidistant"}) == 1).all()


def test_lattice_is_complete():
    assert lattice(2, 3).tolist() == [[0, 0, 1], [0, 0.5, 0.5], [0, 1, 0], [0.5, 0, 0.5], [0.5, 0.5, 0], [1, 0, 0]]


def test_groups_are_blocks():
    table = {"name": "groups", "weights": [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]}
    found = [preference_of(Part(k, 7), 0, 2, (), table) for k in range(7)]
    assert [group for _, group in found] == [0, 0, 0, 1, 1, 2, 2]
    assert [point[0] for point, _ in found] == pytest.approx([0.9, 0.9, 0.9, 0.5, 0.5, 0.2, 0.2])


def test_own_preference_overrides_distribution():
    point, group = preference_of(Part(0, 3), 0, 2, [0.7, 0.3], {"name": "dirichlet"})
    assert point.tolist() == [0.7, 0.3]
    assert group is None


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0], [float("inf"), 0.0]])
def test_weights_off_the_simplex_are_refused(weights):
    with pytest.raises(ConfigurationError, match=r"task.preference must be weights of 0 or more with the sum 1"):
        validate_preference("task.preference", weights, 2)


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        ({"name": "uniform"}, "unknown task.preferences 'uniform'"),
        ({"alpha": 1.0}, "must be a table with a name"),
        ({"name": "dirichlet", "alpha": 0.0}, "task.preferences.alpha must be more than 0"),
        ({"name": "dirichlet", "beta": 1.0}, "unknown key 'task.preferences.beta'"),
        ({"name": "gaussian", "deviation": -1.0}, "task.preferences.deviation must be 0 or more"),
        ({"name": "dirichlet", "alpha": 1e308}, "task.preferences.alpha must be more than 0, and at most 1000000"),
        ({"name": "gaussian", "deviation": 1e308}, "task.preferences.deviation must be 0 or more, and at most 1000000"),
        ({"name": "groups", "weights": []}, "must have a row for each group"),
        ({"name": "groups", "weights": [[1.0]]}, r"task.preferences.weights\[0\] must have 2 weights"),
        ({"name": "groups"}, "missing a required argument: 'weights'"),
    ],
)
def test_invalid_distributions_are_refused(distribution, words):
    with pytest.raises(ConfigurationError, match=words):
        preference_of(Part(0, 3), 0, 2, (), distribution)


def test_huge_lattice_is_refused_before_allocation():
    with pytest.raises(ConfigurationError, match="too many for equidistant preferences"):
        preference_of(Part(0, 600), 0, 500, (), {"name": "equidistant"})


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6))
def test_nearest_point_of_the_simplex_is_nearest(values):
    point = np.array(values)
    found = nearest(point)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    others = np.random.default_rng(0).dirichlet([0.5] * len(values), 50)
    assert (np.linalg.norm(others - point, axis=1) >= np.linalg.norm(found - point) - 1e-9).all()


def test_nearest_keeps_simplex_points_and_large_sums():
    assert nearest(np.array([0.2, 0.0, 0.8])) == pytest.approx([0.2, 0.0, 0.8])
    assert nearest(np.array([7.0])) == pytest.approx([1.0])
    assert nearest(np.array([3e19, 1.0, 3e19])) == pytest.approx([0.5, 0.0, 0.5])
