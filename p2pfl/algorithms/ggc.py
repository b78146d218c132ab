"""GGC and BGGC: greedy selection of peers to average with, by the own validation loss (Kharrat et al., "Decentralized
Personalized Federated Learning", 2024, algorithms 2 and 3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf, isinf, isnan
from typing import NamedTuple

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.policy import Update

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[Update]]]
Loss = Callable[[Sequence[Parameters]], Awaitable[np.ndarray]]


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


async def ggc(
    own: Update, models: Sequence[Update], *, loss: Loss, rng: np.random.Generator, limit: int | None = None
) -> Selection:
    """Greedy graph construction (algorithm 2): `bggc` on models that are already available."""
    at_hand = {model.sender: model for model in models}

    async def fetch(ids: Sequence[str]) -> list[Update]:
        return [at_hand[id] for id in ids]

    return await bggc(own, sorted(at_hand), fetch, loss=loss, rng=rng, limit=limit)


async def bggc(
    own: Update,
    ids: Sequence[str],
    fetch: Fetch,
    *,
    loss: Loss,
    rng: np.random.Generator,
    limit: int | None = None,
    batch: int = 0,
) -> Selection:
    """Batched greedy graph construction (algorithm 3).

    X begins with the own model, Y with all models. The candidates j are processed in an order drawn from `rng`: each
    either joins X or leaves Y, with the probability of `acceptance`. Means are weighted by training samples. Equal
    arguments give bit-identical results for any `batch`: both sums run in float32 in the drawn order.

    The models are fetched twice: the first pass computes the sum Y, the second one makes the decisions. Memory holds
    one batch, the own model and the sums of X and Y, and two more means during an evaluation. There are 2 initial
    evaluations and 2 for each candidate, with one call of `loss` for each pair.

    A loss that is NaN (on a node without validation data) counts as infinite; the first candidates in the drawn order
    are then selected. A peer whose model arrives only once is not selected, but remains in the sum of Y.

    The paper states that the result is never worse on validation than the own model. It can be: a candidate is also
    accepted if neither adding it to X nor removing it from Y reduces the loss. Without a limit the result is never
    worse than the mean of all (except for the rounding of the sums).

    Args:
        own: the own model.
        ids: the candidates.
        fetch: returns the models of some of them; the others are no longer candidates.
        loss: the mean validation loss of each of K models, shape [K].
        rng: the generator of the order and the decisions.
        limit: maximum number of selected peers, without the own model.
        batch: number of models to fetch at a time; 0 is all.
    """
    order = [ids[k] for k in rng.permutation(len(ids))]
    size = batch or max(len(order), 1)
    batches = [order[start : start + size] for start in range(0, len(order) if limit != 0 else 0, size)]
    steps = _Steps(own, loss, rng, limit)
    for part in batches:
        steps.add(part, await fetch(part))
    if batches:
        await steps.begin()
    for part in batches:
        came = [id for id in part if id in steps.seen]  # do not wait twice for peers that did not answer
        if came and await steps.take(came, await fetch(came)):
            break
    return steps.selection()


class _Steps:
    """The weighted sums of X and Y before division, and their losses.

    Attributes:
        seen: the candidates that were added to Y.
    """

    def __init__(self, own: Update, loss: Loss, rng: np.random.Generator, limit: int | None) -> None:
        self._loss = loss
        self._rng = rng
        self._limit = limit
        self._own = own
        self.seen: set[str] = set()
        self._x = self._y = _weight(own) * own.params
        self._x_weight = self._y_weight = _weight(own)
        self._x_loss = self._y_loss = inf
        self._chosen: dict[str, int] = {}

    def add(self, order: Sequence[str], models: Sequence[Update]) -> None:
        """Add candidates to Y."""
        for model in _in_order(order, models):
            self._y = self._y + _weight(model) * model.params
            self._y_weight += _weight(model)
            self.seen.add(model.sender)

    async def begin(self) -> None:
        """Evaluate the initial X and Y."""
        self._x_loss, self._y_loss = await self._losses(
            [_mean(self._x.copy(), self._x_weight), _mean(self._y.copy(), self._y_weight)]
        )

    async def take(self, order: Sequence[str], models: Sequence[Update]) -> bool:
        """Decide on candidates in Y, one after another. Return True when the limit is reached."""
        for model in _in_order(order, models):
            weight, params = _weight(model), model.params
            x_weight, y_weight = self._x_weight + weight, self._y_weight - weight
            x_loss, y_loss = await self._losses(
                [_mean(self._x + weight * params, x_weight), _mean(self._y - weight * params, y_weight)]
            )
            p = acceptance(gain(self._x_loss, x_loss), gain(self._y_loss, y_loss))
            if self._rng.random() < p:
                self._x, self._x_loss, self._x_weight = self._x + weight * params, x_loss, x_weight
                self._chosen[model.sender] = weight
                if len(self._chosen) == self._limit:
                    return True
            else:
                self._y, self._y_loss, self._y_weight = self._y - weight * params, y_loss, y_weight
        return False

    async def _losses(self, means: Sequence[Parameters]) -> tuple[float, float]:
        x, y = (inf if isnan(value) else float(value) for value in await self._loss(means))
        return x, y

    def selection(self) -> Selection:
        weights = self._chosen | {self._own.sender: _weight(self._own)}
        shares = {id: weights[id] / self._x_weight for id in sorted(weights)}
        if not self._chosen:
            return Selection((), self._own.params, shares)
        return Selection(tuple(sorted(self._chosen)), _mean(self._x, self._x_weight), shares)


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


def _mean(total: Parameters, weight: int) -> Parameters:
    """Divide a sum in place, so that rejected sums need no memory while the losses are computed."""
    return np.divide(total, np.float32(weight), out=total)


def _weight(model: Update) -> int:
    """Return the number of training samples; a node without samples counts as having one."""
    return max(model.n_samples, 1)


def _in_order(order: Sequence[str], models: Sequence[Update]) -> list[Update]:
    by_sender: Mapping[str, Update] = {model.sender: model for model in models}
    return [by_sender[id] for id in order if id in by_sender]
