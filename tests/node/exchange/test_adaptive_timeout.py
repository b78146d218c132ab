"""Adaptive deadlines for peers."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.exchange.rounds.adaptive_timeout import AdaptiveTimeout

SECONDS = st.floats(0.001, 100)


def test_mean_and_deviation_are_those_of_rfc_6298():
    deadlines = AdaptiveTimeout(600, adaptive=True)
    deadlines.record_answer("a", 40)
    assert deadlines.wait(["a"]) == 2 * (40 + 4 * 20)
    deadlines.record_answer("a", 48)  # deviation 3/4 * 20 + 1/4 * 8 = 17, mean 7/8 * 40 + 1/8 * 48 = 41
    assert deadlines.wait(["a"]) == 2 * (41 + 4 * 17)


def test_the_slowest_is_waited_for():
    deadlines = AdaptiveTimeout(600, adaptive=True)
    deadlines.record_answer("a", 40)
    deadlines.record_answer("b", 60)
    assert deadlines.wait(["a", "b"]) == deadlines.wait(["b"]) > deadlines.wait(["a"])


def test_who_was_never_measured_is_granted_the_ceiling():
    deadlines = AdaptiveTimeout(60, adaptive=True)
    deadlines.record_answer("a", 1)
    deadlines.record_timeout("b")
    assert deadlines.wait(["a", "b"]) == 60
    assert deadlines.wait(["a"]) < 60


@pytest.mark.parametrize(("ceiling", "adaptive"), [(60, False), (inf, True), (inf, False)])
def test_a_fixed_or_endless_deadline_does_not_learn(ceiling, adaptive):
    deadlines = AdaptiveTimeout(ceiling, adaptive)
    deadlines.record_answer("a", 0.1)
    deadlines.record_timeout("a")
    assert deadlines.wait(["a"]) == ceiling


def test_a_sixth_of_the_ceiling_is_waited_for_at_least():
    deadlines = AdaptiveTimeout(60, adaptive=True)
    for _ in range(100):
        deadlines.record_answer("a", 0.01)
    assert deadlines.wait(["a"]) == 10
    assert deadlines.wait([]) == 10


def test_a_miss_doubles_what_a_peer_is_granted_until_it_answers():
    deadlines = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        deadlines.record_answer("a", 50)
    before = deadlines.wait(["a"])
    assert before == pytest.approx(100)
    deadlines.record_timeout("a")
    assert deadlines.wait(["a"]) == 2 * before
    for _ in range(2000):
        deadlines.record_timeout("a")
    assert deadlines.wait(["a"]) == 600
    deadlines.record_answer("a", 50)
    assert deadlines.wait(["a"]) == pytest.approx(100)


def test_a_peer_that_has_become_slower_is_missed_a_few_times_and_then_waited_for():
    deadlines = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        deadlines.record_answer("a", 20)
    missed = 0
    for _ in range(100):
        if deadlines.wait(["a"]) < 400:
            deadlines.record_timeout("a")
            missed += 1
        else:
            deadlines.record_answer("a", 400)
    assert 1 <= missed <= 4


def test_a_silent_peer_costs_a_few_of_its_own_usual_times_at_first():
    deadlines = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        deadlines.record_answer("a", 60)
    assert deadlines.wait(["a"]) == pytest.approx(120)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), SECONDS))), st.floats(0.1, 1000), st.booleans())
def test_the_deadline_stays_between_a_sixth_of_the_ceiling_and_the_ceiling(events, ceiling, adaptive):
    deadlines = AdaptiveTimeout(ceiling, adaptive)
    for name, seconds in events:
        if seconds is None:
            deadlines.record_timeout(name)
        else:
            deadlines.record_answer(name, seconds)
    for names in ("", "a", "ab", "abc"):
        assert ceiling / 6 * 0.999 <= deadlines.wait(names) <= ceiling


@given(st.lists(SECONDS, min_size=1), SECONDS)
def test_waiting_for_more_peers_is_never_shorter(times, other):
    deadlines = AdaptiveTimeout(300, adaptive=True)
    for seconds in times:
        deadlines.record_answer("a", seconds)
    deadlines.record_answer("b", other)
    assert deadlines.wait("ab") == max(deadlines.wait("a"), deadlines.wait("b"))
