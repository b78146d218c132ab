import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.parameters import Layout, norm, plain_sum, problem, weighted_mean

LAYOUT = Layout((("weight", (2, 3)), ("bias", (2,)), ("mean", (1,))), n_trained=8)


def test_flatten_and_unflatten_are_inverse():
    vector = np.arange(9, dtype=np.float32)
    parts = LAYOUT.unflatten(vector)
    assert parts["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parts["bias"].tolist() == [6, 7]
    assert LAYOUT.flatten(parts).tolist() == vector.tolist()


def test_unflatten_keeps_leading_dimensions():
    assert LAYOUT.unflatten(np.zeros((4, 9), np.float32))["weight"].shape == (4, 2, 3)


@pytest.mark.parametrize(
    "other",
    [
        Layout((("weight", (3, 2)), ("bias", (2,)), ("mean", (1,))), 8),
        Layout((("bias", (2,)), ("weight", (2, 3)), ("mean", (1,))), 8),
        Layout((("w", (2, 3)), ("bias", (2,)), ("mean", (1,))), 8),
        Layout((("weight", (2, 3)), ("bias", (2,)), ("mean", (1,))), 9),
    ],
)
def test_fingerprint_differs_between_layouts(other):
    assert len(LAYOUT.fingerprint) == 16
    assert other.fingerprint != LAYOUT.fingerprint


def test_fingerprint_is_the_same_on_every_machine():
    assert LAYOUT.fingerprint.hex() == "cb114355abf1f68cac18f8d51c052758"


def test_weighted_mean_by_hand():
    models = [np.array([1, 2], np.float32), np.array([3, 6], np.float32)]
    assert weighted_mean(models, [0.25, 0.75]).tolist() == [2.5, 5.0]
    assert weighted_mean(models, [0.25, 0.75]).dtype == np.float32


@given(st.integers(1, 8), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_weighted_mean_of_equal_models_is_that_model(k, p, seed):
    model = np.random.default_rng(seed).normal(size=p).astype(np.float32)
    assert np.allclose(weighted_mean([model] * k, [1 / k] * k), model, rtol=1e-6)


def test_problem_names_wrong_shape_type_or_value():
    good = np.zeros(3, np.float32)
    assert problem(good, 3) is None
    assert "shape [4]" in problem(good, 4)
    assert "float64" in problem(np.zeros(3), 3)
    assert "finite" in problem(np.array([1, np.nan, 0], np.float32), 3)
    assert "finite" in problem(np.array([1, np.inf, -np.inf], np.float32), 3)


def test_problem_accepts_values_whose_sum_overflows():
    assert problem(np.full(3, 3e38, np.float32), 3) is None


@pytest.mark.parametrize("size", [1, 70_000])
@pytest.mark.parametrize(("value", "expected"), [(3.0, 3.0), (-3e38, 3e38), (np.inf, np.inf), (np.nan, np.nan)])
def test_norm_is_finite_only_for_finite_values(size, value, expected):
    params = np.zeros(size, np.float32)
    params[-1] = value
    assert norm(params) == pytest.approx(expected, nan_ok=True)


def test_norm_of_large_values_takes_little_memory():
    params = np.full(1_000_000, 3e38, np.float32)
    tracemalloc.start()
    try:
        found = norm(params)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == pytest.approx(3e41)
    assert most < params.nbytes / 2


def test_plain_sum_is_rounded_after_each_number():
    assert plain_sum([1e100, 1.0, -1e100]) == 0.0  # `sum` gives 1.0 since Python 3.12
    assert plain_sum([0.1] * 10) != 1.0
    assert plain_sum([]) == 0
