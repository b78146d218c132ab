"""Noise that cancels in the average of a graph: how much of it a privacy budget needs.

Theory of operation
-------------------

Under a privacy budget each node adds noise to its own gradient, and nothing but averages reduces it. Neighbours that share a
secret can do better (DECOR: Allouah, Koloskova, El Firdoussi, Jaggi and Guerraoui, The Privacy Power of Correlated Noise in
Decentralized Learning, ICML 2024). In each step both ends of an edge {i, j} draw the same normal vector v from their secret;
one adds it to its gradient, the other subtracts it. In addition each node adds a little noise of its own. The released
models hide behind both; in the mean of all models the noise of the edges cancels, and only the little noise stays.

What is protected from whom. An observer may see all models that all nodes release, and know everything of `colluding`
members: their data, their own noise, and the secrets that they share with neighbours. It does not know the secrets between
the other members (SecLDP in the paper). All follow the protocol. Privacy by the noise of a node alone (`p2pfl.privacy`)
needs no such assumption: it also holds where all other members collude.

The theorem. Let H be the members that do not collude. In a step each of them releases its clipped gradient plus its noise:
whoever knows the models before and after the step knows these sums, and subtracts the noise of edges to colluding members.
There remains, in each value of the gradient, a normal vector over H with the covariance

    S = own^2 (I + ratio L_H)

where L_H is the Laplacian of the graph among H, `own` the standard deviation of a node's own noise, and `ratio` the variance
of an edge's noise divided by that of the own noise. A sample of node i moves this vector along e_i by at most the clip D.
For a normal vector with a fixed covariance only the length in its metric counts: D sqrt(e_i' S^-1 e_i). The step is
therefore exactly a Gaussian mechanism whose noise has the standard deviation

    own sqrt(gain_i)    with    gain_i = 1 / e_i' (I + ratio L_H)^-1 e_i,

and that is what the accountant composes. `gain_i` counts from 1 (no honest neighbour) to the number of honest members that
paths join to i, which it reaches with a great ratio. (It is the conductance from i to the ground of a network in which each
node is joined to the ground by a resistor of 1, and each edge is one of 1 / ratio. By Rayleigh's monotonicity law each edge
less makes it smaller.)

- Subsampling. Only node i draws whether its sample takes part, apart from all noise. Given all else, one step is a mixture
  of N(m, S) and N(m + d e_i, S), weighted 1 - q and q. S^-1/2 maps it to that of the usual subsampled Gaussian mechanism
  with the noise above, so that the same amplification holds. It would not if the noise depended on who is drawn.
- Adaptivity. A gradient may depend on all that was released before, also on models of the same round: given the
  observations, the noise follows from them by a triangular map of determinant 1, and the ratio of the densities is the same.
- A peer that is away. Each node adds the noise of all its edges, whoever takes part. Who does not release shows less: the
  covariance of those who do is a part of S, and their gain is not smaller. Nobody reveals a secret to repair the sum. The
  noise of its edges stays in the others' models of this round, which costs accuracy and no privacy.
- Which members collude is unknown. `Gains` takes the worst set for each node, over all sets of this size. Where these are
  too many, it takes a bound: by Rayleigh's law it keeps the edges of node i alone, `colluding` of which are known.

How much. Everything is counted in gradients of the mean loss, because that is where the noise of an edge must have the same
size at both ends. Node i needs z_i clip / b_i there (`p2pfl.privacy.noise_for`; b_i is the expected number of samples of a
step), so that own = max_i z_i clip / (b_i sqrt(gain_i)). A great ratio makes `own` small, and with it the noise in the mean
of all models, but what an average with neighbours leaves of the edges' noise disturbs the next step. `choose_ratio`
minimises the variance of the noise in the nodes' models. With mixing weights W, the noise of a step that has been averaged
a times has the covariance W^a S W^a; their sum over the last rounds follows from the eigenvectors of W. (CorN-DSGD, arXiv
2501.14644, chooses a whole covariance from W in this way; here it is a number, so that pairs of secrets suffice.) Later
steps correct the noise of earlier ones, so that only the last MEMORY rounds count. With all 100 rounds of a run of digits on
a torus, the ratio was ten times as great, and the models were worse than with own noise alone.

On a machine
------------

There no node knows all others, members come and go, and any of them may be killed. So each node is protected by what it adds
itself and by what its own neighbours promise, whatever everybody else does. All noise is counted in gradients of the mean
loss. Node j claims (`Offer`)

- s_j: it adds own noise of at least this standard deviation to whatever it releases together with noise of an edge, and
- e_j: so much noise it would have at an edge. Nodes i and j use the smaller one, e_ij = min(e_i, e_j): nobody can make
  another node add more than it wants.

They draw v_ij of a round from a secret that only they know (p2pfl.node.edge_noise), and each of them releases at most one
model with it. Node i decides before each training which neighbours it adds noise with: those of which it has a claim, and
which seem to be present. It then chooses its own noise so that, `colluding` of them left out,

    own_i^2 + sum over j of s_j^2 e_ij^2 / (s_j^2 + e_ij^2)  >=  needed_i^2,       needed_i = z_i clip / b_i,

where the neighbours with the greatest terms are those left out (`own_beside`). It adds s_i at least, as it has claimed.

The theorem. Against an attacker that sees all models that all nodes release, decides who is away and when, and knows
everything of `colluding` members, each step of node i is at least as private as a step of DP-SGD with own noise alone, z_i.

Proof. Let J be the neighbours with which i adds noise and which do not collude; they follow the protocol. Tell the attacker
everything but the draws of node i's samples and own noise, v_ij for j in J, and of the own noise of each j in J a part n_j
with the standard deviation s_j: what j adds beyond it, the noise of its other edges, its gradient and its decisions are then
known, or are made from what is known. Of j the attacker learns u_j = n_j - v_ij if j releases a model with v_ij, and
otherwise nothing of either. Tell it all u_j nevertheless, also those of neighbours that died before their release, and those
of neighbours that used another secret. Given u_j, v_ij is normal with the variance s_j^2 e_ij^2 / (s_j^2 + e_ij^2), and the
v_ij of different j stay independent. So i releases its clipped gradient, moved by a known vector, plus normal noise with at
least the variance above; other sets of colluders leave greater terms. Its own draws of samples are independent of all this,
and amplify as with own noise. Neither n_j nor v_ij is in anything else: both are new in each round. Rounds compose
adaptively, with the same z_i each, so that the ledger counts steps of the noise z_i (p2pfl.node.privacy_ledger).

- On a complete graph of equal nodes the sum is that of the exact gain: no current flows between the neighbours of i, which
  all have the same potential. A run of nodes on machines then adds the noise that a simulation adds. On other graphs the
  bound leaves out the edges beyond the own ones: it is the one that `Gains` takes where there are too many sets.
- Who dies between the training and the release leaves the noise of its edges in the models of others, and so does who
  believes that a neighbour is present which is not. This costs accuracy in this round, and nobody's privacy.
- A node that has no claim yet of a neighbour, or believes that it is away, adds more own noise instead.

What must never be:

- An edge's noise is used twice: it is bound to the round, and each round has one training. On a machine a secret is new
  with each start, and a round that is repeated has no noise of edges.
- A simulated node leaves out the noise of an edge because the peer seems to be away; a node on a machine does so without
  more own noise instead.
- A node claims more own noise than it adds.
- Noise whose size or presence depends on the data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from math import ceil, comb, floor, hypot, log10, sqrt
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD
from p2pfl.privacy import PrivacyPlan
from p2pfl.robust.registry import NONE, Robust
from p2pfl.task import Task
from p2pfl.update_rules import EdgeNoise

Floats = NDArray[np.float64]
Around = Sequence[Sequence[int]]  # the neighbours of each node
MOST_NODES = 2_000  # eigenvectors of larger graphs take too long
MOST_VALUES = 2**22  # of eigenvectors of all sets of members that may collude
RATIOS = (0.0, *(float(f"{10 ** (k / 10):.4g}") for k in range(-20, 41)))  # to choose from
MEMORY = 5  # rounds whose noise counts, because later steps have not corrected it
CLOSE = 1.01  # a smaller ratio is better if its variance is within this factor of the least
UP = 1 + 1e-9  # so that the squares of all parts together are not less than that of the whole, as floats
NO_USE = (
    "noise of edges has no use here, so that nodes add noise of their own alone: too many of a node's neighbours may"
    " collude (privacy.colluding), or averages with neighbours leave too much of it"
)


class Gains:
    """Factors by which edges with noise raise the variance of the noise that protects each node.

    Args:
        around: the neighbours of each node; if j is one of i, i is one of j.
        colluding: number of members that put together what they know.
        bound: whether to take the bound that needs nothing but a node's own edges, in any case.
    """

    def __init__(self, around: Around, colluding: int, *, bound: bool = False) -> None:
        self._n = n = len(around)
        self._degrees = np.array([len(near) for near in around])
        self._colluding = min(colluding, n - 1)
        self._parts: list[tuple[NDArray[np.int64], Floats, Floats]] = []
        self.exact = not bound and comb(n, self._colluding) * (n - self._colluding) ** 2 <= MOST_VALUES
        if not self.exact:
            return
        joined = adjacency(around)
        for known in combinations(range(n), self._colluding):
            honest = np.delete(np.arange(n), known)
            values, vectors = np.linalg.eigh(laplacian(joined[np.ix_(honest, honest)]))
            self._parts.append((honest, np.maximum(values, 0.0), vectors**2))

    def at(self, ratio: float) -> Floats:
        """Return the least gain of each node over all sets of colluding members, or a lower bound of it; float64 [n].

        Args:
            ratio: variance of an edge's noise, divided by that of a node's own noise.
        """
        if not self.exact:
            bound: Floats = 1 + np.maximum(self._degrees - self._colluding, 0) * ratio / (1 + ratio)
            return bound
        found = np.full(self._n, np.inf)
        for honest, values, squares in self._parts:
            found[honest] = np.minimum(found[honest], 1 / (squares @ (1 / (1 + ratio * values))))
        return found


def adjacency(around: Around) -> Floats:
    """Return 1 for each pair of neighbours, else 0; float64 [n, n]."""
    joined = np.zeros((len(around), len(around)))
    for k, near in enumerate(around):
        joined[k, list(near)] = 1
    return joined


def laplacian(joined: Floats) -> Floats:
    """Return the Laplacian of a graph from its adjacency; float64 [n, n]."""
    found: Floats = np.diag(joined.sum(1)) - joined
    return found


class Spread(NamedTuple):
    """Variance of the noise in the nodes' models after an average, by its sources.

    Attributes:
        own: mean over the nodes, for own noise of variance 1 in each step.
        edges: the same for the noise of edges of variance 1.
    """

    own: float
    edges: float


def spread_of(around: Around, mixing: float, rounds: int) -> Spread:
    """Return how noise adds up over rounds of a step and an average with all neighbours.

    Args:
        mixing: factor of the Metropolis weights; see `p2pfl.policy.PlannedTraining`.
        rounds: number of the last rounds whose noise counts, 1 or more.
    """
    joined = adjacency(around)
    degrees = joined.sum(1)
    weights = mixing * joined / (1 + np.maximum(degrees[:, None], degrees[None]))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    values, vectors = np.linalg.eigh(weights)
    squares = np.minimum(values**2, 1.0)
    kept = squares < 1 - 1e-12
    total = np.full(len(values), float(rounds))
    total[kept] = squares[kept] * (1 - squares[kept] ** rounds) / (1 - squares[kept])
    beside = np.einsum("ik,ij,jk->k", vectors, laplacian(joined), vectors, optimize=True)
    return Spread(float(total.mean()), float((total * beside).mean()))


def choose_ratio(gains: Gains, needed: Floats, spread: Spread) -> tuple[float, float]:
    """Return the ratio with the least noise in the nodes' models, and the own noise that it needs.

    Args:
        needed: standard deviation of the noise that each node needs without its neighbours, [n].
    """
    found = []
    for ratio in RATIOS:
        own = float((needed / np.sqrt(gains.at(ratio))).max())
        found.append((own**2 * (spread.own + ratio * spread.edges), ratio, own))
    least = min(variance for variance, _, _ in found)
    _, ratio, own = next(each for each in found if each[0] <= CLOSE * least)
    return ratio, _rounded_up(own)


def _rounded_up(value: float) -> float:
    """Return a number of five digits that is not smaller."""
    unit = 10.0 ** (floor(log10(value)) - 4)
    return float(f"{ceil(value / unit) * unit:.6g}")


def _rounded_down(value: float) -> float:
    """Return a number of three digits that is not greater: few different ones, because each costs the accountant time."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return float(f"{floor(value / unit) * unit:.4g}")


