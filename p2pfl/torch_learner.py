"""One node's training with PyTorch's autograd: what runs on a real machine, and what the stacked form must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.memory import Company, Ensemble, remembered
from p2pfl.parameters import Parameters
from p2pfl.policy import Split
from p2pfl.randomness import Draws
from p2pfl.rules import Only, Rule, Scalarised, Weighted
from p2pfl.slopes import Slopes
from p2pfl.tally import Tally
from p2pfl.task import NO_GROUPS
from p2pfl.torch_rules import follow, plan, resting, shared_values

if TYPE_CHECKING:
    from p2pfl.objectives import Objectives
    from p2pfl.preferences import Preference
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
        self._shared = shared_values(layout, self.device)
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
        return self._train(None, params, round, epochs, proximal, purpose)

    def train_by(
        self,
        rule: Rule,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
    ) -> Parameters:
        return self._train(rule, params, round, epochs, proximal, purpose)

    def _train(
        self,
        rule: Rule | None,
        params: Parameters,
        round: int,
        epochs: int,
        proximal: tuple[float, Parameters] | None,
        purpose: str,
    ) -> Parameters:
        if isinstance(rule, Weighted):
            self._of_groups("tally")
        own = self._weights
        if isinstance(rule, Scalarised):
            self._objectives()
            own = torch.tensor(rule.weights, dtype=torch.float32, device=self.device)
        vector = torch.tensor(params, device=self.device)
        n = self.task.layout.n_trained
        weights, buffers = vector[:n], self._views(vector, self._rest)
        anchor = None if proximal is None else torch.tensor(proximal[1], device=self.device)[:n]
        x, y = self.data["train"]
        optimizer, batch_size, epochs = plan(rule, self.task.optimizer, self.task.batch_size, epochs, len(x))
        steps = epochs * -(-len(x) // batch_size)
        state = optimizer.start(weights, steps)
        following = follow([rule], weights, optimizer, steps, self._shared)
        still = resting(rule, self._shared)
        rest = None if still is None else weights[still]
        # Leaves that share their memory with a vector: `weights`, which the optimiser changes between the steps, or one for
        # wherever a rule asks for the gradient. (With one leaf for all, autograd would fill a vector of zeros for each of
        # its parts.)
        place = weights if following is None else torch.empty_like(weights)
        # What a rule leaves as it is needs no gradient: before a private head, the whole backward pass of the body.
        parts = self._views(place, self._trained)
        leaves = {name: view.detach().requires_grad_(self._moves(rule, name)) for name, view in parts.items()}

        def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
            place.copy_(point)
            return self._gradient(leaves, buffers, x, y, own)

        self._module.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.draws.torch_seed(round, f"{purpose} module"))
            for index in batches(self.draws, round, purpose, len(x), batch_size, epochs):
                if following is None:
                    grad = self._gradient(leaves, buffers, x[index], y[index], own)
                else:
                    grad = following(slope, weights, x[index], y[index], slice(None))
                if proximal is not None and anchor is not None:
                    away = weights - anchor
                    grad.add_(away if self._shared is None else away * self._shared, alpha=proximal[0])
                optimizer.step(weights, grad, state, weights)
                if still is not None and rest is not None:
                    weights[still] = rest
        if not vector.sum().isfinite():
            raise DivergenceError(self.draws.name, round)
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

    @torch.no_grad()
    def recall(self, stack: Sequence[Parameters], splits: Sequence[Split], memory: Company) -> list[dict[str, float]]:
        """See p2pfl.task.Recalling. Features are what the last linear layer of the module gets.

        Raises:
            ConfigurationError: with a memory, it is no classification by cross-entropy, or the module has no linear layer;
                with an ensemble, its samples have no groups.
        """
        results: list[dict[str, float]] = []
        for params in stack:
            mixed = self._mixing(params, memory)
            result: dict[str, float] = {}
            for split in splits:
                if split in self.data and len(self.data[split][0]):
                    figures = self.task.figures(mixed(split), self.data[split][1], self._weights)
                    result |= {f"{split}_{name}": value.item() for name, value in figures.items()}
            results.append(result)
        return results

    @torch.no_grad()
    def tally(self, params: Parameters) -> Tally:
        """See p2pfl.task.Grouped.

        Raises:
            ConfigurationError: the samples have no groups.
        """
        x, y = self.data["train"]
        found: Tally = self._of_groups("tally")(self._outputs(params, x), y)
        return found

    def _of_groups(self, method: str) -> Any:
        """Return a method that tasks have whose samples have groups."""
        made = getattr(self.task, method, None)
        if made is None:
            raise ConfigurationError(NO_GROUPS)
        return made

    def _mixing(self, params: Parameters, company: Company) -> Callable[[Split], Tensor]:
        """Return what makes the outputs of a model for a split, mixed with those of its company."""
        from p2pfl.torch_task import cross_entropy

        if isinstance(company, Ensemble):
            mixed, shares = self._of_groups("mixed"), [1 - sum(company.shares), *company.shares]
            models = [params, *company.models]
            return lambda split: mixed([self._outputs(model, self.data[split][0]) for model in models], shares)
        if self.task.objectives is not None or self.task.loss is not cross_entropy:
            raise ConfigurationError("a memory of samples needs a classification with cross-entropy")
        _, known = self._outputs_and_features(params, "train")
        labels = self.data["train"][1]
        return lambda split: remembered(company, *self._outputs_and_features(params, split), known, labels)

    @torch.no_grad()
    def _outputs_and_features(self, params: Parameters, split: Split) -> tuple[Tensor, Tensor]:
        linear = [part for part in self._module.modules() if isinstance(part, nn.Linear)]
        if not linear:
            raise ConfigurationError("a memory of samples needs a module whose last layer is torch.nn.Linear")
        features: list[Tensor] = []
        hook = linear[-1].register_forward_pre_hook(lambda _, given: features.append(given[0].flatten(1)))
        try:
            outputs = self._outputs(params, self.data[split][0])
        finally:
            hook.remove()
        return outputs, features[-1]

    def slopes(self, params: Parameters) -> Slopes:
        """See p2pfl.task.Sloped.

        Raises:
            ConfigurationError: the task has not several objectives.
        """
        objectives, preference = self._objectives()
        vector = torch.tensor(params, device=self.device)
        leaves = {name: view.detach().requires_grad_() for name, view in self._views(vector, self._trained).items()}
        x, y = self.data["train"]
        self._module.eval()
        outputs = functional_call(self._module, leaves | self._views(vector, self._rest) | self._local, (x,))
        losses = objectives.losses(outputs, y)
        gradients = np.zeros((len(losses), len(params)), np.float32)
        for row, loss in zip(gradients, losses, strict=True):
            parts = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, materialize_grads=True)
            row[: self.task.layout.n_trained] = torch.cat([part.flatten() for part in parts]).cpu().numpy()
        return Slopes(preference, losses.detach().cpu().numpy().astype(np.float64), gradients)

    def _objectives(self) -> tuple[Objectives, Preference]:
        if self.task.objectives is None or self.task.preference is None:
            raise ConfigurationError("the policy needs a task of several objectives")
        return self.task.objectives, self.task.preference

    def _gradient(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor | None
    ) -> Tensor:
        outputs = functional_call(self._module, leaves | buffers | self._local, (x,))
        loss = self.task.batch_loss(outputs, y, weights)
        moving = [leaf for leaf in leaves.values() if leaf.requires_grad]
        grads = iter(torch.autograd.grad(loss, moving, materialize_grads=True))  # 0 for what was not used
        return torch.cat(
            [(next(grads) if leaf.requires_grad else torch.zeros_like(leaf)).flatten() for leaf in leaves.values()]
        )

    def _moves(self, rule: Rule | None, name: str) -> bool:
        return not isinstance(rule, Only) or (name in self.task.layout.private) == (rule.part == "private")

    @torch.no_grad()
    def _evaluate(self, params: Parameters, split: Split) -> dict[str, float]:
        x, y = self.data[split]
        if not len(x):
            return {}
        figures = self.task.figures(self._outputs(params, x), y, self._weights)
        return {f"{split}_{name}": value.item() for name, value in figures.items()}

    def _outputs(self, params: Parameters, x: Tensor) -> Tensor:
        vector = torch.tensor(params, device=self.device)
        tensors = self._views(vector, self._trained) | self._views(vector, self._rest) | self._local
        self._module.eval()
        outputs: Tensor = functional_call(self._module, tensors, (x,))
        return outputs

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
