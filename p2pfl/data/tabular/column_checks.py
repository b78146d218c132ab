"""Checks of columns that were read without an error, but may not mean what their owner thinks.

An index that became a feature, a feature that gives the label away, rows that occur twice, a column with one value, and
numbers that float32 cannot tell apart: the functions find them, and the readers refuse or note them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import lgamma, log

import numpy as np

from p2pfl.data_facts import MOST_NAMED

Row = Hashable
FEWEST_ROWS = 10  # below, anything may be chance
MOST_COLUMNS = 1024  # that are looked at one by one
CHANCE = 1e-3  # that a random column of the table gives the label away
STEPS = 50  # of float32 within the middle half of a column's values, at least
SENTINELS = [-99, -999, -9999, -99999, 999, 9999, 99999, 999999]
_FAR = 5  # times the greatest other number
_BLOCK, _SAMPLE = 4096, 1000  # rows
_NAMELESS = re.compile(r"Unnamed: \d+(\.\d+)*(_level_\d+)?")
_IDENTIFIER = re.compile(
    r"(.*[ _.-])?(id|idx|index|key|guid|uuid|nr|no|#|record(no)?|serial(no)?|seq(uence)?|row(s|id|number|num|no|names?)?)"
    r"|level_0|_c0|.*[a-z]I[dD]",
    re.IGNORECASE,
)


def is_nameless(name: str) -> bool:
    """Return whether a column has no name: "", as pandas and R name an index, or the "Unnamed: 0" of pandas."""
    return not name or _NAMELESS.fullmatch(name) is not None


def names_identifier(name: str) -> bool:
    """Return whether a name is one of an index or identifier, such as "id", "row" or "user_id"."""
    return _IDENTIFIER.fullmatch(name) is not None


def indices(names: Sequence[str], x: np.ndarray) -> list[int]:
    """Return the columns that number the rows, or identify them; see `counters` and `identifiers`.

    Args:
        x: numbers [n, columns].
    """
    return sorted({*counters(x), *identifiers(names, x)})


def counters(x: np.ndarray) -> list[int]:
    """Return the columns of whole numbers that go up, or down, by 1 from each row to the next, such as 0, 1, 2, ..."""
    if len(x) < FEWEST_ROWS:
        return []
    few = x[:FEWEST_ROWS].astype(float)
    with np.errstate(invalid="ignore"):
        steps = np.diff(few, axis=0)
    likely = np.flatnonzero((few[0] == np.floor(few[0])) & (np.abs(steps[0]) == 1) & (steps == steps[0]).all(0)).tolist()
    return [k for k in likely if (np.diff(x[:, k].astype(float)) == steps[0, k]).all()]


def identifiers(names: Sequence[str], x: np.ndarray) -> list[int]:
    """Return the columns that are named as an index or identifier, and whose values are different whole numbers."""
    if len(x) < FEWEST_ROWS:
        return []
    return [k for k, name in enumerate(names) if names_identifier(name) and _all_different_integers(x[:, k])]


def is_sorted_by_label(y: np.ndarray) -> bool:
    """Return whether equal labels follow each other more often than in a random order, by 4 standard deviations.

    A column that numbers the rows then gives labels away. (Wald and Wolfowitz 1940, for several classes.)
    """
    counts = np.bincount(np.unique(y, return_inverse=True)[1]).astype(float)
    n, squares, cubes = counts.sum(), (counts**2).sum(), (counts**3).sum()
    if len(counts) < 2 or n < FEWEST_ROWS:
        return False
    runs = 1 + int((y[1:] != y[:-1]).sum())
    variance = (squares * (squares + n**2 + n) - 2 * n * cubes - n**3) / (n**2 * (n - 1))
    return bool(runs < 1 + n - squares / n - 4 * max(variance, 0) ** 0.5)


def notes_on(
    names: Sequence[str], x: np.ndarray, y: np.ndarray, *, narrow: bool, categories: Iterable[int] = ()
) -> list[str]:
    """Return what the owner of a table should look at, without the name of the file.

    Args:
        names: of the columns, as they are shown.
        x: numbers [n, columns]; NaN is a missing value.
        y: class of each row, int64 [n].
        narrow: whether the numbers become float32 as they are; they do not if they are standardised first.
        categories: columns that are 1 for the rows of one category, and 0 for the others.
    """
    found = []
    if len(x) < FEWEST_ROWS:
        return []
    empty = np.flatnonzero(np.isnan(x.astype(float, copy=False)).all(0) if x.size else [])
    with np.errstate(invalid="ignore"):
        constant = np.flatnonzero((x == x[0]).all(0) if x.size else []).tolist()
    if len(empty):
        found.append(f"{_some_names(names, empty)}: no row has a value")
    if constant:
        of_category = {*categories}
        missing = [k for k in constant if k in of_category and not x[0, k]]
        everywhere = [k for k in constant if k in of_category and x[0, k]]
        same = [k for k in constant if k not in of_category]
        for columns, what in (
            (same, "all rows have the same value"),
            (missing, "no row has this category"),
            (everywhere, "all rows have this category"),
        ):
            found += [f"{_some_names(names, columns)}: {what}"] if columns else []
    if leaks := label_leaks(x, y):
        found.append(
            f"{_some_names(names, leaks)}: alone gives the label of each row; leave it out if it is an index or an answer"
        )
    return [*found, *_sentinels(names, x), *_lost_digits(names, x, narrow)]


def label_leaks(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Return the columns each of which gives the label of all rows, where chance would not.

    Such a column has one label for each of its values, and few values; or in its order the rows of each label are
    together, as in a file that is sorted by label and has an index.
    """
    classes, y = np.unique(y, return_inverse=True)
    if len(classes) < 2 or len(x) < FEWEST_ROWS:
        return []
    counts = np.bincount(y)
    arrangements = lgamma(len(y) + 1) - sum(lgamma(count + 1) for count in counts)
    columns = min(x.shape[1], MOST_COLUMNS)
    likely = log(CHANCE / columns)
    found = []
    with np.errstate(invalid="ignore"):
        least = np.array([x[y == k, :columns].min(0) for k in range(len(classes))])
        greatest = np.array([x[y == k, :columns].max(0) for k in range(len(classes))])
    few = slice(0, 50 * FEWEST_ROWS)
    for k in range(columns):
        order = np.argsort(least[:, k])
        if (greatest[order[:-1], k] < least[order[1:], k]).all():  # the labels are intervals of the column
            if lgamma(len(classes) + 1) - arrangements < likely:
                found.append(k)
            continue
        if not _one_label_each(x[few, k], y[few]):
            continue
        values = len(np.unique(x[:, k]))
        if (
            values <= len(y) // FEWEST_ROWS
            and values * log(len(classes)) - arrangements < likely
            and _one_label_each(x[:, k], y)
        ):
            found.append(k)
    return found


