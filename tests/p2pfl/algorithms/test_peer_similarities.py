"""Arrays of a node's similarities to its peers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms.similarity import PeerSimilarities, short_ids

NAMES = st.sets(st.sampled_from("abcdefgh"))
VALUES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([-0.5, 0.0, 0.25, 0.75]))
ROUND = st.tuples(NAMES, VALUES, st.lists(VALUES, max_size=3))


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
        keys, scores = arrays.measured_arrays()
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
