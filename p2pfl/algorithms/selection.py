"""Selection of peers, uniform or by similarity (DAC, section 2.1), and the weights of their models in a mean.

Weights are by peer, own included, with the sum 1; `weighted_mean` computes the mean itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-6  # the lowest probability of a peer without a negative similarity, so that it can still be met
LEAST = 1e-30  # that of a peer with a negative similarity: enough to be drawn if no other is left


def uniform(rng: np.random.Generator, ids: Sequence[str], m: int) -> list[str]:
    """Draw `m` of `ids` without replacement; each set of m is equally likely. Return them in the order of `ids`.

    If m is at least the number of ids, return all. (Floyd's algorithm: m draws, for any number of ids.)
    """
    n = len(ids)
    if m >= n:
        return list(ids)
    picks: dict[int, None] = {}
    for last, u in enumerate(rng.random(max(m, 0)).tolist(), n - m):
        pick = int(u * (last + 1))
        picks[last if pick in picks else pick] = None
    return [ids[k] for k in sorted(picks)]


def fitting(rng: np.random.Generator, ids: Sequence[str], sizes: Sequence[int], limit: int, most: int) -> list[str]:
    """Return the `ids`, in their order, that together fit into `limit`. They are tried in a random order.

    Args:
        sizes: the size of each, 0 or more.
        limit: the total size.
        most: maximum number of ids.
    """
    taken: set[int] = set()
    for place in rng.permutation(len(ids)).tolist():
        if sizes[place] <= limit and len(taken) < most:
            limit -= sizes[place]
            taken.add(place)
    return [ids[place] for place in sorted(taken)]


def probabilities(similarities: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    """Return softmax(tau * s) (eq. 4) over the peers with a known similarity (not 0).

    Every other peer has a floor of 1e-6, and so has a known one with a lower softmax value. A peer with negative
    similarity (only cosines can be negative) has almost none. The paper mentions neither. Without a floor, nodes whose
    first peers all belong to other clusters can stay with them. With the same floor for negative similarities some do,
    and the mean error of the cosine rows with FedAvg rises above 11 (measured on the synthetic problem, 15 seeds).

    Args:
        similarities: shape [K]; 0 is unknown.
        tau: inverse temperature, finite: 0 is uniform over the known ones; a higher value favours the greatest.

    Returns:
        shape [K], greater than 0, summing to 1.
    """
    result = np.empty(len(similarities))
    result.fill(FLOOR)
    known = np.flatnonzero(similarities)
    if len(known):
        values = similarities[known]
        logits = tau * values
        weights = np.exp(logits - logits.max())
        least = FLOOR if values.min() > 0 else np.where(values > 0, FLOOR, LEAST)
        result[known] = np.maximum(weights / weights.sum(), least)
    return np.asarray(result / result.sum())


def sample(rng: np.random.Generator, ids: Sequence[str], p: NDArray[np.float64], m: int) -> list[str]:
    """Draw `m` of `ids` without replacement with probabilities `p`, all above 0. Return them in the order of `ids`.

    The draws are those of NumPy's `rng.choice`, whose checks and sorting take four times as long.
    """
    if m >= len(ids):
        return list(ids)
    left = p.copy()
    picks: list[int] = []
    while len(picks) < m:
        cumulated = left.cumsum()
        cumulated /= cumulated[-1]
        drawn = cumulated.searchsorted(rng.random(m - len(picks)), side="right")
        picks += dict.fromkeys(drawn.tolist())  # a peer drawn twice counts once
        left[picks] = 0.0
    return [ids[k] for k in sorted(picks)]


def fedavg(samples: Mapping[str, float]) -> dict[str, float]:
    """Return weights n_j / sum n, by the number of training samples (McMahan et al. 2017; eq. 3 of Listo Zec et al.).

    Args:
        samples: training samples by id, including the own id.
    """
    total = sum(samples.values())
    if not total:
        return dict.fromkeys(samples, 1 / len(samples))
    return {name: n / total for name, n in samples.items()}


def fedsim(me: str, similarities: Mapping[str, float]) -> dict[str, float]:
    """Return weights by similarity; the own weight equals the greatest of them (FedSim, eq. 7 of Listo Zec et al.).

    Args:
        me: the own id.
        similarities: by peer, without the own id. Negative ones count as 0. If all are 0, only the own model counts.
    """
    clipped = {name: max(value, 0.0) for name, value in similarities.items()}
    own = max(clipped.values(), default=0.0)
    if own == 0.0:
        return {me: 1.0} | dict.fromkeys(clipped, 0.0)
    total = own + sum(clipped.values())
    return {me: own / total} | {name: value / total for name, value in clipped.items()}
