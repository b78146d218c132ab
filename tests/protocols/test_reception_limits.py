"""Limits on the messages that one member may send."""

import pytest

from p2pfl.protocols.transports.frames import BURST, GRACE, INCOMPLETE, RATE, SLOWEST, Reception

MOST = 1_000_000


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def reception():
    clock = Clock()
    return Reception(MOST, clock), clock


def test_third_incomplete_largest_frame_ends_first():
    member, _ = reception()
    assert [member.begin(link, MOST) for link in "abc"] == [[], [], ["a"]]


def test_many_small_frames_may_be_incomplete():
    member, _ = reception()
    for link in range(100):
        assert member.begin(link, INCOMPLETE * MOST // 100) == []
    assert member.begin("large", MOST) == list(range(50))


def test_new_frame_is_never_the_one_that_ends():
    member, _ = reception()
    member.begin("a", MOST)
    member.begin("b", MOST)
    member.forget("b")
    assert member.begin("b", MOST) == []
    assert member.begin("c", 1) == ["a"]


def test_complete_frames_no_longer_count():
    member, _ = reception()
    for link in "abcdef":
        assert member.begin(link, MOST) == []
        member.complete(link)
    assert member.idle


@pytest.mark.parametrize("size", [1, MOST])
def test_frame_is_overdue_after_time_for_its_size(size):
    member, clock = reception()
    member.begin("a", size)
    clock.now = GRACE + size / SLOWEST - 0.001
    member.begin("b", size)
    assert member.overdue() == []
    clock.now += 0.001
    assert member.overdue() == ["a"]
    member.complete("a")
    assert member.overdue() == []


def test_frames_beyond_burst_are_delayed_across_links():
    member, clock = reception()
    assert {member.complete(k % 3) for k in range(int(BURST))} == {0.0}
    assert [member.complete("a"), member.complete("b")] == [1 / RATE, 2 / RATE]
    clock.now = 1.0
    assert {member.complete("a") for _ in range(int(RATE) - 2)} == {0.0}
    assert member.complete("a") > 0


def test_pause_restores_at_most_the_burst():
    member, clock = reception()
    clock.now = 1e6
    assert sum(member.complete("a") == 0 for _ in range(5000)) == BURST
