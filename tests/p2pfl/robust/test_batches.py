"""Robust merges of many nodes at once: the results of single merges."""

import numpy as np
import pytest

from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.queries import Clip, Combine, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.robust import batches, coordinate_wise
from p2pfl.robust.batches import clip_together, combine_together
from p2pfl.robust.candidates import Candidates, combine
from p2pfl.robust.clipping import clip_models
from p2pfl.robust.coordinate_wise import comparators, trimmed_means
from p2pfl.robust.registry import RULES, make_rule
from p2pfl.task import Part, make_task

COORDINATE_WISE = ("median", "trimmed")


def neighbourhoods(rng, models, nodes, most):
    """Return queries of nodes with 1 to `most` peers, unequal weights, and their own models at different places."""

    def merge_of(k, rule):
        others = rng.choice([j for j in range(len(models)) if j != k], rng.integers(1, most + 1), replace=False)
        ids = sorted([k, *others])
        weights = rng.random(len(ids)) + 0.1
        losses = rng.random(len(ids)).tolist()
        return Combine([models[j] for j in ids], (weights / weights.sum()).tolist(), rule, ids.index(k), losses)

    return lambda rule: [merge_of(k, rule) for k in range(nodes)]


def alone(query):
    return combine(query.rule, query.models, query.weights, own=query.own, losses=query.losses)


def check(queries, exact=False, tolerance=2e-5):
    for query, found in zip(queries, combine_together(queries), strict=True):
        expected = alone(query)
        if exact:
            assert (found.params == expected.params).all()
            assert found.weights == expected.weights
        np.testing.assert_allclose(found.weights, expected.weights, atol=tolerance)
        scale = max(np.abs(model).max() for model, weight in zip(query.models, expected.weights, strict=True) if weight)
        np.testing.assert_allclose(found.params, expected.params, atol=tolerance * scale)


@pytest.fixture(params=["products", "pairs", "sorted pairs"])
def way(request, monkeypatch):
    """Compute inner products in each of the three ways."""
    monkeypatch.setattr(batches, "PAIRS", 1000 if request.param == "products" else 0)
    monkeypatch.setattr(batches, "TABLE", 0 if request.param == "sorted pairs" else 2**22)


@pytest.mark.parametrize("name", RULES)
def test_merges_together_equal_single_merges(name, way):
    rng = np.random.default_rng(5)
    models = list((rng.normal(3.0, 1.0, 40) + 0.2 * rng.normal(size=(30, 40))).astype(np.float32))
    check(neighbourhoods(rng, models, 30, 8)(make_rule(name)), exact=name in COORDINATE_WISE)


@pytest.mark.parametrize("name", RULES)
def test_merges_together_keep_digits(name):
    rng = np.random.default_rng(6)
    near, far = rng.normal(size=(2, 40)).astype(np.float32)
    models = [near + (k % 2) * 1000 * far + rng.normal(0, 1e-2, 40).astype(np.float32) for k in range(12)]
    models[3] = np.full(40, 1e30, np.float32)  # its squared norm is not finite
    models[5] = models[7].copy()
    check(neighbourhoods(rng, models, 12, 5)(make_rule(name)), exact=name in COORDINATE_WISE, tolerance=1e-4)


def test_far_models_keep_the_digits_of_their_distances():
    rng = np.random.default_rng(15)
    models = rng.normal(size=(9, 50))
    models[3:6] = 1e4 * rng.normal(size=50) + 0.01 * models[3:6]  # a group far away
    models = list(models.astype(np.float32))
    queries = [Combine(models, [1 / 9] * 9, make_rule("krum"), k) for k in range(9)]
    array = np.array(models, np.float64)
    expected = ((array[:, None] - array) ** 2).sum(-1)
    zeros, ones = np.zeros(1, int), np.ones(1, int)
    together = batches.Geometry(batches.Rows(np.array(models), zeros, np.ones(1), zeros, ones, zeros), True)
    np.testing.assert_allclose(Candidates(models, [1 / 9] * 9).squares, expected, rtol=1e-5)
    np.testing.assert_allclose(together.table, expected, rtol=1e-5)
    check(queries)


def test_merges_too_large_for_memory_are_divided(monkeypatch):
    rng = np.random.default_rng(7)
    models = list(rng.normal(size=(10, 20)).astype(np.float32))
    queries = neighbourhoods(rng, models, 10, 4)(make_rule("cs+"))
    monkeypatch.setattr(batches, "MOST_VALUES", 120)
    check(queries)


@pytest.mark.parametrize("name", ["cs+", "krum", "median"])
def test_merges_ignore_models_of_other_nodes(name):
    rng = np.random.default_rng(9)
    array = rng.normal(size=(50, 20)).astype(np.float32)
    array[10:] = np.nan
    models = list(array)
    queries = [Combine(models[:5], [0.2] * 5, make_rule(name), k) for k in range(5)]

    def select(chosen):
        return array, [next(k for k, model in enumerate(models) if model is one) for one in chosen]

    for query, found in zip(queries, combine_together(queries, select), strict=True):
        np.testing.assert_allclose(found.params, alone(query).params, rtol=1e-5, atol=1e-5)


