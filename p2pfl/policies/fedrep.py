"""FedRep: a shared representation and a private head on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from p2pfl.policies.personal import Personal
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, built_in, check_epochs
from p2pfl.update_rules import TrainSubset


@built_in("fedrep")
@dataclass
class FedRep(Personal):
    """FedRep (Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, algorithm 1), run by the elected coordinator.

    The task must keep a part of the model private: the head, usually the last layer (`private = "head"` of the tasks
    `digits` and `images`). The rest is the representation. In each round a node first trains its head for `head_epochs`
    while the assigned representation stays fixed. Then it trains the representation for `epochs` with the new head. It
    submits the representation, and the coordinator computes the mean. The personal model is that mean with the own
    head.

    Simplified: all participants take part in every round and are weighted by their samples. The task's optimiser trains
    both parts, each from a fresh state. The authors train the head for 10 epochs and the representation for 1 or 5.

    Attributes:
        epochs: epochs of the representation in a round.
        head_epochs: epochs of the head in a round.
    """

    only_mean: ClassVar[bool] = True

    head_epochs: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epochs(self.head_epochs, "head_epochs")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * (self.head_epochs + self.epochs))

    async def round(self, me: Me, peers: Peers) -> Merge:
        await me.train(epochs=self.head_epochs, purpose="head", rule=TrainSubset("private"))
        trained = await me.train(epochs=self.epochs, rule=TrainSubset("shared"))
        return Merge(*await self._share(me, peers, trained))
