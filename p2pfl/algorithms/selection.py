"""Selection of peers, uniform or by similarity (DAC, section 2.1), and the weights of their models in a mean.

Weights are by peer, own included, with the sum 1; `weighted_mean` computes the mean itself. `uniform`, `fedavg` and
`fedsim` have a form for the nodes of a cohort (p2pfl.cohort), which gives the results of single nodes, bit for bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.cohort import Counts, Floats, GeneratorsOfEach, IdsOfEach, WeightsOfEach, of_each
from p2pfl.parameters import plain_sum

FLOOR = 1e-6  # the lowest probability of a peer without a negative similarity, so that it can still be met
PART = 2**20  # entries of rows that are drawn from together
LEAST = 1e-30  # that of a peer with a negative similarity: enough to be drawn if no other is left


def _uniform_of_each(rng: GeneratorsOfEach, ids: IdsOfEach, m: int | Counts) -> IdsOfEach:
    """Draw as `uniform` does; `m` is common to all nodes, or of each."""
    most = np.minimum(np.maximum(m, 0), ids.counts)
    drawing = most < ids.counts
    if not drawing.any():
        return ids
    nodes = np.flatnonzero(drawing)
    counts, draws = ids.counts[nodes], most[nodes]
    lasts = counts - draws + np.arange(draws.max())[:, None]  # [m, N]
    found = (rng.random(draws)[nodes, : len(lasts)].T * (lasts + 1)).astype(np.int64)
    for k in range(1, len(found)):
        np.copyto(found[k], lasts[k], where=(found[:k] == found[k]).any(0))
    picks = np.where(lasts < counts, found, counts).T  # a node with fewer draws has no more
    picks.sort(axis=1)
    drawn = (picks + ids.starts[nodes, None])[picks < counts[:, None]]
    if len(nodes) == len(ids.counts):
        return IdsOfEach.of_counts(most, ids.peers[drawn])
    places = np.concatenate([drawn, np.flatnonzero(~drawing[ids.rows])])
    places.sort()
    return IdsOfEach.of_counts(most, ids.peers[places])


@of_each(_uniform_of_each)
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


def drawn_fragments(
    rng: Callable[[str], np.random.Generator], me: str, ids: Sequence[str], names: Sequence[str], receivers: int
) -> dict[str, list[str]]:
    """Return which fragments of which nodes a node receives if each node sends each of its fragments to some others.

    The nodes stand in a ring, in the order of their names. For each fragment, distances from 1 to n - 1 are drawn, the
    same for all nodes: each node sends its fragment to the nodes at these distances after it. So the receivers of a node
    are drawn uniformly from the others, without replacement, each node receives as many fragments as it sends, and every
    node knows what it receives without a message and without looking at the other nodes.

    Args:
        rng: generators by purpose, common to all nodes in this round.
        ids: the other nodes, sorted. Nodes that know different ones fetch other fragments, which does no harm.
        names: names of the fragments.
        receivers: J, to how many nodes a node sends each fragment; at most all others.

    Returns:
        Names of fragments by id, both in order.
    """
    place, others = bisect_left(ids, me), len(ids)
    wanted: dict[str, list[str]] = {}
    for name in names:
        for distance in map(int, uniform(rng(f"fragment {name}"), range(1, others + 1), receivers)):  # type: ignore[arg-type]
            sender = (place - distance) % (others + 1)  # in the ring, where this node is at `place`
            wanted.setdefault(ids[sender - (sender > place)], []).append(name)
    return {id: wanted[id] for id in sorted(wanted)}


def _present_of_each(ids: IdsOfEach | Sequence[str], there: IdsOfEach) -> IdsOfEach:
    if isinstance(ids, IdsOfEach):
        return ids  # no node of a cohort is ever absent
    return there.where(np.zeros(len(there.peers), bool))  # nobody, as a policy has it before it selects


@of_each(_present_of_each)
def present(ids: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the ids that are also in `there`, in the order of `ids`."""
    found = set(there)
    return [id for id in ids if id in found]


def _number_of_each(ids: IdsOfEach) -> Counts:
    return ids.counts


@of_each(_number_of_each)
def number(ids: Sequence[str]) -> int:
    """Return the number of ids."""
    return len(ids)


def fitting(rng: np.random.Generator, ids: Sequence[str], sizes: Sequence[int], limit: int, most: int) -> list[str]:
    """Return the `ids`, in their order, that together fit into `limit`. They are tried in a random order.

    Args:
        sizes: the size of each, 0 or more.
        limit: the total size.
        most: maximum number of ids.
    """
    taken: set[int] = set()
    for place in rng.permutation(len(ids)).tolist():
        if len(taken) >= most:
            break
        if sizes[place] <= limit:
            limit -= sizes[place]
            taken.add(place)
    return [ids[place] for place in sorted(taken)]