def correlate(
    plans: Sequence[PrivacyPlan],
    expected: Sequence[float],
    names: Sequence[str],
    around: Around,
    mixing: float,
) -> list[PrivacyPlan]:
    """Return the plans of nodes whose neighbours add noise together with them, in place of plans with own noise only.

    Args:
        plans: of all nodes, with equal budgets.
        expected: expected number of samples of each node's steps.
        names: of the nodes.
        around: the neighbours of each node.
        mixing: see `spread_of`.
    """
    budget = plans[0].privacy
    scales = np.array([budget.clip / each for each in expected])
    needed = scales * [plan.mechanism.noise for plan in plans]
    gains = Gains(around, budget.colluding)
    ratio, own = choose_ratio(gains, needed, spread_of(around, mixing, MEMORY))
    if not ratio:
        return list(plans)
    outside = Gains(around, 0).at(ratio)
    found = []
    for k, (plan, gain, most) in enumerate(zip(plans, gains.at(ratio), outside, strict=True)):
        noise, least = own / float(scales[k]), plan.mechanism.noise
        edges = EdgeNoise(tuple(names[j] for j in around[k]), ratio**0.5)
        hidden, seen = (max(least, _rounded_down(noise * float(each) ** 0.5)) for each in (gain, most))
        mechanism = replace(plan.mechanism, noise=noise, edges=edges)
        found.append(plan._replace(mechanism=mechanism, hidden=hidden, outside=seen))
    return found


