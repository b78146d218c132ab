"""IFCA: nodes train k shared models, each node the one that fits its data best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.algorithms.selection import fedavg
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import (
    Me,
    Merge,
    Peers,
    ReportedStage,
    Update,
    built_in,
    check_epochs,
    merge,
    refused_under_privacy,
    samples,
)

CLUSTER = "cluster"  # name of the extra with the number of the model that a node has trained


@built_in("ifca")
@dataclass
class Ifca:
    """Iterative federated clustering (Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated
    Learning", NeurIPS 2020, algorithm 1, model averaging).

    All nodes know `clusters` models. In each round a node trains the one with the lowest loss on its training data, and
    publishes it with its number. Each model becomes the mean, by samples, of those that were trained from it.

    There is no server: a node averages with all peers that it may fetch from, as in `fedavg`. On a complete graph all
    nodes compute the same k means, which is the paper's algorithm; on other graphs each node has its own. A model that
    nobody trained in a round stays. A node receives one model from each peer, as with `fedavg`.

    The paper draws k initial models. Here model 0 is the common initial one, and in the others its values are permuted
    within each tensor, equally on all nodes: random values then have the same distribution. If the initial model was
    trained before, the others are worse than it, and all nodes choose model 0. If permuting has no effect on the loss, as
    with zeros, a node refuses to start.

    Simplified: all participants take part in every round.

    Attributes:
        clusters: k.
        epochs: epochs of local training in each round.
        reported_stage: the model that drives early stopping and is reported.
    """

    clusters: int = 2
    epochs: int = 1
    reported_stage: ReportedStage = "merged"

    models: list[Parameters] = field(default_factory=list, init=False, repr=False)  # none before the preparation

    under_privacy = refused_under_privacy("it selects its model by losses on training data, and publishes the selection")

    def __post_init__(self) -> None:
        if not 2 <= self.clusters <= 64:
            raise ValueError(f"clusters must be from 2 to 64, got {self.clusters}")
        check_epochs(self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        rng = peers.common_rng("clusters")
        others = [permuted(me.initial, me.layout, rng) for _ in range(1, self.clusters)]
        self.models = [me.initial, *others]
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        losses = await me.loss(self.models, split="train")
        if me.round == 1 and (losses == losses[0]).all():
            raise ConfigurationError(
                f"the {self.clusters} models with which the policy ifca begins have the same loss, so that all nodes would"
                " choose the first; they are the initial model with the values of each tensor permuted: start from random"
                " values, not from zeros"
            )
        mine = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
        trained = await me.train(self.models[mine], epochs=self.epochs)
        await peers.publish(trained, {CLUSTER: np.array([mine], np.uint64)})
        updates = await peers.models(peers.within_budget(peers.ids))
        alike = [update for update in updates if cluster_of(update) == mine]
        merged = await merge(me, trained, alike, fedavg(samples(me, alike)))
        models = list(self.models)
        for k in range(self.clusters):
            others = [update for update in updates if cluster_of(update) == k]
            if k == mine:
                models[k] = merged.params
            elif others:
                models[k] = await self._mean_of_others(me, models[k], others)
        self.models = models
        return merged

    async def _mean_of_others(self, me: Me, own: Parameters, updates: Sequence[Update]) -> Parameters:
        """Return the mean of models that peers have trained from `own`, by the node's robust rule."""
        weights = fedavg({update.sender: update.n_samples for update in updates})
        if me.rule is not None:
            return (await merge(me, own, updates, weights | {me.id: 0.0})).params
        return await me.mean([update.params for update in updates], list(weights.values()))  # the bits of the members' mean

    def state(self) -> dict[str, Any]:
        return {"models": [model.tobytes() for model in self.models]}

    def restore(self, state: dict[str, Any]) -> None:
        self.models = [np.frombuffer(data, np.float32) for data in state["models"]]


def permuted(params: Parameters, layout: Layout, rng: np.random.Generator) -> Parameters:
    """Return a model with the trained values of each tensor in a random order; float32, shape [P]."""
    result = params.copy()
    for _, start, stop, _ in layout.places:
        if stop <= layout.n_trained:
            result[start:stop] = rng.permutation(result[start:stop])
    return result


def cluster_of(update: Update) -> int:
    """Return the number of the model that a sender has trained; -1 without a valid one."""
    found = update.extras.get(CLUSTER)
    return int(found[0]) if found is not None and found.dtype == np.uint64 and found.shape == (1,) else -1
