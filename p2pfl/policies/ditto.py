"""Ditto: a personal model that a proximal term keeps near the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from p2pfl.policies.personal import Personal
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, built_in


@built_in("ditto")
@dataclass
class Ditto(Personal):
    """Ditto (Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
    algorithm 1), run by the elected coordinator.

    In each round a node trains the shared model w as in FedAvg. It trains its personal model v on its loss plus
    `weight/2 ||v - w_t||^2`; w_t is the shared model at the start of the round. Both see the samples in the same order.

    Simplified: all participants take part in every round, and both models get the same number of epochs. The task's
    optimiser trains them; the paper's solver is stochastic gradient descent.

    Attributes:
        epochs: epochs of each model in a round.
        weight: lambda; with 0 the personal model is a locally trained model.
    """

    only_mean: ClassVar[bool] = True

    weight: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight < inf:
            raise ValueError(f"weight must be 0 or more, and finite, got {self.weight}")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(2 * rounds * self.epochs)

    async def round(self, me: Me, peers: Peers) -> Merge:
        shared = self._shared_values(me)
        own = await me.train(epochs=self.epochs, proximal=(self.weight, shared))
        _, weights = await self._share(me, peers, await me.train(shared, epochs=self.epochs))
        return Merge(own, weights)
