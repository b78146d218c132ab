"""Selection of peers and weights of their models: values computed by hand, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms import selection


def test_fedavg_weighs_by_samples():
    assert selection.fedavg({"a": 1, "b": 3}) == {"a": 0.25, "b": 0.75}
    assert selection.fedavg({"a": 0, "b": 0}) == {"a": 0.5, "b": 0.5}


def test_fedsim_gives_own_model_the_greatest_weight():
    assert selection.fedsim("me", {"a": 1.0, "b": 3.0}) == pytest.approx({"me": 3 / 7, "a": 1 / 7, "b": 3 / 7})


def test_fedsim_counts_negative_similarities_as_zero():
    assert selection.fedsim("me", {"a": -1.0, "b": 2.0}) == {"me": 0.5, "a": 0.0, "b": 0.5}
    assert selection.fedsim("me", {"a": -1.0, "b": 0.0}) == {"me": 1.0, "a": 0.0, "b": 0.0}
    assert selection.fedsim("me", {}) == {"me": 1.0}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-10, 1e6), max_size=6))
def test_fedsim_weights_sum_to_one(similarities):
    similarities.pop("me", None)
    weights = selection.fedsim("me", similarities)
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) >= 0
    assert weights["me"] == max(weights.values())


def test_probabilities_are_a_softmax_of_known_similarities():
    p = selection.probabilities(np.array([0.0, 1.0, 2.0]), tau=1.0)
    ratio = p[2] / p[1]
    assert ratio == pytest.approx(np.e)
    assert p[0] == pytest.approx(1e-6, rel=0.01)


def test_probabilities_with_large_tau_are_finite():
    p = selection.probabilities(np.array([0.1, 5.0, 0.0]), tau=10_000.0)
    assert p.sum() == pytest.approx(1)
    assert p[1] == pytest.approx(1, abs=1e-5)
    assert p[0] == pytest.approx(p[2])  # known to be worse, or unknown: the minimum


def test_probabilities_have_a_floor_only_without_a_negative_similarity():
    p = selection.probabilities(np.array([0.9, 0.1, -0.1]), tau=1000.0)
    assert p.tolist() == pytest.approx([1.0, 1e-6, 1e-30], rel=1e-5)


def test_fitting_fills_a_limit_in_a_random_order():
    sizes = dict(zip("abcd", (4, 3, 2, 1), strict=True))
    found = set()
    for seed in range(50):
        ids = selection.fitting(np.random.default_rng(seed), list(sizes), list(sizes.values()), 5, 2)
        assert ids == sorted(ids)
        assert len(ids) <= 2
        assert sum(sizes[id] for id in ids) <= 5
        found.add("".join(ids))
    assert found == {"ad", "bc", "bd", "cd"}  # b and c reach the limit; a leaves room for d alone


def test_sample_draws_peer_of_negative_similarity_last():
    p = selection.probabilities(np.array([-0.9, 0.0, 0.9]), tau=100.0)
    assert p[0] < p[1] / 1e6
    drawn = selection.sample(np.random.default_rng(0), ["foe", "stranger", "friend"], p, 2)
    assert drawn == ["stranger", "friend"]


def test_probabilities_of_no_peers_are_empty():
    assert selection.probabilities(np.array([]), tau=1.0).tolist() == []
    assert selection.sample(np.random.default_rng(0), [], np.array([]), 3) == []


def test_probabilities_without_knowledge_are_uniform():
    assert selection.probabilities(np.zeros(4), tau=7.0).tolist() == [0.25] * 4


@given(st.integers(0, 30), st.integers(0, 35), st.integers(0, 2**32 - 1))
def test_uniform_draws_m_different_ids_in_order(n, m, seed):
    ids = [f"{k:02d}" for k in range(n)]
    drawn = selection.uniform(np.random.default_rng(seed), ids, m)
    assert len(set(drawn)) == len(drawn) == min(n, m)
    assert drawn == sorted(drawn)
    assert set(drawn) <= set(ids)


def test_uniform_gives_every_pair_the_same_chance():
    rng = np.random.default_rng(0)
    pairs = [tuple(selection.uniform(rng, "abcd", 2)) for _ in range(6000)]
    counts = [pairs.count(pair) for pair in set(pairs)]
    assert len(counts) == 6
    assert min(counts) > 880
    assert max(counts) < 1120


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 25), st.integers(0, 2**32 - 1))
def test_sample_draws_m_different_ids_in_order(similarities, m, seed):
    ids = [f"{k:02d}" for k in range(len(similarities))]
    p = selection.probabilities(np.array(similarities), tau=140.0)
    drawn = selection.sample(np.random.default_rng(seed), ids, p, m)
    assert len(set(drawn)) == len(drawn) == min(len(ids), m)
    assert drawn == sorted(drawn)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 25), st.integers(0, 2**32 - 1))
def test_sample_draws_what_numpy_draws(similarities, m, seed):
    count = len(similarities)
    p = selection.probabilities(np.array(similarities), tau=140.0)
    expected = np.random.default_rng(seed).choice(count, min(m, count), replace=False, p=p)
    drawn = selection.sample(np.random.default_rng(seed), [f"{k:02d}" for k in range(count)], p, m)
    assert drawn == [f"{k:02d}" for k in sorted(expected.tolist())]