def check_correlated(
    mixing: Collection[float],
    tasks: Sequence[Task],
    *,
    fixed: bool,
    nodes: int,
    mode: str,
    robust: Robust,
    codec: str,
    limited: bool,
) -> None:
    """Raise ConfigurationError for a run in which noise of edges would not cancel in the mean of all models.

    Args:
        mixing: of the policies of all nodes; see `p2pfl.policy.PlannedTraining`.
        tasks: of the nodes; on a machine its own one.
        fixed: whether the topology has no directions, and is the same in all rounds; on a machine, follows no rule.
        nodes: number of nodes.
        mode, robust, codec: settings of the rounds; of the codec, its name.
        limited: whether a budget limits what nodes receive, or their trainings.
    """
    for fits, key, reason in (
        (
            len(set(mixing)) == 1 and 0 not in mixing,
            "policy",
            "a policy that averages with all neighbours after each step: dsgd with steps = 1, and without"
            ' weights = "uniform" or "graph"',
        ),
        (
            fixed,
            "topology",
            "a topology without directions that does not change from round to round, and on machines all members or a list"
            " of edges",
        ),
        (nodes <= MOST_NODES, "nodes", f"the eigenvectors of the graph, and has at most {MOST_NODES} nodes"),
        (mode == "synchronous", "mode", 'mode = "synchronous"'),
        (robust == NONE, "robust", 'robust = "none": a robust rule changes the weights of the averages'),
        (codec == "float32", "codec", "models that are sent without loss; remove the codec"),
        (not limited, "budget", "nodes that train in every round and average with all neighbours; remove the budget"),
        (not tasks[0].layout.unshared, "task", "a task without private parameters"),
        (
            all(
                isinstance(own := getattr(task, "optimizer", None), SGD) and own == getattr(tasks[0], "optimizer", None)
                for task in tasks
            ),
            "task",
            "the optimiser sgd, the same on all nodes: steps of others are no multiples of the noise",
        ),
    ):
        if not fits:
            raise ConfigurationError(f"correlated noise (privacy.correlated) needs {reason}", "privacy.correlated", key)


