"""APFL: a personal model that mixes a local model with the shared one."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, ClassVar

from p2pfl.parameters import Parameters
from p2pfl.policies.personal import Personal, from_bytes, to_bytes
from p2pfl.policy import Me, Merge, Peers, built_in, refused_under_privacy
from p2pfl.update_rules import Mixture

NEAR = 0.01  # distance from alpha at which the losses for the difference quotient are computed


@built_in("apfl")
@dataclass
class Apfl(Personal):
    """Adaptive personalized federated learning (Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning",
    2020, algorithm 1 with tau as long as a round). The elected coordinator averages the shared model.

    A node has a local model v and the shared model w. In each step w follows its own gradient, and v follows the
    gradient of the mixture `alpha v + (1 - alpha) w` with respect to v, on the same batch. The personal model is the
    mixture of v with the shared model that the round assigned. With alpha 1 it is a locally trained model, with alpha 0
    it is FedAvg's.

    Alpha follows the slope of the loss (equation 10) and stays between 0 and 1. Simplified: alpha makes one step at the
    start of a round, with the loss on all training data, and the slope is a difference quotient. The task's optimiser
    trains both models; the paper uses plain stochastic gradient descent. All participants take part in every round.

    Attributes:
        epochs: epochs of both models in a round.
        alpha: initial weight of the local model.
        alpha_lr: step size of alpha; 0 keeps alpha constant. (The paper uses the learning rate of the models.)
    """

    only_mean: ClassVar[bool] = True

    alpha: float = 0.5
    alpha_lr: float = 0.01

    mixed: float = field(default=0.0, init=False, repr=False)  # current alpha
    own: Parameters | None = field(default=None, init=False, repr=False)  # v; None is the common initial model

    under_privacy = refused_under_privacy("it adapts its mixture by losses on training data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {self.alpha}")
        if not 0 <= self.alpha_lr < inf:
            raise ValueError(f"alpha_lr must be 0 or more, and finite, got {self.alpha_lr}")
        self.mixed = self.alpha

    async def round(self, me: Me, peers: Peers) -> Merge:
        shared, own = self._shared_values(me), me.initial if self.own is None else self.own
        if self.alpha_lr:
            slope = await self._slope(me, own, shared)
            self.mixed = min(max(self.mixed - self.alpha_lr * slope, 0.0), 1.0)
        self.own = await me.train(own, epochs=self.epochs, rule=Mixture(self.mixed, shared))
        shared, weights = await self._share(me, peers, await me.train(shared, epochs=self.epochs))
        return Merge(await self._mixture(me, self.own, shared, self.mixed), weights)

    async def _slope(self, me: Me, own: Parameters, shared: Parameters) -> float:
        """Return the derivative of the mixture's loss on the own training data with respect to alpha."""
        around = [await self._mixture(me, own, shared, self.mixed + far) for far in (-NEAR, NEAR)]
        before, after = (await me.loss(around, split="train")).tolist()
        slope = (after - before) / (2 * NEAR)
        return slope if isfinite(slope) else 0.0

    async def _mixture(self, me: Me, own: Parameters, shared: Parameters, alpha: float) -> Parameters:
        return await me.mean([own, shared], [alpha, 1 - alpha])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "own": to_bytes(self.own), "mixed": self.mixed}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.own, self.mixed = from_bytes(state["own"]), state["mixed"]
