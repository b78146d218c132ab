"""Labels of a federation's data and the classes 0 to K - 1 that they stand for; rows of a table with two classes.

`ClassLabels` has the labels on which all nodes agree, in the order of the classes. `Rows` are what the readers of tables
with sensitive attributes (`p2pfl.data.tabular`) return: their columns, and labels that are classes already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.data.delimited import number
from p2pfl.errors import ConfigurationError

Label = int | float | str
MOST_NAMED = 8  # labels that a message lists


class ClassLabels:
    """Labels of a federation. All nodes must use the same, so that a class means the same on each of them.

    Args:
        classes: the number of classes; None if it follows from the labels.
        labels: the label of each class, in the order of the classes; empty if the labels are the classes themselves.

    Attributes:
        count: the number of classes; None if neither argument sets it.

    Raises:
        ConfigurationError: there are fewer than two labels, one of them is listed twice, or `classes` is another number.
    """

    def __init__(self, classes: int | None, labels: Sequence[Label] = ()) -> None:
        self._classes = {_key(label): k for k, label in enumerate(labels)}
        if labels and len(self._classes) < max(2, len(labels)):
            raise ConfigurationError(f"task.labels must list two different labels or more, got {list(labels)}")
        if labels and classes not in (None, len(labels)):
            raise ConfigurationError(f"task.classes is {classes}, but task.labels lists {len(labels)} labels")
        self.count = len(labels) or classes

    def class_of(self, text: str) -> int | None:
        """Return the class of a label in a text file; None if it is not a label."""
        if text.strip() in self._classes:
            return self._classes[text.strip()]
        value = number(text)
        if value is None:
            return None
        if self._classes:
            return self._classes.get(value)
        whole = value >= 0 and value < (2**31 if self.count is None else self.count) and value == int(value)
        return int(value) if whole else None

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        """Return the classes of labels that are numbers, int64 [n]; -1 for each value that is not a label."""
        if self._classes:
            return np.array([self._classes.get(value, -1) for value in values.tolist()], np.int64)
        values = values.astype(np.uint8) if values.dtype == bool else values
        with np.errstate(invalid="ignore"):
            valid = (values >= 0) & (values < (2**31 if self.count is None else self.count)) & (values == np.floor(values))
        return np.where(valid, values, -1).astype(np.int64)

    def describe(self) -> str:
        """Return what a label must be, for the error about one that is not."""
        if self._classes:
            return f"a label must be one of task.labels, {_format(list(self._classes))}"
        if self.count is None:
            return "a label must be a whole number from 0; list other labels in task.labels"
        return f"a label must be a whole number from 0 to {self.count - 1} (task.classes is {self.count})"


def check_consecutive(where: str, found: np.ndarray) -> None:
    """Check that labels from which the number of classes follows are 0 to K - 1, so that there is no class too many.

    Args:
        where: the file, for the error.
        found: the different labels, int64 [K], sorted.

    Raises:
        ConfigurationError: they are others, for example 1 to K.
    """
    if len(found) and int(found[-1]) != len(found) - 1:
        labels = found.tolist()
        shown = labels if len(labels) <= MOST_NAMED else "[...]"
        raise ConfigurationError(
            f"{where}: the labels are {_format(labels)}, but classes are numbered from 0 without gaps; set task.labels ="
            f" {shown}, or task.classes = {labels[-1] + 1} if only this file lacks the others"
        )


def _format(labels: Sequence[Any]) -> str:
    shown = [f"{label:g}" if isinstance(label, float) else str(label) for label in labels]
    if len(shown) > MOST_NAMED:
        return f"{', '.join(shown[: MOST_NAMED - 1])}, ... and {shown[-1]}"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def _key(label: Label) -> str | float:
    return label.strip() if isinstance(label, str) else float(label)


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of a table of fairness data, before an encoder makes features of them.

    Attributes:
        numbers: float64 [n] of each numeric column, NaN for a missing value.
        categories: strings [n] of each categorical column, "" for a missing value.
        labels: 0 or 1, int64 [n].
    """

    numbers: Mapping[str, np.ndarray]
    categories: Mapping[str, np.ndarray]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray) -> Rows:
        """Return some of the rows."""
        return Rows(
            {name: values[index] for name, values in self.numbers.items()},
            {name: values[index] for name, values in self.categories.items()},
            self.labels[index],
        )
