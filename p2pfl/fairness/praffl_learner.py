"""Local training of PraFFL (algorithm 1): first psi with a fixed head, then the hypernetwork."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from p2pfl.errors import DivergenceError
from p2pfl.fairness.praffl_model import BALANCED, BODY, OBJECTIVES, PRIVATE, GroupedSamples, PrafflProblem, heads, spread
from p2pfl.learner import Learner, answers
from p2pfl.learning.dense.batch_order import orders
from p2pfl.learning.optimizers import at_round
from p2pfl.learning.torch_learner import batches, choose_device
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import hypervolume
from p2pfl.queries import Evaluate, Loss, Split, Train
from p2pfl.random_streams import RandomStreams

REFERENCE = (1.0, 1.0)  # of the hypervolume: the greatest error, and the greatest disparity
CHUNK = 2**22  # decisions in memory at the same time


class PrafflLearner(Learner):
    """Learner of a PrafflTask (see p2pfl.learner). Each epoch consists of both phases.

    The loss of a model is 1 minus its hypervolume, so that the model with the best hypervolume is kept.
    """

    def __init__(self, task: PrafflProblem, draws: RandomStreams, device: str = "cpu") -> None:
        self.task = task
        self.draws = draws
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
            raise DivergenceError(self.draws.name, round)
        return vector.cpu().numpy()

    def _train_body(self, vector: Tensor, round: int, purpose: str, proximal: tuple[float, Parameters] | None) -> None:
        """Train psi on the cross-entropy, with the head of the balanced preference (eq. 11)."""
        how, (x, y, _) = self.task.training, self.data["train"]
        (weight,), (bias,) = heads(self._views(vector, self._hypernetwork), torch.tensor([BALANCED], device=self.device))
        part = _Part(vector, self._body)
        anchor = None if proximal is None else torch.tensor(proximal[1], device=self.device)[: len(part.vector)]
        optimizer = at_round(how.optimizer, round)
        state = optimizer.start(part.vector, how.communicated * -(-len(x) // how.batch_size))
        order = orders(self.draws, round, purpose, n=len(x), batch_size=how.batch_size, epochs=how.communicated)
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
        rng = self.draws.generator(round, f"{purpose} preferences")
        part = _Part(vector, self._hypernetwork)
        optimizer = at_round(how.optimizer, round)
        state = optimizer.start(part.vector, how.personal * -(-len(x) // how.batch_size))
        order = orders(self.draws, round, purpose, n=len(x), batch_size=how.batch_size, epochs=how.personal)
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
