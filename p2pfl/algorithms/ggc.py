"""GGC and BGGC: with whom to average, found by greedy steps on the own validation loss (Kharrat et al., "Decentralized
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
    """Whom to average with.

    Attributes:
        ids: the chosen peers, sorted.
        mean: the mean of the own model and theirs by training samples, float32, shape [P].
        weights: how much each counts in it, the own id included; they sum to 1.
    """

    ids: tuple[str, ...]
    mean: Parameters
    weights: dict[str, float]


async def ggc(
    own: Update, models: Sequence[Update], *, loss: Loss, rng: np.random.Generator, limit: int | None = None
) -> Selection:
    """Greedy graph construction: `bggc` on models that are at hand (algorithm 2)."""
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

    X begins with the own model, Y with all; for each candidate j, in an order drawn from `rng`, either j joins X or leaves
    Y, with the probability that `acceptance` gives. A mean is weighted by training samples. Equal arguments give equal sets
    whatever `batch` is, to the last bit: both sums run in float32 in the drawn order.

    The models are fetched twice: a first pass adds up Y, a second one takes the steps. Kept meanwhile are a batch, the own
    model and the sums of X and Y; two means more while they are evaluated. There are 2 evaluations, and 2 for each
    candidate, in one call of `loss` each.

    Where a loss is not a number (a node without validation data) it counts as infinite, and the first candidates in the
    drawn order are taken. A peer whose model comes once but not twice is not chosen, but stays in the sum of Y.

    The paper says of the result that it is never worse on validation than the own model: it can be, as a candidate is
    accepted where it neither helps X nor, by leaving, Y. Without a limit it is never worse than the mean of all (but for the
    rounding of the sums).

    Args:
        own: the own model.
        ids: the candidates.
        fetch: returns models of some of them; those that it leaves out are no candidates.
        loss: the mean validation loss of each of K models, shape [K].
        limit: how many may be chosen at most, the own model not counted.
        batch: how many models may be had at once; 0 is all.
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
        came = [id for id in part if id in steps.seen]  # the others may be silent, and are not waited for twice
        if came and await steps.take(came, await fetch(came)):
            break
    return steps.selection()


class _Steps:
    """The sums of X and Y, weighted and not divided, and what is known of their losses.

    Attributes:
        seen: the candidates that were put into Y.
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
        """Put candidates into Y."""
        for model in _in_order(order, models):
            self._y = self._y + _weight(model) * model.params
            self._y_weight += _weight(model)
            self.seen.add(model.sender)

    async def begin(self) -> None:
        """Evaluate X and Y as they are at the start."""
        self._x_loss, self._y_loss = await self._losses(
            [_mean(self._x.copy(), self._x_weight), _mean(self._y.copy(), self._y_weight)]
        )

    async def take(self, order: Sequence[str], models: Sequence[Update]) -> bool:
        """Decide on candidates that are in Y, one after another. Return True when no more may be chosen."""
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
    """Return by how much a loss fell; 0 if it did not."""
    return before - after if after < before else 0.0


def acceptance(a: float, b: float) -> float:
    """Return the probability to accept a candidate: a / (a + b), and 1 where neither is a gain.

    Args:
        a: what X gains by the candidate; 0 or more, perhaps infinite.
        b: what Y gains without it.
    """
    if b == 0:
        return 1.0
    if isinf(a):
        return 0.5 if isinf(b) else 1.0
    return a / (a + b)


def _mean(total: Parameters, weight: int) -> Parameters:
    """Divide a sum in place: while the losses are computed, the sums that were not taken over take no memory."""
    return np.divide(total, np.float32(weight), out=total)


def _weight(model: Update) -> int:
    """Its training samples; a node that has none counts as one that has one."""
    return max(model.n_samples, 1)


def _in_order(order: Sequence[str], models: Sequence[Update]) -> list[Update]:
    by_sender: Mapping[str, Update] = {model.sender: model for model in models}
    return [by_sender[id] for id in order if id in by_sender]
