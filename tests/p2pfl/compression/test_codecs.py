"""Codecs: accuracy, size in bytes, and refused inputs."""

import tracemalloc
from math import ceil, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2pfl.compression.codecs import BFloat16, DecodeError, Float16, Float32, Int8, Sparse, TopK, make_codec
from p2pfl.compression.sparse_updates import (
    REMEMBERED,
    PeerCopies,
    PeerCopy,
    PlainPublicCopy,
    decode_entries,
    encode_entries,
    entries_size,
    largest,
    tag,
)
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout

DENSE = {"float32": Float32(), "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8()}
DENSE |= {"top-k": TopK(), "sparse": Sparse()}
LOSSY = ("float16", "bfloat16", "int8")
GREATEST = float(np.finfo(np.float32).max)
values = st.floats(-GREATEST, GREATEST, width=32) | st.floats(-1, 1, width=32)
models = arrays.arrays(np.float32, st.integers(1, 40), elements=values)


def layout(*sizes):
    return Layout(tuple((f"t{k}", (size,)) for k, size in enumerate(sizes)), sum(sizes))


def through(codec, params, shapes=None):
    shapes = shapes or layout(len(params))
    return codec.decode(codec.encode(params, shapes), shapes).params


def vector(*values):
    return np.array(values, np.float32)


# Loss


@given(models)
def test_float32_and_full_top_k_are_lossless(params):
    assert through(Float32(), params).tobytes() == params.tobytes()
    assert through(TopK(), params).tobytes() == params.tobytes()


@given(models)
def test_float16_error_is_at_most_a_2048th_of_a_value(params):
    inside = np.clip(params, -65504, 65504).astype(np.float64)
    error = np.abs(through(Float16(), params) - inside)
    assert (error <= np.maximum(np.abs(inside) * 2.0**-11, 2.0**-25)).all()


@given(models)
def test_bfloat16_error_is_at_most_a_256th_of_a_value(params):
    exact = params.astype(np.float64)
    error = np.abs(through(BFloat16(), params) - exact)
    assert (error <= np.maximum(np.abs(exact) * 2.0**-8, 2.0**-134)).all()


@pytest.mark.slow
@given(st.lists(models, min_size=1, max_size=4))
def test_int8_error_is_at_most_half_the_scale_of_a_tensor(tensors):
    shapes = layout(*map(len, tensors))
    back = through(Int8(), np.concatenate(tensors), shapes)
    for tensor, (_, start, stop, _) in zip(tensors, shapes.places, strict=True):
        exact = tensor.astype(np.float64)
        bound = np.abs(exact).max() / 254 * (1 + 1e-12) + np.maximum(np.abs(back[start:stop]) * 2.0**-24, 2.0**-150)
        assert (np.abs(back[start:stop] - exact) <= bound).all()


@given(models)
@pytest.mark.parametrize("name", DENSE)
def test_codec_encodes_decoded_model_to_same_bytes(name, params):
    codec, shapes = DENSE[name], layout(len(params))
    once = bytes(codec.encode(params, shapes))
    assert bytes(codec.encode(codec.decode(once, shapes).params, shapes)) == once


def test_16_bit_codecs_clip_and_round_half_to_even():
    big = vector(1e6, -7e4, 65504, 65519.996)
    assert through(Float16(), big).tolist() == [65504, -65504, 65504, 65504]
    assert through(Float16(), vector(1 + 2**-11, 1 + 3 * 2**-11)).tolist() == [1, 1 + 2**-9]
    greatest = 255 * 2.0**120
    assert through(BFloat16(), vector(GREATEST, -GREATEST, greatest)).tolist() == [greatest, -greatest, greatest]
    assert through(BFloat16(), vector(1 + 2**-8, 1 + 3 * 2**-8)).tolist() == [1, 1 + 2**-6]


def test_int8_scales_each_tensor_and_rounds_half_to_even():
    back = through(Int8(), vector(127, 0.5, 1.5, -126.5, 0, 0, 1e-3, -1e-3), layout(4, 2, 2))
    assert back.tolist() == vector(127, 0, 2, -126, 0, 0, 1e-3, -1e-3).tolist()


def test_int8_keeps_greatest_value_of_a_tensor_exactly():
    for greatest in (GREATEST, 1.0, 1e-40, 1e-45, nextafter(0.1, 1)):
        assert through(Int8(), vector(greatest, -greatest, 0)).tolist() == vector(greatest, -greatest, 0).tolist()


def test_codecs_accept_empty_tensors_and_empty_models():
    for codec in DENSE.values():
        assert through(codec, vector(-2, 2), layout(0, 2, 0)).tolist() == [-2, 2]
        assert through(codec, vector(), layout()).tolist() == []


# The same bits on every platform


def test_codecs_encode_known_model_to_known_bytes():
    params = vector(0, 1, 0.1, -65535.99, 2.0**-125, 192.125)
    shapes = layout(2, 4)
    assert bytes(Float32().encode(params, shapes)).hex() == "000000000000803fcdcccc3dfdff7fc70000000100204043"
    assert bytes(Float16().encode(params, shapes)).hex() == "0000003c662efffb0000015a"
    assert bytes(BFloat16().encode(params, shapes)).hex() == "0000803fcd3d80c700014043"
    assert bytes(Int8().encode(params, shapes)).hex() == "0000803ffdff7f47" + "007f" + "00810000"


# Size


@given(st.lists(st.integers(0, 20), max_size=5))
@pytest.mark.parametrize("name", DENSE)
def test_codec_size_equals_length_of_encoding(name, sizes):
    codec, shapes = DENSE[name], layout(*sizes)
    data = memoryview(codec.encode(np.ones(sum(sizes), np.float32), shapes))
    assert data.nbytes == codec.size(shapes)


def test_codec_sizes_of_1000_values_in_two_tensors():
    shapes = layout(900, 100)
    sizes = {name: codec.size(shapes) for name, codec in DENSE.items()}
    assert sizes == {"float32": 4000, "float16": 2000, "bfloat16": 2000, "int8": 1008, "top-k": 4000, "sparse": 4000}
    assert entries_size(100, 1000) == 4 + 125 + 400  # a bit for each
    assert entries_size(10, 1000) == 4 + 40 + 40  # an index for each


# Refusal


@pytest.mark.parametrize("name", DENSE)
def test_codec_refuses_wrong_length(name):
    codec, shapes = DENSE[name], layout(3, 2)
    data = bytes(codec.encode(np.ones(5, np.float32), shapes))
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(DecodeError) as refused:
            codec.decode(wrong, shapes)
        assert refused.value.cause == "wrong length"


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Float32(), vector(1, np.inf).tobytes()),
        (Float32(), vector(np.nan, 1).tobytes()),
        (Float16(), np.array([1, np.inf], np.float16).tobytes()),
        (Float16(), np.array([np.nan, 1], np.float16).tobytes()),
        (BFloat16(), b"\x80\x3f\x80\x7f"),
        (BFloat16(), b"\xc0\x7f\x80\x3f"),
        (Int8(), vector(np.inf).tobytes() + b"\1\1"),
        (Int8(), vector(np.nan).tobytes() + b"\1\1"),
    ],
)
def test_codec_refuses_values_that_are_not_finite(codec, data):
    with pytest.raises(DecodeError) as refused:
        codec.decode(data, layout(2))
    assert refused.value.cause == "not finite"


