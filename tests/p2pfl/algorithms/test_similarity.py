"""Similarity of models: values computed by hand, models compared together, and the arrays of a node's similarities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms import similarity
from p2pfl.algorithms.similarity import CompareModels, PeerSimilarities, compare, compare_together, short_ids
from p2pfl.cohort import IdsOfEach
from p2pfl.robust.batches import rows_of

OWN = np.array([3, 4], np.float32)
NAMES = st.sets(st.sampled_from("abcdefgh"))
VALUES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([-0.5, 0.0, 0.25, 0.75]))
ROUND = st.tuples(NAMES, VALUES, st.lists(VALUES, max_size=3))


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


def test_models_are_compared_together_by_the_measure_of_each():
    models = list(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32))
    queries = [CompareModels(measure, models[0], models[1:]) for measure in ("l2", "cosine-weights")]
    assert [found.tolist() for found in compare_together(queries, rows_of)] == [compare(q).tolist() for q in queries]


def test_models_compared_together_may_be_some_rows_of_an_array():
    array = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    models = list(array)
    places = {id(model): row for row, model in enumerate(models)}
    query = CompareModels("l2", models[3], [models[1], models[4]])
    (found,) = compare_together([query], lambda asked: (array, [places[id(model)] for model in asked]))
    assert found.tolist() == compare(query).tolist()


@given(st.lists(ROUND, max_size=5))
def test_similarities_equal_those_of_dictionaries(rounds):
    arrays = PeerSimilarities({}, {})
    measured, borrowed = {}, {}
    for present, values, lent in rounds:
        ids = tuple(sorted(present))
        arrays.measure(values)
        measured |= values
        pairs = [pair for names in lent for pair in names.items()]
        arrays.borrow(ids, short_ids([name for name, _ in pairs]), np.array([value for _, value in pairs]))
        keys, scores = arrays.lent().values()
        assert keys.tolist() == short_ids(list(measured)).tolist()
        assert scores.tolist() == list(measured.values())
        for names in lent:
            borrowed |= {name: value for name, value in names.items() if name in present and name not in measured}
        assert arrays.of(ids).tolist() == [(borrowed | measured).get(id, 0.0) for id in ids]
        copy = PeerSimilarities(arrays.measured, arrays.borrowed)
        assert copy.of(tuple("abcdefgh")).tolist() == [(borrowed | measured).get(id, 0.0) for id in "abcdefgh"]
    assert list(arrays.measured.items()) == list(measured.items())


def test_borrow_leaves_out_values_that_are_not_finite():
    arrays = PeerSimilarities({}, {"a": 0.5})
    arrays.borrow(("a", "b"), short_ids("ab"), np.array([np.nan, np.inf]))
    assert arrays.borrowed == {"a": 0.5}


@pytest.mark.parametrize("measure", ["cosine-weights", "cosine-gradients", "l2"])
@pytest.mark.parametrize("most", [similarity.MOST_VALUES, 0])
@pytest.mark.parametrize("publishes", [True, False])
def test_comparison_of_a_cohort_has_the_bits_of_single_nodes(measure, most, publishes, monkeypatch):
    """Also if there are too many values to compare all at once, and if nodes publish other models than their own."""
    monkeypatch.setattr(similarity, "MOST_VALUES", most)
    monkeypatch.setattr(similarity, "PART", 301 * 12)
    rng = np.random.default_rng(0)
    own = rng.normal(size=(9, 301)).astype(np.float32)
    own[4] = 0  # without a cosine
    published, initial = own if publishes else own + np.float32(1), rng.normal(size=301).astype(np.float32)
    ids = IdsOfEach.of_lists([[j for j in range(9) if j != k and (j + k) % 3] for k in range(9)])
    each = similarity.CompareEach(initial)
    for _ in range(2):  # with the memory of the first time
        found = each.scores(own, published, ids, measure)
        single = [compare(CompareModels(measure, own[k], list(published[ids.of(k)]), initial)) for k in range(9)]
        assert found.tolist() == np.concatenate(single).tolist()
