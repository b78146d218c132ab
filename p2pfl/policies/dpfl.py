"""DPFL: preselect peers once under a budget, then select among them in each round by validation loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from p2pfl.algorithms.ggc import Fetch, bggc, ggc
from p2pfl.algorithms.selection import fedavg, number, present
from p2pfl.cohort import Counts, IdsOfEach, UpdatesOfEach, of_each
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
    merge,
    samples,
)


@built_in("dpfl")
@dataclass
class Dpfl:
    """Decentralized personalized federated learning (Kharrat et al. 2024, algorithm 1).

    Before the first round a node trains the common initial model. BGGC then selects Omega among all peers, whose models
    are fetched twice in batches that the budget allows. In each round the node trains, fetches the models of Omega, and
    averages with the subset C that GGC selects. Omega does not change. The budget B_c is the node's own:
    `budget.models`, or the number of models that its other limits allow at the same time in the preparation, if that is
    lower. If a round's bytes do not suffice for all of Omega, it fetches a random selection. (With the codec `top-k`, a
    model of a peer that was not heard recently takes more bytes.)

    The text and equation 3 of the paper bound `|C|` without the node itself, its pseudo-code includes it; the default
    follows the text. A peer that is offline is skipped in a round and stays in Omega.

    Attributes:
        initial_epochs: tau_init, epochs of training before the first round.
        epochs: tau_train, epochs of training in each round.
        period: P, rounds between two runs of GGC (table 3).
        between: what a node does in the rounds between two runs of GGC: `average` with C, which does not change, and
            fetch only C (default; the paper's text refreshes C every P rounds), or `train` alone, so that it averages
            every P rounds only (literal for table 3: the authors' program).
        count_self: whether the own model counts towards `budget.models` and `budget.held` (literal for the
            pseudo-code).
        snapshot: the model that is validated and tested: `aggregated` (default) or `trained`.
        select: `ggc` (default), or `none`: train alone and let peers fetch the models, like the clients of section 4.5
            with flipped labels that do not run GGC.
    """

    initial_epochs: int = 10
    epochs: int = 5
    period: int = 1
    between: Literal["average", "train"] = "average"
    count_self: bool = False
    snapshot: Literal["aggregated", "trained"] = "aggregated"
    select: Literal["ggc", "none"] = "ggc"

    cohort: ClassVar[bool] = True

    reported_stage: ReportedStage = field(init=False)
    omega: tuple[str, ...] = field(default=(), init=False, repr=False)
    chosen: tuple[str, ...] = field(default=(), init=False, repr=False)
    due: int = field(default=0, init=False, repr=False)  # the round of the next GGC

    def __post_init__(self) -> None:
        check_epochs(self.initial_epochs, "initial_epochs")
        check_epochs(self.epochs)
        if self.period < 1:
            raise ValueError(f"period must be 1 or more, got {self.period}")
        self.reported_stage = "merged" if self.snapshot == "aggregated" else "trained"

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(self.initial_epochs + rounds * self.epochs, validates=self.select == "ggc")

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.initial_epochs)
        await peers.publish(trained, stage="prepared")
        if self.select == "none":
            return Merge(trained, {me.id: 1.0})

        ids = peers.within_budget(peers.ids)
        room = number(ids)  # the same in every step, because all models have the same size now
        selection = await bggc(
            _own(me, trained),
            peers.ids,
            _fetch_prepared(peers),
            compute=me.compute,
            rng=me.rng("greedy"),
            limit=limit_of(ids, me, self.count_self),
            batch=room,
        )
        self.omega = self.chosen = selection.ids
        return Merge(selection.mean, selection.weights)

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs)
        await peers.publish(trained)
        if me.round >= self.due:
            updates = await peers.models(peers.within_budget(present(self.omega, peers.ids)))
            limit = limit_of(updates, me, self.count_self)
            self.chosen = await ggc(_own(me, trained), updates, compute=me.compute, rng=me.rng("greedy"), limit=limit)
            self.due = me.round + self.period
            updates = those_of(updates, self.chosen)
        elif self.between == "train":
            return Merge(trained, {me.id: 1.0})
        else:
            updates = await peers.models(peers.within_budget(present(self.chosen, peers.ids)))
        return await merge(me, trained, updates, fedavg(samples(me, updates)))

    def preselection(self) -> tuple[str, ...]:
        """Return Omega (line 5 of algorithm 1); see p2pfl.policy.SupportsPreselection."""
        return self.omega

    def state(self) -> dict[str, Any]:
        return {"omega": self.omega, "chosen": self.chosen, "due": self.due}

    def restore(self, state: dict[str, Any]) -> None:
        self.omega, self.chosen, self.due = tuple(state["omega"]), tuple(state["chosen"]), state["due"]


def _limit_of_each(found: IdsOfEach | UpdatesOfEach, me: Any, count_self: bool) -> Counts:
    counts = (found.ids if isinstance(found, UpdatesOfEach) else found).counts
    at_once = me.budget.at_once
    return np.where(at_once > 0, np.minimum(counts, at_once - count_self), counts)


@of_each(_limit_of_each)
def limit_of(found: Sequence[Any], me: Me, count_self: bool) -> int:
    """Return how many of the `found` peers may be selected."""
    return min(len(found), me.budget.at_once - count_self) if me.budget.at_once else len(found)


def _those_of_each(updates: UpdatesOfEach, ids: IdsOfEach) -> UpdatesOfEach:
    return updates.where(ids)


@of_each(_those_of_each)
def those_of(updates: list[Update], ids: Sequence[str]) -> list[Update]:
    """Return the updates of the given senders."""
    return [update for update in updates if update.sender in ids]


def _own(me: Me, params: Parameters) -> Update:
    return Update(me.id, me.round, "trained", params, me.n_samples)


def _fetch_prepared(peers: Peers) -> Fetch:
    return lambda ids: peers.models(ids, "prepared")