@pytest.mark.parametrize("data", [vector(-1).tobytes() + b"\1\1", vector(1).tobytes() + b"\x80\1"])
def test_int8_refuses_negative_scale_and_value_minus_128(data):
    with pytest.raises(DecodeError) as refused:
        Int8().decode(data, layout(2))
    assert refused.value.cause == "malformed"


@given(st.binary(max_size=40))
@pytest.mark.parametrize("name", DENSE)
def test_codec_decodes_any_bytes_to_finite_model_or_refuses(name, data):
    try:
        params, size = DENSE[name].decode(data, layout(3, 2))
    except DecodeError:
        return
    assert params.shape == (5,)
    assert params.dtype == np.float32
    assert np.isfinite(params).all()
    assert size == pytest.approx(np.linalg.norm(params.astype(np.float64)), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "int9"}, "unknown codec 'int9'; did you mean 'int8'?"),
        ({"name": "top-k", "share": 0.0}, "codec: share must be more than 0 and at most 1, got 0.0"),
        ({"name": "top-k", "share": 1.5}, "codec: share must be more than 0 and at most 1, got 1.5"),
        ({"name": "top-k", "copies": -1}, "codec: copies must be 0 or more, got -1"),
        ({"name": "sparse", "share": 2.0}, "codec: share must be more than 0 and at most 1, got 2.0"),
        ({"name": "sparse", "bits": 1}, "codec: bits must be from 2 to 8, got 1"),
        ({"name": "sparse", "bits": 9}, "codec: bits must be from 2 to 8, got 9"),
        ({"name": "int8", "share": 0.1}, "unknown key 'codec.share'; known: none"),
    ],
)
def test_make_codec_with_invalid_options_reports_one_line(options, message):
    options = dict(options)
    with pytest.raises(ConfigurationError) as refused:
        make_codec(options.pop("name"), options)
    assert str(refused.value) == message