def test_full_graph_is_merged_once():
    models = list(np.random.default_rng(8).normal(size=(9, 20)).astype(np.float32))
    queries = [Combine(models, [1 / 9] * 9, make_rule("median"), k) for k in range(9)]
    found = combine_together(queries)
    assert all(one.params is found[0].params for one in found)
    check(queries, exact=True)


@pytest.mark.parametrize("name", ["rfa", "krum", "ios"])
def test_full_graph_merges_equal_single_merges(name):
    rng = np.random.default_rng(11)
    models = list(rng.normal(size=(12, 30)).astype(np.float32))
    weights = rng.random(12)
    queries = [Combine(models, (weights / weights.sum()).tolist(), make_rule(name), k) for k in range(12)]
    check(queries)


def test_repeated_merges_keep_their_order():
    rng = np.random.default_rng(12)
    models = list(rng.normal(size=(6, 20)).astype(np.float32))
    rule = make_rule("rfa")
    queries = [Combine(models[k % 2 : 4 + k % 2], [0.25] * 4, rule, 0) for k in range(5)]
    found = combine_together(queries)
    assert found[0].params is found[2].params
    assert found[1].params is found[3].params
    check(queries)


def test_krum_prefers_the_own_of_two_equal_models():
    models = list(np.random.default_rng(13).normal(size=(2, 20)).astype(np.float32))
    queries = [Combine(models, [0.5, 0.5], make_rule("krum"), k) for k in range(2)]
    assert [one.weights for one in combine_together(queries)] == [[1.0, 0.0], [0.0, 1.0]]


def test_models_in_several_blocks_merge_like_one(monkeypatch):
    rng = np.random.default_rng(14)
    models = list((5 + rng.normal(size=(8, 700))).astype(np.float32))
    monkeypatch.setattr(batches, "BLOCK", 0)
    for name in ("cs+", "rfa", "krum"):
        check(neighbourhoods(rng, models, 8, 5)(make_rule(name)))


@pytest.mark.parametrize("stacked", [True, False])
def test_learners_of_many_nodes_merge_like_one(stacked):
    tasks = [make_task("concept-shift", {}, Part(k, 4), 0) for k in range(4)]
    learners = [task.learner(RandomStreams(0, f"n{k}"), "cpu") for k, task in enumerate(tasks)]
    backend = BatchedLearner(learners) if stacked else SequentialLearner(learners)
    start = tasks[0].initial(0)
    trained = backend.compute([NodeQuery(k, Train(start, 1)) for k in range(4)])
    queries = [Combine(trained, [0.25] * 4, make_rule("nna"), k) for k in range(4)]
    found = backend.compute([NodeQuery(k, query) for k, query in enumerate(queries)])
    for learner, query, merged in zip(learners, queries, found, strict=True):
        np.testing.assert_allclose(merged.params, learner.compute(query).params, rtol=1e-5, atol=1e-6)


# Clipping


def clipping(rng, models, k, peers):
    """Return the clipping of models of some peers at a node."""
    others = rng.choice([j for j in range(len(models)) if j != k], peers, replace=False)
    known, samples = rng.uniform(1.0, 9.0, rng.integers(3)).tolist(), rng.integers(1, 100, peers).tolist()
    return Clip([models[k], *(models[j] for j in others)], np.zeros_like(models[k]), known, samples)


@pytest.mark.parametrize("most", [2**26, 500])
def test_clippings_together_equal_single_ones(most, monkeypatch):
    monkeypatch.setattr(batches, "MOST_VALUES", most)
    rng = np.random.default_rng(17)
    models = list((rng.normal(3.0, 1.0, 40) + 0.2 * rng.normal(size=(20, 40))).astype(np.float32))
    models[3] *= np.float32(1e30)  # its squared norm is not finite
    queries = [clipping(rng, models, k, int(rng.integers(1, 9))) for k in range(20)]
    for query, found in zip(queries, clip_together(queries), strict=True):
        expected = clip_models(query.models, query.initial, query.known, query.samples)
        np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-5)
        np.testing.assert_allclose(found.radius, expected.radius, rtol=1e-5)
        np.testing.assert_allclose(found.factors, expected.factors, rtol=1e-5)


@pytest.mark.parametrize("stacked", [True, False])
def test_learners_of_many_nodes_clip_like_one(stacked):
    tasks = [make_task("concept-shift", {}, Part(k, 5), 0) for k in range(5)]
    learners = [task.learner(RandomStreams(0, f"n{k}"), "cpu") for k, task in enumerate(tasks)]
    backend = BatchedLearner(learners) if stacked else SequentialLearner(learners)
    start = tasks[0].initial(0)
    trained = backend.compute([NodeQuery(k, Train(start, 1)) for k in range(5)])
    queries = [Clip([trained[k], *trained], start) for k in range(5)]
    found = backend.compute([NodeQuery(k, query) for k, query in enumerate(queries)])
    for learner, query, clipped in zip(learners, queries, found, strict=True):
        np.testing.assert_allclose(clipped.factors, learner.compute(query).factors, rtol=1e-5)


