"""DFedPGP: a shared part by push-sum on a directed graph, and a personal part on each node."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.parameters import Parameters
from p2pfl.policies.sgp import Sgp
from p2pfl.policy import Me, PlannedTraining, built_in, check_epochs
from p2pfl.update_rules import TrainSubset


@built_in("dfedpgp")
@dataclass
class DFedPgp(Sgp):
    """DFedPGP (Liu, Shi, Li, Wu, Wang and Shen, "Decentralized Directed Collaboration for Personalized Federated
    Learning", CVPR 2024, algorithm 1).

    The task must keep a part of the model private: the head (`private = "head"` of the tasks `digits` and `images`). In
    each round a node first trains its head for `head_epochs` while the shared part stays fixed, then the shared part for
    `epochs` with the new head, each at the ratio z of push-sum (see `sgp`). Only the shared part is sent, with its weight.

    Simplified: the paper draws a directed graph in each round; here the graph is that of the topology, which may be
    directed but does not change. The task's optimiser trains both parts, each from a fresh state unless it is `lasting`;
    the authors use SGD with momentum.

    Attributes:
        epochs: epochs of the shared part in a round.
        head_epochs: epochs of the head in a round.
        steps, damped, reported_stage: see `sgp`; `steps` is refused, because the rule trains whole epochs.
    """

    head_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epochs(self.head_epochs, "head_epochs")
        if self.steps:
            raise ValueError("dfedpgp trains whole epochs: leave `steps` out")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * (self.head_epochs + self.epochs))

    async def train(self, me: Me) -> Parameters:
        await me.train(epochs=self.head_epochs, purpose="head", rule=TrainSubset("private"))
        return await me.train(epochs=self.epochs, rule=TrainSubset("shared"))
