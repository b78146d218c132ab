"""Fragments: divisions of a model, who receives which part, merges by part, and their share of a budget."""

import asyncio
from collections import Counter
from functools import partial

import numpy as np
import pytest

from p2pfl.algorithms.selection import drawn_fragments
from p2pfl.budget import BudgetTracker
from p2pfl.errors import BudgetExceededError, ConfigurationError
from p2pfl.fragments import Fragments, wanted_parts
from p2pfl.parameters import Layout
from p2pfl.policies.mosaic import DivShare, Mosaic
from p2pfl.policy import Budget, Fragment, merge_fragments
from p2pfl.random_streams import federation_streams
from p2pfl.robust.registry import make_rule
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory

LAYOUT = Layout((("weights", (5, 2)), ("bias", (3,))), 13)
NAMES = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("rule", "parts"), [("contiguous", 4), ("strided", 4), ("random", 4), ("random", 13), ("layers", 0)]
)
def test_parts_cover_each_value_once(rule, parts):
    fragments = Fragments(rule, parts)
    places = fragments.places(LAYOUT, seed=0)
    covered = np.concatenate([np.arange(13)[part] for part in places])
    assert sorted(covered.tolist()) == list(range(13))
    assert len(places) == len(fragments.names(LAYOUT)) == fragments.count(LAYOUT) == (parts or 2)
    if parts:
        assert {len(np.arange(13)[part]) for part in places} <= {13 // parts, 13 // parts + 1}


def test_names_and_places_of_each_division():
    def divided(rule, parts=0, seed=0):
        return [np.arange(13)[part].tolist() for part in Fragments(rule, parts).places(LAYOUT, seed)]

    assert divided("contiguous", 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12]]
    assert divided("strided", 4) == [[0, 4, 8, 12], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert divided("layers") == [list(range(10)), [10, 11, 12]]
    assert divided("random", 2, 0) != divided("random", 2, 1)
    assert Fragments("layers").names(LAYOUT) == ("weights", "bias")
    assert Fragments("strided", 3).names(LAYOUT) == ("0", "1", "2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fragments("halves", 2), "must be one of contiguous, strided, random, layers, got 'halves'"),
        (lambda: Fragments("random"), "fragments must be from 1 to 128, got 0"),
        (lambda: Fragments("random", 129), "fragments must be from 1 to 128, got 129"),
        (lambda: Fragments("layers", 2), "by layers have no number"),
        (lambda: Fragments("strided", 14).places(LAYOUT, 0), "a model of 13 values cannot have 14 fragments"),
        (
            lambda: Fragments("layers").names(Layout(tuple((str(k), (1,)) for k in range(129)), 129)),
            'at most 128 tensors, but the model has 129; use another division, such as "random"',
        ),
        (
            lambda: wanted_parts({"b": ["2"]}, Fragments("random", 2), LAYOUT, 0),
            "name of a fragment must be one of 0, 1, got '2'",
        ),
    ],
)
def test_wrong_divisions_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("receivers", [0, 1, 3, 9])
def test_each_fragment_has_its_number_of_receivers_and_each_node_receives_as_many(receivers):
    names, sent = tuple("0123456"), Counter()
    rng = partial(federation_streams(0).generator, 4)
    for me in NAMES:
        others = [id for id in NAMES if id != me]
        wanted = drawn_fragments(rng, me, others, names, receivers)
        assert set(wanted) <= set(others)
        assert (
            Counter(name for asked in wanted.values() for name in asked) == dict.fromkeys(names, min(receivers, 4))
            or not receivers
        )
        sent.update((id, name) for id, asked in wanted.items() for name in asked)
    assert set(sent.values()) <= {min(receivers, 4)}


def test_receivers_differ_by_fragment_and_round():
    others = [f"{k:02}" for k in range(1, 30)]
    drawn = [
        drawn_fragments(partial(federation_streams(0).generator, round), "00", others, ["0", "1"], 2) for round in range(20)
    ]
    assert len({str(each) for each in drawn}) == 20
    assert any(set(asked) != {"0", "1"} for each in drawn for asked in each.values())


# Merges


class Node:
    id, rule = "a", None

    async def compute(self, query):
        return query.answer(None)


def fragment(sender, name, value, parts=2):
    at = Fragments("contiguous", parts).places(LAYOUT, 0)[int(name)]
    size = len(np.arange(13)[at])
    return Fragment(sender, 1, "trained", name, np.full(size, value, np.float32), at, 10, size=4 * size)


def merged(received, weights=None, robust="none"):
    node = Node()
    node.rule = make_rule(robust)
    return asyncio.run(merge_fragments(node, np.zeros(13, np.float32), received, weights))