# Entries


def test_largest_returns_largest_and_first_of_ties():
    assert largest(vector(1, -3, 2, 3, 0, -2), 3).tolist() == [1, 2, 3]
    assert largest(vector(1, 1, 1, 1), 2).tolist() == [0, 1]
    assert largest(vector(0, -5, 0), 2).tolist() == [1]
    assert largest(vector(0, 0), 2).tolist() == []
    assert largest(vector(np.inf, 1, -np.inf, 2), 3).tolist() == [0, 2, 3]


@given(models, st.data())
def test_largest_equals_a_stable_sort(difference, data):
    k = data.draw(st.integers(1, len(difference)))
    chosen = largest(difference, k)
    order = sorted(range(len(difference)), key=lambda i: (-abs(float(difference[i])), i))[:k]
    assert chosen.tolist() == sorted(i for i in order if difference[i])


@given(models, st.data())
def test_entries_round_trip_keeps_positions(params, data):
    places = data.draw(st.sets(st.integers(0, len(params) - 1)))
    base = np.full(len(params), 7, np.float32)
    encoded = encode_entries(params, np.array(sorted(places), np.uint32))
    assert len(encoded) == entries_size(len(places), len(params))
    back, end = decode_entries(memoryview(encoded + b"more"), base)
    assert end == len(encoded)
    expected = [params[k] if k in places else 7 for k in range(len(params))]
    assert back.tobytes() == np.array(expected, np.float32).tobytes()
    assert (base == 7).all()


P = 1000


def list_of(*indices, values=None):
    numbers = np.array(indices, "<u4").tobytes()
    given = np.ones(len(indices), "<f4") if values is None else np.array(values, "<f4")
    return len(indices).to_bytes(4, "little") + numbers + given.tobytes()


def marked(count, bits):
    return count.to_bytes(4, "little") + bits + np.ones(count, "<f4").tobytes()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "wrong length"),
        (b"\1\0\0", "wrong length"),
        (list_of(1, 2)[:-1], "wrong length"),
        (b"\xff\xff\xff\xff" + bytes(8), "wrong length"),
        ((P + 1).to_bytes(4, "little") + bytes(5 * P), "wrong length"),
        (list_of(2, 1), "malformed"),
        (list_of(1, 1), "malformed"),
        (list_of(1, P), "malformed"),
        (list_of(2**32 - 1), "malformed"),
        (list_of(1, 2, values=[1, np.nan]), "not finite"),
        (list_of(1, 2, values=[-np.inf, 1]), "not finite"),
        (marked(40, bytes([255] * 6) + bytes(119)), "malformed"),
        (marked(40, bytes([255] * 4) + bytes(121)), "malformed"),
        (marked(40, bytes(125)), "malformed"),
    ],
)
def test_decode_entries_refuses_invalid_entries(data, cause):
    with pytest.raises(DecodeError) as refused:
        decode_entries(memoryview(data), np.zeros(P, np.float32))
    assert refused.value.cause == cause


def test_decode_entries_refuses_mark_beyond_the_model():
    with pytest.raises(DecodeError, match="beyond the model"):
        decode_entries(memoryview(marked(1, b"\x80")), np.zeros(3, np.float32))


@given(st.binary(max_size=60), st.integers(1, 20))
def test_decode_entries_of_any_bytes_is_finite_or_refused(data, size):
    try:
        params, end = decode_entries(memoryview(data), np.zeros(size, np.float32))
    except DecodeError:
        return
    assert end <= len(data)
    assert params.shape == (size,)
    assert np.isfinite(params).all()


# Largest changes


