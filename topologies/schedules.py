"""Graphs by round: named rules that give every round its own graph, with the weights of the graph.

Theory of operation
-------------------

A static graph has a price: the more neighbours a node has, the faster models mix, and the more bytes it sends. A rule that
changes the graph in each round mixes as fast as a dense graph at the bytes of a sparse one, because a model goes another
way in each round. `SCHEDULES` has such rules by name. Each makes a `GraphSchedule` from (number of nodes, seed, options).

No message is needed. A rule is a pure function of (n, seed, round): node i of a round is the i-th of the sorted members, a
draw derives from (seed, round, "topology"), and no draw depends on an earlier one. Nodes that know the same members
therefore compute the same graph, whenever they ask and in whatever order. When a member comes or goes, all who know of it
compute the graphs of the new members from the next round on. Until all do, some nodes use a graph of the old members for a
round or so; each still averages with weights of sum 1, but the mean of all models may move a little.

A `RoundGraph` is one round. Row i has the sources of node i, from which it fetches, and their weights; node i keeps the
rest of 1 for its own model. The weights belong to the graph: with others, a Base-(k+1) graph does not reach consensus in
its number of rounds. In most rules each column also has the sum 1 (doubly stochastic), so that the mean of all models
stays. The exceptions are `epidemic` draws, and directed graphs from a file.

Cost: a round of n nodes with degree k is computed for all of them at once in O(n k), as arrays, and kept while it may be
needed again. Rules whose sources follow from the number of a node (`Circle`, `hypercube`) also give the row of a single
node in O(k). Nothing looks at all pairs.

How a Base-(k+1) graph reaches consensus (`_simple_base`). Nodes whose number is a product of factors up to k + 1 are
averaged exactly in one round per factor: their numbers have one digit per factor, and round l averages those that differ in
digit l alone (`_digit_groups`, the k-peer hyper-hypercube). Any other n is a sum of such numbers, its digits in base k + 1:
n = a_1 (k+1)^p_1 + ... + a_L (k+1)^p_L. The nodes form blocks of these sizes, and each block first averages itself. Let R be
the number of nodes in all blocks but the first, which is less than (k+1)^p_1. Each of the R nodes exchanges with one node of
each of the a_1 parts of the first block. With the weight |V_1| / (a_1 n) this moves the mean of each part, and that of
the other blocks, to the mean of all nodes. The parts average themselves in p_1 rounds, and meanwhile the other blocks do the
same among themselves. Together these are at most 2 log_{k+1}(n) + 2 rounds.

What must never be:

- A draw from a generator that another draw has advanced, or one that depends on which nodes ask.
- A row whose weights have another sum than 1, or a source twice in a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.random_streams import federation_streams
from p2pfl.topologies import rings

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST_KEPT = 64  # rounds of a rule that are kept
PURPOSE = "topology"  # of the draws


class Row(NamedTuple):
    """Sources of one node in one round, ascending, and the weights of their models; int64 [k], float64 [k]."""

    sources: Ints
    weights: Floats


@dataclass(frozen=True)
class RoundGraph:
    """Graph of one round: from whom each of n nodes fetches, and with which weights it averages.

    Attributes:
        starts: place of each node's first source, and the number of all; int64 [n + 1].
        sources: numbers of the sources, ascending for each node, never the node itself; int64 [E].
        weights: weights of their models; float64 [E].
    """

    starts: Ints
    sources: Ints
    weights: Floats

    @classmethod
    def of_edges(cls, n: int, edges: Sequence[Edges]) -> RoundGraph:
        """Return the graph of n nodes with the given edges, in any order."""
        if not edges:
            return cls(np.zeros(n + 1, np.int64), np.empty(0, np.int64), np.empty(0))
        to, source = (np.concatenate([getattr(each, end) for each in edges]) for end in ("to", "source"))
        weights = np.concatenate([np.full(len(each.to), each.weight) for each in edges])
        if n <= 2**16:  # NumPy sorts such numbers by their digits, many times faster
            order = source.astype(np.uint16).argsort(kind="stable")
            order = order[to[order].astype(np.uint16).argsort(kind="stable")]
        else:
            order = (to * n + source).argsort()
        starts = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=n))])
        return cls(starts, source[order], weights[order])

    @cached_property
    def rows(self) -> Ints:
        """The node to which each source belongs; int64 [E]."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @cached_property
    def own(self) -> Floats:
        """Weight of each node's own model; float64 [n]."""
        sums: Floats = np.bincount(self.rows, self.weights, len(self.starts) - 1)  # type: ignore[assignment]
        return 1 - sums

    @property
    def degree(self) -> int:
        """Greatest number of sources of a node."""
        return int(np.diff(self.starts).max(initial=0))

    def row(self, node: int) -> Row:
        """Return the sources of one node."""
        here = slice(self.starts[node], self.starts[node + 1])
        return Row(self.sources[here], self.weights[here])

    def mix(self, values: Floats, transposed: bool = False) -> Floats:
        """Return the averages of all nodes' values, [n] or [n, D]; `transposed` applies the transposed matrix."""
        to, source = (self.sources, self.rows) if transposed else (self.rows, self.sources)
        columns = values.reshape(len(values), -1).T
        found = [np.bincount(to, self.weights * column[source], len(values)) + self.own * column for column in columns]
        return np.stack(found, axis=1).reshape(values.shape)


