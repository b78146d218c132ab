"""Objectives of one model, and their scalarisation by a preference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from p2pfl.config.binding import build, choose
from p2pfl.errors import ConfigurationError

LEAST_WEIGHT = 1e-6  # lower bound of a weight in a division

Scalarise = Callable[[Tensor, Tensor], Tensor]
"""Function (losses [..., m], weights [..., m]) -> [...]."""


def linear(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of weight times loss."""
    return (losses * weights).sum(-1)


@dataclass(frozen=True)
class SmoothTchebycheff:
    """Smooth maximum (1/gamma) log sum_i exp(gamma a_i); a_i is weight * loss, or with `divide` loss / weight.

    The product is that of Lin et al. 2024 ("Smooth Tchebycheff scalarization for multi-objective optimization", with mu
    = 1/gamma and the ideal point 0): a higher weight makes an objective count more. The quotient is PraFFL's (section
    5.2): a higher weight makes it count less. The result exceeds max a_i by at most (log m) / gamma.

    Attributes:
        gamma: more than 0; a higher value is nearer to the maximum.
        divide: divide by the weight; a weight below 1e-6 then counts as 1e-6.
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
    """Return the scalarisation of a table, for example { name = "tchebycheff", gamma = 10.0 }."""
    factory, options = choose("task.scalarisation", table, SCALARISATIONS)
    made: Scalarise = build("task.scalarisation", factory, options)
    return made


@dataclass(frozen=True)
class Objectives:
    """Objectives of a model, instead of a single loss. Nodes can only be stacked if their objectives are equal.

    Attributes:
        names: names of the m objectives in reports.
        losses: function (outputs [n, ...], targets [n, ...]) of a batch -> [m], lower is better. torch.func must be
            able to differentiate it. It may couple the samples, for example by differences between groups.
        scalarise: combines the losses to the one that is trained.
    """

    names: tuple[str, ...]
    losses: Callable[[Tensor, Tensor], Tensor]
    scalarise: Scalarise = linear
