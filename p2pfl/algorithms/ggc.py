"""GGC and BGGC: greedy selection of peers to average with, by the own validation loss (Kharrat et al., "Decentralized
Personalized Federated Learning", 2024, algorithms 2 and 3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from itertools import compress
from math import inf, isinf, isnan, nan
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from msgspec.structs import replace

from p2pfl.cohort import EACH, Counts, GeneratorsOfEach, IdsOfEach, QueriesOfEach, UpdatesOfEach, of_each
from p2pfl.parameters import Parameters, PrivateParameters
from p2pfl.policy import Update
from p2pfl.queries import Answering, AnsweringTogether, Loss, Losses, Query, Split

MOST_WEIGHTED = 2**22  # values of the models of a cohort that are multiplied by their weights once for all nodes: 16 MiB

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[Update]]]

Compute = Callable[["DecideGreedily"], Awaitable["Decisions"]]
"""Compute decisions; see `p2pfl.policy.Me.compute`."""


class Selection(NamedTuple):
    """Peers to average with, and the mean.

    Attributes:
        ids: the selected peers, sorted.
        mean: the mean of the own model and theirs by training samples, float32, shape [P].
        weights: the weight of each in the mean, including the own id; they sum to 1.
    """

    ids: tuple[str, ...]
    mean: Parameters
    weights: dict[str, float]


class SelectionOfEach(NamedTuple):
    """Selections of all nodes of a cohort; see Selection. The weights of single nodes are not kept.

    Attributes:
        mean: float32 [N, P].
    """

    ids: IdsOfEach
    mean: np.ndarray
    weights: Mapping[str, float]


class Sets(NamedTuple):
    """The sets X and Y, as sums of their models weighted by training samples.

    Attributes:
        x, y: the sums, float32 [P]. They are replaced, never written in place.
        x_weight, y_weight: the sums of the weights.
        losses: the losses of the means of X and Y; None if they were not computed yet.
    """

    x: Parameters
    y: Parameters
    x_weight: int
    y_weight: int
    losses: tuple[float, float] | None = None

    def with_candidates(self, weights: Sequence[int], weighted: Iterable[Parameters]) -> Sets:
        """Add candidates to Y; `weighted` has their models multiplied by their weights."""
        y = self.y.copy()
        for params in weighted:
            y += params
        return self._replace(y=y, y_weight=self.y_weight + sum(weights))

    def after(self, accepted: bool, weight: int, weighted: Parameters) -> Sets:
        """Add a candidate to X if it was accepted, or remove it from Y; `weighted` is its model times its weight."""
        if accepted:
            return self._replace(x=self.x + weighted, x_weight=self.x_weight + weight)
        return self._replace(y=self.y - weighted, y_weight=self.y_weight - weight)


class Decisions(NamedTuple):
    """Answer to `DecideGreedily`.

    Attributes:
        accepted: the decision on each candidate, up to the one that reached the limit.
        losses: the losses of the means of X and Y after the last decision.
    """

    accepted: list[bool]
    losses: tuple[float, float]


class DecideGreedily(Query[Decisions], frozen=True, gc=False):
    """Decide on candidates one after another: the loop of algorithm 2.

    It is one query, so that the simulator evaluates the candidates of many nodes together.

    Attributes:
        sets: X and Y before the first decision.
        candidates: the models of K candidates, float32 [P] each.
        weights: the weight of each.
        draws: a number in [0, 1) for each decision, float64 [K].
        limit: number of candidates that may be accepted; the loop ends with the last of them.
        added: whether Y contains the candidates; if not, they are added first.
        weighted: whether the models are already multiplied by their weights, as those are that many nodes share.
        private: completes models with the node's private values; None if no values are private.
    """

    name: ClassVar[str] = "greedy"

    sets: Sets
    candidates: Sequence[Parameters]
    weights: Sequence[int]
    draws: np.ndarray
    limit: int
    added: bool = True
    weighted: bool = False
    private: PrivateParameters | None = None

    @property
    def reads(self) -> Split:
        return "validation"

    def complete(self, private: PrivateParameters) -> Self:
        return replace(self, private=private) if private.layout.unshared else self

    def answer(self, learner: Answering) -> Decisions:
        (decisions,) = decide_together([self], lambda _, models: learner.compute(Loss(list(models))).tolist())
        return decisions

    @classmethod
    def answer_together(cls, queries: Sequence[Self], nodes: AnsweringTogether) -> list[Decisions]:
        results = [Decisions([], (nan, nan))] * len(queries)
        for places, losses in nodes.parts():
            for k, decisions in zip(places, decide_together([queries[k] for k in places], losses), strict=True):
                results[k] = decisions
        return results


async def _ggc_of_each(
    own: Update, models: UpdatesOfEach, *, compute: Any, rng: GeneratorsOfEach, limit: Counts
) -> IdsOfEach:
    """Run `ggc` for each node; the own update has the models of all nodes, [N, P]."""
    ids, weights, queries, orders = models.ids, _weights(models), [], []
    weighted = models.published.size <= MOST_WEIGHTED
    rows = _rows(models.published, weights, weighted)
    totals = rows if weighted and own.params is models.published else _rows(own.params, weights, True)
    limits = np.broadcast_to(limit, len(rows))
    nodes = np.flatnonzero((ids.counts > 0) & (limits != 0)).tolist()
    for node, of, most in zip(nodes, rng.each(nodes), limits[nodes].tolist(), strict=True):
        senders = ids.of(node)
        order = senders[of.permutation(len(senders))].tolist()
        sets = Sets(totals[node], totals[node], weights[node], weights[node])
        draws = of.random(len(order))
        candidates = [rows[k] for k in order]
        queries.append(DecideGreedily(sets, candidates, [weights[k] for k in order], draws, most, False, weighted))
        orders.append(order)
    chosen: list[Sequence[int]] = [()] * len(rows)
    if queries:
        for node, order, (accepted, _) in zip(nodes, orders, await compute(QueriesOfEach(nodes, queries)), strict=True):
            chosen[node] = sorted(compress(order, accepted))
    return IdsOfEach.of_lists(chosen)


@of_each(_ggc_of_each)
async def ggc(
    own: Update, models: Sequence[Update], *, compute: Compute, rng: np.random.Generator, limit: int | None = None
) -> tuple[str, ...]:
    """Greedy graph construction (algorithm 2): `bggc` on models that are already available.

    Returns:
        The ids of the selected peers, sorted.
    """
    if not models or limit == 0:
        return ()
    ids = sorted(model.sender for model in models)
    order = [ids[k] for k in rng.permutation(len(ids)).tolist()]
    candidates = _in_order(order, [_candidate(model) for model in models])
    query = _query(_first_sets(own), candidates, rng, limit, added=False)
    accepted, _ = await compute(query)
    return tuple(sorted(each.sender for each, accept in zip(candidates, accepted, strict=False) if accept))


def _weights(models: UpdatesOfEach) -> list[int]:
    """Return the weight of the model of each node."""
    weights: list[int] = np.maximum(models.n_samples, 1).tolist()
    return weights


def _rows(models: np.ndarray, weights: Sequence[int], weighted: bool) -> list[Parameters]:
    """Return the models, float32 [N, P], one by one, multiplied by their weights if they are `weighted`."""
    return list(models * np.array(weights, np.float32)[:, None] if weighted else models)


class _Request:
    """Request of one of several searches in step: for the updates of some ids, or for the answer to a query."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.what)