# On a machine


class Offer(NamedTuple):
    """Noise that a node claims to add, in gradients of the mean loss; see the head of the module.

    Attributes:
        own: s, the least standard deviation of its own noise in a model with noise of edges.
        edge: e, the greatest standard deviation of the noise of an edge.
    """

    own: float
    edge: float


def needed_of(plan: PrivacyPlan, expected: float) -> float:
    """Return the standard deviation of the noise that a node needs without neighbours, in gradients of the mean loss.

    Args:
        expected: expected number of samples of a step.
    """
    return plan.mechanism.noise * plan.privacy.clip / expected


def offer_of(needed: float, around: Around, colluding: int, mixing: float) -> Offer | None:
    """Return what each node of a graph offers if all need equal noise; None if noise of edges has no use there.

    Args:
        needed: see `needed_of`.
        around: the neighbours of each node.
        mixing: see `spread_of`.
    """
    gains = Gains(around, colluding, bound=True)
    ratio, own = choose_ratio(gains, np.full(len(around), needed), spread_of(around, mixing, MEMORY))
    return Offer(own, own * sqrt(ratio)) if ratio else None


def own_beside(needed: float, own: Offer, others: Sequence[Offer], colluding: int) -> float:
    """Return the standard deviation of the own noise with which a step is private beside the noise of edges.

    Args:
        needed: see `needed_of`.
        own: what the node offers.
        others: what the neighbours offer with which it adds noise; numbers above 0.
        colluding: number of them that may put together what they know.
    """
    parts = []
    for other in others:
        edge, theirs = min(own.edge, other.edge), min(other.own, needed)  # more would not help, and might overflow
        parts.append((theirs * edge / hypot(theirs, edge)) ** 2)
    hidden = sum(sorted(parts)[: max(0, len(parts) - colluding)]) / UP
    return max(own.own, sqrt(max(0.0, needed**2 - hidden)) * UP)