# Coordinate-wise rules


@pytest.mark.parametrize("k", range(1, 10))
def test_comparators_sort_the_middle(k):
    for cut in range((k + 1) // 2):
        values = np.array([[number >> place & 1 for place in range(k)] for number in range(2**k)])  # 0-1 principle
        ordered = values.copy()
        for low, high, keeps_low, keeps_high in comparators(k, cut):
            lower, higher = ordered[:, [low, high]].min(axis=1), ordered[:, [low, high]].max(axis=1)
            ordered[:, low] = lower if keeps_low else -1
            ordered[:, high] = higher if keeps_high else -1
        assert (ordered[:, cut : k - cut] == np.sort(values, axis=1)[:, cut : k - cut]).all()


def by_sorting(values, weights, cut):
    """Return the weighted trimmed mean of one coordinate without ties."""
    kept = np.argsort(values)[cut : len(values) - cut]
    return weights[kept] @ values[kept] / weights[kept].sum(), kept


@pytest.mark.parametrize(("k", "cut"), [(2, 0), (5, 1), (6, 2), (11, 2), (11, 5)])
def test_trimmed_mean_weights_kept_values(k, cut):
    rng = np.random.default_rng(k)
    models, weights = rng.normal(size=(k, 50)).astype(np.float32), rng.random(k)
    (found,) = trimmed_means(models, np.arange(k)[None], weights[None], cut)
    columns = [by_sorting(models[:, column].astype(np.float64), weights, cut) for column in range(50)]
    np.testing.assert_allclose(found.params, [mean for mean, _ in columns], rtol=1e-5, atol=1e-6)
    used = np.zeros(k)
    for _, kept in columns:
        used[kept] += weights[kept] / weights[kept].sum() / 50
    np.testing.assert_allclose(found.weights, used, rtol=1e-5, atol=1e-6)


def test_trimmed_mean_shares_places_of_equal_values():
    models = np.array([[1, 2, 7], [1, 2, 7], [2, 2, 7], [3, 2, 8], [4, 2, 9]], np.float32)
    (found,) = trimmed_means(models, np.arange(5)[None], np.ones((1, 5)), 1)
    assert found.params.tolist() == pytest.approx([2.0, 2.0, 22 / 3])
    first, second, third = [1 / 2, 1 / 2, 1, 1, 0], [3 / 5] * 5, [2 / 3, 2 / 3, 2 / 3, 1, 0]
    assert found.weights == pytest.approx(np.mean([first, second, third], axis=0) / 3)


@pytest.mark.parametrize("name", ["rfa", "krum", "cs+"])
def test_infinite_values_leave_other_merges_unchanged(name):
    rng = np.random.default_rng(16)
    models = list(rng.normal(size=(8, 20)).astype(np.float32))
    models[7][3] = np.inf
    queries = [Combine(models[:7], [1 / 7] * 7, make_rule(name), k) for k in range(7)]
    with np.errstate(invalid="ignore"):  # the mean of the infinite one
        found = combine_together([*queries, Combine(models, [1 / 8] * 8, make_rule(name), 7)])
    for query, one in zip(queries, found[:7], strict=True):
        np.testing.assert_allclose(one.params, alone(query).params, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("special", ["none", "equal values", "infinite", "not a number"])
@pytest.mark.parametrize("k", [4, 7])
def test_median_by_ranks_equals_median_by_values(k, special, monkeypatch):
    rng = np.random.default_rng(10)
    models = rng.normal(size=(20, 70)).astype(np.float32)
    if special == "equal values":
        models = np.round(models) * np.float32(-0.0 + 0.5)
    elif special != "none":
        models[3, ::3], models[4, ::2] = (np.inf, -np.inf) if special == "infinite" else (np.nan, 1.0)
    index = np.array([rng.permutation(20)[:k] for _ in range(50)])
    found = []
    for shared in (0, 10**9):
        monkeypatch.setattr(coordinate_wise, "SHARED", shared)
        found.append(trimmed_means(models, index, np.ones(index.shape), (k - 1) // 2))
    for by_ranks, by_values in zip(*found, strict=True):
        np.testing.assert_array_equal(by_ranks.params, by_values.params)
        np.testing.assert_array_equal(by_ranks.weights, by_values.weights)


def test_trimmed_mean_without_weight_takes_equal_ones():
    models = np.array([[0.0], [1.0], [2.0], [9.0]], np.float32)
    found = make_rule({"name": "trimmed", "attackers": 1}).combine(Candidates(models, [0.5, 0.0, 0.0, 0.5]))
    assert found.params.tolist() == [1.5]
    assert found.weights == [0.0, 0.5, 0.5, 0.0]
