"""Regression on contradicting teachers: each teacher is an objective, and a preference weights them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import TorchTask, multi_objective
from p2pfl.multiobjective.preferences import preference_of
from p2pfl.multiobjective.scalarisation import Objectives, scalarisation
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

INPUTS, UNITS = 3, 6  # of each teacher
Arrays = tuple[Tensor, Tensor]


def teachers(
    part: Part,
    seed: int,
    *,
    teachers: int = 4,
    samples: int = 40,
    validation: int = 0,
    test: int = 800,
    noise: float = 0.3,
    hidden: int = 16,
    lr: float = 0.05,
    batch_size: int = 8,
    preference: Sequence[float] = (),
    preferences: Mapping[str, Any] | None = None,
    scalarisation: Mapping[str, Any] | None = None,
) -> TorchTask:
    """Regression on m teachers: t_j(x) = tanh(1.5 x A_j / sqrt(3m)) b_j, with inputs x ~ N(0, 1)^3m.

    Teacher j depends on the inputs 3j to 3j+2 only: A_j is [3m, 6], N(0, 2^2) in those three rows and 0 in the others.
    b_j ~ N(0, 1.5^2 / 6)^6. Targets of every split have noise of N(0, noise^2). One output has to follow all m
    teachers: the objectives are the mean squared errors to each, `mse_0` to `mse_<m-1>`. The model is an MLP
    3m-hidden-1 with tanh, trained by plain SGD. (This problem is p2pfl's own. Preferences conflict in it, and it shows
    the effect of FedPref in seconds.)

    Args:
        teachers: m, the number of objectives.
        samples, validation: sizes, per node.
        test: size of the set that all nodes share.
        noise: the standard deviation of the noise of the targets.
        hidden: width of the hidden layer.
        lr: the learning rate of SGD.
        batch_size: samples in one step of the optimiser.
        preference: this node's own weights, one for each teacher.
        preferences: distribution of the nodes' weights if none are given (see p2pfl.multiobjective.preferences). The
            default is a group for each teacher, with weight 0.85 on it and the rest shared by the others.
        scalarisation: { name = "linear" } by default, or { name = "tchebycheff", gamma = 1.0 }.
    """
    sizes = {"teachers": (teachers, 2), "samples": (samples, 1), "validation": (validation, 0), "test": (test, 0)}
    for name, (value, least) in (sizes | {"hidden": (hidden, 1)}).items():
        if value < least:
            raise ConfigurationError(f"task.{name} must be {least} or more, got {value}")
    if not 0 <= noise < inf:
        raise ConfigurationError(f"task.noise must be 0 or more, and finite, got {noise}")
    drawn = {"name": "groups", "weights": favourites(teachers)} if preferences is None else preferences
    point, group = preference_of(part, seed, teachers, preference, drawn)
    own = RandomStreams(seed, f"teachers/{part.index}")
    return multi_objective(
        lambda: nn.Sequential(nn.Linear(INPUTS * teachers, hidden), nn.Tanh(), nn.Linear(hidden, 1)),
        _draw(own.generator(0, "train"), seed, teachers, samples, noise),
        _draw(own.generator(0, "validation"), seed, teachers, validation, noise) if validation else None,
        _draw_test_set(seed, teachers, test, noise) if test else None,
        objectives=_objectives(teachers, scalarisation),
        preference=point,
        group=group,
        optimizer=SGD(lr),
        batch_size=batch_size,
    )


def favourites(objectives: int, weight: float = 0.85) -> list[list[float]]:
    """Return one preference for each objective: `weight` on it, and the rest divided among the others."""
    rest = (1 - weight) / (objectives - 1)
    return [[weight if k == j else rest for k in range(objectives)] for j in range(objectives)]


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared errors of outputs [n, 1] to targets [n, m]; shape [m]."""
    return (outputs - targets).square().mean(0)


def _objectives(teachers: int, table: Mapping[str, Any] | None) -> Objectives:
    made = scalarisation({"name": "linear"} if table is None else table)
    return Objectives(tuple(f"mse_{j}" for j in range(teachers)), squared_errors, made)


@lru_cache(maxsize=4)
def _draw_test_set(seed: int, teachers: int, test: int, noise: float) -> Arrays:
    """Return the test set as one pair of tensors, which all nodes share."""
    return _draw(RandomStreams(seed, "teachers").generator(0, "test"), seed, teachers, test, noise)


@lru_cache(maxsize=4)
def _draw_teachers(seed: int, teachers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A [m, 3m, 6] and b [m, 6]."""
    rng = RandomStreams(seed, "teachers").generator(0, "teachers")
    first = np.zeros((teachers, INPUTS * teachers, UNITS))
    for j in range(teachers):
        first[j, INPUTS * j : INPUTS * (j + 1)] = rng.normal(0, 2, (INPUTS, UNITS))
    return first, rng.normal(0, 1.5 / sqrt(UNITS), (teachers, UNITS))


def _draw(rng: np.random.Generator, seed: int, teachers: int, n: int, noise: float) -> Arrays:
    first, second = _draw_teachers(seed, teachers)
    x = rng.normal(0, 1, (n, INPUTS * teachers))
    hidden = np.tanh(1.5 / sqrt(INPUTS * teachers) * np.einsum("ni,jiu->jnu", x, first))
    y = np.einsum("jnu,ju->nj", hidden, second) + rng.normal(0, noise, (n, teachers))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
