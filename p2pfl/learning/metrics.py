"""Metrics of classification and regression, by name: means over samples, and figures of a whole split such as F1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from p2pfl.errors import ConfigurationError, unknown
from p2pfl.learning.dense.measures import auc, balanced_accuracy, check_installed, f1, r2
from p2pfl.learning.losses import accuracy, of_each, squared_error


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
