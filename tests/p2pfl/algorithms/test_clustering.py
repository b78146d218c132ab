"""Similarity by layers and bipartition, by hand and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2pfl.algorithms.clustering import layers, similarity, single_linkage, spectral, top_r
from p2pfl.parameters import Layout
from p2pfl.policies.fedpref import weights

WHOLE = [slice(None)]


def vectors(*rows):
    return [np.array(row, np.float32) for row in rows]


def blocks(sizes, within, across):
    """Similarity matrix of planted clusters."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(group[:, None] == group, within, across).astype(float)
    np.fill_diagonal(matrix, 1.0)
    return matrix


# Layers


def test_layers_group_weight_and_bias_of_a_module():
    layout = Layout((("a.weight", (2, 3)), ("a.bias", (2,)), ("b.weight", (1, 2)), ("b.bias", (1,))), 11)
    assert layers(layout) == [slice(0, 8), slice(8, 11)]


def test_layers_skip_statistics_and_join_separate_parts():
    shapes = (("a.weight", (2,)), ("b.weight", (1,)), ("a.bias", (1,)), ("b.running_mean", (1,)))
    first, second = layers(Layout(shapes, 4))
    assert first.tolist() == [0, 1, 3]
    assert second == slice(2, 3)


def test_similarity_per_layer_gives_bias_equal_weight():
    joined = similarity(vectors([1, 0, 0.1], [0, 1, 0.1]), np.zeros(3), [slice(0, 3)])[0, 1]
    separate = similarity(vectors([1, 0, 0.1], [0, 1, 0.1]), np.zeros(3), [slice(0, 2), slice(2, 3)])[0, 1]
    assert joined == pytest.approx(0.01 / 1.01)
    assert separate == pytest.approx(0.5)


# topR and the similarity


def test_top_r_keeps_largest_magnitudes_and_first_of_ties():
    vector = np.array([1.0, -3.0, 2.0, -2.0, 0.5])
    assert top_r(vector, 0.2).tolist() == [0, -3, 0, 0, 0]
    assert top_r(vector, 0.4).tolist() == [0, -3, 2, 0, 0]
    assert top_r(vector, 0.6).tolist() == [0, -3, 2, -2, 0]
    assert top_r(vector, 0.41).tolist() == [0, -3, 2, -2, 0]  # ceil(2.05)
    assert top_r(vector, 1.0).tolist() == vector.tolist()


@pytest.mark.parametrize(("size", "ratio", "kept"), [(30, 0.1, 3), (10, 0.7, 7), (7, 0.001, 1), (1, 0.5, 1)])
def test_top_r_keeps_the_count_of_the_paper(size, ratio, kept):
    assert np.count_nonzero(top_r(np.arange(1.0, size + 1), ratio)) == kept


@given(arrays(np.float64, 12, elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])), st.sampled_from([0.1, 0.5, 0.9]))
def test_top_r_equals_a_stable_sort_by_magnitude(vector, ratio):
    order = np.argsort(-np.abs(vector), kind="stable")[: int(np.ceil(ratio * 12 - 1e-9))]
    expected = np.zeros(12)
    expected[order] = vector[order]
    assert top_r(vector, ratio).tolist() == expected.tolist()


def test_similarity_is_mean_of_layer_cosines_from_reference():
    models = vectors([2, 1, 4, 4], [1, 2, 0, 4])  # from the reference: (1, 0 | 3, 4) and (0, 1 | -1, 4)
    reference = np.array([1.0, 1.0, 1.0, 0.0])
    matrix = similarity(models, reference, [slice(0, 2), slice(2, 4)])
    assert matrix[0, 1] == pytest.approx((0 + 13 / (5 * np.sqrt(17))) / 2)
    assert matrix[0, 1] == matrix[1, 0]
    assert matrix.diagonal().tolist() == [1, 1]
    sparse = similarity(models, reference, [slice(0, 2), slice(2, 4)], 0.5)
    assert sparse[0, 1] == pytest.approx((0 + 1) / 2)  # only the 4s remain of the second layer


def test_similarity_of_zero_update_is_zero_except_to_itself():
    matrix = similarity(vectors([1, 1], [1, 1], [2, 1]), np.ones(2), WHOLE)
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_similarity_of_one_member_is_one():
    assert similarity(vectors([3, 4]), np.zeros(2), WHOLE).tolist() == [[1.0]]
    assert similarity(vectors([0, 0]), np.zeros(2), WHOLE).tolist() == [[1.0]]


def test_similarity_of_two_members_is_one_cosine():
    matrix = similarity(vectors([1, 1], [1, 0]), np.zeros(2), WHOLE)
    assert matrix == pytest.approx(np.array([[1, np.sqrt(0.5)], [np.sqrt(0.5), 1]]))


def test_similarity_of_two_groups_is_a_block_matrix():
    matrix = similarity(vectors([1, 0], [2, 0], [0, 3], [0, 4]), np.zeros(2), WHOLE)
    assert matrix.tolist() == blocks([2, 2], 1.0, 0.0).tolist()
    assert spectral(matrix) == ([0, 1], [2, 3])
    assert weights(matrix, 0.0).tolist() == (blocks([2, 2], 1.0, 0.0) / 2).tolist()


# Weights


