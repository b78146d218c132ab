"""Losses and metrics of torch modules by name: one value for each sample, or one figure of a whole split such as F1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from p2pfl.errors import ConfigurationError, unknown
from p2pfl.learning.measures import auc, balanced_accuracy, check_installed, f1, r2

FEW_CLASSES, MANY_SAMPLES = 16, 256  # with fewer classes and this many samples, cross-entropy is faster across samples
PerSample = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> [n]: one value for each sample, so that nodes' samples can be stacked."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of logits [n, classes] with class numbers [n]; shape [n]."""
    if outputs.dim() == 2 and outputs.shape[1] < FEW_CLASSES and len(outputs) >= MANY_SAMPLES:
        # torch's softmax processes a row shorter than a vector register one value at a time.
        return functional.cross_entropy(outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none").squeeze(0)
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error, averaged over the outputs of a sample; shape [n]."""
    return (outputs - targets).square().flatten(1).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where the greatest logit is the target's, else 0; shape [n]."""
    return (outputs.argmax(1) == targets).float()


def of_each(function: PerSample, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss or metric of K models on n samples each.

    Args:
        function: its form for one model.
        outputs, targets: [K, n, ...].

    Returns:
        [K, n], equal to the values of `function` except for the order of sums.
    """
    if outputs.dim() == 3 and function is cross_entropy:
        return functional.cross_entropy(outputs.mT, targets, reduction="none")
    if outputs.dim() == 3 and function is accuracy:
        greatest = outputs == outputs.amax(2, keepdim=True)
        if greatest.count_nonzero() == targets.numel():  # neither ties nor NaN: a lookup replaces the slower argmax
            return greatest.gather(2, targets.unsqueeze(2)).squeeze(2).float()
    return function(outputs.flatten(0, 1), targets.flatten(0, 1)).view(targets.shape[:2])


class Metric(msgspec.Struct, frozen=True):
    """Figure of a model on all samples of a split.

    Attributes:
        name: its name in tables, for example "f1"; `evaluate` reports it as "<split>_f1".
        function: a function of the outputs (for classes: logits [n, classes]) and targets of a split, as NumPy arrays.
            With `per_sample` it takes torch tensors instead and returns one value for each sample, whose mean counts.
        higher_is_better: whether a higher figure is better.
    """

    name: str
    function: Callable[[Any, Any], Any]
    higher_is_better: bool = True
    per_sample: bool = False

    @property
    def measure(self) -> Callable[[Any, Any], Any] | Metric:
        """The function of a mean over samples; otherwise the metric itself."""
        return self.function if self.per_sample else self

    def of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the figure of outputs [n, ...] for targets [n, ...], a scalar."""
        if self.per_sample:
            mean: Tensor = self.function(outputs, targets).mean()
            return mean
        return torch.tensor(self._whole(outputs.cpu().numpy(), targets.cpu().numpy()), dtype=torch.float64)

    def of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the figures of K models for outputs and targets of [K, n, ...]; [K]."""
        if self.per_sample:
            return of_each(self.function, outputs, targets).mean(1)
        pairs = zip(outputs.cpu().numpy(), targets.cpu().numpy(), strict=True)
        return torch.tensor([self._whole(*pair) for pair in pairs], dtype=torch.float64)

    def _whole(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        found = self.function(outputs, targets)
        try:
            return float(found)
        except (TypeError, ValueError):
            raise ConfigurationError(f"metric {self.name!r} must return a number, got {found!r:.60}") from None


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error, averaged over the outputs of a sample; shape [n]."""
    return (outputs - targets).abs().flatten(1).mean(1)


CLASSIFICATION: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy, per_sample=True),
        Metric("auc", auc),
        Metric("balanced_accuracy", balanced_accuracy),
        Metric("f1", f1),
    )
}
REGRESSION: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("mse", squared_error, higher_is_better=False, per_sample=True),
        Metric("mae", absolute_error, higher_is_better=False, per_sample=True),
        Metric("r2", r2),
    )
}


def metrics_of(given: str | Metric | Iterable[str | Metric], known: Mapping[str, Metric]) -> tuple[Metric, ...]:
    """Return metrics from one or several names among `known`, or Metrics.

    Raises:
        ConfigurationError: a name is unknown.
        MissingRequirementError: a metric needs scikit-learn, which is not installed.
    """
    found: list[Metric] = []
    for each in [given] if isinstance(given, str | Metric) else given:
        if not isinstance(each, Metric):
            if each not in known:
                raise unknown("metric", str(each), known)
            each = known[each]
        check_installed(each.function)
        found.append(each)
    return tuple(found)
