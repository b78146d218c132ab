"""SkipTrain: rounds of training alternate with rounds that only average, to save energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from p2pfl.parameters import Parameters
from p2pfl.policies.dsgd import Dsgd
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, built_in, passes_and_steps


@built_in("skiptrain")
@dataclass
class SkipTrain(Dsgd):
    """Decentralised SGD with intermittent training (Dhasade et al., "Energy-Aware Decentralized Learning with Intermittent
    Model Training", arXiv 2407.01283).

    Blocks of `train_rounds` rounds of decentralised SGD are followed by `sync_rounds` rounds in which all nodes average
    without training. Averaging costs little energy, and brings the models closer together. All nodes have the same blocks,
    and a round without training takes no time, so `mode = "asynchronous"` is refused. The paper searches both lengths for
    each graph.

    `constrained` is SkipTrain-constrained: a node whose budget admits n trainings trains in each round of training with
    probability min(n / T, 1), where T is the number of these rounds in the whole run, and never beyond the budget. With
    `dsgd` a budget of trainings is the paper's baseline Greedy: a node trains in each round until it is used up.

    Attributes:
        train_rounds: Gamma_train, rounds of training in a block.
        sync_rounds: Gamma_sync, rounds without training in a block.
        constrained: whether nodes spread the trainings of their budget over the run.
    """

    synchronous: ClassVar[bool] = True

    train_rounds: int = 4
    sync_rounds: int = 4
    constrained: bool = False

    probability: float = field(default=1.0, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("train_rounds", 1), ("sync_rounds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return passes_and_steps(sum(map(self.is_training_round, range(1, rounds + 1))), self.epochs, self.steps)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if self.constrained:
            training_rounds = sum(map(self.is_training_round, range(1, me.rounds + 1)))
            self.probability = min(me.trainings_left(self.epochs, self._rule) / training_rounds, 1.0)
        return await super().prepare(me, peers)

    def is_training_round(self, round: int) -> bool:
        """Return whether a round, counted from 1, is one of training."""
        return (round - 1) % (self.train_rounds + self.sync_rounds) < self.train_rounds

    async def _train(self, me: Me) -> Parameters:
        trains = self.is_training_round(me.round)
        if trains and self.constrained:
            trains = bool(me.rng("skip").random() < self.probability)
        return await super()._train(me) if trains else me.params

    def _move(self, me: Me, trained: Parameters) -> Parameters:
        return trained if trained is me.params else super()._move(me, trained)  # no movement in rounds without training

    def state(self) -> dict[str, Any]:
        return super().state() | {"probability": self.probability}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.probability = state["probability"]
