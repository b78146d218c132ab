"""Figures of a model on all samples of a split, as NumPy computes them: for PyTorch's tasks and for those without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from p2pfl.errors import MissingRequirementError, unknown

Measure = Callable[[np.ndarray, np.ndarray], float]
"""(outputs float32 [n, ...], targets [n, ...]) of all samples of a split -> the figure; NaN where it is undefined."""


def accuracy(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the part of the samples whose greatest logit is the target's."""
    return float((logits.argmax(1) == targets).mean())


def f1(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the F1 score, averaged over the classes that occur among targets or predictions (macro)."""
    return float(scikit().f1_score(targets, logits.argmax(1), average="macro", zero_division=0))


def balanced_accuracy(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the recall, averaged over the classes that occur among the targets."""
    right = logits.argmax(1) == targets
    return float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))


def auc(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the area under the ROC curve, one class against the rest, averaged over the classes.

    Classes that all samples or none have do not count. NaN if the samples have a single class, or if a model that has
    diverged gives scores that are not finite.
    """
    with np.errstate(invalid="ignore"):  # such a model
        scores = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    present = np.unique(targets)
    if len(present) < 2 or not np.isfinite(scores).all():
        return float("nan")
    if logits.shape[1] == 2:
        return float(scikit().roc_auc_score(targets, scores[:, 1]))
    return float(np.mean([scikit().roc_auc_score(targets == label, scores[:, label]) for label in present]))


def squared_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean squared error."""
    return float(np.square(outputs - targets.reshape(outputs.shape)).mean())


def absolute_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean absolute error."""
    return float(np.abs(outputs - targets.reshape(outputs.shape)).mean())


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the coefficient of determination of all values together; NaN if the targets are equal."""
    spread = float(np.square(targets - targets.mean(0), dtype=np.float64).sum())
    return 1 - float(np.square(targets - outputs, dtype=np.float64).sum()) / spread if spread else float("nan")


CLASSIFICATION: Mapping[str, Measure] = {
    "accuracy": accuracy,
    "auc": auc,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
}
REGRESSION: Mapping[str, Measure] = {"mse": squared_error, "mae": absolute_error, "r2": r2}


def measures_of(names: Iterable[str], known: Mapping[str, Measure] = CLASSIFICATION) -> dict[str, Measure]:
    """Return measures by name, of classification by default.

    Raises:
        ConfigurationError: a name is unknown.
        MissingRequirementError: a measure needs scikit-learn, which is not installed.
    """
    found: dict[str, Measure] = {}
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)
        found[name] = known[name]
        check_installed(found[name])
    return found


def check_installed(measure: object) -> None:
    """Raise MissingRequirementError if a measure needs scikit-learn, which is not installed."""
    if measure in (f1, auc):
        scikit()


def scikit() -> Any:
    """Return sklearn.metrics, imported at its first use because this takes about a second."""
    try:
        import sklearn.metrics
    except ImportError:
        raise MissingRequirementError(
            "the metrics f1 and auc need scikit-learn: pip install 'p2pfl-node[metrics]'"
        ) from None
    return sklearn.metrics
