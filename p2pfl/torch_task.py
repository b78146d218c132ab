"""Tasks made of a torch module, a loss, an optimiser and arrays: the common case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl import size_limit
from p2pfl.errors import ConfigurationError
from p2pfl.objectives import Objectives
from p2pfl.optimizers import SGD, Optimizer
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Split
from p2pfl.preferences import Preference, checked
from p2pfl.randomness import Draws, federation_draws

FEW_CLASSES, MANY_SAMPLES = 16, 256  # below and from which the cross-entropy is faster across samples than along classes

PerSample = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> [n]: one value for each sample, so that nodes' samples can be stacked."""


class Samples(NamedTuple):
    """Inputs [n, ...] and targets [n, ...] as torch tensors on the CPU."""

    x: Tensor
    y: Tensor


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of logits [n, classes] with class numbers [n]; shape [n]."""
    if outputs.dim() == 2 and outputs.shape[1] < FEW_CLASSES and len(outputs) >= MANY_SAMPLES:
        # Of a row that is shorter than a vector register, torch's softmax takes one value at a time.
        return functional.cross_entropy(outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none").squeeze(0)
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error, averaged over the outputs of a sample; shape [n]."""
    return (outputs - targets).square().flatten(1).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the greatest logit is the target's, else 0; shape [n]."""
    return (outputs.argmax(1) == targets).float()


@dataclass
class TorchTask:
    """A task from a torch module and arrays.

    Attributes:
        module: makes the module; its initial weights are drawn from torch's generator, which is seeded first.
        data: samples by split; `train` is needed, `validation` drives early stopping, `test` is reported.
        loss: what is trained and averaged.
        metric: the name of what is reported.
        measure: one value of the metric for each sample.
        optimizer: p2pfl.SGD or p2pfl.Adam, or anything with their `step`; its state dies with the round.
        batch_size: samples in a step; the last one of an epoch may be smaller.
        about: public facts that peers are told.
        objectives: several, in place of `loss` and `measure`; then the metric is minus the scalarised loss.
        preference: the weights that scalarise them, [m]; they stay on this node.
        group: the number of the node's group where preferences are given by groups; it is not sent either.
        private: the parts of the module that stay on this node, by the names of its tensors or of its submodules; see
            p2pfl.parameters.Layout.

    Raises:
        ConfigurationError: the module has parameters that cannot be handled, or no training data; and from `layout`:
            a private part does not exist, or nothing would be left to be shared.
    """

    module: Callable[[], nn.Module]
    data: Mapping[Split, Samples]
    loss: PerSample = cross_entropy
    metric: str = "accuracy"
    measure: PerSample = accuracy
    higher_is_better: bool = True
    optimizer: Optimizer = field(default_factory=SGD)
    batch_size: int = 16
    about: Mapping[str, Any] = field(default_factory=dict)
    objectives: Objectives | None = None
    preference: Preference | None = field(default=None, repr=False)
    group: int | None = field(default=None, repr=False)
    private: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size must be 1 or more, got {self.batch_size}")
        if "train" not in self.data or not len(self.data["train"].x):
            raise ConfigurationError("the task has no training samples")
        for split, (x, y) in self.data.items():
            if len(x) != len(y):
                raise ConfigurationError(f"{split} data: {len(x)} inputs, but {len(y)} targets")
            if x.is_floating_point() and not x.isfinite().all():
                raise ConfigurationError(f"{split} data: an input is not finite")

        if (self.objectives is None) != (self.preference is None):
            raise ConfigurationError("a task has objectives and a preference, or neither")
        if self.objectives is not None and self.preference is not None:
            self.preference = checked("preference", self.preference.tolist(), len(self.objectives.names))

    @property
    def goals(self) -> Mapping[str, bool]:
        return {} if self.objectives is None else dict.fromkeys(self.objectives.names, False)

    @property
    def n_samples(self) -> int:
        return len(self.data["train"].x)

    def weights(self, device: torch.device) -> Tensor | None:
        """The preference as float32 [m], or None without objectives."""
        return None if self.preference is None else torch.tensor(self.preference, dtype=torch.float32, device=device)

    def batch_loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The loss of a batch that is trained, a scalar."""
        if self.objectives is None or weights is None:
            return self.loss(outputs, targets).mean()
        return self.objectives.scalarise(self.objectives.losses(outputs, targets), weights)

    def figures(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """What is reported of a model's outputs for all samples of a split, by name: scalars."""
        if self.objectives is None or weights is None:
            return {"loss": self.loss(outputs, targets).mean(), self.metric: self.measure(outputs, targets).mean()}
        losses = self.objectives.losses(outputs, targets)
        loss = self.objectives.scalarise(losses, weights)
        return {"loss": loss, self.metric: -loss, **dict(zip(self.objectives.names, losses.unbind(), strict=True))}

    @cached_property
    def template(self) -> nn.Module:
        """A module of this architecture; its weights mean nothing."""
        with torch.random.fork_rng(devices=[]):
            return make_module(self.module)

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.template, self.private)

    def initial(self, seed: int) -> Parameters:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(federation_draws(seed).torch_seed(0, "initial model"))
            return flatten(self.module(), self.layout)

    def learner(self, draws: Draws, device: str = "cpu") -> Any:
        from p2pfl.torch_learner import TorchLearner

        return TorchLearner(self, draws, device)


