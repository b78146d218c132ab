"""Definition of a dense network's learning problem: data, loss, optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.learning.dense.measures import Measure, accuracy
from p2pfl.learning.dense.network import DenseNetwork, Loss, cross_entropy
from p2pfl.learning.optimizers import SGD, check_batch_size
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import Split
from p2pfl.system.size_limit import check_module_size


@dataclass
class DenseProblem:
    """A dense network, its data and its training settings: a DenseTask without its learner.

    A TorchTask with the same network, loss and options has the same initial model and the same batches; both can be in
    one federation.

    Attributes:
        network: the network.
        data: (inputs float32 [n, ...], targets [n, ...]) by split; `train` is required.
        loss: the loss; see p2pfl.learning.dense.network.
        measures: reported figures by name; the first is the metric.
        higher_is_better: whether a higher metric is better.
        optimizer: SGD; its state is discarded after each round, unless it is `lasting`.
        batch_size: samples in a step; the last batch of an epoch may be smaller.
        public_info: public facts that are sent to peers.
        derived_options: options taken from the data that all nodes must share.
        data_facts, data_notes, held_out: what the readers of the data understood; see p2pfl.task.Task.

    Raises:
        ConfigurationError: there is no training data, a value is not finite, or the network is too large for the memory.
        MissingRequirementError: the optimiser is another one than SGD.
    """

    network: DenseNetwork
    data: Mapping[Split, tuple[np.ndarray, np.ndarray]]
    loss: Loss = cross_entropy
    measures: Mapping[str, Measure] = field(default_factory=lambda: {"accuracy": accuracy})
    higher_is_better: bool = True
    optimizer: SGD = field(default_factory=SGD)
    batch_size: int = 16
    public_info: Mapping[str, Any] = field(default_factory=dict)
    derived_options: Mapping[str, Any] = field(default_factory=dict)
    data_facts: Sequence[DataFacts] = ()
    data_notes: Sequence[str] = ()
    held_out: Sequence[Split] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, SGD):
            kind = type(self.optimizer).__name__
            raise MissingRequirementError(f"the optimizer {kind} needs PyTorch: pip install 'p2pfl-node[torch]'")
        check_batch_size(self.batch_size)
        if "train" not in self.data or not len(self.data["train"][0]):
            raise ConfigurationError("the task has no training samples")
        for split, (x, y) in self.data.items():
            if not (np.isfinite(x).all() and np.isfinite(y).all()):
                raise ConfigurationError(f"{split} data: a value is not finite (NaN or infinite)")
        check_module_size(self.layout.size)

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def n_samples(self) -> int:
        return len(self.data["train"][0])

    @property
    def metric(self) -> str:
        return next(iter(self.measures))

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        return tuple(self.measures)[1:]

    def initial(self, seed: int) -> Parameters:
        return self.network.initial(seed)
