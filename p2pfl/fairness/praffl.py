"""PraFFL (Ye, Kou and Tang 2025): one training gives a model for every preference between performance and fairness.

A model consists of a communicated part psi, which nodes share and average, and a hypernetwork beta, which never leaves
its node. beta turns a preference into the head that completes psi. A training (algorithm 1) first improves psi with a fixed
head, then the hypernetwork. The policy decides how psi is averaged: in the paper all clients have equal weight (eq. 14),
with `coordinated-fedavg` they are weighted by samples. p2pfl.tasks.praffl provides the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learner import Learner, answers
from p2pfl.learning.dense import orders
from p2pfl.learning.optimizers import Adam, Optimizer, at_round
from p2pfl.learning.torch_learner import batches, choose_device
from p2pfl.multiobjective.preferences import validate_preference
from p2pfl.multiobjective.scalarisation import Scalarise, SmoothTchebycheff
from p2pfl.parameters import Layout, Parameters
from p2pfl.pareto_metrics import Solutions, hypervolume, non_dominated
from p2pfl.queries import Evaluate, Loss, Split, Train
from p2pfl.random_streams import RandomStreams, federation_streams
from p2pfl.task import Task

REFERENCE = (1.0, 1.0)  # of the hypervolume: the greatest error, and the greatest disparity
CHUNK = 2**22  # decisions in memory at the same time
BODY = (4, 4)  # widths of psi (eq. 19)
HEAD = (16, 4, 8)  # widths of the hidden layers of a head (eq. 20)
OBJECTIVES = 2  # performance, fairness
BALANCED = (0.5, 0.5)  # the preference with which psi is trained
PRIVATE = "hypernetwork"
ALSO = ("smallest_error", "smallest_disparity")


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


@dataclass
class PrafflProblem(Task):
    """Data and training of a node: a PrafflTask without its learner.

    The metric of a model is the hypervolume that its models for many preferences dominate.

    Attributes:
        data: samples by split; `train` is required.
        groups: number of groups.
        training: training settings.
        data_facts, row_encoding: what the readers of the data understood, and how they encode it; see p2pfl.task.Task.
    """

    data: Mapping[Split, GroupedSamples]
    groups: int
    training: Training = field(default_factory=Training)
    public_info: Mapping[str, Any] = field(default_factory=dict)
    data_facts: Sequence[DataFacts] = ()
    row_encoding: Mapping[str, Any] = field(default_factory=dict)
    metric: str = field(default="hypervolume", init=False)
    higher_is_better: bool = field(default=True, init=False)
    extra_metrics: tuple[str, ...] = field(default=ALSO, init=False)

    def __post_init__(self) -> None:
        if "train" not in self.data or not len(self.data["train"].x):
            raise ConfigurationError("the task has no training samples")

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.features)

    @property
    def features(self) -> int:
        return self.data["train"].x.shape[1]

    @property
    def n_samples(self) -> int:
        return len(self.data["train"].x)

    def initial(self, seed: int) -> Parameters:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(federation_streams(seed).torch_seed(0, "initial model"))
            tensors = dict(PrafflModel(self.features).named_parameters())
        return self.layout.flatten({name: tensor.detach().numpy() for name, tensor in tensors.items()})


@dataclass
class PrafflTask(PrafflProblem):
    """One node of PraFFL; for its attributes see PrafflProblem."""

    def learner(self, streams: RandomStreams, device: str = "cpu") -> PrafflLearner:
        return PrafflLearner(self, streams, device)

    def model_for(self, params: Parameters, preference: Sequence[float]) -> nn.Sequential:
        """Return the model for a preference; see `answer`."""
        return answer(self.layout, params, preference)

    def solutions(self, params: Parameters) -> Solutions | None:
        """Return error and disparity on the test data for the preferences whose models are not dominated."""
        if "test" not in self.data or not len(self.data["test"].x):
            return None
        points = self.learner(RandomStreams(0, "")).points(params, "test")
        best, first = np.unique(points, axis=0, return_index=True)
        front = {tuple(point) for point in -non_dominated(-best)}
        chosen = [k for k in first if tuple(points[k]) in front]
        preferences = spread(self.training.measured).double().numpy()
        return Solutions({"error": False, "disparity": False}, preferences[chosen], points[chosen])


class PrafflLearner(Learner):
    """Learner of a PrafflTask (see p2pfl.learner). Each epoch consists of both phases.

    The loss of a model is 1 minus its hypervolume, so that the model with the best hypervolume is kept.
    """

    def __init__(self, task: PrafflProblem, streams: RandomStreams, device: str = "cpu") -> None:
        self.task = task
        self.streams = streams
        self.device = choose_device(device)
        self.data = {split: GroupedSamples(*(t.to(self.device) for t in samples)) for split, samples in task.data.items()}
        self._measured = spread(task.training.measured).to(self.device)
        places = task.layout.places
        self._body = [place for place in places if not place[0].startswith(PRIVATE)]
        self._hypernetwork = [place for place in places if place[0].startswith(PRIVATE)]

    @answers(Train)
    def _train(self, query: Train) -> Parameters:
        """Return both parts after training.

        Args:
            query: its `proximal`, (mu, anchor), applies to psi only.
        """
        vector, round = torch.tensor(query.params, device=self.device), query.round
        for k in range(query.epochs):
            self._train_body(vector, round, f"{query.purpose}/{k}/communicated", query.proximal)
            self._train_hypernetwork(vector, round, f"{query.purpose}/{k}/personal")
        if not vector.sum().isfinite():
            raise DivergenceError(self.streams.name, round)
        return vector.cpu().numpy()

    def _train_body(self, vector: Tensor, round: int, purpose: str, proximal: tuple[float, Parameters] | None) -> None:
        """Train psi on the cross-entropy, with the head of the balanced preference (eq. 11)."""
        how, (x, y, _) = self.task.training, self.data["train"]
        (weight,), (bias,) = heads(self._views(vector, self._hypernetwork), torch.tensor([BALANCED], device=self.device))
        part = _Part(vector, self._body)
        anchor = None if proximal is None else torch.tensor(proximal[1], device=self.device)[: len(part.vector)]
        optimizer = at_round(how.optimizer, round)
        state = optimizer.start(part.vector, how.communicated * -(-len(x) // how.batch_size))
        order = orders(self.streams, round, purpose, n=len(x), batch_size=how.batch_size, epochs=how.communicated)
        for index in batches(order, how.batch_size):
            logits = features(part.leaves, x[index]) @ weight + bias
            gradient = part.gradient(functional.binary_cross_entropy_with_logits(logits, y[index]))
            if proximal is not None and anchor is not None:
                gradient.add_(part.vector - anchor, alpha=proximal[0])
            optimizer.step(part.vector, gradient, state, part.vector)

    def _train_hypernetwork(self, vector: Tensor, round: int, purpose: str) -> None:
        """Train the hypernetwork on the scalarised losses of random preferences, with a fixed psi (eq. 13)."""
        how, (x, y, groups) = self.task.training, self.data["train"]
        with torch.no_grad():
            inputs = features(self._views(vector, self._body), x)
        members = functional.one_hot(groups, self.task.groups).to(inputs.dtype)
        rng = self.streams.generator(round, f"{purpose} preferences")
        part = _Part(vector, self._hypernetwork)
        optimizer = at_round(how.optimizer, round)
        state = optimizer.start(part.vector, how.personal * -(-len(x) // how.batch_size))
        order = orders(self.streams, round, purpose, n=len(x), batch_size=how.batch_size, epochs=how.personal)
        for index in batches(order, how.batch_size):
            drawn = rng.dirichlet([1.0] * OBJECTIVES, how.preferences).astype(np.float32)
            preferences = torch.from_numpy(drawn).to(self.device)
            weights, biases = heads(part.leaves, preferences)
            both = losses(inputs[index] @ weights.t() + biases, y[index], members[index])
            gradient = part.gradient(how.scalarise(both, preferences).mean())
            optimizer.step(part.vector, gradient, state, part.vector)

    @answers(Loss)
    def _losses(self, query: Loss) -> np.ndarray:
        if not self._has(query.split):
            return np.full(len(query.stack), np.nan)
        return np.array([self._figures(params, query.split)["loss"] for params in query.stack])

    @answers(Evaluate)
    def _evaluate(self, query: Evaluate) -> list[dict[str, float]]:
        """Evaluate a model's answers to equally spaced preferences.

        hypervolume: the volume that error and disparity (eq. 2) of all answers dominate, with reference point (1, 1).
        smallest_error, smallest_disparity: the lowest of all answers.
        mean_error, mean_disparity: the means of all answers.
        dead: 1 if several answers all have the same error and disparity, or all treat all samples alike; otherwise 0.
            The usual cause is that psi's ReLU units all give 0.
        """
        return [
            {
                f"{split}_{name}": v
                for split in query.splits
                if self._has(split)
                for name, v in self._figures(params, split).items()
            }
            for params in query.stack
        ]

    def _has(self, split: Split) -> bool:
        return split in self.data and len(self.data[split].x) > 0

    def _figures(self, params: Parameters, split: Split) -> dict[str, float]:
        points = self.points(params, split)
        volume = hypervolume(-points, [-limit for limit in REFERENCE])
        (error, disparity), (mean_error, mean_disparity) = points.min(0).tolist(), points.mean(0).tolist()
        return {
            "loss": 1 - volume,
            "hypervolume": volume,
            "smallest_error": error,
            "smallest_disparity": disparity,
            "mean_error": mean_error,
            "mean_disparity": mean_disparity,
            "dead": float(len(points) > 1 and bool((points == points[0]).all() or not points[:, 1].any())),
        }

    @torch.no_grad()
    def points(self, params: Parameters, split: Split) -> NDArray[np.float64]:
        """Return error and disparity of a model's answers to the evaluated preferences, [K, 2]."""
        vector = torch.tensor(params, device=self.device)
        tensors = self._views(vector, [*self._body, *self._hypernetwork])
        x, y, groups = self.data[split]
        inputs = features(tensors, x)
        members = functional.one_hot(groups, self.task.groups).to(inputs.dtype)
        step = max(1, CHUNK // len(x))
        found = [
            error_and_disparity(inputs @ w.t() + b, y, members)
            for w, b in (heads(tensors, p) for p in torch.split(self._measured, step))
        ]
        return torch.cat(found).double().cpu().numpy()

    @staticmethod
    def _views(vector: Tensor, places: Sequence[tuple[str, int, int, tuple[int, ...]]]) -> dict[str, Tensor]:
        return {name: vector[start:stop].view(shape) for name, start, stop, shape in places}


class _Part:
    """Adjacent tensors in a vector that are trained in place.

    Attributes:
        vector: all of their values.
        leaves: views of it by name, for which gradients are computed.
    """

    def __init__(self, vector: Tensor, places: Sequence[tuple[str, int, int, tuple[int, ...]]]) -> None:
        self.vector = vector[places[0][1] : places[-1][2]]
        self.leaves = {n: vector[start:stop].view(shape).detach().requires_grad_() for n, start, stop, shape in places}

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(self.leaves.values()))])


