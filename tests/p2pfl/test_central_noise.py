"""Noise that adds up in secure sums: shares, what suffices for a member, and rounding that tells nothing."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from p2pfl.central_noise import LEAST, centralise, enough, integers
from p2pfl.errors import ConfigurationError
from p2pfl.policy import PlannedTraining
from p2pfl.privacy import Privacy, claim_of, claimed_noise, plan_privacy

PLANNED = PlannedTraining(10, submits=True)


def plan(threshold=5, **changes):
    privacy = Privacy(**({"epsilon": 4, "central": True} | changes))
    return centralise(plan_privacy(privacy, PLANNED, 40, 40), threshold)


@pytest.mark.parametrize(("threshold", "colluding"), [(5, 1), (7, 3), (3, 0)])
def test_shares_of_the_least_honest_survivors_make_the_noise_of_one_node(threshold, colluding):
    alone, found = plan_privacy(Privacy(epsilon=4), PLANNED, 40, 40), plan(threshold, colluding=colluding)
    assert found.mechanism.noise == 0
    assert found.hidden == alone.mechanism.noise
    assert found.share * sqrt(threshold - colluding) == pytest.approx(found.hidden)
    assert found.epsilon(found.steps) == alone.epsilon(alone.steps)
    assert found.epsilon_outside(found.steps) <= found.epsilon(found.steps)


def test_noise_suffices_whoever_drops_out_or_colludes():
    mine = plan(5)  # of five survivors one colludes: four shares
    same = mine.share
    assert enough(mine, dict.fromkeys("bcde", same))
    assert enough(mine, dict.fromkeys("bcdefgh", same))
    assert not enough(mine, dict.fromkeys("bc", same))
    assert not enough(mine, dict.fromkeys("bcd", same) | {"e": 0.9 * same, "f": 5 * same})
    assert not enough(mine, dict.fromkeys("bcdef", same) | {"g": 0.0})
    assert enough(mine, dict.fromkeys("bcdef", 2 * same))


def test_claim_of_noise_is_in_units_of_the_gradient():
    mine = plan(5, clip=0.5)
    assert claimed_noise(claim_of(mine.privacy, share=mine.share)) == mine.share * 0.5
    assert "privacy.sum_noise" not in claim_of(Privacy(epsilon=4))
    assert [claimed_noise({"privacy.sum_noise": said}) for said in (True, "5", -1.0, float("inf"), float("nan"))] == [
        0.0
    ] * 5


def test_noise_has_its_deviation_and_another_one_is_refused():
    drawn = integers(np.random.default_rng(0).standard_normal, 20_000, 2.0**20)
    assert drawn.dtype == np.int64
    assert np.std(drawn) / 2**20 == pytest.approx(1, abs=0.02)
    with pytest.raises(ConfigurationError, match="use another learning rate"):
        integers(np.random.default_rng(0).standard_normal, 3, LEAST / 2)


@pytest.mark.parametrize("members", [2, 5])
def test_sum_of_rounded_noise_is_rounded_noise(members):
    """The lemma of the module's head, with a noise so small that its bound can be seen."""
    sigma, reach = 4.0, 60
    at = np.arange(-reach, reach + 1)
    each = norm.cdf((at + 0.5) / sigma) - norm.cdf((at - 0.5) / sigma)
    together = np.array([1.0])
    for _ in range(members):
        together = np.convolve(together, each)
    whole = sqrt(members * sigma**2 + (members - 1) / 12)
    places = np.arange(-reach * members, reach * members + 1)
    once = norm.cdf((places + 0.5) / whole) - norm.cdf((places - 0.5) / whole)
    u = places / sqrt(members * sigma**2)
    near = np.abs(u) < 4
    bound = np.abs(u**4 - 6 * u**2 + 3) * (members - 1) / (2880 * members**2 * sigma**4)
    away = np.abs(together[near] / once[near] - 1)
    assert (away <= 1.2 * bound[near] + 2e-6).all()
    assert away.max() > 0.8 * bound[near].max()  # it is the size of the error, not a loose bound
