"""pFedMe: personal models near a shared one, which is trained on the envelopes of the nodes' losses."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from p2pfl.parameters import Parameters
from p2pfl.policies.personal import Personal
from p2pfl.policy import Me, Merge, Peers, built_in, refused_under_privacy
from p2pfl.update_rules import Envelope


@built_in("pfedme")
@dataclass
class PFedMe(Personal):
    """pFedMe (Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, algorithm 1),
    run by the elected coordinator.

    The personal model of a node is theta(w) = argmin of its loss plus `weight/2 ||theta - w||^2`, and the shared model w
    minimises the mean of these minima, whose gradient is `weight (w - theta(w))`. In each local step a node approaches
    theta for one batch by `inner_steps` steps of gradient descent, and moves w along that gradient. The coordinator
    averages the w; the next shared model is `(1 - beta) w_t + beta mean`.

    Simplified: all participants take part in every round and are weighted by their samples. The task's optimiser moves w;
    the paper uses plain steps. The reported personal model is theta of the new shared model, trained on all samples for
    `personal_epochs` with the proximal term; the authors' program reports the last theta of the round.

    Attributes:
        epochs: epochs of local steps in a round.
        weight: lambda; the paper has 15 in most experiments.
        inner_steps: K.
        inner_lr: learning rate of the inner steps.
        beta: step of the shared model towards the mean; 1 takes the mean.
        personal_epochs: epochs in which the personal model is approached from the shared one.
    """

    only_mean: ClassVar[bool] = True

    weight: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.01
    beta: float = 1.0
    personal_epochs: int = 1

    under_privacy = refused_under_privacy("its steps take gradients at further points, which no clip limits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.weight < inf:
            raise ValueError(f"weight must be above 0, and finite, got {self.weight}")
        if not 0 < self.inner_lr < inf:
            raise ValueError(f"inner_lr must be above 0, and finite, got {self.inner_lr}")
        if not 0 < self.beta < inf:
            raise ValueError(f"beta must be above 0, and finite, got {self.beta}")
        for name in ("inner_steps", "personal_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")

    async def round(self, me: Me, peers: Peers) -> Merge:
        before = self._shared_values(me)
        rule = Envelope(self.weight, self.inner_lr, self.inner_steps)
        mean, weights = await self._share(me, peers, await me.train(before, epochs=self.epochs, rule=rule))
        self.shared = await self._towards(me, before, mean)
        near = (self.weight, self.shared)
        own = await me.train(self.shared, epochs=self.personal_epochs, proximal=near, purpose="personal")
        return Merge(own, weights)

    async def _towards(self, me: Me, before: Parameters, mean: Parameters) -> Parameters:
        return mean if self.beta == 1 else await me.mean([before, mean], [1 - self.beta, self.beta])
