"""Labels of a user's data, and the classes 0 to K - 1 that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from p2pfl.errors import ConfigurationError

Label = int | float | str
MOST_NAMED = 8  # labels that a message lists


class Labels:
    """Labels in the order of their classes. All nodes of a federation must use the same.

    Args:
        labels: the label of each class, two or more.

    Raises:
        ConfigurationError: there are fewer than two labels, or one of them is listed twice.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self.names = tuple(labels)
        self._classes = {label: k for k, label in enumerate(self.names)}
        if isinstance(labels, str) or len(self._classes) < max(2, len(self.names)):
            raise ConfigurationError(f"labels must list two different labels or more, got {labels!r}")

    def class_of(self, what: str, label: Any) -> int:
        """Return the class of a label, which may be a value of NumPy or torch.

        Args:
            what: the name of the value, for errors, for example "train data: target 3".

        Raises:
            ConfigurationError: it is not one of the labels.
        """
        value = label.item() if getattr(label, "shape", None) == () else label
        found = self._classes.get(value) if isinstance(value, Label) else None
        if found is None:
            shown = ", ".join(map(repr, self.names[:MOST_NAMED])) + (", ..." if len(self.names) > MOST_NAMED else "")
            raise ConfigurationError(f"{what} is {value!r}; a label must be one of {shown}")
        return found

    def classes_of(self, what: str, labels: Any) -> np.ndarray:
        """Return the classes of labels, int64 [n]; see `class_of`."""
        return np.array([self.class_of(f"{what} {k}", label) for k, label in enumerate(labels)], np.int64)
