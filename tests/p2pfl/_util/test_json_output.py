"""JSON output: valid for every reader."""

import json
import math

import numpy as np

from p2pfl._util.printable import to_json


def test_to_json_writes_null_for_non_finite_numbers():
    text = to_json({"a": float("nan"), "b": [np.float64("inf"), 1.5], "c": {"d": -math.inf, "e": "nan", "f": (3, math.inf)}})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": {"d": None, "e": "nan", "f": [3, None]}}
