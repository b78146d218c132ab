"""Kernel for any module that torch can `vmap`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from p2pfl.errors import ConfigurationError
from p2pfl.learning.module_probe import structure
from p2pfl.learning.modules import flatten
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.seeding import seeded
from p2pfl.learning.torch_problem import TorchProblem

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
LARGEST_ERROR = 1e-3  # of a stacked result, relative to the greatest value: rounding gives some 1e-6
SMALLEST = 1e-6  # error of values near 0

Tensors = dict[str, Tensor]


class VmapKernel:
    """Kernel for any module without state that changes in training.

    Args:
        seed: the federation's; a module may draw constants from it.

    Attributes:
        random: whether a training draws random numbers.
        random_outputs: whether an evaluation does.

    Raises:
        ConfigurationError: torch cannot stack the module, or computes something else when it is stacked.
    """

    alignment = 0
    chunk = 2**18  # 1 MiB, which fits into the cache

    def __init__(self, task: TorchProblem, device: torch.device, seed: int = 0) -> None:
        _check_conduct(task)
        layout = task.layout
        training = deepcopy(task.make(seed)).to(device).train()
        evaluating = deepcopy(training).eval()

        def loss(trained: Tensors, rest: Tensors, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
            return task.batch_loss(functional_call(training, trained | rest, (x,)), y, weights)

        def outputs(tensors: Tensors, x: Tensor) -> Tensor:
            result: Tensor = functional_call(evaluating, tensors, (x,))
            return result

        self._layout = layout
        self._trained = [name for name, _, stop, _ in layout.places if stop <= layout.n_trained]
        dimensions = (0, 0, 0, 0, None if task.objectives is None else 0)
        self._loss, self._single_outputs = loss, outputs
        self._gradients = vmap(grad(loss), in_dims=dimensions, randomness="different")
        self.random_outputs = task.conduct.draws_in_evaluation
        self._outputs = vmap(outputs, randomness="different" if self.random_outputs else "error")
        self.random = self._try(task, device, flatten(training.cpu(), layout, task.conduct.state))
        self._training = training.to(device)
        self._structure = self._versions()

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        tensors = self._tensors(flat)
        trained = {name: tensors.pop(name) for name in self._trained}
        gradients = self._gradients(trained, tensors, x, y, weights)
        return torch.cat([gradients[name].reshape(len(flat), -1) for name in self._trained], 1)

    def _single_gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the gradient of one model, [n], from autograd, as a learner that trains alone computes it."""
        tensors = self._tensors(flat)
        trained = {name: tensors.pop(name).clone().requires_grad_() for name in self._trained}
        loss = self._loss(trained, tensors, x, y, weights)
        gradients = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        return torch.cat([gradient.to_dense().flatten() for gradient in gradients])

    def check_unchanged(self) -> None:
        """Raise ConfigurationError if trainings have changed attributes or buffers of the module, which all nodes share."""
        if self._versions() != self._structure:
            raise ConfigurationError(
                f"module {type(self._training).__name__} changes its state, but not in the first two steps; set"
                ' trainer = "one-by-one", so that each node has a state of its own'
            )

    def _versions(self) -> tuple[Any, ...]:
        buffers = tuple((name, id(b), b._version) for name, b in self._training.named_buffers())  # noqa: SLF001
        return structure(self._training), buffers

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._outputs(self._tensors(flat), x)

    def _tensors(self, flat: Tensor) -> Tensors:
        found = self._layout.unflatten(flat)
        return {name: found[name] for name in found if name not in self._layout.local}

    def _try(self, task: TorchProblem, device: torch.device, start: np.ndarray) -> bool:
        """Compare two models on real batches with single ones, before the training.

        Returns:
            Whether the training draws random numbers.
        """
        name, (x, y) = type(task.template).__name__, task.data["train"]
        count = max(1, min(task.batch_size, len(x) - 1)) if len(x) > 1 else 1
        pairs = [torch.stack([part[:count], part[-count:]]).to(device) for part in (x, y)]
        if count < task.conduct.least:
            pairs = [pair.repeat_interleave(2, 1) for pair in pairs]
        xs, ys = pairs
        flat = torch.from_numpy(start).to(device).repeat(2, 1)
        flat[1] *= 0.9
        own, generators = task.weights(device), RowGenerators([0, 1], device)
        weights = None if own is None else torch.stack([own, own])
        try:
            with generators.drawing(range(2)):
                gradients = self.gradient(flat, xs, ys, weights)
            with torch.no_grad(), self.drawing([0, 1], device):
                outputs = self.outputs(flat, xs)
        except (RuntimeError, NotImplementedError, ValueError, ConfigurationError) as error:
            reason = str(error).strip().splitlines()[0].partition(". ")[0]
            raise ConfigurationError(f"module {name} cannot be stacked: {reason}") from error
        if generators.used and device.type not in ("cpu", "cuda"):
            raise ConfigurationError("modules with random layers are stacked on a CPU or with CUDA only")
        for k in range(2):
            with seeded(k, device, beyond_torch=False):
                single = self._single_gradient(flat[k], xs[k], ys[k], own)
            with torch.no_grad(), seeded(k, device, beyond_torch=False):
                alone = self._single_outputs(self._tensors(flat[k]), xs[k])
            if _differ(gradients[k], single) or _differ(outputs[k], alone):
                draws = "draws random numbers in another order" if generators.used else "gives other results"
                raise ConfigurationError(f"module {name} cannot be stacked: torch {draws} when it is stacked")
        return generators.used

    @contextmanager
    def drawing(self, seeds: Sequence[int], device: torch.device) -> Iterator[None]:
        """Draw the numbers of evaluations in this block from a generator for each row."""
        if not self.random_outputs:
            yield
            return
        with RowGenerators(seeds, device).drawing(range(len(seeds))):
            yield


def _check_conduct(task: TorchProblem) -> None:
    """Raise ConfigurationError if a module changes its state in training, or draws from other generators than torch's."""
    module, conduct = task.template, task.conduct
    if conduct.changed:
        name = conduct.changed[0]
        part = next((part for key, part in module.named_modules() if key == name.rpartition(".")[0]), module)
        if isinstance(part, NORMS):
            raise ConfigurationError(
                f"layer {name.rpartition('.')[0] or 'itself'} ({type(part).__name__}) changes its buffers in training;"
                " GroupNorm and LayerNorm do not"
            )
        raise ConfigurationError(f"module {type(module).__name__} changes {', '.join(conduct.changed[:3])} in training")
    if conduct.others:
        raise ConfigurationError(
            f"module {type(module).__name__} draws numbers from the generator of {' and '.join(conduct.others)}; torch's"
            " can be stacked"
        )


def _differ(some: Tensor, others: Tensor) -> bool:
    return bool((some - others).abs().max() > LARGEST_ERROR * others.abs().max() + SMALLEST)
