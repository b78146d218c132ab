"""PraFFL's model and training settings: the communicated part psi and the hypernetwork beta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import Adam, Optimizer
from p2pfl.multiobjective.preferences import validate_preference
from p2pfl.multiobjective.scalarisation import Scalarise, SmoothTchebycheff
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import Split
from p2pfl.random_streams import federation_draws

BODY = (4, 4)  # widths of psi (eq. 19)
HEAD = (16, 4, 8)  # widths of the hidden layers of a head (eq. 20)
OBJECTIVES = 2  # performance, fairness
BALANCED = (0.5, 0.5)  # the preference with which psi is trained
PRIVATE = "hypernetwork"
ALSO = ("smallest_error", "smallest_disparity")


class GroupedSamples(NamedTuple):
    """Features float32 [n, d], labels 0 or 1 float32 [n], group numbers int64 [n]."""

    x: Tensor
    y: Tensor
    groups: Tensor


@dataclass(frozen=True)
class Training:
    """Training settings of a node. The defaults are the paper's.

    Attributes:
        communicated: tau_c, passes over the data in which psi is trained.
        personal: tau_p, passes over the data in which the hypernetwork is trained.
        preferences: n_lambda, number of preferences drawn for each step of the hypernetwork.
        scalarise: combines performance and fairness to one loss.
        optimizer: the optimiser of both parts; its state is discarded after each part.
        batch_size: samples in a step; the last one of a pass may be smaller.
        measured: number of preferences used to evaluate a model.
    """

    communicated: int = 15
    personal: int = 15
    preferences: int = 64
    scalarise: Scalarise = field(default_factory=lambda: SmoothTchebycheff(1.0, divide=True))
    optimizer: Optimizer = field(default_factory=lambda: Adam(lr=0.005))
    batch_size: int = 128
    measured: int = 1000

    def __post_init__(self) -> None:
        limits = {"communicated": (0, 10**6), "personal": (0, 10**6), "preferences": (1, 2**12), "batch_size": (1, 2**16)}
        for name, (least, most) in (limits | {"measured": (1, 2**16)}).items():
            if not least <= getattr(self, name) <= most:
                raise ConfigurationError(f"task.{name} must be from {least} to {most}, got {getattr(self, name)}")


def body(features: int) -> nn.Sequential:
    """Return psi: features [n, d] -> [n, 4], with ReLU after both layers (eq. 19)."""
    layers: list[nn.Module] = []
    for before, after in pairwise((features, *BODY)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def head() -> nn.Sequential:
    """Return a head: psi's output [n, 4] -> logits [n, 1].

    Its widths are those of eq. 20, whose layers do not fit each other as printed. There is no ReLU between them: the
    program of the paper's authors has none either, and with ReLU training collapsed for some seeds. A head is thus an
    affine map. (In that program the widths of eq. 20 are those of the hypernetwork's output layers, for a head 4-4-2.)
    """
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise((BODY[-1], *HEAD, 1))))


HEAD_SHAPES = tuple((name, tuple(tensor.shape)) for name, tensor in head().named_parameters())
HEAD_SIZE = sum(prod(shape) for _, shape in HEAD_SHAPES)  # |phi|


class PrafflModel(nn.Module):
    """psi, and the hypernetwork beta: a linear map from a preference to all parameters of a head (eq. 21)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = body(features)
        self.hypernetwork = nn.Linear(OBJECTIVES, HEAD_SIZE)


def heads(tensors: Mapping[str, Tensor], preferences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the heads for K preferences [K, 2], each as one affine map: weights [K, 4] and biases [K].

    Args:
        tensors: tensors of the hypernetwork, by their names in the layout.
        preferences: float32, [K, 2].
    """
    flat = functional.linear(preferences, tensors[f"{PRIVATE}.weight"], tensors[f"{PRIVATE}.bias"])
    sizes = [prod(shape) for _, shape in HEAD_SHAPES]  # one split: each slice would allocate its own gradient
    parts = [part.view(-1, *shape) for part, (_, shape) in zip(torch.split(flat, sizes, 1), HEAD_SHAPES, strict=True)]
    weight, bias = parts[0], parts[1].unsqueeze(-1)
    for matrix, shift in zip(parts[2::2], parts[3::2], strict=True):
        weight, bias = matrix @ weight, matrix @ bias + shift.unsqueeze(-1)
    return weight[:, 0], bias[:, 0, 0]


def spread(count: int) -> Tensor:
    """Return equally spaced preferences from (0, 1) to (1, 0), float32 [count, 2]; for a count of 1 balanced."""
    first = torch.linspace(0, 1, count) if count > 1 else torch.tensor(BALANCED[:1])
    return torch.stack([first, 1 - first], 1)


def answer(layout: Layout, params: Parameters, preference: Sequence[float]) -> nn.Sequential:
    """Return the model for a preference: a plain module, features float32 [n, d] -> logits [n, 1].

    Args:
        layout: the layout of a PrafflTask.
        params: parameters of psi and the hypernetwork, [P].
        preference: weights of performance and fairness. As in the paper, losses are divided by them, so they are the
            target ratio of the two losses: (0, 1) gives the model with the best performance, and (1, 0) the fairest
            one.

    Raises:
        ConfigurationError: they are not two weights of 0 or more with the sum 1.
    """
    point = torch.tensor(validate_preference("the preference", preference, OBJECTIVES), dtype=torch.float32)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in layout.unflatten(params).items()}
    weight, bias = tensors[f"{PRIVATE}.weight"], tensors[f"{PRIVATE}.bias"]
    flat = functional.linear(point, weight, bias)
    module = nn.Sequential()
    with torch.random.fork_rng(devices=[]):
        module.add_module("body", body(tensors["body.0.weight"].shape[1]))
        module.add_module("head", head())
    values = {name: tensor for name, tensor in tensors.items() if not name.startswith(PRIVATE)}
    values |= {f"head.{name}": part for name, part in Layout(HEAD_SHAPES, HEAD_SIZE).unflatten(flat).items()}
    module.load_state_dict(values)
    return module.eval()


def layout_of(features: int) -> Layout:
    """Return the layout of psi, which is shared, and the hypernetwork, which is private."""
    with torch.random.fork_rng(devices=[]):
        shapes = tuple((name, tuple(t.shape)) for name, t in PrafflModel(features).named_parameters())
    private = tuple(name for name, _ in shapes if name.startswith(f"{PRIVATE}."))
    return Layout(shapes, sum(prod(shape) for _, shape in shapes), private)


@dataclass
class PrafflProblem:
    """Data and training of a node: a PrafflTask without its learner.

    The metric of a model is the hypervolume that its models for many preferences dominate.

    Attributes:
        data: samples by split; `train` is required.
        groups: number of groups.
        training: training settings.
        data_facts: what the readers of the data understood; see p2pfl.task.Task.
    """

    data: Mapping[Split, GroupedSamples]
    groups: int
    training: Training = field(default_factory=Training)
    public_info: Mapping[str, Any] = field(default_factory=dict)
    data_facts: Sequence[DataFacts] = ()
    metric: str = field(default="hypervolume", init=False)
    higher_is_better: bool = field(default=True, init=False)
    extra_metrics: tuple[str, ...] = field(default=ALSO, init=False)

    def __post_init__(self) -> None:
        if "train" not in self.data or not len(self.data["train"].x):
            raise ConfigurationError("the task has no training samples")
        self.layout = layout_of(self.features)

    @property
    def features(self) -> int:
        return self.data["train"].x.shape[1]

    @property
    def n_samples(self) -> int:
        return len(self.data["train"].x)

    def initial(self, seed: int) -> Parameters:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(federation_draws(seed).torch_seed(0, "initial model"))
            tensors = dict(PrafflModel(self.features).named_parameters())
        return self.layout.flatten({name: tensor.detach().numpy() for name, tensor in tensors.items()})
