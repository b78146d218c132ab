"""Rows of a table of numbers and categories, column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, column by column.

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
