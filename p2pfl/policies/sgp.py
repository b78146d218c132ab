"""Stochastic gradient push: averages on directed graphs, on which weights cannot be doubly stochastic."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.policy import (
    Me,
    Merge,
    Peers,
    PlannedTraining,
    ReportedStage,
    Update,
    built_in,
    check_epochs,
    passes_and_steps,
)
from p2pfl.update_rules import Steps

WEIGHT = "weight"  # name of the extra with the sum of the push-sum weights that a node has sent to each receiver
LEAST_WEIGHT = 1e-6  # of a node whose mean over all nodes is 1
Values = NDArray[np.float64]


@built_in("sgp")
@dataclass
class Sgp:
    """Stochastic gradient push (Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for Distributed Deep Learning",
    ICML 2019, algorithm 1): a node has a model x and a weight w, trains the ratio z = x / w, keeps one of 1 + d equal shares
    of x and of w, and sends one to each of the d nodes that may fetch from it. Each node adds up what it receives. The
    shares of a sender sum to 1, so the sums of x and of w over all nodes are kept, and all z approach the plain mean, on
    any strongly connected graph.

    What is sent must be counted once. A node therefore publishes the sums of all shares that it has sent so far (as in
    running-sum push-sum: Hadjicostis, Vaidya and Dominguez-Garcia 2016), as their ratio and with the sum of w as an extra,
    and a receiver adds what is new since the last time. So the policy also holds without waiting: what a slow node has not
    fetched yet is under way, as in the overlapped variant of the paper, and neither lost nor counted twice.

    The running means and variances of batch norm follow no gradient: they are always `damped`, so that a variance stays
    above 0.

    A robust rule and a codec that loses digits are refused, because they would change these sums. A topology
    with a graph for each round is refused, because its weights are doubly stochastic and need no w. A member that joins
    later counts the sums since the beginning. The shares of a member that stays away wait for it: the weights of its
    senders fall in every round, and without `damped` their steps grow as 1 / w, so an absent member is removed from the
    federation. A weight below 1e-6 ends the run with an error.

    Attributes:
        steps: steps of training in each round; 0 trains for `epochs`.
        epochs: epochs of training in each round, without `steps`.
        damped: multiply what training changes by w, so that z becomes the trained model; the paper does not. Among nodes
            that do not wait, a fast one sends more than it receives: its w is small, and its steps would be 1 / w times as
            long.
        reported_stage: the model that drives early stopping and is reported.
    """

    counts_models: ClassVar[bool] = True

    steps: int = 0
    epochs: int = 1
    damped: bool = False
    reported_stage: ReportedStage = "merged"

    weight: float = field(default=1.0, init=False, repr=False)
    sent: tuple[Values, float] | None = field(default=None, init=False, repr=False)
    seen: dict[str, tuple[Values, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}")
        check_epochs(self.epochs)

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return passes_and_steps(rounds, self.epochs, self.steps)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if me.robust != "none":
            raise ConfigurationError(
                f'the policy sgp needs robust = "none", got {me.robust!r}: a rule would change its sums'
            )
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await self.train(me)
        share = 1 / (1 + len(peers.askers))
        step = (self.weight if self.damped else 1.0) * (trained - me.params)
        if not self.damped:
            step[me.layout.n_trained :] *= self.weight
        x = share * (self.weight * me.params.astype(np.float64) + step)
        w = {me.id: share * self.weight}
        self.sent = x + (self.sent[0] if self.sent else 0.0), w[me.id] + (self.sent[1] if self.sent else 0.0)
        await peers.publish(_float32(self.sent[0] / self.sent[1]), {WEIGHT: np.array([self.sent[1]])}, stage="merged")
        for update in await peers.models(peers.within_budget(peers.ids), "merged"):
            gained, w[update.sender] = self.new_since_last(update)
            x = x + gained
        self.weight = fsum(w.values())
        if self.weight < LEAST_WEIGHT:
            raise ConfigurationError(
                "the policy sgp has sent nearly all of its weight to members that have not fetched it; remove the members"
                " that stay away from the federation, or use the policy dsgd"
            )
        return Merge(_float32(x / self.weight), {id: each / self.weight for id, each in w.items()})

    async def train(self, me: Me) -> Parameters:
        """Return the own model after local training."""
        return await me.train(epochs=self.epochs, rule=Steps(self.steps) if self.steps else None)

    def new_since_last(self, update: Update) -> tuple[Values, float]:
        """Return what a sender has sent, in x and in w, since its last update; nothing if it sends no valid weight."""
        said = update.extras.get(WEIGHT)
        known = said is not None and said.dtype == np.float64 and said.shape == (1,) and isfinite(said[0]) and said[0] > 0
        if said is None or not known:
            return np.zeros(len(update.params)), 0.0
        total = float(said[0])
        sums, before = self.seen.get(update.sender, (np.zeros(len(update.params)), 0.0))
        self.seen[update.sender] = now = total * update.params.astype(np.float64), total
        if total < before:  # the sender has begun anew, or has gone back: its sums count from here
            return np.zeros(len(update.params)), 0.0
        return now[0] - sums, total - before

    def state(self) -> dict[str, Any]:
        sums = self.seen | ({} if self.sent is None else {"": self.sent})
        return {"weight": self.weight, "sums": {id: [values.tobytes(), weight] for id, (values, weight) in sums.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]
        self.seen = {id: (np.frombuffer(values), weight) for id, (values, weight) in state["sums"].items()}
        self.sent = self.seen.pop("", None)


def _float32(values: Values) -> Parameters:
    return values.astype(np.float32)