class Edges(NamedTuple):
    """Edges of one kind: `to` fetches from `source` with a weight; int64 [E], int64 [E], one weight or float64 [E]."""

    to: Ints
    source: Ints
    weight: float | Floats


class GraphSchedule(ABC):
    """Rule that gives the graph of each round.

    Args:
        n: number of nodes.
        seed: seed of the draws.

    Attributes:
        name: name of the rule in SCHEDULES.
        period: number of rounds after which the graphs repeat; 0 if each round is drawn anew.
        directed: whether a node may fetch from a node that does not fetch from it.
        doubly_stochastic: whether the mean of all models stays.
    """

    name: str = ""
    period: int = 0
    directed: bool = False
    doubly_stochastic: bool = True

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.seed = seed
        self._kept: OrderedDict[int, RoundGraph] = OrderedDict()

    def phase(self, round: int) -> int:
        """Return the number of a round, from 1, within the period from 0; without a period, the round itself."""
        return (round - 1) % self.period if self.period else round

    def graph(self, round: int) -> RoundGraph:
        """Return the graph of a round, from 1."""
        phase = self.phase(round)
        found = self._kept.get(phase)
        if found is None:
            found = self._kept[phase] = RoundGraph.of_edges(self.n, self._edges(phase) if self.n > 1 else [])
            while len(self._kept) > (MOST_KEPT if self.period else 4):
                self._kept.popitem(last=False)
        return found

    def row(self, round: int, node: int) -> Row:
        """Return the sources of one node in a round."""
        return self.graph(round).row(node)

    @abstractmethod
    def _edges(self, phase: int) -> Sequence[Edges]:
        """Return the edges of a round, of at least two nodes."""

    def _rng(self, phase: int) -> np.random.Generator:
        return federation_streams(self.seed).generator(phase, PURPOSE)


class Groups(GraphSchedule):
    """Rule with a period, whose rounds are lists of edges made in advance."""

    def __init__(self, n: int, seed: int, rounds: Sequence[Sequence[Edges]], directed: bool = False) -> None:
        super().__init__(n, seed)
        self._rounds = rounds
        self.period = max(1, len(rounds))
        self.directed = directed

    def _edges(self, phase: int) -> Sequence[Edges]:
        return self._rounds[phase] if self._rounds else []


