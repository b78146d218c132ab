"""Optimisers on flat vectors, with the same code for one node and for many (PyTorch's formulas and defaults)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Protocol

import msgspec
import torch
from msgspec.structs import force_setattr, replace
from torch import Tensor

from p2pfl.errors import ConfigurationError
from p2pfl.learning.schedules import Schedule, schedule_of

State = dict[str, Tensor]


class Optimizer(Protocol):
    """Optimiser of vectors of shape [..., P], each independent along the leading dimensions."""

    def start(self, params: Tensor, steps: int) -> State:
        """Return the initial state for at most `steps` steps: tensors of shape [..., P] or [..., 1]."""

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        """Write the new parameters to `out`, which may be `params`. It changes `state` and may overwrite `grad`."""


def at_round(optimizer: Optimizer, round: int) -> Optimizer:
    """Return the optimiser of one round: `optimizer` with the rate of its `schedule`; itself without a schedule.

    Raises:
        ConfigurationError: the schedule returns a negative factor, or one that is not finite.
    """
    if not isinstance(optimizer, SGD | Adam) or not callable(optimizer.schedule):
        return optimizer
    factor = float(optimizer.schedule(round))
    if not 0 <= factor < inf:
        raise ConfigurationError(
            f"the learning-rate schedule returned {factor} for round {round}; a factor is 0 or more, and finite"
        )
    return replace(optimizer, lr=optimizer.lr * factor, schedule=None)


def check_schedule(optimizer: object, rounds: int) -> None:
    """Check that an optimiser has a learning rate in the last round.

    Raises:
        ConfigurationError: its schedule returns a negative factor, or one that is not finite.
    """
    if isinstance(optimizer, SGD | Adam):
        at_round(optimizer, rounds)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < inf:
            raise ValueError(f"{name} must be 0 or more, and finite, got {value}")


def _read_schedule(optimizer: SGD | Adam) -> None:
    """Replace a schedule that is a table, for example from a TOML file, by the schedule that it describes."""
    given: Any = optimizer.schedule
    if isinstance(given, Mapping):
        force_setattr(optimizer, "schedule", schedule_of("optimizer.schedule", given))
    elif given is not None and not callable(given):
        raise ValueError(f"schedule must be a table, or a function of the round, got {given!r}")


class SGD(msgspec.Struct, frozen=True):
    """Stochastic gradient descent, like torch.optim.SGD (without dampening and Nesterov).

    Attributes:
        schedule: factor of the learning rate in each round: p2pfl.schedule(...), a table with a name and options, or
            any function of the round.

    Raises:
        ValueError: a value is negative or not finite.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule | Mapping[str, Any] | None = None  # a table is replaced by its schedule

    def __post_init__(self) -> None:
        _check(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        _read_schedule(self)

    def start(self, params: Tensor, steps: int) -> State:
        if self.momentum and steps > 1:
            return {"velocity": torch.zeros_like(params)}
        return {}  # the velocity of the first step is its gradient, and a single step never reads it again

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        if self.weight_decay:
            grad.add_(params, alpha=self.weight_decay)
        if "velocity" in state:
            grad = state["velocity"].mul_(self.momentum).add_(grad)
        torch.sub(params, grad, alpha=self.lr, out=out)


class Adam(msgspec.Struct, frozen=True):
    """Adam, like torch.optim.Adam (Kingma and Ba 2015).

    Attributes:
        schedule: see SGD.

    Raises:
        ValueError: a value is negative or not finite, or a beta is not below 1.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule | Mapping[str, Any] | None = None  # a table is replaced by its schedule

    def __post_init__(self) -> None:
        _check(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1, got {self.betas}")
        _read_schedule(self)

    def start(self, params: Tensor, steps: int) -> State:
        count = torch.zeros_like(params[..., :1])
        return {"steps": count, "mean": torch.zeros_like(params), "square": torch.zeros_like(params)}

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        if self.weight_decay:
            grad.add_(params, alpha=self.weight_decay)
        torch.sub(params, self.direction(grad, state), alpha=self.lr, out=out)

    def direction(self, grad: Tensor, state: State) -> Tensor:
        """Return the direction of a step from a gradient, both of [..., P]; it changes `state`."""
        beta1, beta2 = self.betas
        steps = state["steps"].add_(1)
        mean = state["mean"].mul_(beta1).add_(grad, alpha=1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square / (1 - beta2**steps)).sqrt_().add_(self.eps)
        return (mean / (1 - beta1**steps)).div_(denominator)


class AdamW(Adam, frozen=True):
    """Adam with decoupled weight decay, like torch.optim.AdamW (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        torch.mul(params, 1 - self.lr * self.weight_decay, out=out)
        out.sub_(self.direction(grad, state), alpha=self.lr)


OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
