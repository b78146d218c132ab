"""Limits on what members report about themselves and learn about others."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

LARGEST_SHARE = 0.5  # of any peer in a mean by samples, even with few participants


def cap_samples(own: int, claimed: Mapping[str, int]) -> dict[str, int]:
    """Return the peers' numbers of samples, reduced so that none exceeds 2/n of the total, nor half of it.

    Args:
        own: the node's own number, which is not reduced; n includes the node.
        claimed: the number that each peer claims.
    """
    share = min(LARGEST_SHARE, 2 / (len(claimed) + 1))
    largest_first = sorted(claimed.values(), reverse=True)
    rest = own + sum(largest_first)
    for cut, count in enumerate(largest_first):  # the `cut` largest are cut to the value of just their share
        if cut * share >= 1:
            break
        cap = share * rest / (1 - cut * share)
        if count <= cap:
            return {id: min(n, max(1, floor(cap))) for id, n in claimed.items()} if cut else dict(claimed)
        rest -= count
    cut = len(largest_first)
    cap = share * own / (1 - cut * share) if cut * share < 1 else 0.0
    return {id: min(n, max(1, floor(cap))) for id, n in claimed.items()}


def coarse(loss: float) -> float:
    """Return a loss rounded to three digits for a peer, so that it reveals less about single samples."""
    return float(f"{loss:.3g}")
