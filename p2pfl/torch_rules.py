"""The gradients that p2pfl.rules ask for, of one model or of a stack of them: the lines are the same.

For one model vectors are [n] and batches [b, ...]; for K models [K, n] and [K, b, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from p2pfl.optimizers import SGD, Optimizer
from p2pfl.rules import Aligned, Descent, Lookahead, Mixture, Rule

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(trained values, inputs, targets) -> the gradient of the mean loss there; it may be overwritten by the next call."""

Rows = slice | Tensor
"""Which models of the stack take the step; of a single model, `slice(None)`."""


class Follow(Protocol):
    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        """Return along what the models step that are at `point`; it may be overwritten by the next call."""


def plan(rule: Rule | None, optimizer: Optimizer, batch_size: int, epochs: int, samples: int) -> tuple[Optimizer, int, int]:
    """Return the optimiser, the size of the batches and the number of epochs of a training of at most so many samples."""
    return (SGD(rule.lr), samples, 1) if isinstance(rule, Descent) else (optimizer, batch_size, epochs)


def follow(rules: Sequence[Rule | None], like: Tensor, optimizer: Optimizer, steps: int) -> Follow | None:
    """Return what gives the gradients of rules of one kind; None where they are those at the models themselves.

    Args:
        rules: one, or one for each model of the stack.
        like: the trained values, [n] or [K, n].
        steps: that there will be at most.
    """
    if lookahead := [rule for rule in rules if isinstance(rule, Lookahead)]:
        return _Lookahead(_column([rule.lr for rule in lookahead], like))
    if mixtures := [rule for rule in rules if isinstance(rule, Mixture)]:
        shared = _vectors([rule.shared for rule in mixtures], like)
        return _Mixture(_column([rule.alpha for rule in mixtures], like), shared, optimizer, steps)
    if aligned := [rule for rule in rules if isinstance(rule, Aligned)]:
        return _Aligned(_column([rule.weight for rule in aligned], like), _vectors([rule.anchor for rule in aligned], like))
    return None


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    column = torch.tensor(values, dtype=torch.float32, device=like.device)
    return column.unsqueeze(1) if like.dim() == 2 else column


def _vectors(models: Sequence[np.ndarray], like: Tensor) -> Tensor:
    stack = torch.from_numpy(np.array(models))[:, : like.shape[-1]].to(like.device)
    return stack.clone() if like.dim() == 2 else stack[0].clone()


class _Lookahead:
    def __init__(self, lr: Tensor) -> None:
        self._lr = lr

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        axis = point.dim() - 1
        size = x.shape[axis]
        half = (size + 1) // 2
        ahead = point - self._lr[rows] * gradient(point, x.narrow(axis, 0, half), y.narrow(axis, 0, half))
        return gradient(ahead, x.narrow(axis, size - half, half), y.narrow(axis, size - half, half))


class _Mixture:
    def __init__(self, alpha: Tensor, shared: Tensor, optimizer: Optimizer, steps: int) -> None:
        self._alpha = alpha
        self._shared = shared
        self._optimizer = optimizer
        self._state = optimizer.start(shared, steps)

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        alpha, shared = self._alpha[rows], self._shared[rows]
        result = alpha * gradient(torch.lerp(shared, point, alpha), x, y)
        states = {name: tensor[rows] for name, tensor in self._state.items()}
        self._optimizer.step(shared, gradient(shared, x, y), states, shared)
        if not isinstance(rows, slice):  # then these are copies
            self._shared[rows] = shared
            for name, tensor in states.items():
                self._state[name][rows] = tensor
        return result


class _Aligned:
    def __init__(self, weight: Tensor, anchors: Tensor) -> None:
        self._weight = weight
        length = anchors.norm(dim=-1, keepdim=True)
        self._directions = torch.where(length > 0, anchors / length, torch.zeros_like(anchors))

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        direction, length = self._directions[rows], point.norm(dim=-1, keepdim=True)
        along = (direction * point).sum(-1, keepdim=True) / length
        pull = torch.where(length > 0, (direction - along * point / length) / length, torch.zeros_like(point))
        return gradient(point, x, y).sub_(self._weight[rows] * pull)
