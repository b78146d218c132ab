"""Gradients for the rules of p2pfl.update_rules, with the same code for one model and for a stack of models.

For one model, vectors are [n] and batches [b, ...]; for K models [K, n] and [K, b, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD, Optimizer, State
from p2pfl.parameters import Layout
from p2pfl.update_rules import (
    Aligned,
    Between,
    Descent,
    Envelope,
    Lookahead,
    Mixture,
    Rule,
    Steps,
    TrainSubset,
    Weighted,
)

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(trained values, inputs, targets) -> the gradient of the mean loss there; the next call may overwrite it."""

Rows = slice | Tensor
"""Models of the stack that make the step; `slice(None)` for a single model."""


class Follow(Protocol):
    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        """Return the step directions of the models at `point`; the next call may overwrite them."""


def plan(rule: Rule | None, optimizer: Optimizer, batch_size: int, epochs: int, samples: int) -> tuple[Optimizer, int, int]:
    """Return the optimiser, the batch size and the number of epochs of a training of at most `samples` samples."""
    if isinstance(rule, Descent):
        return SGD(rule.lr), samples, 1
    if isinstance(rule, Between):
        return SGD(rule.lr), batch_size, epochs
    return optimizer, batch_size, 1 if isinstance(rule, Steps) else epochs


def most_steps(rule: Rule | None, steps: int) -> int:
    """Return the number of steps of a training whose epochs have `steps` batches."""
    return min(steps, rule.steps) if isinstance(rule, Steps) else steps


def shared_values(layout: Layout, device: torch.device) -> Tensor | None:
    """Return 1 for each shared and 0 for each private trained value, [n]; None if all are shared."""
    values = torch.zeros(layout.size, device=device)
    for part in layout.shared_slices:
        values[part] = 1
    values = values[: layout.n_trained]
    return None if values.all() else values


def resting(rule: Rule | None, shared: Tensor | None) -> Tensor | None:
    """Return the places of the trained values that a rule does not change; None if it changes all.

    Args:
        shared: see `shared_values`.

    Raises:
        ConfigurationError: the rule trains one part alone, but the trained values do not have both parts.
    """
    if not isinstance(rule, TrainSubset):
        return None
    if shared is None or not shared.any():
        raise ConfigurationError(
            "the policy needs a model with a private and a shared part; for the tasks digits and images, set"
            ' task.private = "head" to keep the last layer private'
        )
    return (shared == (rule.part == "private")).nonzero().squeeze(1)


def follow(
    rules: Sequence[Rule | None],
    like: Tensor,
    optimizer: Optimizer,
    steps: int,
    shared: Tensor | None = None,
    *,
    other_state: State | None = None,
) -> Follow | None:
    """Return the function that computes the gradients of rules of one kind; None for plain gradients at the models.

    Args:
        rules: one, or one for each model of the stack.
        like: the trained values, [n] or [K, n].
        optimizer: the optimiser of the training.
        steps: maximum number of steps.
        shared: see `shared_values`.
        other_state: the optimiser's state for the shared models of `Mixture`; by default a new one.
    """
    if rules[0] is None:  # then all are
        return None
    if lookahead := [rule for rule in rules if isinstance(rule, Lookahead)]:
        return _Lookahead(_column([rule.lr for rule in lookahead], like))
    if mixtures := [rule for rule in rules if isinstance(rule, Mixture)]:
        alpha = _column([rule.alpha for rule in mixtures], like)
        if shared is not None:  # private values are only those of the trained model
            alpha = 1 - (1 - alpha) * shared
        others = _vectors([rule.shared for rule in mixtures], like)
        return _Mixture(alpha, others, optimizer, optimizer.start(others, steps) if other_state is None else other_state)
    if envelopes := [rule for rule in rules if isinstance(rule, Envelope)]:
        weight, lr = _column([rule.weight for rule in envelopes], like), _column([rule.lr for rule in envelopes], like)
        return _Envelope(weight, lr, envelopes[0].steps, shared)
    if between := [rule for rule in rules if isinstance(rule, Between)]:
        low, high = _vectors([rule.low for rule in between], like), _vectors([rule.high for rule in between], like)
        return _Between(low, high, between[0].lr)
    if aligned := [rule for rule in rules if isinstance(rule, Aligned)]:
        anchors = _vectors([rule.anchor for rule in aligned], like)
        return _Aligned(_column([rule.weight for rule in aligned], like), anchors, shared)
    if weighted := [rule for rule in rules if isinstance(rule, Weighted)]:
        tables = torch.from_numpy(np.array([rule.weights for rule in weighted], np.float32)).to(like.device).flatten(1)
        return _Weighted(tables if like.dim() == 2 else tables[0])
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
    def __init__(self, alpha: Tensor, shared: Tensor, optimizer: Optimizer, state: State) -> None:
        self._alpha = alpha
        self._shared = shared
        self._optimizer = optimizer
        self._state = state

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        alpha, shared = self._alpha[rows], self._shared[rows]
        result = alpha * gradient(torch.lerp(shared, point, alpha), x, y)
        states = {name: tensor[rows] for name, tensor in self._state.items()}
        self._optimizer.step(shared, gradient(shared, x, y), states, shared)
        if not isinstance(rows, slice):  # these are copies in this case
            self._shared[rows] = shared
            for name, tensor in states.items():
                self._state[name][rows] = tensor
        return result


