"""Tasks made of a torch module, a loss, an optimiser and arrays: the usual case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl.learning.losses import accuracy, cross_entropy, squared_error
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.learning.torch_problem import Samples, TorchProblem
from p2pfl.multiobjective.preferences import Preference
from p2pfl.multiobjective.scalarisation import Objectives
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams


@dataclass
class TorchTask(TorchProblem):
    """A task from a torch module and arrays; for its attributes see TorchProblem."""

    def learner(self, draws: RandomStreams, device: str = "cpu") -> TorchLearner:
        return TorchLearner(self, draws, device)


def classification(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    **options: Any,
) -> TorchTask:
    """Make a classification task from arrays, with cross-entropy of logits and accuracy.

    Args:
        module: makes a torch module from inputs [n, ...] to logits [n, classes].
        train, validation, test: (inputs, class numbers) as NumPy arrays or tensors.
        options: further attributes of TorchTask, for example `optimizer`, `batch_size`, `public_info`.
    """
    data = _data(train, validation, test, target=torch.int64)
    return TorchTask(module, data, cross_entropy, "accuracy", accuracy, True, **options)


def regression(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    **options: Any,
) -> TorchTask:
    """Make a regression task with mean squared error. Targets have the shape of the module's outputs, [n, ...]."""
    data = _data(train, validation, test, target=torch.float32)
    return TorchTask(module, data, squared_error, "mse", squared_error, False, **options)


def multi_objective(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    objectives: Objectives,
    preference: Preference,
    **options: Any,
) -> TorchTask:
    """Make a task with several objectives from arrays; the metric is the reward, minus the scalarised loss.

    Args:
        module: makes a torch module.
        train, validation, test: (inputs, targets) as NumPy arrays or tensors.
        objectives: names, losses and scalarisation of the objectives.
        preference: the node's weights, [m].
        options: further attributes of TorchTask.
    """
    data = _data(train, validation, test, target=torch.float32)
    return TorchTask(
        module, data, metric="reward", higher_is_better=True, objectives=objectives, preference=preference, **options
    )


def _data(
    train: tuple[Any, Any], validation: tuple[Any, Any] | None, test: tuple[Any, Any] | None, target: torch.dtype
) -> dict[Split, Samples]:
    def samples(pair: tuple[Any, Any]) -> Samples:
        x, y = (torch.as_tensor(np.asarray(part)) if not isinstance(part, Tensor) else part for part in pair)
        return Samples(x.float() if x.is_floating_point() else x, y.to(target))

    given: dict[Split, tuple[Any, Any] | None] = {"train": train, "validation": validation, "test": test}
    return {split: samples(pair) for split, pair in given.items() if pair is not None}
