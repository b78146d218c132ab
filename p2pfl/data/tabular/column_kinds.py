"""Kind of a column whose owner has left it open: numbers, or categories.

A column of numbers and known markers of missing values is numeric. A column of texts is categorical. A column of many
different numbers with other texts among them is neither: one input for each number would be useless, so it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from p2pfl.data.formats.numbers import describe, is_code, is_marker, is_other_notation, number
from p2pfl.errors import ConfigurationError

MOST_CODES = 20  # different numbers in a column of categories with texts; more are a column of numbers
_MOST_TEXTS = 1000  # different texts of a column that are kept


class ColumnSurvey:
    """Survey of the texts of one column.

    Args:
        missing: texts of a missing value, besides those of p2pfl.data.formats.numbers.
    """

    def __init__(self, name: str, missing: Collection[str]) -> None:
        self._name = name
        self._missing = missing
        self._numbers = 0
        self._different: set[str] = set()  # numbers, up to one more than MOST_CODES
        self._texts: Counter[str] = Counter()
        self._lines: dict[str, int] = {}
        self._code: tuple[str, int] | None = None

    def add(self, line: int, text: str) -> None:
        """Count the text of a line."""
        if not text or text in self._missing:
            return
        if number(text) is not None:
            self._numbers += 1
            if len(self._different) <= MOST_CODES:
                self._different.add(text)
            if self._code is None and is_code(text):
                self._code = text, line
        elif text in self._texts or len(self._texts) < _MOST_TEXTS:
            self._texts[text] += 1
            self._lines.setdefault(text, line)

    def kind(self, path: Path) -> tuple[Literal["numeric", "categorical"], list[str]]:
        """Return the kind of the column, and notes on it.

        Raises:
            ConfigurationError: it has many different numbers, and texts that are none.
        """
        others = [text for text in self._texts if not is_marker(text)]
        if not others and (self._numbers or not self._texts):
            return "numeric", self._note_on_codes()
        written = [text for text in others if is_other_notation(text)]
        count = self._numbers + sum(self._texts[text] for text in written)
        all_count = self._numbers + sum(self._texts[text] for text in others)
        if 2 * count < all_count or not count:
            return "categorical", self._note_on_markers(others)
        first = min(others, key=lambda text: self._lines[text])
        where, meaning = f"line {self._lines[first]}", describe(first)
        if len(self._different) + len(written) > MOST_CODES:
            remedy = meaning or "correct it, or list it in `missing`"
            raise ConfigurationError(
                f"{path}, {where}: {self._name} is {first[:40]!r}, but most of its values are numbers; {remedy}; or set"
                f' columns.{self._name} = "categorical" or "ignore"'
            )
        mixed = f"{self._name}: categories, not numbers, because of {first[:40]!r} in {where}"
        return "categorical", [mixed, *self._note_on_markers(others)] if self._numbers else self._note_on_markers(others)

    def _note_on_codes(self) -> list[str]:
        if self._code is None:
            return []
        text, line = self._code
        return [f'{self._name}: read as numbers, but {text!r} in line {line} may be a code; set it to "categorical" then']

    def _note_on_markers(self, others: Collection[str]) -> list[str]:
        """Return a note on texts of a column of categories that usually denote a missing value."""
        markers = [text for text in self._texts if text not in others and (len(text) > 1 or text == "?")]
        if not markers:
            return []
        return [
            f"{self._name}: {markers[0]!r} (first in line {self._lines[markers[0]]}) is a category of its own; add it to"
            " `missing` if it denotes a missing value"
        ]