def test_each_value_is_averaged_over_the_nodes_that_have_sent_it():
    found = merged([fragment("c", "0", 3), fragment("b", "0", 6), fragment("b", "1", 4)])
    np.testing.assert_array_equal(found.params, [3] * 6 + [2] * 7)
    assert found.weights == pytest.approx({"a": (6 / 3 + 7 / 2) / 13, "b": (6 / 3 + 7 / 2) / 13, "c": 6 / 3 / 13})
    only = merged([fragment("b", "1", 4)])
    np.testing.assert_array_equal(only.params, [0] * 6 + [2] * 7)
    assert only.weights == pytest.approx({"a": 19 / 26, "b": 7 / 26})
    assert merged([]).weights == {"a": 1.0}


def test_last_of_two_fragments_of_one_part_counts_and_weights_are_relative():
    found = merged([fragment("b", "0", 9), fragment("b", "0", 4)], {"a": 1, "b": 3})
    np.testing.assert_array_equal(found.params, [3] * 6 + [0] * 7)


def test_coordinate_wise_rule_replaces_the_mean_of_each_part():
    found = merged([fragment("b", "0", 1), fragment("c", "0", 900), fragment("d", "1", 8)], robust="median")
    np.testing.assert_array_equal(found.params, [1] * 6 + [4] * 7)


# Budgets


def wanted(*senders, names=("0",), parts=4):
    return wanted_parts(dict.fromkeys(senders, names), Fragments("contiguous", parts), LAYOUT, 0, overhead=320)


def in_a_round(budget, **options):
    tracker = BudgetTracker(budget, size=13, **options)
    tracker.begin_round()
    return tracker


def take(tracker, parts):
    admitted, places = tracker.reserve_fragments(parts)
    tracker.release(places)
    arrived = [
        Fragment(p.sender, 1, "trained", p.name, np.ones(p.values, np.float32), slice(0), 1, size=p.bytes) for p in admitted
    ]
    return tracker.take_fragments(arrived)


def test_fragments_with_the_values_of_a_model_are_one_model():
    tracker = in_a_round(Budget(models=2))
    take(tracker, wanted("b", "c"))  # 3 + 3 values of 13
    assert (tracker.models, tracker.round_models) == (1, 1)
    take(tracker, wanted("b", "c", names=("1", "2", "3")))  # 20 more make two models
    assert (tracker.models, tracker.round_models, tracker.bytes) == (2, 2, 8 * 320 + 4 * 26)
    with pytest.raises(
        BudgetExceededError, match=r"1 fragment with the values of 0.231 models and 332 bytes, .*\(2 models\)"
    ):
        take(tracker, wanted("d"))
    with pytest.raises(BudgetExceededError, match="3 models in a round, but the budget is 2"):
        tracker.reserve(["d"], lambda _: 1)
    tracker.begin_round()
    take(tracker, wanted("d"))
    assert (tracker.models, tracker.round_models) == (1, 3)


def test_node_that_refuses_leaves_out_what_does_not_fit():
    tracker = in_a_round(Budget(bytes=700), refuse=True)
    assert [each.sender for each in take(tracker, wanted("b", "c", "d"))] == ["b", "c"]
    assert (tracker.bytes, tracker.refused) == (664, 1)


def test_selection_within_the_budget_is_random_and_fits():
    tracker = in_a_round(Budget(models=1))
    parts = wanted("b", "c", "d", names=("0", "1", "2", "3"))
    chosen = [tracker.fragments_within_budget(lambda _, k=k: np.random.default_rng(k), parts) for k in range(5)]
    assert all(10 < sum(part.values for part in each) <= 13 for each in chosen)
    assert len({str(each) for each in chosen}) == 5
    assert tracker.fragments_within_budget(np.random.default_rng, parts[:4]) == parts[:4]


def test_held_fragments_count_until_their_values_are_dropped():
    tracker = in_a_round(Budget(held=1))
    kept = take(tracker, wanted("b", names=("0", "1", "2", "3")))
    assert tracker.held == tracker.most_held == 1
    with pytest.raises(BudgetExceededError, match=r"\(1 held\)"):
        take(tracker, wanted("c"))
    del kept
    assert (tracker.held, len(take(tracker, wanted("c")))) == (0, 1)


# Policies


@pytest.mark.parametrize("make", [Mosaic, DivShare, partial(Mosaic, division="layers")])
def test_policies_average_with_fragments_of_others_within_the_budget(make):
    tasks = {name: make_task("concept-shift", {}, Part(k, 5), 0) for k, name in enumerate(NAMES)}
    cast, history = run_in_memory(
        {name: make(receivers=2, fragments=4) for name in NAMES}, tasks, 2, budget=Budget(models=1)
    )
    for merges in history[1:]:  # in the first round nothing has arrived if a node does not wait
        for merge in merges.values():
            assert sum(merge.weights.values()) == pytest.approx(1)
            assert len(merge.weights) > 1
    assert {actor.budget_tracker.round_models for actor in cast.values()} == {2}
