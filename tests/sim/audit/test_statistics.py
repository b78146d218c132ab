"""Statistics of attacks: areas under curves, intervals, and bounds on epsilon."""

from math import exp, log

import numpy as np
import pytest

from p2pfl.sim.audit.statistics import auc, epsilon_of_guesses, mean_with_interval, p_of_guesses


def test_area_is_the_probability_that_a_member_is_above():
    members, others = np.array([3.0, 1.0]), np.array([0.0, 1.0, 2.0])
    assert auc(members, others) == pytest.approx((3 + 1.5) / 6)


def test_interval_of_a_mean_covers_it():
    draws = np.random.default_rng(0).normal(2.0, 1.0, (400, 12))
    intervals = [mean_with_interval(row)[1:] for row in draws]
    assert np.mean([low <= 2 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.03)


def test_probability_of_guesses_agrees_with_the_paper():
    """Steinke et al. 2023, appendix D: 100 guesses, 75 right, epsilon = log 3."""
    assert p_of_guesses(100, 100, 75, log(3), 0) == pytest.approx(0.5535, abs=5e-4)


def test_delta_weakens_a_bound():
    bounds = [epsilon_of_guesses(1000, 100, 95, delta, 0.05) for delta in (0, 1e-5, 1e-3)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]
    assert epsilon_of_guesses(1000, 100, 50, 1e-5, 0.05) == 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bound_exceeds_the_truth_of_coins_no_more_often_than_its_error(epsilon):
    guesses = 200
    right = np.random.default_rng(1).binomial(guesses, 1 / (1 + exp(-epsilon)), 400)
    bounds = {k: epsilon_of_guesses(guesses, guesses, k, 0, 0.05) for k in np.unique(right).tolist()}
    exceeded = np.mean([bounds[k] > epsilon for k in right.tolist()])
    assert exceeded <= 0.05 + 0.02
    assert max(bounds.values()) > 0.3 * epsilon
