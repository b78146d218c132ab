"""Definition of a torch module's learning problem: data, losses or objectives, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl._util.shared_work import once
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.learning.losses import Metric, PerSample, accuracy, cross_entropy
from p2pfl.learning.module_probe import Conduct, drawn_constants, is_plain, probe, structure
from p2pfl.learning.modules import flatten, layout_of, load, new_module
from p2pfl.learning.optimizers import SGD, Optimizer, check_batch_size, check_optimizer
from p2pfl.learning.samples.node_samples import first_not_finite
from p2pfl.multiobjective.preferences import Preference, validate_preference
from p2pfl.multiobjective.scalarisation import Objectives
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import Split
from p2pfl.random_streams import federation_streams
from p2pfl.task import Task


class Samples(NamedTuple):
    """Inputs [n, ...] and targets [n, ...] as torch tensors on the CPU."""

    x: Tensor
    y: Tensor


@dataclass
class TorchProblem(Task):
    """A torch module, its data and its training settings: a TorchTask without its learner.

    Attributes:
        module: makes the module. Its initial weights come from torch's generator, which is seeded before the call.
        data: samples by split; `train` is required, `validation` drives early stopping, `test` is reported.
        loss: the loss per sample; its mean is trained.
        metric: the name of the reported metric.
        measure: one value of the metric for each sample, or a Metric of this name.
        higher_is_better: whether a higher metric is better.
        metrics: further figures that are reported; not for several objectives.
        optimizer: one of p2pfl.SGD, p2pfl.Adam and p2pfl.AdamW, or an object with the same methods; its state is
            discarded after each round, unless it is `lasting`.
        batch_size: samples in a step; the last batch of an epoch may be smaller.
        public_info: public facts that are sent to peers.
        objectives: several objectives, instead of `loss` and `measure`; the metric is then minus the scalarised loss.
        preference: the weights that scalarise them, [m]; they stay on this node.
        group: the number of the node's group if preferences are given by groups; it stays on this node too.
        derived_options: options that the task has taken from its data, and that all nodes must share; see
            p2pfl.task.Task.
        data_facts, data_notes, data_label, row_encoding, held_out: what the readers of the data understood, and how they
            encode it; see p2pfl.task.Task.
        private: the parts of the module that stay on this node, by the names of its tensors or submodules; see
            p2pfl.parameters.Layout.

    Raises:
        ConfigurationError: the module has unsupported parameters, the optimiser is of another kind, or there is no
            training data. `layout` raises it if a
            private part does not exist, or nothing would be shared.
    """

    module: Callable[[], nn.Module]
    data: Mapping[Split, Samples]
    loss: PerSample = cross_entropy
    metric: str = "accuracy"
    measure: PerSample | Metric = accuracy
    higher_is_better: bool = True
    optimizer: Optimizer = field(default_factory=SGD)
    batch_size: int = 16
    public_info: Mapping[str, Any] = field(default_factory=dict)
    objectives: Objectives | None = None
    preference: Preference | None = field(default=None, repr=False)
    group: int | None = field(default=None, repr=False)
    private: Sequence[str] = ()
    metrics: Sequence[Metric] = ()
    derived_options: Mapping[str, Any] = field(default_factory=dict)
    data_facts: Sequence[DataFacts] = ()
    data_notes: Sequence[str] = ()
    data_label: str = ""
    row_encoding: Mapping[str, Any] = field(default_factory=dict)
    held_out: Sequence[Split] = ()

    def __post_init__(self) -> None:
        if isinstance(self.module, nn.Module):
            raise ConfigurationError(
                f"module must be a function that makes a new module, got a {type(self.module).__name__}; each node needs"
                " a module of its own"
            )
        check_optimizer(self.optimizer)
        check_batch_size(self.batch_size)
        if "train" not in self.data or not len(self.data["train"].x):
            raise ConfigurationError("the task has no training samples")
        for split, (x, y) in self.data.items():
            if len(x) != len(y):
                raise ConfigurationError(f"{split} data: {len(x)} inputs, but {len(y)} targets")
            for what, values in (("input", x), ("target", y)):
                if (first := first_not_finite(values)) is not None:
                    raise ConfigurationError(f"{split} data: {what} {first} is not finite (NaN or infinite)")
        names = ["loss", self.metric, *self.extra_metrics] if self.metrics else []
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            raise ConfigurationError(f"metric {twice[0]!r} is reported twice; give each of `metrics` another name")
        if self.metrics and self.objectives is not None:
            raise ConfigurationError("a task of several objectives reports these; it cannot have further metrics")
        if (self.objectives is None) != (self.preference is None):
            raise ConfigurationError("a task must have both objectives and a preference, or neither")
        if self.objectives is not None and self.preference is not None:
            self.preference = validate_preference("preference", self.preference.tolist(), len(self.objectives.names))

    @property
    def goals(self) -> Mapping[str, bool]:
        return {} if self.objectives is None else dict.fromkeys(self.objectives.names, False)

    @property
    def n_samples(self) -> int:
        return len(self.data["train"].x)

    def weights(self, device: torch.device) -> Tensor | None:
        """Return the preference as float32 [m], or None without objectives."""
        return None if self.preference is None else torch.tensor(self.preference, dtype=torch.float32, device=device)

    def batch_loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of a batch, a scalar, for training."""
        if self.objectives is None or weights is None:
            return self.loss(outputs, targets).mean()
        return self.objectives.scalarise(self.objectives.losses(outputs, targets), weights)

    def figures(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the reported figures for a model's outputs on all samples of a split, by name: scalars."""
        if self.objectives is None or weights is None:
            found = {metric.name: metric.of(outputs, targets) for metric in self.measures}
            return {"loss": self.loss(outputs, targets).mean(), **found}
        losses = self.objectives.losses(outputs, targets)
        loss = self.objectives.scalarise(losses, weights)
        return {"loss": loss, self.metric: -loss, **dict(zip(self.objectives.names, losses.unbind(), strict=True))}

    @cached_property
    def measures(self) -> tuple[Metric, ...]:
        """The reported metric and the further ones, for a task without objectives."""
        own = self.measure
        if not isinstance(own, Metric):
            own = Metric(self.metric, own, self.higher_is_better, per_sample=True)
        return (own, *self.metrics)

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    @cached_property
    def template(self) -> nn.Module:
        """Module of this architecture; its weights are not used. Other tasks with the same `module` may share it."""
        return once((new_module, self.module), lambda: new_module(self.module))

    @cached_property
    def conduct(self) -> Conduct:
        """Conduct of the module besides computing outputs from its float tensors."""
        if is_plain(self.template):
            return Conduct()
        x, y = self.data["train"]
        about = x.shape[1:], x.dtype, y.shape[1:], y.dtype, self.loss, self.batch_size, self.objectives is None
        return once((probe, structure(self.template), *about), self._probe)

    def _probe(self) -> Conduct:
        x, y = self.data["train"]
        loss, weights = self.batch_loss, self.weights(torch.device("cpu"))
        module = self._unshared(new_module(self.module))
        drawn = drawn_constants(module, new_module(self.module, 1))
        return replace(probe(module, x, y, lambda o, t: loss(o, t, weights), self.batch_size), drawn=drawn)

    @property
    def module_notes(self) -> list[str]:
        """Notes for the user before the first round: state that is lost somewhere, and draws in evaluation."""
        conduct, name = self.conduct, f"module {type(self.template).__name__}"
        notes = []
        if conduct.uncarried:
            notes.append(
                f"{name} changes {', '.join(conduct.uncarried)} in training, which neither a checkpoint nor a file of the"
                " model can carry: after a restart, a node begins with its first value; keep a number, or a tensor of one"
                " shape, there"
            )
        if lacking := [each for each in conduct.unsaved if each not in conduct.uncarried]:
            notes.append(
                f"{name} changes {', '.join(lacking)} in training; files of the model lack it, because a state_dict has"
                " no attributes and no buffers that are not persistent; register a persistent buffer to keep it in files"
            )
        if conduct.drawn:
            notes.append(
                f"{name} draws {', '.join(conduct.drawn)} when it is made; files of the model lack it, because a state_dict"
                " has no attributes and no buffers that are not persistent; register a persistent buffer to keep it in files"
            )
        if any(not isinstance(value, Tensor) for value in self.template.state_dict().values()):
            notes.append(
                f"{name} has an extra state that is no tensor; files of the model lack it, so load them with strict=False"
            )
        if conduct.draws_in_evaluation:
            notes.append(
                f"{name} draws random numbers in evaluation, such as functional.dropout without training=self.training;"
                " each evaluation of a node draws the same ones"
            )
        return notes

    @cached_property
    def layout(self) -> Layout:
        private, state = tuple(self.private), self.conduct.state
        key = layout_of, self.template, private, state.shapes
        return once(key, lambda: layout_of(self.template, private, state))

    def make(self, seed: int) -> nn.Module:
        """Return the module from which all nodes of a federation start, with its weights and its constants.

        It shares no state that a training changes with another module.
        """
        module = new_module(self.module, federation_streams(seed).torch_seed(0, "initial model"))
        return self._unshared(module) if self.conduct.changed else module

    def _unshared(self, module: nn.Module) -> nn.Module:
        """Return a module, or a copy of it if the function `module` does not always make new submodules."""
        known = set(map(id, self.template.modules()))
        return deepcopy(module) if any(id(part) in known for part in module.modules()) else module

    def initial(self, seed: int) -> Parameters:
        return flatten(self.make(seed), self.layout, self.conduct.state)

    def loaded(self, params: Parameters, seed: int) -> nn.Module:
        """Return a module in evaluation mode with these parameters, on the CPU.

        Args:
            seed: the federation's; a module may draw constants from it.
        """
        module = self._unshared(self.make(seed))
        load(module, params, self.layout, self.conduct.state)
        return module.eval()

    def tensors(self, params: Parameters, seed: int) -> dict[str, np.ndarray]:
        """Return the `state_dict` of a module with these parameters as arrays; see `loaded`."""
        found = self.loaded(params, seed).state_dict()
        return {name: tensor.detach().numpy().copy() for name, tensor in found.items() if isinstance(tensor, Tensor)}
