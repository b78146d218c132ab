"""Choice of the next round from the rounds that participants claim; see also the scripts in testdata."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.exchange.model_encoding import Outbox
from p2pfl.node.exchange.rounds import LONGEST_HOLD, Pacing, common_round


@pytest.mark.parametrize(
    ("rounds", "common"),
    [([7], 7), ([7, 3], 3), ([7, 7, 3], 7), ([9, 3, 3], 3), ([9, 9, 3, 3], 9), ([9, 3, 3, 3], 3), ([9, 9, 9, 3, 3, 3], 9)],
)
def test_common_round_is_reached_by_at_least_half(rounds, common):
    assert common_round(rounds) == common


rounds = st.integers(0, 2**32 - 1)


@given(st.lists(st.integers(100, 101), min_size=2, max_size=9), st.lists(rounds, max_size=8))
def test_common_round_resists_minority_of_liars(honest, lies):
    lies = lies[: len(honest) - 1]
    assert 100 <= common_round([*honest, *lies]) <= 101
    for finished in honest:
        others = [*honest, *lies]
        others.remove(finished)
        assert Pacing(10**9).following(finished, finished, others) == finished + 1


def test_pacing_returns_ever_less_often_to_stalled_peer():
    pacing, finished, returns = Pacing(10**6), 0, []
    for done in range(2000):
        following = pacing.following(finished, finished, [0])  # the peer stays at round 0
        if following <= finished:
            pacing.enter(following, finished, finished, Outbox(synchronous=True))
            returns.append(done)
        finished = following
    gaps = [after - before for before, after in pairwise(returns)]
    assert gaps == sorted(gaps)
    assert LONGEST_HOLD <= gaps[-1] <= LONGEST_HOLD + 2