class _Envelope:
    """Gradient of the rule `Envelope`; for private values, that at the model itself."""

    def __init__(self, weight: Tensor, lr: Tensor, steps: int, shared: Tensor | None) -> None:
        self._weight = weight
        self._lr = lr
        self._steps = steps
        self._shared = shared

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        weight, lr = self._weight[rows], self._lr[rows]
        near, first = point.clone(), None
        for _ in range(self._steps):
            slope = gradient(near, x, y)
            if first is None and self._shared is not None:
                first = slope.clone()
            near -= lr * (slope + weight * (near - point))
        pull = weight * (point - near)
        return pull if first is None or self._shared is None else torch.where(self._shared > 0, pull, first)


class _Between:
    """Direction of the rule `Between`, from which a plain step of the length `lr` stays between the two models."""

    def __init__(self, low: Tensor, high: Tensor, lr: float) -> None:
        self._least, self._most = torch.minimum(low, high), torch.maximum(low, high)
        self._squares = (high - low).square()
        self._lr = lr

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        moved = point - self._lr * self._squares[rows] * gradient(point, x, y)
        return (point - torch.clamp(moved, self._least[rows], self._most[rows])) / self._lr


class _Aligned:
    def __init__(self, weight: Tensor, anchors: Tensor, part: Tensor | None) -> None:
        self._weight = weight
        self._part = part
        if part is not None:
            anchors = anchors * part
        length = anchors.norm(dim=-1, keepdim=True)
        self._directions = torch.where(length > 0, anchors / length, torch.zeros_like(anchors))

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        model = point if self._part is None else point * self._part
        direction, length = self._directions[rows], model.norm(dim=-1, keepdim=True)
        along = (direction * model).sum(-1, keepdim=True) / length
        pull = torch.where(length > 0, (direction - along * model / length) / length, torch.zeros_like(model))
        return gradient(point, x, y).sub_(self._weight[rows] * pull)


class _Weighted:
    """Gradient of the rule `Weighted`.

    Args:
        tables: the weights of label 0 in each group, then those of label 1; [2A] or [K, 2A].
    """

    def __init__(self, tables: Tensor) -> None:
        self._tables = tables
        self._groups = tables.shape[-1] // 2

    def __call__(self, gradient: Gradient, point: Tensor, x: Tensor, y: Tensor, rows: Rows) -> Tensor:
        cells = (y[..., 0] * self._groups + y[..., 1]).long()
        weights = self._tables[rows].gather(-1, cells)
        return gradient(point, x, torch.cat([y, weights.unsqueeze(-1)], -1))