class Listed(GraphSchedule):
    """Graphs from a file or of NetworkX, one for each round, which then repeat, with Metropolis-Hastings weights.

    The weights are those of p2pfl.topologies.graph_properties.mixing_matrix: s / (m + max(a, b)), where s is the weight of
    the edge, a and b are the sums of the weights at its ends, and m is the greatest weight of the round. In directed graphs
    a node knows only the sum of its own edges.

    Args:
        rounds: for each round `to`, `source` and the weights of the edges; an undirected edge is in it both ways.
    """

    def __init__(self, n: int, rounds: Sequence[tuple[Ints, Ints, Floats]], directed: bool) -> None:
        super().__init__(n, 0)
        self.period = len(rounds)
        self.directed, self.doubly_stochastic = directed, not directed
        self._rounds = rounds

    def _edges(self, phase: int) -> Sequence[Edges]:
        to, source, weights = self._rounds[phase]
        if not len(to):
            return []
        sums = np.bincount(to, weights, self.n)
        others = sums[to] if self.directed else np.maximum(sums[to], sums[source])
        return [Edges(to, source, weights / (weights.max() + others))]


class Circle(GraphSchedule):
    """Rule in which node i fetches from the nodes i + s on the circle of all nodes, with equal weights.

    Args:
        steps: returns the steps s of a round, from 1 to n - 1, and the weight of each source.
    """

    directed = True

    def __init__(self, n: int, seed: int, steps: Callable[[int], tuple[Ints, float]], period: int) -> None:
        super().__init__(n, seed)
        self.period = period
        self._steps = steps

    def row(self, round: int, node: int) -> Row:
        steps, weight = self._steps(self.phase(round)) if self.n > 1 else (np.empty(0, np.int64), 0.0)
        return Row(np.sort((node + steps) % self.n), np.full(len(steps), weight))

    def _edges(self, phase: int) -> Sequence[Edges]:
        steps, weight = self._steps(phase)
        nodes = np.arange(self.n)
        return [Edges(nodes, (nodes + step) % self.n, weight) for step in steps.tolist()]


def one_peer_exponential(n: int, seed: int) -> GraphSchedule:
    """Let every node fetch from one node, 1, 2, 4, ... places further in the circle of all nodes in successive rounds.

    Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021. For a power of 2
    all nodes agree after one period of log2(n) rounds; for another n they never agree exactly. The graph is directed.
    """
    powers = 2 ** np.arange(_log2(n))
    return Circle(n, seed, lambda phase: (powers[phase : phase + 1], 0.5), max(1, len(powers)))


def exponential(n: int, seed: int) -> GraphSchedule:
    """Let every node fetch from the nodes 1, 2, 4, ... places further in the circle of all nodes, in every round.

    The static exponential graph (Ying et al. 2021), with log2(n) sources of equal weights. The graph is directed.
    """
    powers = 2 ** np.arange(_log2(n))
    return Circle(n, seed, lambda phase: (powers, 1 / (len(powers) + 1)), 1)


