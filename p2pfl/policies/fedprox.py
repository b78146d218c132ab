"""FedProx: FedAvg with a proximal term that keeps nodes near the model with which the round began."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from p2pfl.parameters import Parameters
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policy import Me


@dataclass
class FedProx(FedAvg):
    """FedAvg with `mu/2 ||w - w_t||^2` added to the local loss (Li et al., "Federated Optimization in Heterogeneous
    Networks", 2020, algorithm 2). w_t is the aggregated model of the previous round. All participants take part and
    train for the same number of epochs; in the paper slow ones may train for fewer.

    Attributes:
        mu: the weight of the proximal term.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < inf:
            raise ValueError(f"mu must be 0 or more, and finite, got {self.mu}")

    def _proximal(self, me: Me) -> tuple[float, Parameters] | None:
        return self.mu, me.params
