"""The synthetic concept-shift problem: linear regression in clusters (Listo Zec et al., section 3.3, Table 3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.learning import dense, measures
from p2pfl.learning.dense import DenseTask
from p2pfl.learning.optimizers import SGD
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task
from p2pfl.tasks.mlp import as_tensors, has_torch

if TYPE_CHECKING:
    from torch import nn

    from p2pfl.learning.task_stack import TaskStack

Arrays = tuple[Any, Any]  # tensors, or NumPy arrays without PyTorch


def concept_shift(
    part: Part,
    seed: int,
    *,
    clusters: int = 3,
    dimensions: int = 10,
    samples: int = 50,
    validation: int = 100,
    test: int = 1000,
    noise: float = 3.0,
    lr: float = 0.003,
    batch_size: int = 8,
) -> Task:
    """Linear regression in clusters: y = <x, theta_c> + e, with theta_c ~ U(-10, 10)^d for each cluster c.

    Inputs are x ~ U(-10, 10)^d, noise is e ~ N(0, noise^2). Nodes are divided into clusters in blocks of (nearly) equal
    size; the nodes of a cluster share a validation and a test set. The model is linear with a bias, trained by plain
    SGD. (The paper's table of settings says Adam and gives no noise; these settings reproduce its figures.)

    Args:
        clusters: number of groups of nodes.
        dimensions: d, the numbers in a sample.
        samples, validation, test: sizes, per node, per cluster and per cluster.
        noise: the standard deviation of the noise of the targets.
        lr: the learning rate; the paper uses 0.008 for inverse loss and 0.003 otherwise.
        batch_size: samples in one step of the optimiser.
    """
    for name, value in {"clusters": clusters, "dimensions": dimensions, "samples": samples}.items():
        if value < 1:
            raise ConfigurationError(f"task.{name} must be 1 or more, got {value}")
    for name, value in {"validation": validation, "test": test}.items():
        if value < 0:
            raise ConfigurationError(f"task.{name} must be 0 or more, got {value}")
    if not 0 <= noise < inf:
        raise ConfigurationError(f"task.noise must be 0 or more, and finite, got {noise}")
    cluster = part.index * clusters // part.count
    theta = RandomStreams(seed, f"concept-shift/{cluster}").generator(0, "theta").uniform(-10, 10, dimensions)
    own = _draw(RandomStreams(seed, f"concept-shift/{cluster}/{part.index}").generator(0, "train"), theta, samples, noise)
    data: dict[Split, Arrays] = {
        "train": own,
        "validation": _draw_held_out(seed, cluster, "validation", validation, dimensions=dimensions, noise=noise),
        "test": _draw_held_out(seed, cluster, "test", test, dimensions=dimensions, noise=noise),
    }
    how: dict[str, Any] = {"optimizer": SGD(lr), "batch_size": batch_size, "public_info": {"group": cluster}}
    if not has_torch():
        linear = dense.DenseNetwork((dimensions, 1), alone=True)
        mse = {"mse": measures.squared_error}
        return DenseTask(linear, data, dense.squared_error, mse, higher_is_better=False, **how)
    from p2pfl.learning.torch_task import regression

    return regression(_linear(dimensions), *data.values(), **how)


def _concept_shift_of_all(
    first: Task,
    count: int,
    seed: int,
    *,
    clusters: int = 3,
    dimensions: int = 10,
    samples: int = 50,
    validation: int = 100,
    test: int = 1000,
    noise: float = 3.0,
    **options: Any,
) -> TaskStack | None:
    """Return the tasks of all nodes, whose samples are drawn into one array."""
    from p2pfl.learning.batched_training import StackedData
    from p2pfl.learning.task_stack import TaskStack
    from p2pfl.learning.torch_task import TorchTask

    if not isinstance(first, TorchTask):
        return None
    cluster = np.arange(count) * clusters // count
    found, cluster = np.unique(cluster, return_inverse=True)  # with few nodes some clusters have none
    x, y = np.empty((count, samples, dimensions), np.float32), np.empty((count, samples, 1), np.float32)
    thetas = [RandomStreams(seed, f"concept-shift/{c}").generator(0, "theta").uniform(-10, 10, dimensions) for c in found]
    for k, c in enumerate(cluster.tolist()):
        rng = RandomStreams(seed, f"concept-shift/{found[c]}/{k}").generator(0, "train")
        x[k], y[k, :, 0] = _values(rng, thetas[c], samples, noise)
    own = as_tensors(x.reshape(-1, dimensions), y.reshape(-1, 1))
    data: dict[Split, StackedData] = {
        "train": StackedData.of_rows(*own, np.full(count, samples), np.arange(count) * samples)
    }
    held_out: dict[Split, int] = {"validation": validation, "test": test}
    for split, n in held_out.items():
        sets = [_draw_held_out(seed, int(c), split, n, dimensions=dimensions, noise=noise) for c in found]
        xs, ys = (np.concatenate([one[j].numpy() for one in sets]) for j in range(2))
        data[split] = StackedData.of_rows(*as_tensors(xs, ys), np.full(count, n), cluster * n)
    facts = [{"group": int(c)} for c in found]
    return TaskStack.of(first, data, [facts[c] for c in cluster.tolist()])


concept_shift.of_all = _concept_shift_of_all  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
def _linear(dimensions: int) -> Callable[[], nn.Module]:
    """Return the factory of the module: the same object for all nodes, which therefore share a template."""
    from torch import nn

    return lambda: nn.Linear(dimensions, 1)


@lru_cache(maxsize=64)
def _draw_held_out(seed: int, cluster: int, split: str, n: int, *, dimensions: int, noise: float) -> Arrays:
    """Return the validation or test set of a cluster as one pair of tensors, which all of its nodes share."""
    streams = RandomStreams(seed, f"concept-shift/{cluster}")
    theta = streams.generator(0, "theta").uniform(-10, 10, dimensions)
    return _draw(streams.generator(0, split), theta, n, noise)


def _draw(rng: np.random.Generator, theta: np.ndarray, n: int, noise: float) -> Arrays:
    x, y = _values(rng, theta, n, noise)
    return as_tensors(x.astype(np.float32), y[:, None].astype(np.float32))


def _values(rng: np.random.Generator, theta: np.ndarray, n: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [n, d] and targets [n], float64."""
    x = rng.uniform(-10, 10, (n, len(theta)))
    return x, x @ theta + rng.normal(0, noise, n)