def test_weights_by_hand():
    similarities = np.array([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 1.0]])
    assert weights(similarities, 0.0) == pytest.approx(np.array([[2 / 3, 1 / 3, 0], [1 / 3, 2 / 3, 0], [0, 0, 1]]))
    raw = np.array([[1, 0.75, 0.25], [0.75, 1, 0.5], [0.25, 0.5, 1]])  # (s + 1) / 2
    assert weights(similarities, -1.0) == pytest.approx(raw / raw.sum(axis=1, keepdims=True))
    assert weights(similarities, 0.9).tolist() == np.eye(3).tolist()  # all are clipped: each member keeps its own model
    assert weights(similarities, 0.5).tolist() == np.eye(3).tolist()  # a similarity equal to the minimum is clipped, too


def test_weights_of_one_and_two_members():
    assert weights(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.25) == pytest.approx(np.array([[3 / 4, 1 / 4], [1 / 4, 3 / 4]]))
    assert weights(np.ones((2, 2)), 0.0).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert weights(np.ones((1, 1)), 0.9).tolist() == [[1.0]]


# Bipartition


def test_bipartition_cuts_between_blocks():
    assert spectral(blocks([3, 2], 0.9, 0.1)) == ([0, 1, 2], [3, 4])
    assert spectral(blocks([3, 2], 0.9, -0.5)) == ([0, 1, 2], [3, 4])  # two pieces without a connection
    assert spectral(blocks([1, 4], 0.9, 0.1)) == ([0], [1, 2, 3, 4])
    assert spectral(blocks([3, 2], 0.9, -0.5), "shifted") == ([0, 1, 2], [3, 4])
    assert single_linkage(blocks([3, 2], 0.9, 0.1)) == ([0, 1, 2], [3, 4])


def test_spectral_cut_of_a_path_by_hand():
    """The path 0 - 1 - 2 - 3 is weakest in the middle, where the eigenvector of the second eigenvalue changes its sign."""
    matrix = np.eye(4)
    for i, j, link in ((0, 1, 0.9), (1, 2, 0.3), (2, 3, 0.9)):
        matrix[i, j] = matrix[j, i] = link
    assert spectral(matrix) == ([0, 1], [2, 3])
    assert spectral(matrix[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])]) == ([0, 2], [1, 3])


def test_bipartition_separates_the_least_similar_member():
    assert spectral(np.eye(3)) == ([0, 2], [1])  # as for zero updates: the first two are separated
    lone = blocks([3, 1], 0.5, 0.0)
    assert spectral(lone) == single_linkage(lone) == ([0, 1, 2], [3])


def test_bipartition_separates_two_members():
    for matrix in (np.eye(2), np.ones((2, 2)), -np.ones((2, 2))):
        assert spectral(matrix) == ([0], [1])
        assert single_linkage(matrix) == ([0], [1])


def test_spectral_cut_of_three_pieces_joins_the_most_similar():
    matrix = blocks([2, 2, 2], 0.9, -0.3)
    matrix[0:2, 4:6] = matrix[4:6, 0:2] = -0.8
    matrix[2:4, 4:6] = matrix[4:6, 2:4] = -0.1
    assert spectral(matrix) == ([0, 1], [2, 3, 4, 5])


def test_single_linkage_minimises_greatest_cross_similarity():
    matrix = np.array([[1, 0.8, 0.7, 0.1], [0.8, 1, 0.2, 0.3], [0.7, 0.2, 1, 0.4], [0.1, 0.3, 0.4, 1]])
    assert single_linkage(matrix) == ([0, 1, 2], [3])


@pytest.mark.parametrize("across", [-0.4, 0.0, 0.2, 0.4])
@pytest.mark.parametrize("cut", [spectral, single_linkage])
def test_bipartition_recovers_planted_clusters_under_noise(cut, across):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(2, 12, 2)
        matrix = blocks(sizes, 0.8, across)
        noise = rng.uniform(-0.12, 0.12, matrix.shape)
        matrix = np.clip(matrix + (noise + noise.T) / 2, -1, 1)
        np.fill_diagonal(matrix, 1.0)
        order = rng.permutation(len(matrix))
        one, other = cut(matrix[np.ix_(order, order)])
        planted = order < sizes[0]
        assert len({bool(planted[k]) for k in one}) == len({bool(planted[k]) for k in other}) == 1


@pytest.mark.slow
def test_spectral_equals_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    for seed in range(40):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(int(rng.integers(3, 25)), 4)) + 0.7
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        matrix = (points @ points.T + 1) / 2
        model = cluster.SpectralClustering(2, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
        labels = model.fit_predict(matrix)
        one, other = spectral(matrix)
        assert len(set(labels[one])) == len(set(labels[other])) == 1, seed


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.booleans())
def test_bipartition_has_two_parts_with_all_members(count, seed, ties):
    rng = np.random.default_rng(seed)
    matrix = rng.choice([-1.0, 0.0, 0.5], (count, count)) if ties else rng.uniform(-1, 1, (count, count))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T + np.eye(count)
    for parts in (spectral(matrix), spectral(matrix, "shifted"), single_linkage(matrix)):
        assert sorted(parts[0] + parts[1]) == list(range(count))
        assert parts[0][0] == 0
        assert parts[1]
