"""Decentralised SGD: a few steps of training, then an average with all neighbours."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

import numpy as np

from p2pfl.cohort import ExtrasOfEach, IdsOfEach, UpdatesOfEach, WeightsOfEach, of_each
from p2pfl.parameters import Parameters, plain_sum
from p2pfl.policy import (
    Extras,
    Me,
    Merge,
    Peers,
    PlannedTraining,
    ReportedStage,
    Update,
    built_in,
    check_epochs,
    merge,
    passes_and_steps,
)
from p2pfl.update_rules import Steps

DEGREE = "degree"  # name of the extra with a node's number of neighbours


@built_in("dsgd")
@dataclass
class Dsgd:
    """Decentralised SGD (Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017).

    A node averages with all its neighbours; the own model has the rest of the weight. On an undirected graph the weights
    `metropolis` are doubly stochastic, so that the mean of all models is kept. Nodes report their number of neighbours
    with their models; a false one cannot raise a weight above that of `uniform`.

    Attributes:
        weights: `metropolis` gives neighbour j the weight 1 / (1 + max(d_i, d_j)), where d is the number of neighbours;
            `uniform` gives it 1 / (1 + d_i); `graph` gives it the weight of a topology with a graph for each round;
            `auto` (default) is `graph` on such a topology, and `metropolis` on any other.
        steps: steps of training in each round, on batches of a new random order; 0 trains for `epochs`.
        epochs: epochs of training in each round, without `steps`.
        momentum: momentum of the node's own movement over the rounds: v = momentum * v + (trained - start), and start + v
            is published. With one step a round it is momentum SGD. Running variances of batch norm have no momentum,
            which could take them below 0.
        mixing: factor of the neighbours' weights; a lower one mixes more slowly.
        start_noise: standard deviation of normal noise that each node adds to the common initial model.
        reported_stage: the model that drives early stopping and is reported.
    """

    weights: Literal["auto", "graph", "metropolis", "uniform"] = "auto"
    steps: int = 0
    epochs: int = 1
    momentum: float = 0.0
    mixing: float = 1.0
    start_noise: float = 0.0
    reported_stage: ReportedStage = "merged"

    velocity: Parameters | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be 0 or more, got {self.steps}")
        check_epochs(self.epochs)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1, got {self.momentum}")
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing must be above 0 and at most 1, got {self.mixing}")
        if not 0 <= self.start_noise < inf:
            raise ValueError(f"start_noise must be 0 or more, got {self.start_noise}")

    @property
    def cohort(self) -> bool:
        return not self.start_noise

    @property
    def needs_weights(self) -> bool:
        return self.weights == "graph"

    def under_privacy(self, rounds: int) -> PlannedTraining:
        cancels = self.steps == 1 and self.weights in ("auto", "metropolis")
        return passes_and_steps(rounds, self.epochs, self.steps)._replace(mixing=self.mixing if cancels else 0.0)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if not self.start_noise:
            return Merge(me.params, {me.id: 1.0})
        noise = me.rng("start").standard_normal(len(me.params), np.float32)
        return Merge(me.params + np.float32(self.start_noise) * noise, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        moved = self._move(me, await self._train(me))
        ids, given = peers.ids, peers.weights if self.weights in ("auto", "graph") else None
        await peers.publish(moved, reported_degree(ids) if given is None else None)
        updates = await peers.models(peers.within_budget(ids))
        if given is None:
            return await merge(me, moved, updates, mixing_weights(updates, me.id, ids, self))
        return await merge(me, moved, updates, weights_of_graph(updates, me.id, given, self.mixing))

    @property
    def _rule(self) -> Steps | None:
        return Steps(self.steps) if self.steps else None

    def _train(self, me: Me) -> Awaitable[Parameters]:
        return me.train(epochs=self.epochs, rule=self._rule)

    def _move(self, me: Me, trained: Parameters) -> Parameters:
        """Return the model after the training, with momentum of its trained values."""
        if not self.momentum:
            return trained
        step, n = trained - me.params, me.layout.n_trained
        if self.velocity is not None:
            step[..., :n] += np.float32(self.momentum) * self.velocity[..., :n]
        self.velocity = step
        return me.params + step

    def state(self) -> dict[str, Any]:
        return {"velocity": b"" if self.velocity is None else self.velocity.tobytes()}

    def restore(self, state: dict[str, Any]) -> None:
        self.velocity = np.frombuffer(state["velocity"], np.float32) if state["velocity"] else None


def _reported_by_each(ids: IdsOfEach) -> ExtrasOfEach:
    return ExtrasOfEach(np.arange(len(ids.counts) + 1), {DEGREE: ids.counts.astype(np.uint64)})


@of_each(_reported_by_each)
def reported_degree(ids: Sequence[str]) -> Extras:
    """Return the number of neighbours as the extra that nodes report; uint64 [1]."""
    return {DEGREE: np.array([len(ids)], np.uint64)}


def _weights_of_each(updates: UpdatesOfEach, own: str, neighbours: IdsOfEach, policy: Dsgd) -> WeightsOfEach:
    ids, degrees = updates.ids, neighbours.counts
    highest = degrees[ids.rows]
    if policy.weights != "uniform":
        highest = np.maximum(highest, degrees[ids.peers])
    weights = policy.mixing / (1 + highest)
    return WeightsOfEach(ids, weights, 1 - ids.sums(weights))


@of_each(_weights_of_each)
def mixing_weights(updates: Sequence[Update], own: str, neighbours: Sequence[str], policy: Dsgd) -> dict[str, float]:
    """Return the weight of each model, by id.

    Args:
        own: the id of the own node.
        neighbours: its neighbours.
        policy: its options decide.
    """
    reported = {update.sender: _degree(update) if policy.weights != "uniform" else 0 for update in updates}
    return _with_own({id: policy.mixing / (1 + max(len(neighbours), other)) for id, other in reported.items()}, own)


def _graph_of_each(updates: UpdatesOfEach, own: str, given: WeightsOfEach, mixing: float) -> WeightsOfEach:
    ids = updates.ids
    places = slice(None) if ids is given.ids else given.ids.find(ids.rows, ids.peers)
    weights = mixing * given.others[places]
    return WeightsOfEach(ids, weights, 1 - ids.sums(weights))


@of_each(_graph_of_each)
def weights_of_graph(updates: Sequence[Update], own: str, given: Mapping[str, float], mixing: float) -> dict[str, float]:
    """Return the weight of each model, by id: that of the graph for those received, and the rest for the own one.

    Args:
        own: the id of the own node.
        given: `Peers.weights`.
        mixing: factor of the weights.
    """
    return _with_own({update.sender: mixing * given[update.sender] for update in updates}, own)


def _with_own(weights: dict[str, float], own: str) -> dict[str, float]:
    """Return weights with the rest of 1 for the own model."""
    return weights | {own: 1 - plain_sum(weights.values())}


def _degree(update: Update) -> int:
    """Return the number of neighbours that a sender reports; 0 without a valid report."""
    found = update.extras.get(DEGREE)
    return int(found[0]) if found is not None and found.dtype == np.uint64 and found.shape == (1,) else 0