def repeats(rows: Iterable[Row]) -> tuple[int, int]:
    """Return how many rows equal an earlier one, and the number of the first of them, from 0."""
    seen: set[int] = set()
    count = first = 0
    for place, row in enumerate(rows):
        key = hash(row)
        if key in seen:
            first, count = (first, count + 1) if count else (place, 1)
        else:
            seen.add(key)
    return count, first


def note_on_classes(y: np.ndarray) -> list[str]:
    """Return a note if all rows have one class, which any model learns; none for a single row.

    Args:
        y: class of each row, int64 [n].
    """
    return [f"all rows have a label of class {y[0]}"] if len(y) > 1 and (y == y[0]).all() else []


def rows_of(*parts: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of each row of arrays [n] or [n, columns] together."""
    for begin in range(0, len(parts[0]), _BLOCK):
        block = np.column_stack([part[begin : begin + _BLOCK].astype(float) for part in parts])
        yield from map(np.ndarray.tobytes, block)


def note_on_repeats(place: Callable[[int], str], found: tuple[int, int]) -> list[str]:
    """Return a note on the rows that `repeats` has found; none if there are none.

    Args:
        place: returns the words for the place of a row, such as "line 31".
    """
    count, first = found
    if not count:
        return []
    rows = f"{count:,} row{'s' * (count > 1)} repeat{'s' * (count == 1)} an earlier one"
    return [f"{rows} (the first in {place(first)}), so that training and test rows can be equal"]


def note_on_shared(rows: Iterable[Row], tests: Iterable[Row], split: str) -> list[str]:
    """Return a note on the rows of another split that are also training rows; none if there are none."""
    known = set(map(hash, rows))
    shared = sum(hash(row) in known for row in tests)
    return [f"{shared:,} {split} row{'s are' if shared > 1 else ' is'} also among the training rows"] if shared else []


def _sentinels(names: Sequence[str], x: np.ndarray) -> list[str]:
    """Return a note on each column in which a number of nines, far from all others, may denote a missing value."""
    found = []
    with np.errstate(invalid="ignore"):
        edges = (np.fmin.reduce(x, 0), np.fmax.reduce(x, 0)) if x.size else ()
    for edge in edges:
        for k in np.flatnonzero(np.isin(edge, SENTINELS)).tolist():
            others = np.abs(x[x[:, k] != edge[k], k].astype(float))
            count = len(x) - len(others)
            if count > 1 and len(others) and np.nanmax(others, initial=0) * _FAR < abs(edge[k]):
                found.append(
                    f"{names[k]}: {edge[k]:g} occurs {count:,} times, far from all others; if it denotes a missing value,"
                    " fill it in, or remove the lines"
                )
    return found


def _lost_digits(names: Sequence[str], x: np.ndarray, narrow: bool) -> list[str]:
    if not x.size:
        return []
    with np.errstate(invalid="ignore"):
        greatest = np.fmax(np.abs(np.fmax.reduce(x, 0)), np.abs(np.fmin.reduce(x, 0))).astype(float)
    found = []
    if len(huge := np.flatnonzero(greatest > 2.0**53)):
        found.append(
            f"{_some_names(names, huge)}: whole numbers above 2**53 are not exact; if it is an identifier, leave it out"
        )
    if narrow and len(lost := np.flatnonzero(_is_lost(x[:: len(x) // _SAMPLE + 1].astype(float)))):
        found.append(
            f"{_some_names(names, lost)}: float32 cannot tell its values apart, which are large and close together; set"
            ' standardize = "local", or subtract a constant'
        )
    return found


def _is_lost(x: np.ndarray) -> np.ndarray:
    """Return for each column whether float32 has fewer than STEPS steps in the range of the middle half of its values."""
    low, middle, high = np.nanpercentile(x, (25, 50, 75), axis=0)
    spread = np.where(high > low, high - low, np.nanmax(x, 0) - np.nanmin(x, 0))
    lost: np.ndarray = (spread > 0) & (spread < STEPS * np.spacing(np.abs(middle).astype(np.float32)).astype(float))
    return lost


def _all_different_integers(column: np.ndarray) -> bool:
    values = column.astype(float)
    return bool((values == np.floor(values)).all()) and len(np.unique(values)) == len(values)


def _one_label_each(column: np.ndarray, y: np.ndarray) -> bool:
    """Return whether all rows with the same value, also a missing one, have the same label."""
    column = column.astype(float)
    column[np.isnan(column)] = np.inf
    order = np.lexsort((y, column))
    values, labels = column[order], y[order]
    return not ((values[1:] == values[:-1]) & (labels[1:] != labels[:-1])).any()


def _some_names(names: Sequence[str], columns: Iterable[int]) -> str:
    shown = [names[k] for k in columns]
    more = len(shown) - MOST_NAMED
    return ", ".join(shown[:MOST_NAMED]) + (f" and {more:,} more columns" if more > 0 else "")
