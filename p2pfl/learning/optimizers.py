"""Optimisers on flat vectors, with the same code for one node and for many (PyTorch's formulas and defaults).

Importing this module does not import torch: a node without it also has their settings.

The steps are not those of torch's fused kernels. That of SGD rounds the last values of a tensor in another way than the
others, so that a model would get other bits in a stack of models than alone. That of Adam takes a fifth of the time, which
is at most a seventh of a whole training, and recorded figures of Adam would change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace

from p2pfl.errors import ConfigurationError
from p2pfl.learning.schedules import Schedule, schedule_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"

BLOCK = 2**16  # values of a vector that an optimiser updates at once; with its state they fit into the cache


class Optimizer(Protocol):
    """Optimiser of vectors of shape [..., P], each independent along the leading dimensions.

    An optimiser with a true attribute `lasting` keeps its state from one training of a node to the next.
    """

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


def check_optimizer(optimizer: object) -> None:
    """Raise ConfigurationError for an object without the methods of an optimiser, such as a table or one of torch."""
    if isinstance(optimizer, type) or not callable(getattr(optimizer, "start", None)):
        kind = type(optimizer).__name__
        raise ConfigurationError(f"optimizer must be an object such as p2pfl.SGD(lr=0.1) or p2pfl.AdamW(), got a {kind}")


def check_batch_size(batch_size: object) -> None:
    """Raise ConfigurationError for a batch size that is not a whole number of 1 or more."""
    if not isinstance(batch_size, Integral):
        raise ConfigurationError(f"batch_size must be a whole number, got {batch_size!r:.60}")
    if batch_size < 1:
        raise ConfigurationError(f"batch_size must be 1 or more, got {batch_size}")


def _check(**values: float) -> None:
    for name, value in values.items():
        if not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, got {value!r:.60}")
        if not 0 <= value < inf:
            raise ValueError(f"{name} must be 0 or more, and finite, got {value}")


def _read_schedule(optimizer: SGD | Adam) -> None:
    """Replace a schedule that is a table, for example from a TOML file, by the schedule that it describes."""
    given: Any = optimizer.schedule
    if isinstance(given, Mapping):
        force_setattr(optimizer, "schedule", schedule_of("optimizer.schedule", given))
    elif given is not None and not callable(given):
        form = 'one such as p2pfl.schedule("cosine", rounds=10), or a function of the round'
        raise ValueError(f"schedule must be {form}, got {given!r:.60}")


class SGD(msgspec.Struct, frozen=True):
    """Stochastic gradient descent, like torch.optim.SGD (without dampening and Nesterov).

    Attributes:
        schedule: factor of the learning rate in each round: p2pfl.schedule(...), a table with a name and options, or
            any function of the round.
        lasting: whether the velocity lasts over the rounds, as with one torch.optim.SGD for each node; by default each
            training starts without one. Trainings of different purposes, such as the two models of Ditto, have their
            own. Fine-tuning starts without one.

    Raises:
        ValueError: a value is negative or not finite.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    lasting: bool = False
    schedule: Schedule | Mapping[str, Any] | None = None  # a table is replaced by its schedule

    def __post_init__(self) -> None:
        _check(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        _read_schedule(self)

    def start(self, params: Tensor, steps: int) -> State:
        import torch

        if self.momentum and (steps > 1 or self.lasting):
            return {"velocity": torch.zeros_like(params)}
        return {}  # the velocity of the first step is its gradient, and a single step never reads it again

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        import torch

        if not (self.weight_decay or "velocity" in state):
            torch.sub(params, grad, alpha=self.lr, out=out)
            return
        for part, gradient, velocity, new in _blocks(params, grad, state.get("velocity", grad), out):
            if self.weight_decay:
                gradient.add_(part, alpha=self.weight_decay)
            change = velocity.mul_(self.momentum).add_(gradient) if "velocity" in state else gradient
            torch.sub(part, change, alpha=self.lr, out=new)


class Adam(msgspec.Struct, frozen=True):
    """Adam, like torch.optim.Adam (Kingma and Ba 2015).

    Attributes:
        schedule, lasting: see SGD; the state of Adam is both moments and the number of steps.

    Raises:
        ValueError: a value is negative or not finite, or a beta is not below 1.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    lasting: bool = False
    schedule: Schedule | Mapping[str, Any] | None = None  # a table is replaced by its schedule

    def __post_init__(self) -> None:
        _check(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1, got {self.betas}")
        _read_schedule(self)

    def start(self, params: Tensor, steps: int) -> State:
        import torch

        count = torch.zeros_like(params[..., :1])
        return {"steps": count, "mean": torch.zeros_like(params), "square": torch.zeros_like(params)}

    def step(self, params: Tensor, grad: Tensor, state: State, out: Tensor) -> None:
        import torch

        beta1, beta2 = self.betas
        steps = state["steps"].add_(1)
        tensors = params, grad, state["mean"], state["square"], 1 - beta1**steps, 1 - beta2**steps, out
        for part, gradient, mean, square, scale1, scale2, new in _blocks(*tensors):
            start = self._decay(part, gradient, new)
            mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            denominator = (square / scale2).sqrt_().add_(self.eps)
            torch.sub(start, (mean / scale1).div_(denominator), alpha=self.lr, out=new)

    def _decay(self, params: Tensor, grad: Tensor, out: Tensor) -> Tensor:
        """Add the weight decay to the gradient, and return the parameters from which the step begins."""
        if self.weight_decay:
            grad.add_(params, alpha=self.weight_decay)
        return params


class AdamW(Adam, frozen=True):
    """Adam with decoupled weight decay, like torch.optim.AdamW (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def _decay(self, params: Tensor, grad: Tensor, out: Tensor) -> Tensor:
        import torch

        return torch.mul(params, 1 - self.lr * self.weight_decay, out=out)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield corresponding parts of tensors [..., P] or [..., 1] that fit into the cache, as views; on a GPU the whole.

    A step passes over its vectors several times; a part stays in the cache until all passes are done.
    """
    first = tensors[0]
    size = first.shape[-1]
    if first.numel() <= BLOCK or first.device.type != "cpu":
        yield tensors
        return
    rows = [tensor.view(-1, tensor.shape[-1]) for tensor in tensors]
    height = max(1, BLOCK // size)
    for top in range(0, len(rows[0]), height):
        some = [tensor[top : top + height] for tensor in rows]
        for left in range(0, size, BLOCK):
            yield tuple(part if part.shape[1] == 1 else part[:, left : left + BLOCK] for part in some)


OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def lasting(optimizer: Optimizer) -> bool:
    """Return whether an optimiser keeps its state from one training to the next."""
    return bool(getattr(optimizer, "lasting", False))


class LastingState:
    """States of an optimiser that last from one training to the next, by the purpose of the training.

    Args:
        rows: number of nodes.
        size: number of trained values of a model.
        device: device of the states.
    """

    def __init__(self, rows: int, size: int, device: torch.device) -> None:
        self._shape = (rows, size)
        self._device = device
        self._kept: dict[str, State] = {}

    def start(self, optimizer: Optimizer, purpose: str, rows: Sequence[int]) -> State | None:
        """Return copies of the states of some nodes, [k, P] or [k, 1]; None if the optimiser keeps none."""
        import torch

        if not lasting(optimizer):
            return None
        if purpose not in self._kept:
            self._kept[purpose] = optimizer.start(torch.zeros(self._shape, device=self._device), 1)
        return {name: tensor[list(rows)] for name, tensor in self._kept[purpose].items()}

    def keep(self, purpose: str, rows: Sequence[int], optimizer: Optimizer, state: State) -> None:
        """Keep the states of nodes after a training, except those with values that are not finite."""
        import torch

        if not lasting(optimizer):
            return
        finite = torch.ones(len(rows), dtype=torch.bool, device=self._device)
        for tensor in state.values():
            finite &= tensor.sum(-1).isfinite()
        places = torch.tensor(rows, device=self._device)[finite]
        for name, tensor in state.items():
            self._kept[purpose][name][places] = tensor[finite]

    def arrays(self, row: int) -> dict[str, np.ndarray]:
        """Return copies of the states of one node, float32 [P] or [1], by "purpose/name"."""
        return {
            f"{purpose}/{name}": tensor[row].cpu().numpy().copy()
            for purpose, state in self._kept.items()
            for name, tensor in state.items()
        }

    def restore(self, row: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue with the states of one node that `arrays` returned.

        Raises:
            ConfigurationError: a state has another size.
        """
        import torch

        for key, array in arrays.items():
            purpose, _, name = key.rpartition("/")
            width = array.shape[0] if array.ndim == 1 else 0
            if width not in (1, self._shape[1]):
                raise ConfigurationError(f"the optimiser's state {key!r} in the checkpoint belongs to another model")
            state = self._kept.setdefault(purpose, {})
            kept = state.setdefault(name, torch.zeros((self._shape[0], width), device=self._device))
            kept[row] = torch.from_numpy(array.astype(np.float32)).to(self._device)
