"""Adaptive deadlines for peers."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.exchange.rounds import AdaptiveTimeout

SECONDS = st.floats(0.001, 100)


def test_timeout_uses_mean_and_deviation_of_rfc_6298():
    timeouts = AdaptiveTimeout(600, adaptive=True)
    timeouts.record_answer("a", 40)
    assert timeouts.wait(["a"]) == 2 * (40 + 4 * 20)
    timeouts.record_answer("a", 48)  # deviation 3/4 * 20 + 1/4 * 8 = 17, mean 7/8 * 40 + 1/8 * 48 = 41
    assert timeouts.wait(["a"]) == 2 * (41 + 4 * 17)


def test_timeout_is_that_of_slowest_peer():
    timeouts = AdaptiveTimeout(600, adaptive=True)
    timeouts.record_answer("a", 40)
    timeouts.record_answer("b", 60)
    assert timeouts.wait(["a", "b"]) == timeouts.wait(["b"]) > timeouts.wait(["a"])


def test_timeout_of_unmeasured_peer_is_maximum():
    timeouts = AdaptiveTimeout(60, adaptive=True)
    timeouts.record_answer("a", 1)
    timeouts.record_timeout("b")
    assert timeouts.wait(["a", "b"]) == 60
    assert timeouts.wait(["a"]) < 60


@pytest.mark.parametrize(("ceiling", "adaptive"), [(60, False), (inf, True), (inf, False)])
def test_timeout_with_fixed_or_infinite_deadline_never_adapts(ceiling, adaptive):
    timeouts = AdaptiveTimeout(ceiling, adaptive)
    timeouts.record_answer("a", 0.1)
    timeouts.record_timeout("a")
    assert timeouts.wait(["a"]) == ceiling


def test_timeout_is_at_least_a_sixth_of_maximum():
    timeouts = AdaptiveTimeout(60, adaptive=True)
    for _ in range(100):
        timeouts.record_answer("a", 0.01)
    assert timeouts.wait(["a"]) == 10
    assert timeouts.wait([]) == 10


def test_timeout_doubles_with_each_miss_until_peer_answers():
    timeouts = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        timeouts.record_answer("a", 50)
    before = timeouts.wait(["a"])
    assert before == pytest.approx(100)
    timeouts.record_timeout("a")
    assert timeouts.wait(["a"]) == 2 * before
    for _ in range(2000):
        timeouts.record_timeout("a")
    assert timeouts.wait(["a"]) == 600
    timeouts.record_answer("a", 50)
    assert timeouts.wait(["a"]) == pytest.approx(100)


def test_timeout_adapts_to_slower_peer_after_few_misses():
    timeouts = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        timeouts.record_answer("a", 20)
    missed = 0
    for _ in range(100):
        if timeouts.wait(["a"]) < 400:
            timeouts.record_timeout("a")
            missed += 1
        else:
            timeouts.record_answer("a", 400)
    assert 1 <= missed <= 4


def test_timeout_of_steady_peer_is_twice_its_usual_time():
    timeouts = AdaptiveTimeout(600, adaptive=True)
    for _ in range(100):
        timeouts.record_answer("a", 60)
    assert timeouts.wait(["a"]) == pytest.approx(120)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), SECONDS))), st.floats(0.1, 1000), st.booleans())
def test_timeout_stays_between_a_sixth_and_maximum(events, ceiling, adaptive):
    timeouts = AdaptiveTimeout(ceiling, adaptive)
    for name, seconds in events:
        if seconds is None:
            timeouts.record_timeout(name)
        else:
            timeouts.record_answer(name, seconds)
    for names in ("", "a", "ab", "abc"):
        assert ceiling / 6 * 0.999 <= timeouts.wait(names) <= ceiling


@given(st.lists(SECONDS, min_size=1), SECONDS)
def test_timeout_for_two_peers_is_the_longer_one(times, other):
    timeouts = AdaptiveTimeout(300, adaptive=True)
    for seconds in times:
        timeouts.record_answer("a", seconds)
    timeouts.record_answer("b", other)
    assert timeouts.wait("ab") == max(timeouts.wait("a"), timeouts.wait("b"))
