"""Dictionary whose copies share what they have in common."""

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl._util.shared_dict import MOST, SharedDict

KEYS = st.integers(0, 3 * MOST)
steps = st.lists(st.tuples(st.sampled_from(["set", "delete", "copy", "fill"]), KEYS, st.integers(0, 9)), max_size=60)


def changed(pairs, what, key, which):
    """Change one of some pairs of a dictionary and its model, or add a copy of one of them."""
    made, model = pairs[which % len(pairs)]
    if what == "copy":
        pairs.append((copy(made), model.copy()))
    elif what == "set":
        made[key] = model[key] = (key, which)
    elif what == "fill":
        for each in range(key):
            made[each] = model[each] = which
    elif key in model:
        del made[key], model[key]
    else:
        with pytest.raises(KeyError):
            del made[key]


@given(steps)
def test_copies_behave_like_copies_of_a_dict(given):
    pairs = [(SharedDict(), {})]
    for step in given:
        changed(pairs, *step)
        for made, model in pairs:
            assert dict(made) == model
            assert len(made) == len(model)
            assert [key for key in range(3 * MOST + 1) if key in made] == sorted(model)
            assert made.get(7) == model.get(7)
            assert made == model


class Key:
    """Key that counts how often it is hashed, which every visit in a dictionary needs."""

    hashed = 0

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        Key.hashed += 1
        return hash(self.number)


def test_copy_visits_none_of_the_shared_entries():
    made = SharedDict()
    for number in range(1000):
        made[Key(number)] = number
    copies = [copy(made)]
    Key.hashed = 0
    for number in range(100):
        one = copy(copies[-1])
        one[Key(-number - 1)] = number
        copies.append(one)
    assert Key.hashed < 100 * MOST + 2 * 1100  # without sharing 100 * 1000
    assert [len(each) for each in copies] == [1000, *range(1001, 1101)]