async def _bggc_of_each(
    own: Update, ids: IdsOfEach, fetch: Any, *, compute: Any, rng: GeneratorsOfEach, limit: Counts, batch: Counts
) -> SelectionOfEach:
    """Run `bggc` for each node, in step: all fetches of a step are one fetch, and all decisions are computed together."""
    samples = np.broadcast_to(own.n_samples, len(own.params)).tolist()
    weighted = own.params.size <= MOST_WEIGHTED
    nodes, searches = range(len(samples)), dict[int, Any]()
    for k, of, most, size in zip(nodes, rng.each(nodes), limit.tolist(), batch.tolist(), strict=True):
        single = Update(k, own.round, own.stage, own.params[k], samples[k])  # type: ignore[arg-type]
        known: Any = ids.of(k).tolist()
        options = {"limit": most, "batch": size, "weighted": weighted}
        searches[k] = _search(single, known, _Request, compute=_Request, rng=of, **options)
    found: list[Selection] = [Selection((), own.params[k], {}) for k in searches]
    answers: dict[int, Any] = dict.fromkeys(searches)
    fetching: dict[int, list[int]] = {}
    asking: dict[int, DecideGreedily] = {}
    while answers:
        for k, answer in answers.items():
            try:
                wanted = searches[k].send(answer)
            except StopIteration as end:
                found[k] = end.value
                continue
            (asking if isinstance(wanted, DecideGreedily) else fetching)[k] = wanted
        answers = {}
        if fetching:  # first, because a fetch takes no time
            updates = await fetch(IdsOfEach.of_lists([sorted(fetching.get(k, ())) for k in searches]))
            weights = _weights(updates)
            rows = _rows(updates.published, weights, weighted)
            came = [_Candidate(*each) for each in zip(nodes, weights, rows, strict=True)]  # type: ignore[arg-type]
            for k, senders in fetching.items():
                answers[k] = [came[j] for j in senders]
            fetching = {}
        elif asking:
            who = sorted(asking)
            answers = dict(zip(who, await compute(QueriesOfEach(who, [asking[k] for k in who])), strict=True))
            asking = {}
    chosen = IdsOfEach.of_lists([each.ids for each in found])  # type: ignore[misc]
    return SelectionOfEach(chosen, np.array([each.mean for each in found]), {EACH: 1.0})


