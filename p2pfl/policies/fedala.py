"""FedALA: each node starts a round from its own mixture of its last model and the shared one, value by value."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.clustering import layers
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.personal import Personal, from_bytes, to_bytes
from p2pfl.policy import Me, Merge, Peers, built_in, check_epochs, refused_under_privacy
from p2pfl.update_rules import Between


@built_in("fedala")
@dataclass
class FedAla(Personal):
    """FedALA (Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated
    Learning", AAAI 2023, algorithm 1). The elected coordinator averages the trained models as in FedAvg.

    A node does not take the shared model g as it is. It starts from `own + W * (g - own)`, where `own` is its last trained
    model and W has a weight from 0 to 1 for each value of the last `top` layers; the layers before them are those of g.
    W begins with ones. It is trained by plain gradient descent on the node's loss and kept for the next round (equations
    4 and 5). A node trains W for `first_epochs` once, and then for one epoch a round. Then it trains the model.

    `merged` reports the mixture, as the authors' program does; `trained` is the model that the node submits.

    Simplified: all participants take part in every round. W is trained on all training samples, not on a random 80 % of
    them, and for a fixed number of epochs at first; the paper trains until the loss is stable. While the shared model is
    the node's own, as in a round that it misses, there is no W to train.

    Attributes:
        epochs: epochs of the model in a round.
        top: p, the number of last layers that are mixed value by value.
        lr: eta, the learning rate of W.
        first_epochs: epochs of the first training of W.
    """

    only_mean: ClassVar[bool] = True

    top: int = 1
    lr: float = 1.0
    first_epochs: int = 10

    weights: Parameters | None = field(default=None, init=False, repr=False)  # W of all values; None before the first one

    under_privacy = refused_under_privacy("it trains the weights of its mixture, by steps that no clip limits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 1:
            raise ValueError(f"top must be 1 or more, got {self.top}")
        if not 0 < self.lr < inf:
            raise ValueError(f"lr must be above 0, and finite, got {self.lr}")
        check_epochs(self.first_epochs, "first_epochs")

    async def round(self, me: Me, peers: Peers) -> Merge:
        own = await me.train(epochs=self.epochs)
        shared, weights = await self._share(me, peers, own)
        return Merge(await self._mixture(me, own, shared), weights)

    async def _mixture(self, me: Me, own: Parameters, shared: Parameters) -> Parameters:
        """Train W, and return the model with which the next round begins."""
        mixed = self._mixed_values(me.layout)
        low = np.where(mixed, own, shared)  # the other layers are equal in both, so that they stay
        apart = shared - low
        if not apart.any():
            return shared  # any W gives this model
        before = np.ones_like(own) if self.weights is None else self.weights
        epochs = self.first_epochs if self.weights is None else 1
        start = low + before * apart
        trained = await me.train(start, epochs=epochs, purpose="mixture", rule=Between(low, shared, self.lr))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.clip((trained - low) / apart, 0, 1)
        self.weights = np.where(apart != 0, found, before).astype(np.float32)
        return trained

    def _mixed_values(self, layout: Layout) -> np.ndarray:
        """Return whether a value belongs to the last `top` layers; bool [P]."""
        mixed = np.zeros(layout.size, np.bool_)
        for part in layers(layout)[-self.top :]:
            mixed[part] = True
        return mixed

    def state(self) -> dict[str, Any]:
        return {**super().state(), "weights": to_bytes(self.weights)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.weights = from_bytes(state["weights"])