def test_public_sends_omitted_entry_when_it_is_largest():
    public = PlainPublicCopy(1, vector(0, 0, 0))
    wanted = vector(3, -5, 1)
    seen = []
    for _ in range(4):
        public.publish(wanted)
        seen.append(public.params.tolist())
    assert seen == [[0, -5, 0], [3, -5, 0], [3, -5, 1], [3, -5, 1]]
    assert len(public.publications[-1].changed) == 0


@given(models, st.floats(0.01, 1))
def test_public_of_constant_model_converges_in_expected_steps(params, share):
    codec, shapes = TopK(share), layout(len(params))
    public = PlainPublicCopy(codec.count(shapes), np.zeros(len(params), np.float32))
    for _ in range(ceil(1 / share)):
        public.publish(params)
    assert (public.params == params).all()


@pytest.mark.slow
def test_public_mean_over_rounds_equals_published_mean():
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(50).astype(np.float32)
    public = PlainPublicCopy(5, np.zeros(50, np.float32))
    published, seen = [], []
    for _ in range(3000):
        published.append(centre + rng.normal(0, 0.1, 50).astype(np.float32))
        public.publish(published[-1])
        seen.append(public.params)
    once = np.abs(seen[-1] - published[-1]).max()
    assert once > 0.05
    assert np.abs(np.mean(seen, 0) - np.mean(published, 0)).max() < once / 5


@pytest.mark.slow
@given(
    st.lists(arrays.arrays(np.float32, 12, elements=st.floats(-10, 10, width=32)), min_size=1, max_size=14),
    st.integers(1, 12),
    st.data(),
)
def test_public_difference_reproduces_the_whole_model(published, k, data):
    start = np.zeros(12, np.float32)
    public, known = PlainPublicCopy(k, start), [start]
    for params in published:
        public.publish(params)
        known.append(public.params)
    one, other = data.draw(st.sampled_from(known)), data.draw(st.sampled_from(known))
    changed = public.between(tag(one), tag(other))
    if changed is not None:
        back, _ = decode_entries(memoryview(encode_entries(other, changed)), one)
        assert (back == other).all()


@pytest.mark.slow
def test_public_remembers_only_the_last_publications():
    start = np.zeros(20, np.float32)
    public, known = PlainPublicCopy(1, start), [start]
    for _ in range(12):
        public.publish(np.arange(1, 21, dtype=np.float32))
        known.append(public.params)
    changed = [public.between(tag(old), tag(known[-1])) for old in known]
    assert [None if c is None else len(c) for c in changed] == [None] * 4 + [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert len(public.publications) == REMEMBERED + 1
    assert public.between(b"strange!", tag(known[-1])) is None
    tracemalloc.start()
    for k in range(10_000):
        public.between(k.to_bytes(8, "big"), tag(known[-1]))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 10_000  # unknown tags leave nothing in memory


def test_public_restored_from_state_continues_identically():
    first = PlainPublicCopy(2, np.zeros(9, np.float32))
    for k in range(5):
        first.publish(np.arange(9, dtype=np.float32) * k)
    second = PlainPublicCopy(2, np.zeros(9, np.float32))
    second.restore(first.publications, first.params)
    for public in (first, second):
        public.publish(np.ones(9, np.float32))
    assert first.params.tobytes() == second.params.tobytes()
    assert [each.tag for each in first.publications] == [each.tag for each in second.publications]


# Copies of peers' models


def copy(number):
    return PeerCopy(bytes([number]) * 8, vector(number), number)


def test_copies_drop_least_recently_requested_peer():
    copies = PeerCopies(2, vector(0))
    common = copies.of("a")
    assert common.tag == tag(vector(0))
    for k, id in enumerate(("a", "b", "a", "c"), 1):
        copies.ask([id])
        copies.keep(id, copy(k))
    assert [copies.of(id) for id in "abc"] == [copy(3), common, copy(4)]
    copies.ask(["a", "b", "c"])  # more than are kept
    assert [copies.of(id) for id in "abc"] == [common, common, copy(4)]
    copies.keep("a", copy(5))  # it was dropped before the answer arrived
    assert copies.of("a") == common


def test_copies_with_limit_zero_keep_nothing():
    copies = PeerCopies(0, vector(0))
    copies.ask(["a"])
    copies.keep("a", copy(1))
    assert copies.of("a").tag == tag(vector(0))
