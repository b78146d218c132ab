"""Measures of fronts, against values by hand and against moocore."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2pfl.pareto_metrics import (
    cardinality,
    hypervolume,
    inverted_generational_distance,
    mean_reward,
    measures,
    non_dominated,
    sparsity,
    to_maximisation,
)
from p2pfl.tasks.deep_sea_treasure import FRONT

STAIRS = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])


def test_non_dominated_drops_dominated_and_repeated_points():
    points = np.array([[2.0, 2.0], [1.0, 3.0], [2.0, 2.0], [1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    assert non_dominated(points).tolist() == STAIRS.tolist()
    assert cardinality(points) == 3


def test_non_dominated_drops_weakly_dominated_point():
    assert non_dominated(np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]])).tolist() == [[1, 1, 2]]


def test_hypervolume_of_stairs_by_hand():
    assert hypervolume(STAIRS, [0, 0]) == 6  # 3 + 2 + 1 squares
    assert hypervolume(STAIRS, [0, 1]) == 3  # the last step adds nothing
    assert hypervolume(STAIRS, [3, 3]) == 0
    assert hypervolume(np.empty((0, 2)), [0, 0]) == 0
    assert hypervolume(np.array([[4.0], [2.0]]), [1]) == 3


def test_hypervolume_of_deep_sea_treasure_by_hand():
    # By hand, over time: from -50, each second counts the most valuable treasure reachable by then.
    best = [max((value for value, time in FRONT if -time <= spent), default=0.0) for spent in range(50)]
    assert hypervolume(np.array(FRONT), [0, -50]) == pytest.approx(sum(best))


def test_hypervolume_of_two_boxes_by_hand():
    pytest.importorskip("moocore")
    points = np.array([[2.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
    assert hypervolume(points, [0, 0, 0]) == pytest.approx(3)  # 2 + 2, less the common 1


def test_inverted_generational_distance_by_hand():
    points = np.array([[1.0, 3.0], [3.0, 1.0]])
    assert inverted_generational_distance(points, STAIRS) == pytest.approx(np.sqrt(2) / 3)
    assert inverted_generational_distance(STAIRS, STAIRS) == 0
    assert np.isnan(inverted_generational_distance(np.empty((0, 2)), STAIRS))


def test_sparsity_is_the_mean_squared_gap():
    assert sparsity(STAIRS) == 2  # two gaps, of 1 + 1 each
    assert sparsity(np.array([[0.0, 4.0], [3.0, 0.0]])) == 25
    assert sparsity(np.array([[1.0, 3.0], [1.0, 3.0], [0.0, 0.0]])) == 0  # one different point on the front


def test_to_maximisation_negates_losses():
    figures = [{"test_mse_0": 2.0, "test_gain": 3.0, "test_loss": 9.0}, {"test_mse_0": 1.0, "test_gain": 0.0}]
    assert to_maximisation(figures, {"mse_0": False, "gain": True}).tolist() == [[-2, 3], [-1, 0]]
    assert to_maximisation([], {"gain": True}).shape == (0, 1)


def test_mean_reward_uses_weights_of_each_node():
    assert mean_reward(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [0.5, 0.5]])) == 2.25


def test_measures_returns_all_measures():
    assert measures(STAIRS, [0, 0]) == {"hypervolume": 6, "sparsity": 2, "cardinality": 3}
    assert measures(STAIRS, [0, 0], STAIRS)["igd"] == 0


def sets(objectives):
    return arrays(np.float64, st.tuples(st.integers(1, 12), st.just(objectives)), elements=st.integers(-3, 6).map(float))


@pytest.mark.slow
@given(st.integers(1, 4).flatmap(sets))
def test_measures_equal_moocore(points):
    moocore = pytest.importorskip("moocore")
    objectives = points.shape[1]
    reference = [-1.0] * objectives
    expected = moocore.hypervolume(points, ref=reference, maximise=True) if objectives > 1 else max(points.max() + 1, 0)
    assert hypervolume(points, reference) == pytest.approx(expected)
    true = non_dominated(points + 1.5)
    if objectives > 1:
        assert inverted_generational_distance(points, true) == pytest.approx(moocore.igd(points, ref=true, maximise=True))
        kept = moocore.filter_dominated(points, maximise=True)
        assert non_dominated(points).tolist() == np.unique(kept, axis=0).tolist()


@given(sets(2))
def test_measures_ignore_dominated_point(points):
    more = np.vstack([points, points[:1] - 1])
    assert hypervolume(more, [-5, -5]) == hypervolume(points, [-5, -5])
    assert sparsity(more) == sparsity(points)
    assert cardinality(more) == cardinality(points)