@of_each(_bggc_of_each)
async def bggc(
    own: Update,
    ids: Sequence[str],
    fetch: Fetch,
    *,
    compute: Compute,
    rng: np.random.Generator,
    limit: int | None = None,
    batch: int = 0,
) -> Selection:
    """Batched greedy graph construction (algorithm 3).

    X begins with the own model, Y with all models. The candidates j are processed in an order drawn from `rng`: each
    either joins X or leaves Y, with the probability of `acceptance`. Means are weighted by training samples. Equal
    arguments give bit-identical results for any `batch`: both sums run in float32 in the drawn order.

    The models are fetched twice: the first pass computes the sum Y, the second one makes the decisions. Memory holds
    one batch, the own model, the sums of X and Y before and after the batch, and two means during an evaluation. There
    are 2 initial evaluations and 2 for each candidate.

    A loss that is NaN (on a node without validation data) counts as infinite; the first candidates in the drawn order
    are then selected. A peer whose model arrives only once is not selected, but remains in the sum of Y.

    The paper states that the result is never worse on validation than the own model. It can be: a candidate is also
    accepted if neither adding it to X nor removing it from Y reduces the loss. Without a limit the result is never
    worse than the mean of all (except for the rounding of the sums).

    Args:
        own: the own model.
        ids: the candidates.
        fetch: returns the models of some of them; the others are no longer candidates.
        compute: computes the decisions on a batch.
        rng: the generator of the order and the decisions.
        limit: maximum number of selected peers, without the own model.
        batch: number of models to fetch at a time; 0 is all.
    """

    async def candidates(ids: Sequence[str]) -> list[_Candidate]:
        return [_candidate(model) for model in await fetch(ids)]

    return await _search(own, ids, candidates, compute=compute, rng=rng, limit=limit, batch=batch)


class _Candidate(NamedTuple):
    """A model that may be selected, as it is or multiplied by its weight.

    Attributes:
        sender: the id of its node.
        weight: its weight in a sum.
    """

    sender: str
    weight: int
    params: Parameters


def _candidate(model: Update) -> _Candidate:
    return _Candidate(model.sender, _weight(model), model.params)


