"""Rings: neighbours by an independent computation, what a newcomer changes, and chance as all that a key can choose."""

from copy import copy
from hashlib import sha256
from math import sqrt

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.topologies import build, make_schedule, neighbours
from p2pfl.topologies.rings import MOST, RingRule, Rings, neighbours_in, numbered, ring_orders

NAMES = [f"m{k:03d}" for k in range(120)]
TOKENS = {name: sha256(name.encode()).digest() for name in NAMES}

members = st.integers(1, 40).map(lambda n: dict(list(TOKENS.items())[:n]))
degrees = st.integers(1, 20).map(lambda rings: 2 * rings)


def expected(seed, degree, tokens, round=0):
    """Return the neighbours of each member, computed ring by ring from the words of the wire protocol alone."""
    found = {name: set() for name in tokens}
    for ring in range(degree // 2):
        block, part = divmod(ring, 4)
        places = {}
        for name, token in tokens.items():
            digest = sha256(b"p2pfl rings 1\0" + b"%d\0%d\0%d\0" % (seed, round, block) + token).digest()
            places[name] = int.from_bytes(digest[8 * part : 8 * part + 8], "big")
        order = sorted(tokens, key=lambda name, places=places: (places[name], name))
        for one, other in zip(order, order[1:] + order[:1], strict=True):
            if one != other:
                found[one].add(other)
                found[other].add(one)
    return found


def links(rings, names):
    return {frozenset((name, other)) for name in names for other in rings.neighbours(name)}


@given(members, degrees, st.integers(0, 2**40), st.integers(0, 9))
def test_neighbours_are_those_of_the_text(tokens, degree, seed, round):
    rings = Rings(seed, degree, tokens, round)
    assert {name: rings.neighbours(name) for name in tokens} == expected(seed, degree, tokens, round)
    orders = ring_orders(seed, degree, tokens.values(), round)
    names = [*tokens]
    for k, name in enumerate(names):
        assert {names[other] for other in neighbours_in(orders, k)} == rings.neighbours(name)


@given(members, degrees, st.integers(0, 9))
def test_neighbours_are_mutual_few_and_connected(tokens, degree, seed):
    rings = Rings(seed, degree, tokens)
    graph = nx.Graph()
    graph.add_nodes_from(tokens)
    for name in tokens:
        around = rings.neighbours(name)
        assert name not in around
        assert len(around) <= degree
        assert all(name in rings.neighbours(other) for other in around)
        graph.add_edges_from((name, other) for other in around)
    assert nx.is_connected(graph)


@settings(max_examples=50)
@given(members, degrees, st.data())
def test_newcomer_and_departure_change_the_links_beside_them_only(tokens, degree, data):
    rings, gone = Rings(3, degree, tokens), data.draw(st.sampled_from([*tokens]))
    before = links(rings, tokens)
    later = {**tokens, "new": sha256(b"new").digest()}
    rings.change(later)
    after = links(rings, later)
    assert len(before - after) <= degree // 2
    assert len(after - before) <= degree
    assert all("new" in link for link in after - before)
    rings.change({name: token for name, token in later.items() if name != gone})
    rest = links(rings, later)
    assert all(gone in link for link in after - rest)
    assert len(rest - after) <= degree // 2
    assert rings.neighbours(gone) == set()


@given(st.lists(st.sampled_from(NAMES[:30]), min_size=1, max_size=60), degrees)
def test_order_in_which_members_are_heard_of_does_not_matter(steps, degree):
    """Each step adds a member, or removes one that is there; in the end all are compared with rings made at once."""
    known = {NAMES[40]: TOKENS[NAMES[40]]}
    rings = Rings(0, degree, known)
    for turn, name in enumerate(steps):
        if known.pop(name, None) is None:
            known[name] = sha256(f"{name} {turn}".encode()).digest()
        rings.change(known)
    assert {name: rings.neighbours(name) for name in known} == expected(0, degree, known)


class Asked(dict):
    """Tokens that only answer for one member at a time, and count that."""

    asked = 0

    def get(self, name, default=None):
        self.asked += 1
        return super().get(name, default)

    def __iter__(self):
        raise AssertionError("all members were visited")

    keys = items = values = __iter__


def test_change_of_named_members_visits_no_others():
    rings, copied = Rings(0, 8, TOKENS), copy(Rings(0, 8, TOKENS))
    later = {name: token for name, token in TOKENS.items() if name != NAMES[3]} | {"new": sha256(b"new").digest()}
    tokens = Asked(later)
    rings.change(tokens, [NAMES[3], "new", NAMES[7], "unknown"])
    assert tokens.asked == 4
    assert {name: rings.neighbours(name) for name in later} == expected(0, 8, later)
    assert {name: copied.neighbours(name) for name in TOKENS} == expected(0, 8, TOKENS)


@pytest.mark.parametrize("changing", [False, True])
def test_rule_follows_named_members_as_if_it_compared_all(changing):
    rule, whole, tokens = RingRule(0, changing, 4), RingRule(0, changing, 4), dict(TOKENS)
    rule.change(tokens)
    for step in range(20):
        name = NAMES[step % 7]
        if step % 3 or name not in tokens:
            tokens[name] = sha256(b"%d" % step).digest()
        else:
            del tokens[name]
        rule.change(tokens, {name})
        whole.change(dict(tokens))
        assert all(rule.neighbours(each, 1) == whole.neighbours(each, 1) for each in NAMES)


def test_token_of_a_member_that_returns_gives_it_other_places():
    rings = Rings(0, 4, TOKENS)
    before = rings.neighbours(NAMES[5])
    rings.change({**TOKENS, NAMES[5]: sha256(b"again").digest()})
    assert rings.neighbours(NAMES[5]) == expected(0, 4, {**TOKENS, NAMES[5]: sha256(b"again").digest()})[NAMES[5]] != before


def test_thousand_tokens_get_no_more_than_chance_of_one_victim():
    """Each token is another admission of the same member; k of n - 1 members are neighbours of the victim."""
    tokens = dict(list(TOKENS.items())[:100])
    hits = 0
    for attempt in range(1000):
        rings = Rings(1, 8, {**tokens, "mallory": sha256(b"admission %d" % attempt).digest()})
        hits += NAMES[0] in rings.neighbours("mallory")
    chance = 8 / 100
    assert abs(hits - 1000 * chance) < 4 * sqrt(1000 * chance * (1 - chance))


def test_simulated_graph_is_that_of_the_numbers():
    graph = build("rings", 40, 7, degree=6)
    found = expected(7, 6, dict(enumerate(numbered(40))))
    assert [set(around) for around in neighbours(graph)] == [found[k] for k in range(40)]


def test_changing_rings_are_others_in_each_round_and_meet_all_members():
    schedule, met = make_schedule("changing-rings", 30, 2, degree=4), set()
    for round in range(1, 60):
        row = schedule.row(round, 3)
        assert set(row.sources.tolist()) == expected(2, 4, dict(enumerate(numbered(30))), round)[3]
        assert row.weights.tolist() == [1 / 5] * len(row.sources)
        met |= set(row.sources.tolist())
    assert len(met) == 29


@pytest.mark.parametrize("degree", [0, 1, 7, -2, MOST + 2])
def test_degree_that_is_odd_or_too_great_is_refused(degree):
    with pytest.raises(ValueError, match=f"degree must be an even number from 2 to 64, two for each ring, got {degree}"):
        Rings(0, degree, TOKENS)
    with pytest.raises(ValueError, match="degree must be an even number from 2 to 64"):
        make_schedule("changing-rings", 9, 0, degree=degree)
