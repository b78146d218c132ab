"""Results that many tasks share."""

from __future__ import annotations

from p2pfl._util.shared_work import once, sharing


def test_once_outside_sharing_computes_each_time():
    calls: list[int] = []
    for _ in range(2):
        once(("key",), lambda: calls.append(1))
    assert len(calls) == 2


def test_once_within_sharing_computes_once_for_equal_keys():
    with sharing():
        first, second = once((len, "key"), object), once((len, "key"), object)
        other = once((len, "other"), object)
    assert first is second is not other


def test_once_after_sharing_forgets_results():
    with sharing():
        before = once(("key",), object)
    with sharing():
        assert once(("key",), object) is not before


def test_once_unhashable_key_computes_each_time():
    with sharing():
        assert once(([],), object) is not once(([],), object)
