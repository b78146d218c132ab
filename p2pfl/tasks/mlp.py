"""Tasks that PyTorch trains, or NumPy where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl.errors import require
from p2pfl.learning import dense
from p2pfl.learning.dense import DenseNetwork, DenseTask
from p2pfl.learning.measures import REGRESSION, measures_of
from p2pfl.queries import Split
from p2pfl.task import Task

if TYPE_CHECKING:
    from torch import nn

Arrays = tuple[np.ndarray, np.ndarray]


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
    sizes: Sequence[int],
    data: Mapping[Split, Arrays],
    *,
    numbers: bool = False,
    metrics: Sequence[str] = (),
    **options: Any,
) -> Task:
    """Return the task of an MLP with ReLU: a TorchTask, or a DenseTask without PyTorch.

    Args:
        sizes: numbers of inputs, of the units of each hidden layer, and of outputs.
        data: inputs float32 [n, inputs] by split, and class numbers int64 [n], or numbers float32 [n, outputs].
        numbers: whether the targets are numbers, with the squared error, instead of classes, with cross-entropy.
        metrics: names of further metrics besides accuracy, or the mean squared error.
        options: attributes that both kinds of tasks have, such as `optimizer` and `batch_size`.
    """
    if has_torch():
        return _torch_task(lambda: mlp(sizes), data, numbers, metrics, options)
    network = DenseNetwork(tuple(sizes))
    if not numbers:
        return DenseTask(network, data, measures=measures_of(["accuracy", *metrics]), **options)
    measures = measures_of(["mse", *metrics], REGRESSION)
    return DenseTask(network, data, loss=dense.squared_error, measures=measures, higher_is_better=False, **options)


def image_task(
    shape: tuple[int, int, int],
    classes: int,
    data: Mapping[Split, Arrays],
    *,
    model: Mapping[str, Any],
    metrics: Sequence[str] = (),
    **options: Any,
) -> Task:
    """Return the task of a model for images.

    Args:
        shape: channels, height and width.
        data: inputs float32 [n, channels * height * width] and class numbers int64 [n] by split.
        model: table with the name of the model in p2pfl.learning.image_models, and its options.
        metrics, options: see `mlp_task`.

    Raises:
        ConfigurationError: the model is unknown, or does not fit the images.
        MissingRequirementError: PyTorch is not installed.
    """
    require("torch", "task.model")
    from p2pfl.learning.image_models import MODELS

    make, settings = choose("task.model", model, MODELS)
    samples: dict[Split, Arrays] = {split: (x.reshape(len(x), *shape), y) for split, (x, y) in data.items()}
    module = partial(build, "task.model", make, settings, shape=shape, classes=classes)
    module()  # reports an invalid model early
    return _torch_task(module, samples, False, metrics, options)


def _torch_task(
    module: Callable[[], nn.Module],
    data: Mapping[Split, Arrays],
    numbers: bool,
    metrics: Sequence[str],
    options: Mapping[str, Any],
) -> Task:
    from p2pfl.learning import losses
    from p2pfl.learning.torch_problem import Samples
    from p2pfl.learning.torch_task import TorchTask

    samples = {split: Samples(*as_tensors(*arrays)) for split, arrays in data.items()}
    if not numbers:
        return TorchTask(module, samples, metrics=losses.metrics_of(metrics, losses.CLASSIFICATION), **options)
    error = losses.squared_error
    return TorchTask(
        module,
        samples,
        loss=error,
        metric="mse",
        measure=error,
        higher_is_better=False,
        metrics=losses.metrics_of(metrics, losses.REGRESSION),
        **options,
    )


def mlp(sizes: Sequence[int]) -> nn.Module:
    """Return the torch module of an MLP with ReLU."""
    from torch import nn

    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
