"""Several objectives of one model, and how a preference makes one number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from p2pfl.config.binding import build, choose
from p2pfl.errors import ConfigurationError

LEAST_WEIGHT = 1e-6  # below which nothing is divided by a weight

Scalarise = Callable[[Tensor, Tensor], Tensor]
"""(losses [..., m], weights [..., m]) -> [...]."""


def linear(losses: Tensor, weights: Tensor) -> Tensor:
    """The sum of weight times loss."""
    return (losses * weights).sum(-1)


@dataclass(frozen=True)
class SmoothTchebycheff:
    """(1/gamma) log sum_i exp(gamma a_i), where a_i is a weight times a loss, or, with `divide`, a loss by a weight.

    With the product it is Lin et al. 2024 ("Smooth Tchebycheff scalarization for multi-objective optimization", with mu =
    1/gamma and the ideal point 0), and more weight makes an objective count more. With the quotient it is PraFFL (section
    5.2), where more weight makes it count less. It exceeds max a_i by at most (log m) / gamma.

    Attributes:
        gamma: more than 0; the greater, the nearer to the maximum.
        divide: a weight below 1e-6 then counts as 1e-6.
    """

    gamma: float = 1.0
    divide: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.gamma < inf:
            raise ConfigurationError(f"task.scalarisation.gamma must be more than 0, and finite, got {self.gamma}")

    def __call__(self, losses: Tensor, weights: Tensor) -> Tensor:
        scaled = losses / weights.clamp_min(LEAST_WEIGHT) if self.divide else losses * weights
        return torch.logsumexp(self.gamma * scaled, -1) / self.gamma


def _linear() -> Scalarise:
    return linear


SCALARISATIONS: Mapping[str, Callable[..., Scalarise]] = {"linear": _linear, "tchebycheff": SmoothTchebycheff}


def scalarisation(table: Mapping[str, Any]) -> Scalarise:
    """Return what a table such as { name = "tchebycheff", gamma = 10.0 } stands for."""
    factory, options = choose("task.scalarisation", table, SCALARISATIONS)
    made: Scalarise = build("task.scalarisation", factory, options)
    return made


@dataclass(frozen=True)
class Objectives:
    """What a model is judged by, in place of a single loss. Nodes can only be stacked if these are equal.

    Attributes:
        names: of the m objectives, as they are reported.
        losses: (outputs [n, ...], targets [n, ...]) of a batch -> [m], less is better. It must be something that torch.func
            can differentiate, and may couple the samples (as differences between groups of them do).
        scalarise: makes the one loss that is trained.
    """

    names: tuple[str, ...]
    losses: Callable[[Tensor, Tensor], Tensor]
    scalarise: Scalarise = linear
