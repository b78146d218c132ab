"""Kernel for any module that torch can `vmap`."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from p2pfl.errors import ConfigurationError
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.torch_problem import TorchProblem

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)

Tensors = dict[str, Tensor]


class VmapKernel:
    """Kernel for any module without buffers that change in training.

    Raises:
        ConfigurationError: torch cannot stack the module.
    """

    alignment = 0
    chunk = 2**18  # 1 MiB, which fits into the cache

    def __init__(self, task: TorchProblem, device: torch.device) -> None:
        layout = task.layout
        training, evaluating = (deepcopy(task.template).to(device) for _ in range(2))
        training.train()
        evaluating.eval()
        local = {name: b for name, b in training.named_buffers() if name not in dict(layout.shapes)}
        for name, part in training.named_modules():
            if isinstance(part, NORMS) and part.track_running_stats:
                raise ConfigurationError(
                    f"layer {name or 'itself'} ({type(part).__name__}) changes its buffers in training; GroupNorm and"
                    " LayerNorm do not"
                )

        def loss(trained: Tensors, rest: Tensors, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
            return task.batch_loss(functional_call(training, trained | rest | local, (x,)), y, weights)

        def outputs(tensors: Tensors, x: Tensor) -> Tensor:
            result: Tensor = functional_call(evaluating, tensors | local, (x,))
            return result

        self._layout = layout
        self._trained = [name for name, _, stop, _ in layout.places if stop <= layout.n_trained]
        dimensions = (0, 0, 0, 0, None if task.objectives is None else 0)
        self._gradients = vmap(grad(loss), in_dims=dimensions, randomness="different")
        self._outputs = vmap(outputs)
        self.random = self._try(task, device)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        tensors: Tensors = self._layout.unflatten(flat)
        trained = {name: tensors.pop(name) for name in self._trained}
        gradients = self._gradients(trained, tensors, x, y, weights)
        return torch.cat([gradients[name].reshape(len(flat), -1) for name in self._trained], 1)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._outputs(self._layout.unflatten(flat), x)

    def _try(self, task: TorchProblem, device: torch.device) -> bool:
        """Run two models on a batch of two, so that a module that cannot be stacked fails before the training.

        Returns:
            Whether the training draws random numbers.
        """
        x, y = (part[:1].repeat(2, *[1] * (part.ndim - 1)).to(device) for part in task.data["train"])
        flat = torch.zeros(2, task.layout.size, device=device)
        own, generators = task.weights(device), RowGenerators([0, 1], device)
        weights = None if own is None else torch.stack([own, own])
        try:
            with generators.drawing(range(2)):
                self.gradient(flat, torch.stack([x, x]), torch.stack([y, y]), weights)
            with torch.no_grad():
                self.outputs(flat, torch.stack([x, x]))
        except (RuntimeError, NotImplementedError, ValueError, ConfigurationError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigurationError(f"module {type(task.template).__name__} cannot be stacked: {reason}") from error
        if generators.used and device.type not in ("cpu", "cuda"):
            raise ConfigurationError("modules with random layers are stacked on a CPU or with CUDA only")
        return generators.used
