"""Tasks that PyTorch trains, or NumPy where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl.learning.dense import DenseNetwork, DenseTask
from p2pfl.learning.measures import measures_of
from p2pfl.queries import Split
from p2pfl.task import Task

if TYPE_CHECKING:
    from torch import nn


def has_torch() -> bool:
    """Return whether PyTorch is installed."""
    return find_spec("torch") is not None


def as_tensors(x: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Return samples as torch tensors; unchanged without PyTorch."""
    if not has_torch():
        return x, y
    import torch

    return torch.from_numpy(x), torch.from_numpy(y)


def mlp_task(
    sizes: Sequence[int], data: Mapping[Split, tuple[np.ndarray, np.ndarray]], *, metrics: Sequence[str] = (), **options: Any
) -> Task:
    """Return the task of an MLP with ReLU and cross-entropy: a TorchTask, or a DenseTask without PyTorch.

    Args:
        sizes: numbers of inputs, of the units of each hidden layer, and of classes.
        data: inputs float32 [n, inputs] and class numbers int64 [n] by split.
        metrics: names of further metrics besides accuracy.
        options: attributes that both kinds of tasks have, such as `optimizer` and `batch_size`.
    """
    if not has_torch():
        return DenseTask(DenseNetwork(tuple(sizes)), data, measures=measures_of(["accuracy", *metrics]), **options)
    from p2pfl.learning.losses import CLASSIFICATION, metrics_of
    from p2pfl.learning.torch_problem import Samples
    from p2pfl.learning.torch_task import TorchTask

    samples = {split: Samples(*as_tensors(*arrays)) for split, arrays in data.items()}
    return TorchTask(lambda: mlp(sizes), samples, metrics=metrics_of(metrics, CLASSIFICATION), **options)


def mlp(sizes: Sequence[int]) -> nn.Module:
    """Return the torch module of an MLP with ReLU."""
    from torch import nn

    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