def classification(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    **options: Any,
) -> TorchTask:
    """Make a classification task from arrays: cross-entropy of logits, accuracy.

    Args:
        module: makes a torch module that turns inputs [n, ...] into logits [n, classes].
        train, validation, test: (inputs, class numbers) as NumPy arrays or tensors.
        options: further attributes of TorchTask, such as `optimizer`, `batch_size`, `about`.
    """
    data = _data(train, validation, test, target=torch.int64)
    return TorchTask(module, data, cross_entropy, "accuracy", accuracy, True, **options)


def regression(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    **options: Any,
) -> TorchTask:
    """Make a regression task from arrays: mean squared error. Targets have the shape of the module's outputs, [n, ...]."""
    data = _data(train, validation, test, target=torch.float32)
    return TorchTask(module, data, squared_error, "mse", squared_error, False, **options)


def multi_objective(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    objectives: Objectives,
    preference: Preference,
    **options: Any,
) -> TorchTask:
    """Make a task of several objectives from arrays; the metric is the reward, minus the scalarised loss.

    Args:
        preference: the node's weights, [m].
    """
    data = _data(train, validation, test, target=torch.float32)
    return TorchTask(
        module, data, metric="reward", higher_is_better=True, objectives=objectives, preference=preference, **options
    )


def _data(
    train: tuple[Any, Any], validation: tuple[Any, Any] | None, test: tuple[Any, Any] | None, target: torch.dtype
) -> dict[Split, Samples]:
    def samples(pair: tuple[Any, Any]) -> Samples:
        x, y = (torch.as_tensor(np.asarray(part)) if not isinstance(part, Tensor) else part for part in pair)
        return Samples(x.float() if x.is_floating_point() else x, y.to(target))

    given: dict[Split, tuple[Any, Any] | None] = {"train": train, "validation": validation, "test": test}
    return {split: samples(pair) for split, pair in given.items() if pair is not None}


def make_module(factory: Callable[[], nn.Module]) -> nn.Module:
    """Make a module. Where size is limited, its values are counted before memory is taken for them.

    Raises:
        ConfigurationError: it has more values than there is room for (see p2pfl.size_limit).
    """
    if size_limit.is_limited():
        size_limit.check_module_size(count_values(factory))
    return factory()


def count_values(factory: Callable[[], nn.Module]) -> int:
    """Return how many values a module has; 0 where it cannot be made without memory for them."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            module = factory()
        return sum(tensor.numel() for tensor in [*module.parameters(), *module.buffers()])
    except Exception:  # of a user's module; if it is a fault, it comes again when the module is made
        return 0


def layout_of(module: nn.Module, private: Sequence[str] = ()) -> Layout:
    """Return the layout of a module: trained parameters, then frozen ones and float buffers. Integer buffers stay local.

    Args:
        private: names of tensors or of submodules that are not shared.

    Raises:
        ConfigurationError: naming the tensor that cannot be handled, or the private part that does not exist.
    """
    name = type(module).__name__
    trained: list[tuple[str, tuple[int, ...]]] = []
    rest: list[tuple[str, tuple[int, ...]]] = []
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer):
            raise ConfigurationError(f"module {name}: {key} has no shape yet (a lazy layer); give its sizes")
        if isinstance(tensor, nn.Parameter):
            if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
                raise ConfigurationError(f"module {name}: parameter {key} is {tensor.dtype}, only dense float32 is handled")
            (trained if tensor.requires_grad else rest).append((key, tuple(tensor.shape)))
        elif tensor.is_floating_point() or tensor.is_complex():
            if tensor.dtype != torch.float32:
                raise ConfigurationError(f"module {name}: buffer {key} is {tensor.dtype}, only float32 is averaged")
            rest.append((key, tuple(tensor.shape)))
    if not trained:
        raise ConfigurationError(f"module {name} has nothing to train")
    n_trained = sum(prod(shape) for _, shape in trained)
    return Layout(tuple(trained + rest), n_trained, _named([key for key, _ in trained + rest], private))


def _named(tensors: Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    """Return which of the tensors are meant by names of tensors or submodules, in their order."""
    found = {part: [key for key in tensors if key == part or key.startswith(f"{part}.")] for part in parts}
    for part, keys in found.items():
        if not keys:
            raise ConfigurationError(f"there is no {part!r} to be kept private; the tensors are: {', '.join(tensors)}")
    return tuple(key for key in tensors if any(key in keys for keys in found.values()))


def last_layer(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters of the layer that comes last."""
    names = [name for name, _ in module.named_parameters()]
    layer = names[-1].rpartition(".")[0]
    return tuple(name for name in names if name.rpartition(".")[0] == layer)


def flatten(module: nn.Module, layout: Layout) -> Parameters:
    """Return a module's tensors as one flat vector."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return layout.join({name: tensors[name].detach().numpy() for name, _ in layout.shapes})
