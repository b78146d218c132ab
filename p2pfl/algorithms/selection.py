"""Whom to learn with: sampling by similarity, and estimates for peers never met (DAC, section 2.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-6  # the least probability of a peer of which nothing bad is known, so that it can still be met
LEAST = 1e-30  # that of a peer known to go another way: enough to be drawn when no other is left


def uniform(rng: np.random.Generator, ids: Sequence[str], m: int) -> list[str]:
    """Return `m` of `ids` without replacement, each set of m as likely as any other, in the order of `ids`.

    All of them where m reaches. (Floyd's algorithm: m draws, however many ids there are.)
    """
    n = len(ids)
    if m >= n:
        return list(ids)
    picks: set[int] = set()
    for last, u in enumerate(rng.random(max(m, 0)).tolist(), n - m):
        pick = int(u * (last + 1))
        picks.add(last if pick in picks else pick)
    return [ids[k] for k in sorted(picks)]


def fitting(rng: np.random.Generator, ids: Sequence[str], sizes: Sequence[int], limit: int, most: int) -> list[str]:
    """Return those of `ids`, in their order, that fit together into `limit`: taken in a drawn order while there is room.

    Args:
        sizes: of each, 0 or more.
        most: how many may be taken.
    """
    taken: set[int] = set()
    for place in rng.permutation(len(ids)).tolist():
        if sizes[place] <= limit and len(taken) < most:
            limit -= sizes[place]
            taken.add(place)
    return [ids[place] for place in sorted(taken)]


def probabilities(similarities: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    """softmax(tau * s) (eq. 4) over the peers whose similarity is known (not 0).

    Every other peer keeps a floor of 1e-6, and so does a known one that the softmax would leave less; one of negative
    similarity (only cosines are) keeps next to nothing. The paper says nothing of either. Without a floor, nodes whose first
    peers were all of other clusters can stay with them. With the same floor for negative ones some do, and the mean error of
    the cosine rows with FedAvg rises above 11 (measured on the synthetic problem, 15 seeds).

    Args:
        similarities: shape [K]; 0 is unknown.
        tau: inverse temperature, finite: 0 is uniform over the known; the greater, the more the greatest gets.

    Returns:
        shape [K], greater than 0, summing to 1.
    """
    result = np.full(len(similarities), FLOOR)
    known = similarities != 0
    if known.any():
        logits = tau * similarities[known]
        weights = np.exp(logits - logits.max())
        least = np.where(similarities[known] > 0, FLOOR, LEAST)
        result[known] = np.maximum(weights / weights.sum(), least)
    return np.asarray(result / result.sum())


def sample(rng: np.random.Generator, ids: Sequence[str], p: NDArray[np.float64], m: int) -> list[str]:
    """Return `m` of `ids` without replacement, one after another with probabilities `p`, in the order of `ids`."""
    if m >= len(ids):
        return list(ids)
    picks = rng.choice(len(ids), size=max(m, 0), replace=False, p=p)
    return [ids[k] for k in sorted(picks.tolist())]


def two_hop(
    lent: Sequence[tuple[float, Mapping[str, float]]], unmet: Iterable[str], lender: Literal["most", "least"]
) -> dict[str, float]:
    """Estimate the similarity to peers never met by that of a sampled peer that has met them.

    Args:
        lent: for each sampled peer, my similarity to it and the similarities that it has measured.
        unmet: the peers to estimate.
        lender: which of several that have met a peer lends: the most or the least similar to me.
    """
    order = sorted(lent, key=lambda entry: entry[0], reverse=lender == "least")
    known: dict[str, float] = {}
    for _, similarities in order:  # the last one that knows a peer is the one that counts
        known.update(similarities)
    return {name: known[name] for name in unmet if name in known}