def _probabilities_of_each(similarities: WeightsOfEach, tau: float) -> WeightsOfEach:
    """Return probabilities as `probabilities` does."""
    ids, values = similarities.ids, similarities.others
    found = np.full(len(values), FLOOR)
    known, counts = np.flatnonzero(values), ids.counts
    if len(known) < len(values):
        counts = np.bincount(ids.rows[known], minlength=len(counts))
    given, rows = values[known], np.repeat(np.arange(len(counts)), counts)
    logits, starts = tau * given, np.cumsum(counts) - counts
    greatest = np.maximum.reduceat(logits, starts[counts > 0]) if len(known) else logits
    weights = np.exp(logits - np.repeat(greatest, counts[counts > 0]))
    shares = weights / _row_sums(weights, rows, counts)[rows]
    found[known] = np.maximum(shares, np.where(given > 0, FLOOR, LEAST))
    return WeightsOfEach(ids, found / _row_sums(found, ids.rows, ids.counts)[ids.rows], similarities.own)


def _row_sums(values: Floats, rows: Counts, counts: Counts) -> Floats:
    """Return the sum of each row of `values`, with the bits of `values[row].sum()`; 0 for an empty row.

    NumPy adds the values of an array by parts, and the sum to 0. `reduceat` adds them to the first value of the row, which
    therefore is a 0 here.

    Args:
        rows: the row of each value, ascending.
        counts: lengths of the rows.
    """
    spaced = np.zeros(len(values) + len(counts))
    spaced[np.arange(1, len(values) + 1) + rows] = values
    sums: Floats = np.add.reduceat(spaced, np.cumsum(counts) - counts + np.arange(len(counts)))
    return sums


@of_each(_probabilities_of_each)
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


def _sample_of_each(rng: GeneratorsOfEach, ids: IdsOfEach, p: WeightsOfEach, m: int | Counts) -> IdsOfEach:
    """Draw as `sample` does; `m` is common to all nodes, or of each."""
    most = np.minimum(np.maximum(m, 0), ids.counts)
    chosen = (most == ids.counts)[ids.rows]
    left = p.others.copy()
    used, wanted = np.zeros(len(most), np.int64), np.where(most < ids.counts, most, 0)
    rng.random(2 * wanted)  # because most nodes draw a peer twice
    while len(drawing := np.flatnonzero(wanted)):
        u = rng.random(used + wanted)
        for part in _parts_alike(ids.counts[drawing]):
            nodes = drawing[part]
            cumulated = left[ids.starts[nodes, None] + np.arange(ids.counts[nodes[0]])].cumsum(1)
            cumulated /= cumulated[:, -1:].copy()
            for k in range(int(wanted[nodes].max())):
                rows = np.flatnonzero(wanted[nodes] > k)
                at = nodes[rows]
                of = cumulated if len(rows) == len(nodes) else cumulated[rows]
                picks = (of > u[at, used[at] + k, None]).argmax(1)  # the first of them, as in `searchsorted`
                chosen[ids.starts[at] + picks] = True  # a peer drawn twice counts once
        used += wanted
        left[chosen] = 0.0
        wanted = most - np.bincount(ids.rows[chosen], minlength=len(most))
    return ids.where(chosen)


def _parts_alike(counts: Counts) -> Iterator[Counts]:
    """Yield the places of equal counts; no more together than have PART entries."""
    if (counts == counts[0]).all() and len(counts) * counts[0] <= PART:
        yield np.arange(len(counts))
        return
    for count in np.unique(counts).tolist():
        places = np.flatnonzero(counts == count)
        yield from np.array_split(places, -(-len(places) * count // PART))


@of_each(_sample_of_each)
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


def _fedavg_of_each(samples: WeightsOfEach) -> WeightsOfEach:
    ids = samples.ids
    totals = samples.own + ids.sums(samples.others)
    if not totals.all():
        alone = totals == 0
        own = np.where(alone, 1, samples.own)
        others = np.where(alone[ids.rows], 1, samples.others)
        return _fedavg_of_each(WeightsOfEach(ids, others, own))
    return WeightsOfEach(ids, samples.others / totals[ids.rows], samples.own / totals)


@of_each(_fedavg_of_each)
def fedavg(samples: Mapping[str, float]) -> dict[str, float]:
    """Return weights n_j / sum n, by the number of training samples (McMahan et al. 2017; eq. 3 of Listo Zec et al.).

    Args:
        samples: training samples by id, including the own id.
    """
    total = plain_sum(samples.values())
    if not total:
        return dict.fromkeys(samples, 1 / len(samples))
    return {name: n / total for name, n in samples.items()}


def _fedsim_of_each(me: str, similarities: WeightsOfEach) -> WeightsOfEach:
    """Return weights as `fedsim` does; the own numbers are not used."""
    ids = similarities.ids
    clipped = np.maximum(similarities.others, 0.0)
    own = ids.maxima(clipped, 0.0)
    totals = own + ids.sums(clipped)
    alone = own == 0.0
    totals[alone] = 1.0
    return WeightsOfEach(ids, clipped / totals[ids.rows], np.where(alone, 1.0, own / totals))


@of_each(_fedsim_of_each)
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
    total = plain_sum(clipped.values()) + own
    return {me: own / total} | {name: value / total for name, value in clipped.items()}