class Hypercube(GraphSchedule):
    """See `hypercube`."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed)
        self.period = max(1, _log2(n))

    def row(self, round: int, node: int) -> Row:
        partner = [node ^ 1 << self.phase(round)] if self.n > 1 else []
        return Row(np.array(partner, np.int64), np.full(len(partner), 0.5))

    def _edges(self, phase: int) -> Sequence[Edges]:
        nodes = np.arange(self.n)
        return [Edges(nodes, nodes ^ 1 << phase, 0.5)]


def hypercube(n: int, seed: int) -> GraphSchedule:
    """Let pairs of nodes average whose numbers differ in one binary digit, another digit in each round.

    The number of nodes must be a power of 2; all nodes agree after one period of log2(n) rounds. The rule `base-k` with
    degree 1 is this graph for a power of 2, and reaches agreement for any other number of nodes, too.
    """
    if n & (n - 1) or n < 1:
        raise ValueError(
            f"a hypercube needs a power of 2 as its number of nodes, such as {1 << max(n, 1).bit_length()}, got {n};"
            " base-k with degree = 1 takes any number"
        )
    return Hypercube(n, seed)


def base_k(n: int, seed: int, *, degree: int = 1) -> GraphSchedule:
    """Let all nodes agree exactly after a few rounds with at most `degree` neighbours each, for any number of nodes.

    The Base-(k+1) graph of Takezawa et al., "Beyond exponential graph: communication-efficient topologies for decentralized
    learning via finite-time convergence", NeurIPS 2023. One period has at most 2 log_{k+1}(n) + 2 rounds. It is undirected.

    Args:
        degree: k, maximum number of neighbours of a node in a round.
    """
    _check_degree(degree)
    return Groups(n, seed, _base(n, degree))


def simple_base_k(n: int, seed: int, *, degree: int = 1) -> GraphSchedule:
    """Let all nodes agree exactly after a few rounds, as `base-k` does; the period is often longer.

    The Simple Base-(k+1) graph of Takezawa et al. (NeurIPS 2023), of which the Base-(k+1) graph is made.

    Args:
        degree: k, maximum number of neighbours of a node in a round.
    """
    _check_degree(degree)
    return Groups(n, seed, _simple_base(n, degree))


class Matching(GraphSchedule):
    """See `random_matching`."""

    def _edges(self, phase: int) -> Sequence[Edges]:
        order = self._rng(phase).permutation(self.n)
        half = self.n // 2
        return _both_ways(order[:half], order[half : 2 * half], 0.5)


def random_matching(n: int, seed: int) -> GraphSchedule:
    """Let random pairs of nodes average, other ones in each round. With an odd number of nodes one is left alone."""
    return Matching(n, seed)


class Permutation(GraphSchedule):
    """See `random_permutation`."""

    directed = True

    def __init__(self, n: int, seed: int, degree: int) -> None:
        super().__init__(n, seed)
        self._degree = min(degree, n - 1)

    def _edges(self, phase: int) -> Sequence[Edges]:
        order = self._rng(phase).permutation(self.n)
        weight = 1 / (self._degree + 1)
        return [Edges(order, np.roll(order, -step), weight) for step in range(1, self._degree + 1)]


def random_permutation(n: int, seed: int, *, degree: int = 1) -> GraphSchedule:
    """Let every node fetch from the next nodes in a random circle of all nodes, another one in each round.

    The graph is directed; every node fetches from `degree` nodes, and as many fetch from it.

    Args:
        degree: number of sources of a node; a node with fewer peers takes all.
    """
    _check_degree(degree)
    return Permutation(n, seed, degree)


def d_equistatic(n: int, seed: int, *, degree: int = 0) -> GraphSchedule:
    """Let every node fetch from the nodes that are a few random numbers of places further in the circle, in every round.

    D-EquiStatic of Song et al., "Communication-efficient topologies for decentralized learning with O(1) consensus rate",
    NeurIPS 2022. The steps are drawn without replacement, so that every node has `degree` sources. The graph is directed.

    Args:
        degree: M, number of sources of a node; 0 for log2(n), rounded up. A node with fewer peers takes all.
    """
    _check_degree(degree, 0)
    most = min(degree or _log2(n), n - 1)
    steps = np.sort(federation_streams(seed).generator(0, PURPOSE).permutation(n - 1)[:most] + 1)
    return Circle(n, seed, lambda phase: (steps, (n - 1) / (n * most)), 1)


def od_equidyn(n: int, seed: int, *, eta: float = 0.5) -> GraphSchedule:
    """Let every node fetch from one node, a random number of places further in the circle, another one in each round.

    OD-EquiDyn of Song et al. (NeurIPS 2022), over all steps. The expected square of the distance from the mean falls at
    least by the factor 1 - 2 eta (1 - eta) in each round, whatever n is. The graph is directed.

    Args:
        eta: weight of the mixing, above 0 and below 1; a source has the weight eta (n - 1) / n.
    """
    _check_eta(eta)

    def steps(phase: int) -> tuple[Ints, float]:
        drawn = federation_streams(seed).generator(phase, PURPOSE).integers(1, n)
        return np.array([drawn]), eta * (n - 1) / n

    return Circle(n, seed, steps, 0)


class EquiPairs(GraphSchedule):
    """See `ou_equidyn`."""

    def __init__(self, n: int, seed: int, eta: float) -> None:
        super().__init__(n, seed)
        self._eta = eta

    def _edges(self, phase: int) -> Sequence[Edges]:
        n, rng = self.n, self._rng(phase)
        step, first = int(rng.integers(1, n)), int(rng.integers(n))
        step = min(step, n - step)  # both make the same circles
        # in the order from `first`, each node takes the one `step` places further, if both are free
        offsets = np.arange(n - step)
        offsets = offsets[offsets // step % 2 == 0]
        return _both_ways((first + offsets) % n, (first + offsets + step) % n, self._eta * (n - 1) / n)


def ou_equidyn(n: int, seed: int, *, eta: float = 0.5) -> GraphSchedule:
    """Let pairs of nodes average that are a random number of places apart in the circle, another number in each round.

    OU-EquiDyn of Song et al. (NeurIPS 2022), over all steps. The expected square of the distance from the mean falls at
    least by the factor 1 - 4/3 eta (1 - eta) in each round, whatever n is. Up to a third of the nodes are left alone.

    Args:
        eta: weight of the mixing, above 0 and below 1; a partner has the weight eta (n - 1) / n.
    """
    _check_eta(eta)
    return EquiPairs(n, seed, eta)


class Epidemic(GraphSchedule):
    """See `epidemic`."""

    directed = True
    doubly_stochastic = False

    def __init__(self, n: int, seed: int, degree: int) -> None:
        super().__init__(n, seed)
        self._degree = min(degree or _log2(n), n - 1)

    def _edges(self, phase: int) -> Sequence[Edges]:
        n, k = self.n, self._degree
        draws = self._rng(phase).random((k, n))
        receivers = np.empty((k, n), np.int32)
        for place, last in enumerate(range(n - 1 - k, n - 1)):  # Floyd: each set of k of n - 1 is equally likely
            pick = (draws[place] * (last + 1)).astype(np.int32)
            receivers[place] = np.where((receivers[:place] == pick).any(0), last, pick)
        nodes = np.arange(n)
        to = (receivers + (receivers >= nodes)).ravel().astype(np.int64)  # all others but the sender
        return [Edges(to, np.tile(nodes, k), 1 / (1 + np.bincount(to, minlength=n)[to]))]


def epidemic(n: int, seed: int, *, degree: int = 0) -> GraphSchedule:
    """Let every node send its model to a few random nodes, others in each round; who gets several takes their mean.

    EL-Local of de Vos et al., "Epidemic learning: boosting decentralized learning with randomized communication",
    NeurIPS 2023. A node that d nodes have drawn gives each model the weight 1 / (1 + d). The mean of all models moves.

    Args:
        degree: number of receivers that a node draws; 0 for log2(n), rounded up. A node with fewer peers takes all.
    """
    _check_degree(degree, 0)
    return Epidemic(n, seed, degree)


class ChangingRings(GraphSchedule):
    """See `changing_rings`."""

    def __init__(self, n: int, seed: int, degree: int) -> None:
        super().__init__(n, seed)
        rings.check_degree(degree)
        self._degree = degree
        self._tokens = rings.numbered(n)

    def _edges(self, phase: int) -> Sequence[Edges]:
        low, high = rings.ring_links(rings.ring_orders(self.seed, self._degree, self._tokens, phase))
        return _both_ways(low, high, 1 / (self._degree + 1))


def changing_rings(n: int, seed: int, *, degree: int = rings.DEGREE) -> GraphSchedule:
    """Let every node average with the nodes before and after it on several random rings, other rings in each round.

    In a federation of many members these are the peers from which a policy selects in a round; see
    p2pfl.topologies.rings. The model of each neighbour has the weight 1 / (degree + 1).

    Args:
        degree: maximum number of neighbours of a node in a round, two for each ring; even, from 2 to 64.
    """
    return ChangingRings(n, seed, degree)


SCHEDULES: dict[str, Callable[..., GraphSchedule]] = {
    "base-k": base_k,
    "simple-base-k": simple_base_k,
    "one-peer-exponential": one_peer_exponential,
    "exponential": exponential,
    "hypercube": hypercube,
    "random-matching": random_matching,
    "random-permutation": random_permutation,
    "d-equistatic": d_equistatic,
    "od-equidyn": od_equidyn,
    "ou-equidyn": ou_equidyn,
    "epidemic": epidemic,
    "changing-rings": changing_rings,
}
"""Rules by name: functions of (number of nodes, seed, options)."""


def make_schedule(name: str, n: int, seed: int, **options: Any) -> GraphSchedule:
    """Return the rule called `name` for n nodes.

    Raises:
        KeyError: no rule has that name.
        ValueError: the rule does not exist for these options.
    """
    schedule = SCHEDULES[name](n, seed, **options)
    schedule.name = name
    return schedule


class GraphByRound(Protocol):
    """Graph of each round, as a running node sees it."""

    def row(self, name: str, round: int) -> Mapping[str, float]:
        """Return the sources of a node in a round, sorted, and the weights of their models."""

    async def enter(self, round: int) -> None:
        """Prepare what the node needs to fetch in a round."""


class NamedSchedule:
    """Graphs by round of named nodes, whose numbers are their places in the order of their names.

    Args:
        make: returns the rule for a number of nodes.
        names: of the nodes, in any order.
    """

    def __init__(self, make: Callable[[int], GraphSchedule], names: Sequence[str]) -> None:
        self._make = make
        self.change(names)

    def change(self, names: Sequence[str]) -> None:
        """Replace the nodes, because some have come or gone."""
        if (ordered := tuple(sorted(names))) == getattr(self, "names", None):
            return
        self.names = ordered
        self._places = {name: place for place, name in enumerate(self.names)}
        self.schedule = self._make(max(1, len(self.names)))

    def row(self, name: str, round: int) -> Mapping[str, float]:
        """Return the sources of a node in a round, sorted, and the weights of their models.

        A node that is none of the names, because it only observes, has the sources of the next one in the order of names.
        """
        place = self._places.get(name)
        if place is None:
            place = sum(each < name for each in self.names) % len(self.names) if self.names else 0
        if not self.names:
            return {}
        sources, weights = self.schedule.row(round, place)
        return {self.names[k]: weight for k, weight in zip(sources.tolist(), weights.tolist(), strict=True)}

    async def enter(self, round: int) -> None:
        """Do nothing: the links of all rounds are there."""


def all_sources(schedule: GraphSchedule, rounds: int) -> tuple[Ints, Ints]:
    """Return the sources of each node in any of the rounds 1 to `rounds`, as `starts` [n + 1] and `sources` [E]."""
    n, found = schedule.n, np.empty(0, np.int64)
    for round in range(1, min(rounds, schedule.period or rounds) + 1):
        graph = schedule.graph(round)
        found = np.union1d(found, graph.rows * n + graph.sources)
    to, sources = np.divmod(found, n)
    return np.concatenate([[0], np.cumsum(np.bincount(to, minlength=n))]), sources


# Base-(k+1) graphs


def _base(n: int, k: int) -> list[list[Edges]]:
    """Return the rounds of the Base-(k+1) graph.

    n is p times q, where all prime factors of p, and none of q, are at most k + 1. p copies of a simple graph of q nodes
    run side by side; then nodes with the same place in all copies average. If the simple graph of n nodes is shorter,
    it is taken.
    """
    smooth = prod(prime for prime in _primes(n) if prime <= k + 1)
    rest = n // smooth
    copies = [
        [Edges(_copies(each.to, smooth, rest), _copies(each.source, smooth, rest), each.weight) for each in edges]
        for edges in _simple_base(rest, k)
    ]
    columns = np.arange(n).reshape(smooth, rest)
    rounds = copies + [
        [_all_to_all(np.concatenate([_digit_groups(column, factors, digit) for column in columns.T]))]
        for factors in [_factors(smooth, k + 1)]
        for digit in range(len(factors))
    ]
    simple = _simple_base(n, k)
    return simple if len(simple) < len(rounds) else rounds


def _copies(nodes: Ints, count: int, size: int) -> Ints:
    """Return the nodes of one of `count` copies in all of them, which have `size` nodes each."""
    return (nodes + size * np.arange(count)[:, None]).ravel()


def _simple_base(n: int, k: int) -> list[list[Edges]]:
    """Return the rounds of the Simple Base-(k+1) graph; the head of this module tells why it reaches consensus."""
    if not any(prime > k + 1 for prime in _primes(n)):
        factors = _factors(n, k + 1)
        return [[_all_to_all(_digit_groups(np.arange(n), factors, digit))] for digit in range(len(factors))]
    # parts of each block, [a, (k + 1)^p], and the factors of the block: the last digit of a number tells its part
    parts, rest, first = [], n, 0
    powers = [1]
    while powers[-1] * (k + 1) <= n:
        powers.append(powers[-1] * (k + 1))
    for size in reversed(powers):
        count, rest = divmod(rest, size)
        if count:
            parts.append(np.arange(first, first + count * size).reshape(count, size))
            first += count * size
    exponents = [powers.index(part.shape[1]) for part in parts]
    inner = [[k + 1] * exponent + [len(part)] * (len(part) > 1) for part, exponent in zip(parts, exponents, strict=True)]
    rounds: list[list[Edges]] = []
    for m in range(len(inner[0])):
        active = [(part, factors) for part, factors in zip(parts, inner, strict=True) if factors]
        rounds.append([_all_to_all(_digit_groups(part.ravel(), fs, m % len(fs))) for part, fs in active])
    for m in range(exponents[0] + 1):
        edges: list[Edges] = []
        for turn, (part, exponent) in enumerate(zip(parts, exponents, strict=True)):
            later = np.concatenate([np.empty(0, np.int64), *(each.ravel() for each in parts[turn + 1 :])])
            if m == turn and len(later):  # the later blocks exchange with each part of this one
                weight = part.size / (len(part) * (part.size + len(later)))
                for row in part:
                    edges += _both_ways(later, row[: len(later)], weight)
                edges += _in_groups(part[:, len(later) :].ravel(), k + 1)
            elif m >= turn and exponent:
                digit = (m - turn - bool(len(later))) % exponent
                edges += [_all_to_all(np.concatenate([_digit_groups(row, [k + 1] * exponent, digit) for row in part]))]
        rounds.append(edges)
    return rounds


def _digit_groups(nodes: Ints, factors: Sequence[int], digit: int) -> Ints:
    """Return groups of nodes, [G, factor], whose places differ in one digit alone, if place has a digit per factor."""
    return nodes.reshape(-1, factors[digit], prod(factors[:digit])).swapaxes(1, 2).reshape(-1, factors[digit])


def _in_groups(nodes: Ints, size: int) -> list[Edges]:
    """Return the edges of groups of consecutive nodes that average; the last group may be smaller."""
    whole = len(nodes) // size * size
    groups = [nodes[:whole].reshape(-1, size), nodes[None, whole:]]
    return [_all_to_all(each) for each in groups if each.shape[0] and each.shape[1] > 1]


def _all_to_all(groups: Ints) -> Edges:
    """Return the edges of groups, [G, size], each of which averages."""
    size = groups.shape[1]
    to, source = np.repeat(groups.ravel(), size), np.repeat(groups, size, axis=0).ravel()
    apart = to != source
    return Edges(to[apart], source[apart], 1 / size)


def _both_ways(nodes: Ints, others: Ints, weight: float) -> list[Edges]:
    return [Edges(nodes, others, weight), Edges(others, nodes, weight)]


@cache
def _primes(n: int) -> tuple[int, ...]:
    """Return the prime factors of n, ascending."""
    found, factor = [], 2
    while factor * factor <= n:
        while n % factor == 0:
            found.append(factor)
            n //= factor
        factor += 1
    return tuple([*found, n] if n > 1 else found)


@cache
def _factors(n: int, most: int) -> tuple[int, ...]:
    """Return the fewest factors of n, each from 2 to `most`; n has no prime factor above `most`."""
    if n == 1:
        return ()
    divisors = [d for d in range(min(n, most), 1, -1) if n % d == 0]
    return min(((d, *_factors(n // d, most)) for d in divisors), key=len)


def _log2(n: int) -> int:
    """Return log2(n), rounded up."""
    return (n - 1).bit_length()


def _check_degree(degree: int, least: int = 1) -> None:
    if degree < least:
        raise ValueError(f"degree must be {least} or more, got {degree}")


def _check_eta(eta: float) -> None:
    if not 0 < eta < 1:
        raise ValueError(f"eta must be above 0 and below 1, got {eta}")
