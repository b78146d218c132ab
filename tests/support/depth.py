"""Numbers of inputs, seeds, kills and combinations of tests that could try any number: few, and with P2PFL_DEEP=1 many.

A release runs the deep tests; see docs/release.md.
"""

import os

import pytest

DEEP = os.environ.get("P2PFL_DEEP", "") == "1"
deep = pytest.mark.skipif(not DEEP, reason="long: P2PFL_DEEP=1 runs it")


def many(few, deep):
    """Return the number that a test tries."""
    return deep if DEEP else few


def pairs(some, others):
    """Return the combinations of two lists that a test tries.

    With P2PFL_DEEP these are all; without it, each of the longer list with one of the shorter, whose turn it is.
    """
    some, others = list(some), list(others)
    if DEEP:
        return [(one, other) for one in some for other in others]
    return [(some[k % len(some)], others[k % len(others)]) for k in range(max(len(some), len(others)))]


def spread(cases, step):
    """Return every case of a list with P2PFL_DEEP, else each `step`-th."""
    return list(cases) if DEEP else list(cases)[::step]
