"""Similarity, aggregation and selection: values computed by hand, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms import selection, similarity
from p2pfl.algorithms import selection as aggregation
from p2pfl.algorithms.similarity import CompareModels, compare, compare_together
from p2pfl.robust.batches import rows_of

OWN = np.array([3, 4], np.float32)


def floats(*values):
    return np.array(values, np.float32)


def test_inverse_loss_by_hand():
    assert similarity.inverse_loss([0.5, 4.0]).tolist() == pytest.approx([2.0, 0.25], rel=1e-5)
    assert similarity.inverse_loss([0.0]).tolist() == pytest.approx([1e6])


def test_similarity_that_is_not_finite_is_zero():
    infinite = floats(np.inf, 1)
    assert similarity.inverse_loss([np.nan, np.inf, -1e-6, -3.0, 1.0]).tolist() == pytest.approx([0, 0, 0, 0, 1], rel=1e-5)
    assert similarity.inverse_l2(OWN, [infinite, floats(np.nan, 0)]).tolist() == [0, 0]
    assert similarity.cosine_weights(OWN, [infinite, floats(np.nan, 0)]).tolist() == [0, 0]
    assert similarity.cosine_gradients(OWN, [infinite], floats(0, 0)).tolist() == [0]
    assert similarity.inverse_loss([]).tolist() == []


def test_inverse_l2_by_hand():
    assert similarity.inverse_l2(OWN, [floats(0, 0), floats(3, 2)]).tolist() == pytest.approx([0.2, 0.5], rel=1e-5)
    assert similarity.inverse_l2(OWN, [OWN]).tolist() == pytest.approx([1e6])


def test_cosine_weights_by_hand():
    others = [floats(6, 8), floats(-3, -4), floats(4, -3), floats(0, 0)]
    assert similarity.cosine_weights(OWN, others).tolist() == pytest.approx([1, -1, 0, 0], abs=1e-6)


def test_cosine_gradients_compares_changes_from_initial_model():
    initial = floats(3, 3)
    assert similarity.cosine_gradients(OWN, [floats(3, 9), floats(9, 3)], initial).tolist() == pytest.approx([1, 0])
    assert similarity.cosine_gradients(initial, [OWN], initial).tolist() == [0]


def test_similarity_of_largest_float32_values_is_finite():
    huge = np.full(1000, 3e38, np.float32)
    assert similarity.cosine_weights(huge, [huge, -huge]).tolist() == pytest.approx([1, -1])
    assert similarity.cosine_gradients(huge, [-huge], np.zeros(1000, np.float32)).tolist() == pytest.approx([-1])
    assert 0 < similarity.inverse_l2(huge, [-huge])[0] < 1e-38


def test_fedavg_weighs_by_samples():
    assert aggregation.fedavg({"a": 1, "b": 3}) == {"a": 0.25, "b": 0.75}
    assert aggregation.fedavg({"a": 0, "b": 0}) == {"a": 0.5, "b": 0.5}


def test_fedsim_gives_own_model_the_greatest_weight():
    assert aggregation.fedsim("me", {"a": 1.0, "b": 3.0}) == pytest.approx({"me": 3 / 7, "a": 1 / 7, "b": 3 / 7})


def test_fedsim_counts_negative_similarities_as_zero():
    assert aggregation.fedsim("me", {"a": -1.0, "b": 2.0}) == {"me": 0.5, "a": 0.0, "b": 0.5}
    assert aggregation.fedsim("me", {"a": -1.0, "b": 0.0}) == {"me": 1.0, "a": 0.0, "b": 0.0}
    assert aggregation.fedsim("me", {}) == {"me": 1.0}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-10, 1e6), max_size=6))
def test_fedsim_weights_sum_to_one(similarities):
    similarities.pop("me", None)
    weights = aggregation.fedsim("me", similarities)
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


@pytest.mark.parametrize("measure", ["cosine-weights", "cosine-gradients", "l2"])
def test_models_compared_together_give_the_same_bits(measure, monkeypatch):
    rng = np.random.default_rng(0)
    initial, models = rng.normal(size=301).astype(np.float32), list(rng.normal(size=(7, 301)).astype(np.float32))
    queries = [CompareModels(measure, models[k], models[:k] + models[k + 2 :], initial) for k in range(6)]
    alone = [compare(query).tolist() for query in queries]
    converted = []

    def rows(asked):
        converted.append(len({id(model) for model in asked}))
        return rows_of(asked)

    assert [scores.tolist() for scores in compare_together(queries, rows)] == alone
    assert converted == [7]
    monkeypatch.setattr(similarity, "MOST_VALUES", 301 * 7 - 1)
    monkeypatch.setattr(similarity, "PART", 301 * 7)  # one query at a time
    assert [scores.tolist() for scores in compare_together(queries, rows)] == alone
    assert len(converted) == 7
    other = CompareModels(measure, models[0], models[1:], initial.copy())  # the private parts of nodes may differ
    assert compare_together([*queries, other], rows)[-1].tolist() == compare(other).tolist()