async def _search(
    own: Update,
    ids: Sequence[str],
    fetch: Callable[[Sequence[str]], Awaitable[Sequence[_Candidate]]],
    *,
    compute: Compute,
    rng: np.random.Generator,
    limit: int | None,
    batch: int,
    weighted: bool = False,
) -> Selection:
    """Run `bggc`.

    Args:
        weighted: whether the models that `fetch` returns are multiplied by their weights.
    """
    order = [ids[k] for k in rng.permutation(len(ids)).tolist()]
    size = batch or max(len(order), 1)
    batches = [order[start : start + size] for start in range(0, len(order) if limit != 0 else 0, size)]
    search = _Search(own, compute, rng, limit, weighted)
    for part in batches:
        search.add(_in_order(part, await fetch(part)))
    for part in batches:
        came = [id for id in part if id in search.seen]  # do not wait twice for peers that did not answer
        if came and await search.decide(_in_order(came, await fetch(came))):
            break
    return search.selection()


class _Search:
    """X, Y and the selected peers between two batches.

    Attributes:
        seen: the candidates that were added to Y.
    """

    def __init__(self, own: Update, compute: Compute, rng: np.random.Generator, limit: int | None, weighted: bool) -> None:
        self._own = own
        self._weighted = weighted
        self._compute = compute
        self._rng = rng
        self._limit = limit
        self._sets = _first_sets(own)
        self._chosen: dict[str, int] = {}
        self.seen: set[str] = set()

    def add(self, models: Sequence[_Candidate]) -> None:
        """Add candidates to Y."""
        senders, weights, params = _columns(models)
        self._sets = self._sets.with_candidates(weights, _weighted(weights, params, self._weighted))
        self.seen.update(senders)

    async def decide(self, models: Sequence[_Candidate]) -> bool:
        """Decide on candidates in Y, one after another. Return True when the limit is reached."""
        left = None if self._limit is None else self._limit - len(self._chosen)
        query = _query(self._sets, models, self._rng, left, weighted=self._weighted)
        accepted, losses = await self._compute(query)
        weighted = _weighted(query.weights, query.candidates, self._weighted)
        (x, y, x_weight, y_weight, _), chosen = self._sets, self._chosen
        x, y = x.copy(), y.copy()
        for (sender, weight, _), params, accept in zip(models, weighted, accepted, strict=False):
            if accept:
                x += params
                x_weight += weight
                chosen[sender] = weight
            else:
                y -= params
                y_weight -= weight
        self._sets = Sets(x, y, x_weight, y_weight, losses)
        return len(self._chosen) == self._limit

    def selection(self) -> Selection:
        weights = self._chosen | {self._own.sender: _weight(self._own)}
        shares = {id: weights[id] / self._sets.x_weight for id in sorted(weights)}
        if not self._chosen:
            return Selection((), self._own.params, shares)
        mean = np.divide(self._sets.x, np.float32(self._sets.x_weight))
        return Selection(tuple(sorted(self._chosen)), mean, shares)


def decide_together(queries: Sequence[DecideGreedily], losses: Losses | None) -> list[Decisions]:
    """Return the decisions of several nodes, each of which decides on one candidate at a time.

    Args:
        losses: computes losses; None if no node has validation data.
    """
    if losses is None:  # an infinite loss does not decrease, so every candidate is accepted
        return [Decisions([True] * min(query.limit, len(query.candidates)), (inf, inf)) for query in queries]
    results = [Decisions([], (inf, inf))] * len(queries)
    loops = [_decide(query) for query in queries]
    waiting = {k: next(loop) for k, loop in enumerate(loops)}
    while waiting:
        found = iter(losses([k for k in waiting for _ in "xy"], _means(queries, waiting)))
        following = {}
        for k, pair in zip(waiting, zip(found, found, strict=True), strict=True):
            try:
                following[k] = loops[k].send(pair)
            except StopIteration as done:
                results[k] = done.value
        waiting = following
    return results