def features(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return psi's output for x [n, d]: [n, 4]."""
    for k in range(len(BODY)):
        x = functional.linear(x, tensors[f"body.{2 * k}.weight"], tensors[f"body.{2 * k}.bias"]).relu()
    return x


def losses(logits: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Return performance and fairness loss (eqs. 1 and 3) of K models on n samples, [K, 2].

    Args:
        logits: [n, K].
        labels: 0 or 1, [n].
        members: 1 if a sample belongs to a group, else 0, [n, groups]; see p2pfl.fairness.metrics.covariance_loss.
    """
    entropy = (functional.softplus(logits) - labels.unsqueeze(1) * logits).mean(0)
    away = (members - members.mean(0)).square().mean(1)
    probabilities = torch.sigmoid(logits)
    return torch.stack([entropy, away @ (probabilities - probabilities.mean(0)).square() / len(labels)], 1)


def error_and_disparity(logits: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Return error and disparity (eq. 2, against the mean of all samples) of K models, [K, 2]; see `losses`."""
    decisions = (logits > 0).to(members.dtype)
    sizes = members.sum(0)
    rates = members.t() @ decisions / sizes.clamp_min(1).unsqueeze(1)
    away = (rates - decisions.mean(0)).abs() * (sizes > 0).unsqueeze(1)
    return torch.stack([(decisions != labels.unsqueeze(1)).to(members.dtype).mean(0), away.amax(0)], 1)


class GroupedSamples(NamedTuple):
    """Features float32 [n, d], labels 0 or 1 float32 [n], group numbers int64 [n]."""

    x: Tensor
    y: Tensor
    groups: Tensor


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
