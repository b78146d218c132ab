"""Per-FedAvg: a shared model from which one gradient step gives a good personal model."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from p2pfl.policies.personal import Personal
from p2pfl.policy import Me, Merge, Peers, built_in, refused_under_privacy
from p2pfl.update_rules import Descent, Lookahead


@built_in("per-fedavg")
@dataclass
class PerFedAvg(Personal):
    """Per-FedAvg (Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, algorithm 1), in its first-order variant (FO). The elected
    coordinator averages the shared model.

    The shared model w is trained to be good after one step of gradient descent. Each local step follows the gradient at
    `w - lr * gradient`; the two halves of a batch give the two gradients. The term with the second derivative is
    omitted (first-order variant). The personal model is the assigned shared model after one step of gradient descent on
    all training data.

    Simplified: all participants take part in every round. The task's optimiser makes the steps of the shared model; the
    paper uses plain steps of length beta.

    Attributes:
        epochs: epochs of the shared model in a round.
        lr: alpha, the learning rate of the step to the personal model.
    """

    only_mean: ClassVar[bool] = True

    lr: float = 0.01

    under_privacy = refused_under_privacy("its steps take gradients at a second point, which no clip limits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lr < inf:
            raise ValueError(f"lr must be 0 or more, and finite, got {self.lr}")

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(self._shared_values(me), epochs=self.epochs, rule=Lookahead(self.lr))
        shared, weights = await self._share(me, peers, trained)
        return Merge(await me.train(shared, rule=Descent(self.lr)), weights)
