"""One node's training with PyTorch's autograd: what runs on a real machine, and what the stacked form must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from p2pfl.errors import ConfigurationError, Diverged
from p2pfl.parameters import Parameters
from p2pfl.policy import Split
from p2pfl.randomness import Draws

if TYPE_CHECKING:
    from p2pfl.torch_task import TorchTask


class TorchLearner:
    """The learner of a TorchTask on one device."""

    def __init__(self, task: TorchTask, draws: Draws, device: str = "cpu") -> None:
        self.task = task
        self.draws = draws
        self.device = choose_device(device)
        self.data = {split: (x.to(self.device), y.to(self.device)) for split, (x, y) in task.data.items()}
        self._weights = task.weights(self.device)
        module = task.template.to(self.device)
        layout = task.layout
        self._module = module
        self._trained = [place for place in layout.places if place[2] <= layout.n_trained]
        self._rest = [place for place in layout.places if place[2] > layout.n_trained]
        travels = {name for name, _ in layout.shapes}
        # Integer buffers (such as batch norm's count of batches) belong to this node alone and are never sent.
        self._local = {name: b.clone() for name, b in module.named_buffers() if name not in travels}

    def train(
        self,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
    ) -> Parameters:
        vector = torch.tensor(params, device=self.device)
        n = self.task.layout.n_trained
        weights, buffers = vector[:n], self._views(vector, self._rest)
        anchor = None if proximal is None else torch.tensor(proximal[1], device=self.device)[:n]
        x, y = self.data["train"]
        state = self.task.optimizer.start(weights, epochs * -(-len(x) // self.task.batch_size))
        # Leaves that share their memory with `weights`, which the optimiser changes between the steps. (With one leaf for
        # all, autograd would fill a vector of zeros for each of its parts.)
        leaves = {name: view.detach().requires_grad_() for name, view in self._views(weights, self._trained).items()}
        self._module.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.draws.torch_seed(round, f"{purpose} module"))
            for index in batches(self.draws, round, purpose, len(x), self.task.batch_size, epochs):
                grad = self._gradient(leaves, buffers, x[index], y[index])
                if proximal is not None and anchor is not None:
                    grad.add_(weights - anchor, alpha=proximal[0])
                self.task.optimizer.step(weights, grad, state, weights)
        if not vector.sum().isfinite():
            raise Diverged(self.draws.name, round)
        return vector.cpu().numpy()

    def loss(self, stack: Sequence[Parameters], *, split: Split = "validation") -> np.ndarray:
        if split not in self.data:
            return np.full(len(stack), np.nan)
        return np.array([self._evaluate(params, split).get(f"{split}_loss", np.nan) for params in stack])

    def evaluate(self, stack: Sequence[Parameters], splits: Sequence[Split]) -> list[dict[str, float]]:
        results: list[dict[str, float]] = []
        for params in stack:
            result: dict[str, float] = {}
            for split in splits:
                if split in self.data:
                    result |= self._evaluate(params, split)
            results.append(result)
        return results

    def _gradient(self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(self._module, leaves | buffers | self._local, (x,))
        loss = self.task.batch_loss(outputs, y, self._weights)
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 for what was not used
        return torch.cat([grad.flatten() for grad in grads])

    @torch.no_grad()
    def _evaluate(self, params: Parameters, split: Split) -> dict[str, float]:
        x, y = self.data[split]
        if not len(x):
            return {}
        vector = torch.tensor(params, device=self.device)
        tensors = self._views(vector, self._trained) | self._views(vector, self._rest) | self._local
        self._module.eval()
        outputs = functional_call(self._module, tensors, (x,))
        figures = self.task.figures(outputs, y, self._weights)
        return {f"{split}_{name}": value.item() for name, value in figures.items()}

    @staticmethod
    def _views(vector: Tensor, places: list[tuple[str, int, int, tuple[int, ...]]]) -> dict[str, Tensor]:
        return {name: vector[start:stop].view(shape) for name, start, stop, shape in places}


def batches(draws: Draws, round: int, purpose: str, n: int, batch_size: int, epochs: int) -> Iterator[slice | Tensor]:
    """Yield the indices of each step's samples. One batch that holds everything has no order, so none is drawn."""
    for order in orders(draws, round, purpose, n, batch_size, epochs):
        if order is None:
            yield slice(None)
        else:
            yield from torch.split(torch.from_numpy(order), batch_size)


def orders(draws: Draws, round: int, purpose: str, n: int, batch_size: int, epochs: int) -> list[np.ndarray] | list[None]:
    """Return a permutation of the n samples for each epoch, or None for each where all fit into one batch."""
    if n <= batch_size:
        return [None] * epochs
    rng = draws.generator(round, purpose)
    return [rng.permutation(n) for _ in range(epochs)]


def choose_device(name: str) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `mps`; `auto` takes the best that there is.

    Raises:
        ConfigurationError: an unknown or malformed name, or a device that this machine lacks.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    present = {"cuda": cards, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        return torch.device(next(kind for kind, count in present.items() if count))
    kind = name.partition(":")[0]
    if kind not in present:
        raise ConfigurationError(f"unknown device {name!r}; known: auto, cpu, cuda, mps")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) != name:  # a great number is not refused, but becomes another
        raise ConfigurationError(f"device {name!r} is not of the form {kind} or {kind}:0")
    if (device.index or 0) >= present[kind]:
        raise ConfigurationError(f"device {name!r} is not available on this machine; auto takes the best that is")
    return device
