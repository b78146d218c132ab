"""File of a report: its parts, and the data packed into it."""

import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2pfl.sim.report.page import PARTS, deflate, pack, render


def test_render_places_parts_and_refuses_unknown_ones():
    parts = {name: f"<p>{name} here</p>" for name in PARTS}
    text = render("T", {}, parts)
    found = [text.index(f"<p>{name} here</p>") for name in PARTS]
    assert found == sorted(found)
    with pytest.raises(KeyError, match="unknown parts footer"):
        render("T", {}, {"footer": ""})


def test_deflate_writes_plain_data():
    data = {"number": np.float32(0.5), "missing": float("nan"), "names": np.array(["a"]), "flags": [np.bool_(True)]}
    read = json.loads(zlib.decompress(base64.b64decode(deflate(data))))
    assert read == {"number": 0.5, "missing": None, "names": ["a"], "flags": [True]}


KINDS = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4", "f64": "<f8"}


@given(arrays.arrays(np.int64, arrays.array_shapes(max_dims=2), elements=st.integers(-(2**52), 2**52)))
def test_pack_keeps_integers_exactly(values):
    ((kind, packed),) = pack(values).items()
    read = np.frombuffer(base64.b64decode(packed), KINDS[kind])
    assert read.astype(np.int64).tolist() == values.ravel().tolist()


@given(arrays.arrays(np.float64, st.integers(0, 20), elements=st.floats(width=32)))
def test_pack_rounds_floats_to_32_bits(values):
    ((kind, packed),) = pack(values).items()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), KINDS[kind]).astype(np.float64), values)


def test_pack_keeps_digits_of_large_whole_floats():
    assert "f64" in pack(np.array([2.0**31 + 1, np.nan]))
