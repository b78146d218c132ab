"""Noise that cancels in the average of a graph: its covariance, what it hides from whom, and how much of it is chosen."""

from itertools import combinations
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from p2pfl import correlated_noise
from p2pfl.correlated_noise import (
    MEMORY,
    Gains,
    Offer,
    adjacency,
    choose_ratio,
    correlate,
    laplacian,
    needed_of,
    offer_of,
    own_beside,
    spread_of,
)
from p2pfl.policy import PlannedTraining
from p2pfl.privacy import Privacy, StepDraws, draw_normals, epsilon_of, plan_privacy
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import EdgeNoise, Mechanism, Steps

PATH = [[1], [0, 2], [1, 3], [2]]
RING = [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
TRIANGLE_WITH_TAIL = [[1, 2], [0, 2], [0, 1, 3], [2]]
GRAPHS = {"path": PATH, "ring": RING, "triangle with a tail": TRIANGLE_WITH_TAIL}
SCALE = 2.0
START = np.zeros(3, np.float32)


def complete(n):
    return [[j for j in range(n) if j != k] for k in range(n)]


def names(around):
    return [f"node-{k}" for k in range(len(around))]


def drawn(around, values, round=1, scale=SCALE, steps=1):
    """Return the noise of the last of some steps of each node, [n, values]."""
    found = np.empty((len(around), values), np.float32)
    for k, near in enumerate(around):
        edges = EdgeNoise(tuple(f"node-{j}" for j in near), scale)
        query = Train(START, round, rule=Steps(1), mechanism=Mechanism(1.0, 1.0, edges=edges))
        draws = StepDraws(RandomStreams(0, f"node-{k}"), query, 10, 5)
        for _ in range(steps):
            draws.noise(found[k], 1.0)
    return found


def own_noise(around, values, **options):
    return drawn([[] for _ in around], values, **options)


# The noise itself


@pytest.mark.parametrize("around", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("steps", [1, 3])
def test_noise_of_edges_cancels_over_the_graph(around, steps):
    together = drawn(around, 500, steps=steps) - own_noise(around, 500, steps=steps)
    assert np.abs(together.sum(0)).max() < 1e-5
    assert together.std(1) == pytest.approx(SCALE * np.sqrt([len(near) for near in around]), rel=0.15)


@pytest.mark.parametrize("around", GRAPHS.values(), ids=GRAPHS)
def test_covariance_is_the_stated_one(around):
    values = 40_000
    found = np.cov(drawn(around, values))
    stated = np.eye(len(around)) + SCALE**2 * laplacian(adjacency(around))
    assert np.abs(found - stated).max() < 6 * stated.max() * sqrt(2 / values)


def test_noise_is_new_in_each_round_step_and_edge():
    found = [
        drawn(RING, 4000, round=1) - own_noise(RING, 4000, round=1),
        drawn(RING, 4000, round=2) - own_noise(RING, 4000, round=2),
        drawn(RING, 4000, steps=2) - own_noise(RING, 4000, steps=2),
    ]
    for one, other in combinations(found, 2):
        assert np.abs(np.corrcoef(one, other)[:5, 5:]).max() < 0.1


@pytest.mark.parametrize("known", [{0}, {1}, {1, 3}])
def test_covariance_of_what_is_left_to_colluding_members(known):
    values, around = 40_000, RING
    seen = drawn(around, values)
    for k in known:  # they subtract what they added themselves, with the other sign
        for j in around[k]:
            low, high = sorted((k, j))
            generator = RandomStreams(0, f"noise of\0node-{low}\0node-{high}").generator(1, "train")
            edge = np.empty(values, np.float32)
            draw_normals(generator, edge, SCALE)
            if j not in known:
                seen[j] -= edge if j == low else -edge
    honest = [k for k in range(len(around)) if k not in known]
    stated = np.eye(len(honest)) + SCALE**2 * laplacian(adjacency(around)[np.ix_(honest, honest)])
    assert np.abs(np.cov(seen[honest]) - stated).max() < 6 * stated.max() * sqrt(2 / values)


# Protection


def gain_by_force(around, node, colluding, ratio):
    """Return the least gain of a node over all sets of other members, from inverses."""
    found = []
    others = [k for k in range(len(around)) if k != node]
    for known in combinations(others, min(colluding, len(others))):
        honest = [k for k in range(len(around)) if k not in known]
        covariance = np.eye(len(honest)) + ratio * laplacian(adjacency(around)[np.ix_(honest, honest)])
        place = honest.index(node)
        found.append(1 / np.linalg.inv(covariance)[place, place])
    return min(found)


@st.composite
def graphs(draw):
    n = draw(st.integers(2, 6))
    pairs = draw(st.sets(st.sampled_from([*combinations(range(n), 2)])))
    return [sorted({a + b - k for a, b in pairs if k in (a, b)}) for k in range(n)]


@given(graphs(), st.integers(0, 4), st.floats(0, 100))
def test_gain_is_that_of_the_worst_colluding_members(around, colluding, ratio):
    found = Gains(around, colluding).at(ratio)
    for k, gain in enumerate(found):
        assert gain == pytest.approx(gain_by_force(around, k, colluding, ratio), rel=1e-6)
    if colluding:
        assert (found <= Gains(around, colluding - 1).at(ratio) * (1 + 1e-9)).all()


@given(graphs(), st.integers(0, 4), st.floats(0, 100))
def test_bound_for_many_sets_is_safe(around, colluding, ratio):
    exact, bound = Gains(around, colluding), Gains(around, colluding)
    bound.exact = False
    assert (bound.at(ratio) <= exact.at(ratio) * (1 + 1e-9)).all()


def test_many_sets_of_members_are_not_enumerated():
    assert Gains(complete(20), 1).exact
    assert not Gains(complete(200), 3).exact
    assert Gains(complete(200), 3).at(1e9) == pytest.approx(197)


def exact_delta(epsilon, distance):
    """Return delta of two normal vectors at a distance in the metric of their covariance (Balle and Wang 2018)."""
    return norm.cdf(distance / 2 - epsilon / distance) - exp(epsilon) * norm.cdf(-distance / 2 - epsilon / distance)


def plans_of(around, colluding=1, epsilon=4.0, rounds=3, samples=5, batch_size=5, mixing=1.0):
    budget = Privacy(epsilon=epsilon, correlated=True, colluding=colluding)
    plan = plan_privacy(budget, PlannedTraining(0, rounds), samples, batch_size)
    expected = [min(samples, batch_size)] * len(around)
    return plan, correlate([plan] * len(around), expected, names(around), around, mixing)


@pytest.mark.parametrize(("around", "colluding"), [(RING, 1), (TRIANGLE_WITH_TAIL, 0), (complete(4), 2)])
def test_epsilon_is_that_of_the_exact_formula(around, colluding):
    local, plans = plans_of(around, colluding)
    for k, plan in enumerate(plans):
        ratio = plan.mechanism.edges.scale**2
        noise = plan.mechanism.noise * sqrt(gain_by_force(around, k, colluding, ratio))
        assert 0.99 * noise < plan.hidden <= noise * (1 + 1e-9)
        assert plan.epsilon(3) <= 4 * (1 + 1e-6)  # every sample is in every step: three steps are one normal mechanism
        assert exact_delta(plan.epsilon(3), sqrt(3) / plan.hidden) == pytest.approx(1e-5, rel=0.02)
        assert exact_delta(plan.epsilon(3), sqrt(3) / noise) <= 1e-5
        assert plan.epsilon_outside(3) <= plan.epsilon(3) * (1 + 1e-9)
        assert plan.mechanism.noise < local.mechanism.noise
    assert max(plan.epsilon(3) for plan in plans) > 3.95


def test_subsampled_step_is_that_of_the_accountant():
    """Draw what members see of a step with and without a sample of node 0, and compare the delta of both."""
    rate, own, ratio, epsilon = 0.3, 0.5, 2.0, 1.0
    covariance = own**2 * (np.eye(3) + ratio * laplacian(adjacency([[1], [0, 2], [1]])))
    rng = np.random.default_rng(0)
    moved = np.array([1.0, 0.0, 0.0])
    seen = rng.multivariate_normal(np.zeros(3), covariance, 100_000) + (rng.random((100_000, 1)) < rate) * moved
    density = multivariate_normal(np.zeros(3), covariance).pdf
    without, with_it = density(seen), (1 - rate) * density(seen) + rate * density(seen - moved)
    delta = np.maximum(1 - exp(epsilon) * without / with_it, 0).mean()
    noise = own * sqrt(gain_by_force([[1], [0, 2], [1]], 0, 0, ratio))
    assert epsilon_of(rate, noise, 1, delta) == pytest.approx(epsilon, rel=0.03)


@given(graphs(), st.integers(0, 2**5 - 1), st.floats(0, 100))
def test_peers_that_are_away_weaken_nobody(around, mask, ratio):
    covariance = np.eye(len(around)) + ratio * laplacian(adjacency(around))
    there = [k for k in range(len(around)) if not mask >> k & 1] or [0]
    all_seen = 1 / np.diag(np.linalg.inv(covariance))[there]
    some_seen = 1 / np.diag(np.linalg.inv(covariance[np.ix_(there, there)]))
    assert (some_seen >= all_seen * (1 - 1e-9)).all()


# Choice of the ratio


def test_spread_is_that_of_simulated_rounds():
    around, rounds, mixing = TRIANGLE_WITH_TAIL, 7, 0.8
    joined = adjacency(around)
    degrees = joined.sum(1)
    weights = mixing * joined / (1 + np.maximum(degrees[:, None], degrees))
    weights += np.diag(1 - weights.sum(1))
    own = edges = np.zeros((4, 4))
    for _ in range(rounds):
        own, edges = (weights @ (found + new) @ weights for found, new in ((own, np.eye(4)), (edges, laplacian(joined))))
    found = spread_of(around, mixing, rounds)
    assert found.own == pytest.approx(np.trace(own) / 4)
    assert found.edges == pytest.approx(np.trace(edges) / 4)


def test_nodes_of_a_complete_graph_add_little_noise_of_their_own():
    local, plans = plans_of(complete(10), epsilon=2.0)
    share = plans[0].mechanism.noise / local.mechanism.noise
    assert share == pytest.approx(1 / 3, rel=0.01)  # nine do not collude
    _, plans = plans_of(complete(10), colluding=9)
    assert plans[0].mechanism.edges is None  # nobody is left to hide with
    assert plans[0] == plans_of(complete(10), colluding=9)[0]


def test_ratio_is_smaller_where_averages_leave_more_of_it():
    gains = Gains(RING, 0)
    ratios = [choose_ratio(gains, np.ones(5), spread_of(RING, mixing, 50))[0] for mixing in (1.0, 0.5, 0.1)]
    assert ratios == sorted(ratios, reverse=True)
    assert len(set(ratios)) > 1


def test_nodes_with_fewer_samples_decide_how_much_all_add():
    budget, around = Privacy(epsilon=4.0, correlated=True), complete(4)
    plans = [plan_privacy(budget, PlannedTraining(0, 3), samples, 20) for samples in (10, 40, 40, 40)]
    found = correlate(plans, [10, 20, 20, 20], names(around), around, 1.0)
    in_mean = [plan.mechanism.noise / expected for plan, expected in zip(found, [10, 20, 20, 20], strict=True)]
    assert in_mean == pytest.approx([in_mean[0]] * 4)
    assert found[0].epsilon(3) == pytest.approx(4, rel=0.01)
    assert all(plan.epsilon(3) < 2 for plan in found[1:])


def test_chosen_ratios_are_rounded_numbers():
    assert all(float(f"{ratio:.4g}") == ratio for ratio in correlated_noise.RATIOS)


# On a machine


@given(st.integers(1, 8), st.integers(0, 4), st.floats(0, 100))
def test_bound_of_the_own_edges_is_exact_on_a_complete_graph(n, colluding, ratio):
    around = complete(n)
    bound = Gains(around, colluding, bound=True)
    assert not bound.exact
    assert bound.at(ratio) == pytest.approx(Gains(around, colluding).at(ratio), rel=1e-9)


@pytest.mark.parametrize(("n", "colluding", "mixing"), [(6, 1, 1.0), (20, 1, 1.0), (20, 3, 0.5)])
def test_equal_nodes_offer_and_add_what_a_simulation_adds(n, colluding, mixing):
    around = complete(n)
    plan, simulated = plans_of(around, colluding, mixing=mixing)
    needed = needed_of(plan, 5)
    offer = offer_of(needed, around, colluding, mixing)
    own = own_beside(needed, offer, [offer] * (n - 1), colluding)
    mechanism = simulated[0].mechanism
    assert own / needed * plan.mechanism.noise == pytest.approx(mechanism.noise, rel=1e-4)
    assert offer.edge / offer.own == pytest.approx(mechanism.edges.scale, rel=1e-9)
    assert own == pytest.approx(offer.own, rel=1e-8)
    assert own < 0.75 * needed


def test_node_offers_nothing_where_its_edges_have_no_use():
    assert offer_of(1.0, [[]], 1, 1.0) is None
    assert offer_of(1.0, RING, 2, 1.0) is None
    assert spread_of(complete(6), 1.0, MEMORY).edges < 1e-9


SIZES = st.floats(0.01, 100)
OFFERS = st.builds(Offer, SIZES, SIZES)


@given(st.data(), SIZES, OFFERS, st.lists(OFFERS, max_size=5), st.integers(0, 3))
def test_step_is_as_private_as_with_own_noise_whoever_colludes_or_dies(data, needed, offer, others, colluding):
    """Variance of node 0's noise, given all that the attacker sees, by the covariance of all parts of the noise."""
    own = own_beside(needed, offer, others, colluding)
    assert own >= offer.own
    known = data.draw(st.sets(st.integers(0, max(0, len(others) - 1)), max_size=colluding))
    honest = [k for k in range(len(others)) if k not in known]
    edges = np.array([min(offer.edge, others[k].edge) for k in honest])
    more = np.array([data.draw(st.sampled_from((0.0, 1.0, 50.0))) for _ in honest])  # that neighbours add beyond their offer
    released = np.array([data.draw(st.booleans()) for _ in honest], bool)
    # what is drawn: own noise of 0, noise of each edge, own noise of each neighbour
    variances = np.concatenate([[own**2], edges**2, np.array([others[k].own for k in honest]) ** 2 + more])
    rows = [np.concatenate([[1.0], np.ones(len(honest)), np.zeros(len(honest))])]  # what 0 releases
    for place in np.flatnonzero(released):  # what the others release, but for what the attacker knows
        row = np.zeros(len(variances))
        row[1 + place], row[1 + len(honest) + place] = -1.0, 1.0
        rows.append(row)
    covariance = np.array(rows) * variances @ np.array(rows).T
    hidden = covariance[0, 0]
    if len(rows) > 1:
        hidden -= covariance[0, 1:] @ np.linalg.solve(covariance[1:, 1:], covariance[1:, 0])
    assert hidden >= needed**2 * (1 - 1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_neighbours_that_hide_most_may_be_those_that_collude(order):
    offers = [Offer(0.5, 5.0), Offer(0.3, 5.0), Offer(0.2, 5.0)]
    for colluding in range(3):
        found = own_beside(1.0, Offer(0.1, 5.0), [offers[k] for k in order], colluding)
        kept = sum((each.own * 5.0) ** 2 / (each.own**2 + 25.0) for each in offers[colluding:])
        assert found == pytest.approx(sqrt(1 - kept), rel=1e-8)


@given(SIZES, OFFERS, st.lists(OFFERS, max_size=5), st.integers(0, 3))
def test_own_noise_is_no_more_than_needed(needed, offer, others, colluding):
    own = own_beside(needed, offer, others, colluding)
    if len(others) <= colluding:
        assert own == pytest.approx(max(offer.own, needed), rel=1e-8)
    assert own <= max(offer.own, needed * (1 + 1e-8))


@pytest.mark.parametrize(
    "claimed", [Offer(1.7e308, 1.7e308), Offer(5e-324, 5e-324), Offer(1e300, 5e-324), Offer(1e-300, 1e300)]
)
def test_absurd_claims_neither_fail_nor_count_beyond_the_own_edge(claimed):
    offer = Offer(0.1, 1.0)
    own = own_beside(1.0, offer, [claimed] * 2, 1)
    most = own_beside(1.0, offer, [Offer(1.0, 1.0)] * 2, 1)
    assert most <= own <= 1.0 + 1e-8
