"""Statistics of attacks: areas under curves, intervals, and bounds on epsilon."""

from math import exp, log

import numpy as np
import pytest
from scipy.stats import norm

from p2pfl.sim.audit.statistics import Curve, auc, epsilon_of_guesses, mean_with_interval, p_of_guesses, refutes_curve


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


def normal_curve(distance):
    """Return the trade-off of normal noise between two values at a distance, in standard deviations."""
    epsilons = np.linspace(0, 8, 60)
    one, other = (norm.cdf(-epsilons / distance + sign * distance / 2) for sign in (1, -1))
    return Curve(epsilons, one - np.exp(epsilons) * other)


def test_curve_has_the_least_errors_of_normal_noise():
    assert normal_curve(1.0).least(0.3) == pytest.approx(norm.cdf(norm.ppf(0.3) - 1), abs=2e-3)


def test_guesses_refute_a_stronger_curve_and_seldom_the_true_one():
    draws, canaries, refuted = np.random.default_rng(2), 300, {1.0: 0, 0.3: 0}
    for _ in range(20):
        there = draws.random(canaries) < 0.5
        order = np.argsort(draws.normal(1.0 * there))
        half = canaries // 4
        right = int(there[order[-half:]].sum() + (~there[order[:half]]).sum())
        for distance in refuted:
            refuted[distance] += refutes_curve(normal_curve(distance), canaries, 2 * half, right, 0.05)
    assert refuted[1.0] <= 2
    assert refuted[0.3] >= 15