def _decide(query: DecideGreedily) -> Generator[Sets, tuple[float, float], Decisions]:
    """Yield sets whose means are to be evaluated, receive their losses, and return the decisions."""
    sets, accepted = query.sets, []
    if not query.added:
        sets = sets.with_candidates(query.weights, _weighted(query.weights, query.candidates, query.weighted))
    models = _weighted(query.weights, query.candidates, query.weighted)
    steps = zip(query.weights, models, query.draws.tolist(), strict=True)
    x_loss, y_loss = sets.losses or _known((yield sets))
    for weight, weighted, draw in steps:
        joined, left = sets.after(True, weight, weighted), sets.after(False, weight, weighted)
        new_x_loss, new_y_loss = _known((yield Sets(joined.x, left.y, joined.x_weight, left.y_weight)))
        accepted.append(draw < acceptance(gain(x_loss, new_x_loss), gain(y_loss, new_y_loss)))
        if accepted[-1]:
            sets, x_loss = joined, new_x_loss
        else:
            sets, y_loss = left, new_y_loss
        if sum(accepted) == query.limit:
            break
    return Decisions(accepted, (x_loss, y_loss))


def _means(queries: Sequence[DecideGreedily], sets: Mapping[int, Sets]) -> np.ndarray:
    """Return the means of X and Y, float32 [2 K, P], of K of the queries."""
    sums = [total for each in sets.values() for total in (each.x, each.y)]
    weights = np.array([weight for each in sets.values() for weight in (each.x_weight, each.y_weight)], np.float32)
    means = np.array(sums)
    means /= weights[:, None]
    owners = [queries[k].private for k in sets for _ in "xy"]
    if owners.count(None) == len(owners):
        return means
    return np.array([mean if own is None else own.whole(mean) for own, mean in zip(owners, means, strict=True)])


def gain(before: float, after: float) -> float:
    """Return the decrease of a loss; 0 if it did not decrease."""
    return before - after if after < before else 0.0


def acceptance(a: float, b: float) -> float:
    """Return the probability of accepting a candidate: a / (a + b), and 1 if both are 0.

    Args:
        a: the gain of X by adding the candidate; 0 or more, possibly infinite.
        b: the gain of Y by removing it; 0 or more, possibly infinite.
    """
    if b == 0:
        return 1.0
    if isinf(a):
        return 0.5 if isinf(b) else 1.0
    return a / (a + b)


def _known(losses: tuple[float, float]) -> tuple[float, float]:
    """Return losses, NaN as infinity."""
    x, y = (inf if isnan(loss) else float(loss) for loss in losses)
    return x, y


def _first_sets(own: Update) -> Sets:
    """Return X and Y with the own model only."""
    total, weight = _weight(own) * own.params, _weight(own)
    return Sets(total, total, weight, weight)


def _query(
    sets: Sets,
    models: Sequence[_Candidate],
    rng: np.random.Generator,
    limit: int | None,
    *,
    added: bool = True,
    weighted: bool = False,
) -> DecideGreedily:
    _, weights, params = _columns(models)
    most = len(models) if limit is None else limit
    return DecideGreedily(sets, params, weights, rng.random(len(models)), most, added, weighted)


def _weighted(weights: Sequence[int], models: Sequence[Parameters], already: bool) -> Iterable[Parameters]:
    """Return models multiplied by their weights, each when it is used, unless they `already` are."""
    return models if already else (weight * params for weight, params in zip(weights, models, strict=True))


def _columns(models: Sequence[_Candidate]) -> tuple[Sequence[str], Sequence[int], Sequence[Parameters]]:
    """Return the senders of models, their weights, and their parameters."""
    senders, weights, params = zip(*models, strict=True) if models else ((), (), ())
    return senders, weights, params


def _weight(model: Update) -> int:
    """Return the number of training samples; a node without samples counts as having one."""
    return max(model.n_samples, 1)


def _in_order(order: Sequence[str], models: Sequence[_Candidate]) -> list[_Candidate]:
    by_sender = {model.sender: model for model in models}
    return [by_sender[id] for id in order if id in by_sender]
