"""Quantised sparse updates: bytes, refusal of invalid bytes, error feedback."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2pfl.compression.codecs import DecodeError, Sparse
from p2pfl.compression.sparse_updates import (
    GREATEST,
    MESSAGES,
    Change,
    QuantisedPublicCopy,
    change_size,
    decode_change,
    decode_changes,
    decode_indices,
    encode_change,
    encode_indices,
    quantise,
    tag,
)

values = st.floats(-GREATEST, GREATEST, width=32) | st.floats(-1, 1, width=32)
models = arrays.arrays(np.float32, st.integers(1, 60), elements=values)
bits = st.integers(2, 8)


def vector(*numbers):
    return np.array(numbers, np.float32)


def indices_of(*numbers):
    return np.array(numbers, np.uint32)


def public(size, k=1, bits=8):
    return QuantisedPublicCopy(Sparse(bits=bits), k, np.zeros(size, np.float32))


# Bytes


@given(st.integers(1, 300), st.data())
def test_indices_round_trip_in_the_expected_size(size, data):
    chosen = indices_of(*sorted(data.draw(st.sets(st.integers(0, size - 1)))))
    encoded = encode_indices(chosen, size)
    assert len(encoded) <= -(-size // 8)
    assert decode_indices(encoded, len(chosen), size).tolist() == chosen.tolist()


def test_indices_of_one_percent_take_less_than_nine_bits_each():
    chosen = np.sort(np.random.default_rng(0).choice(100_000, 1000, replace=False)).astype(np.uint32)
    assert len(encode_indices(chosen, 100_000)) * 8 / 1000 < 8.6


def test_known_change_has_known_bytes():
    change = Change(indices_of(3, 40, 99), np.array([1, -4, 3], np.int16), np.float32(0.5))
    # 3 | 0.5 | low 5 bits 3, 8, 3 | h + k = 0, 2, 5 of 3 + 3 bits | 000, 111, 010
    assert encode_change(change, 100, 3).hex() == "03000000" + "0000003f" + "030d" + "25" + "b800"
    assert encode_change(Change(indices_of(), np.zeros(0, np.int16), np.float32(0)), 100, 3).hex() == "00" * 8


@given(models, st.data(), bits)
def test_change_round_trip_in_the_expected_size(difference, data, bits):
    change = quantise(difference, data.draw(st.integers(1, len(difference))), bits)
    encoded = encode_change(change, len(difference), bits)
    assert len(encoded) == change_size(len(change.indices), len(difference), bits)
    back, end = decode_change(encoded + b"more", len(difference), bits)
    assert end == len(encoded)
    assert (back.indices.tolist(), back.levels.tolist(), back.unit) == (
        change.indices.tolist(),
        change.levels.tolist(),
        change.unit,
    )


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_bound_is_at_least_the_size_of_fewer_entries(size, bits):
    for k in range(1, size + 1, max(1, size // 50)):
        bound = public(size, k, bits).bound(1)
        assert all(2 + change_size(count, size, bits) <= bound for count in range(k + 1))


# Refusal

SIZE = 100
VALID = encode_change(Change(indices_of(3, 40, 99), np.array([1, -4, 3], np.int16), np.float32(0.5)), SIZE, 3)
FULL = encode_change(quantise(np.ones(SIZE, np.float32), SIZE, 3), SIZE, 3)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "wrong length"),
        (VALID[:-1], "wrong length"),
        (VALID[:7], "wrong length"),
        (b"\xff\xff\xff\xff" + VALID[4:], "wrong length"),
        ((SIZE + 1).to_bytes(4, "little") + bytes(10 * SIZE), "wrong length"),
        (VALID[:4] + vector(np.inf).tobytes() + VALID[8:], "not finite"),
        (VALID[:4] + vector(np.nan).tobytes() + VALID[8:], "not finite"),
        (VALID[:4] + vector(-1).tobytes() + VALID[8:], "malformed"),
        (VALID[:4] + vector(0).tobytes() + VALID[8:], "malformed"),
        (bytes(4) + vector(1).tobytes(), "malformed"),
        (VALID[:10] + b"\x07" + VALID[11:], "malformed"),  # 3, 8, 3
        (VALID[:10] + b"\x2d" + VALID[11:], "malformed"),  # four marks
        (VALID[:10] + b"\x85" + VALID[11:], "malformed"),  # beyond the model
        (VALID[:9] + b"\x8d" + VALID[10:], "malformed"),  # an unused bit
        (VALID[:-1] + b"\x80", "malformed"),
        (FULL[:20] + b"\x1f" + FULL[21:], "malformed"),  # a mark beyond the model
    ],
)
def test_decode_change_refuses_invalid_messages(data, cause):
    with pytest.raises(DecodeError) as refused:
        decode_change(data, SIZE, 3)
    assert refused.value.cause == cause


def test_decode_changes_refuses_too_many_messages_and_overflow():
    with pytest.raises(DecodeError, match="at most 64 are allowed"):
        decode_changes((MESSAGES + 1).to_bytes(2, "little") + bytes(8 * MESSAGES + 8), np.zeros(3, np.float32), 3)
    large = encode_change(Change(indices_of(0), np.array([4], np.int16), np.float32(8e37)), 1, 3)
    with pytest.raises(DecodeError, match="not finite"):
        decode_changes(b"\2\0" + large + large, np.zeros(1, np.float32), 3)


@given(st.binary(max_size=80), st.integers(1, 70), bits)
def test_decode_changes_of_any_bytes_is_finite_or_refused(data, size, bits):
    base = np.zeros(size, np.float32)
    try:
        params, end = decode_changes(memoryview(data), base, bits)
    except DecodeError:
        return
    assert end <= len(data)
    assert params.shape == (size,)
    assert np.isfinite(params).all()
    assert (base == 0).all()


@given(st.integers(0, 3), st.binary(min_size=8, max_size=80), bits)
def test_decode_changes_of_plausible_bytes_is_finite_or_refused(count, data, bits):
    data = b"\1\0" + count.to_bytes(4, "little") + vector(0.5).tobytes() + data
    try:
        params, _ = decode_changes(data, np.zeros(20, np.float32), bits)
    except DecodeError:
        return
    assert np.count_nonzero(params) == count


# Error feedback


@given(models, st.data(), bits)
def test_quantise_brings_each_entry_closer(difference, data, bits):
    change = quantise(difference, data.draw(st.integers(1, len(difference))), bits)
    rest = difference.astype(np.float64)
    rest[change.indices] -= change.levels * np.float64(change.unit)
    assert (np.abs(rest) <= np.abs(difference.astype(np.float64)) * (1 + 1e-6)).all()
    greatest = np.abs(difference).max()
    if greatest > 1e-30:
        before, after = np.square(difference / np.float64(greatest)).sum(), np.square(rest / np.float64(greatest)).sum()
        assert after <= before - 7 / 16 + 1e-6


def test_quantise_cuts_outliers_at_twice_the_median_or_a_quarter():
    change = quantise(vector(1, -1.1, 4, 0.9, 0), 4, 3)
    assert change.indices.tolist() == [0, 1, 2, 3]
    assert change.levels.tolist() == [2, -2, 4, 2]
    assert change.unit == pytest.approx(1.05 / 2)
    change = quantise(vector(1, -1.1, 400, 0.9), 4, 3)
    assert (change.indices.tolist(), change.levels.tolist(), change.unit) == ([2], [4], 25)


def test_public_of_constant_model_converges():
    model = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    model[7] = 1000
    copy = public(200, k=20, bits=3)
    for _ in range(120):
        copy.publish(model)
    assert np.abs(copy.params - model).max() < 1e-6


def test_public_of_greatest_values_stays_finite():
    copy = public(3, k=3, bits=2)
    for model in (vector(GREATEST, -GREATEST, 1e-45), vector(-GREATEST, GREATEST, 0), vector(GREATEST, 0, 0)):
        for _ in range(5):
            copy.publish(model)
            assert np.isfinite(copy.params).all()


@given(st.lists(arrays.arrays(np.float32, 12, elements=values), min_size=1, max_size=8), st.integers(1, 12), bits)
def test_missed_publications_in_order_give_the_same_bits(published, k, bits):
    copy = public(12, k, bits)
    known = [copy.params]
    for model in published:
        copy.publish(model)
        known.append(copy.params)
    newest = tag(known[-1])
    sent = 0
    for one in known:
        size = copy.size(tag(one), newest)
        if size is not None:
            data = copy.encode(known[-1], tag(one), newest)
            assert len(data) == size
            assert copy.decode(data, one)[0].tobytes() == known[-1].tobytes()
            sent += 1
    assert sent >= 1


def test_public_forgets_messages_that_outgrow_a_model():
    copy = public(1000, k=100, bits=8)
    rng = np.random.default_rng(0)
    tags = [copy.publications[0].tag]
    for _ in range(40):
        tags.append(copy.publish(rng.standard_normal(1000).astype(np.float32)).tag)
    assert copy.size(tags[0], tags[-1]) is None
    assert copy.size(tags[-1], tags[-1]) == 2
    assert copy.size(tags[-1], tags[-2]) is None  # backwards
    assert sum(len(each.changed) for each in copy.publications[1:]) < 4000
    with pytest.raises(KeyError):
        copy.encode(copy.params, tags[0], tags[-1])
    small = public(1000, k=1)
    for _ in range(100):
        small.publish(rng.standard_normal(1000).astype(np.float32))
    assert len(small.publications) == MESSAGES + 1


def test_public_restored_from_state_continues_identically():
    rng = np.random.default_rng(0)
    first, second = public(50, k=5, bits=3), public(50, k=5, bits=3)
    for _ in range(5):
        first.publish(rng.standard_normal(50).astype(np.float32))
    second.restore(first.publications, first.params)
    model = rng.standard_normal(50).astype(np.float32)
    assert first.publish(model) == second.publish(model)
    assert first.publications == second.publications
