"""Reader of labelled rows of numbers, from a .csv file with a header or an .npz file.

The numbers stay float64 (or the type of the array): a task that standardises them narrows them to float32 afterwards.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pfl._util.machine import amount, free_memory
from p2pfl.data import binary_files
from p2pfl.data.class_labels import ClassLabels
from p2pfl.data.delimited import Dialect, describe, header_of, is_code, number, numbers, read_rows
from p2pfl.data.tabular import column_checks
from p2pfl.data_facts import ColumnFacts, DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.queries import Split

Arrays = tuple[np.ndarray, np.ndarray]
HELD_OUT: tuple[Split, Split] = ("validation", "test")
LARGEST = float(np.finfo(np.float32).max)
_LABEL_NAMES = {"label", "labels", "target", "targets", "class", "y", "outcome"}
_LOOKED_AT = 1000  # rows, in search of the column of the labels, and of codes
_ARRAYS = {"train": ("x", "y"), "validation": ("x_validation", "y_validation"), "test": ("x_test", "y_test")}


@dataclass(frozen=True)
class Choice:
    """Choices of the owner of a file; hashable, so that nodes can share the result.

    Attributes:
        target: name of the label's column; "" is the last one.
        ignore: names of the columns that are left out; None if the owner has not said, so that an index is refused.
        delimiter: the character between the columns.
        narrow: whether the numbers become float32 without being standardised.
    """

    target: str = ""
    ignore: tuple[str, ...] | None = None
    delimiter: str = ","
    narrow: bool = True


class Labelled(NamedTuple):
    """Labelled rows of a file.

    Attributes:
        splits: numbers [n, features] and classes int64 [n], at least of "train".
        columns: hash of the names of the features; "" if they have no names.
        facts: what was understood of the file.
    """

    splits: Mapping[Split, Arrays]
    columns: str
    facts: DataFacts


def read(path: Path, choice: Choice, labels: ClassLabels, features: int | None) -> Labelled:
    """Read a .csv or .npz file.

    Args:
        features: required number of features; None if any will do.

    Raises:
        ConfigurationError: it cannot be read; the text names the file, and the line or the array.
    """
    try:
        if path.name.lower().endswith(".npz"):
            return _read_npz(path, choice, labels, features)
        if path.name.lower().endswith((".csv", ".csv.gz")):
            return _read_csv(path, choice, labels, features)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    remedy = "convert other formats, for example with pandas"
    if path.suffix.lower() in (".tsv", ".tab", ".txt", ".data", ".dat"):
        remedy = "give delimited text such a name, and set task.delimiter"
    raise ConfigurationError(f"{path}: the name must end in .npz, .csv or .csv.gz; {remedy}")


def _read_csv(path: Path, choice: Choice, labels: ClassLabels, features: int | None) -> Labelled:
    dialect, dropped = Dialect(choice.delimiter), Counter[str]()
    x, y, places = array("d"), array("q"), array("q")
    free = free_memory()
    most = inf if free is None else free / 16  # a value takes eight bytes here, and eight more in the final array
    rows = read_rows(path, dialect, dropped)
    header = next(rows, (1, []))[1]
    if len(header) == 1:
        next(rows, None)  # raises an error that names the line, if the others are wider: the first is a title then
    if not header:
        raise ConfigurationError(f"{path} is empty")
    names, kept, label = _columns(path, header, choice, labels, features)
    pick = _picker(kept)
    codes: dict[str, tuple[str, int]] = {}
    for line, row in rows:
        values = numbers(pick(row))
        if values is None:
            raise _not_a_number(f"{path}, line {line}", [(names[k], row[k]) for k in kept], names, choice, labels)
        if len(y) < _LOOKED_AT:
            codes |= {names[k]: (row[k], line) for k in kept if names[k] not in codes and is_code(row[k])}
        found = labels.class_of(row[label])
        if found is None:
            cell = f"line {line}: {names[label]} is {' '.join(row[label][:40].split()) or 'empty'}"
            raise _not_a_label(path, cell, names, choice, labels)
        x.extend(values)
        y.append(found)
        places.append(line)
        if len(x) > most:
            raise ConfigurationError(f"{path} has more values than fit into memory; only {amount(most * 16)} is free")
    if not y:
        raise ConfigurationError(f"{path} has no rows below the names of the columns")
    numeric = np.array(x, np.float64).reshape(len(y), len(kept))
    classes = np.array(y, np.int64)
    too_large = np.argwhere(np.abs(numeric) > LARGEST)
    if len(too_large):
        place, k = too_large[0]
        value = f"{numeric[place, k]:g}"
        raise ConfigurationError(f"{path}, line {places[place]}: {names[kept[k]]} must be a finite float32, got {value}")
    features_named = [names[k] for k in kept]
    notes = [
        *_notes_on_indices(path, choice, features_named, numeric, classes),
        *_notes_on_names(choice, names, label),
        *(f"{name}: read as numbers, but {text!r} in line {line} may be a code" for name, (text, line) in codes.items()),
        *column_checks.note_on_classes(classes),
        *column_checks.notes_on(features_named, numeric, classes, narrow=choice.narrow),
        *column_checks.note_on_repeats(
            lambda place: f"line {places[place]}", column_checks.repeats(column_checks.rows_of(numeric, classes))
        ),
    ]
    facts = DataFacts(
        str(path),
        str(dialect),
        len(classes),
        tuple(_column_facts(names, kept, label, numeric, classes)),
        dropped,
        tuple(f"{path}: {note}" for note in notes),
    )
    return Labelled({"train": (numeric, classes)}, _hash(features_named), facts)


def _columns(
    path: Path, header: Sequence[str], choice: Choice, labels: ClassLabels, features: int | None
) -> tuple[list[str], list[int], int]:
    """Return the names of all columns, the numbers of those that are features, and that of the label."""
    if _is_data(header, labels) and list(header) != [str(k) for k in range(len(header))]:
        raise ConfigurationError(f"{path}, line 1: it has numbers, but the first line must name the columns")
    names = header_of(path, header)
    for name in (*([choice.target] if choice.target else []), *(choice.ignore or ())):
        if name not in names:
            raise ConfigurationError(f"{path} has no column {name!r}; it has {_first_names(names)}")
    if names and not choice.target and not names[-1]:
        raise ConfigurationError(
            f"{path}, line 1: the last column, which is the label by default, has no name; remove a separator at the end of"
            " the lines, or name the column of the labels in task.target"
        )
    label = names.index(choice.target) if choice.target else len(names) - 1
    left_out = {k for k, name in enumerate(names) if not name or name in (choice.ignore or ())}
    if choice.ignore is None:
        left_out |= {k for k, name in enumerate(names) if column_checks.is_nameless(name)}
    if label in left_out:
        raise ConfigurationError(f"{path}: the column {names[label]!r} is the label, and cannot be left out")
    kept = [k for k in range(len(names)) if k not in left_out and k != label]
    if features is not None and len(kept) != features:
        raise ConfigurationError(f"{path} has {len(kept)} features besides the label, but task.features is {features}")
    if not kept:
        raise ConfigurationError(f"{path} has no features: it must have two columns or more, separated by task.delimiter")
    return names, kept, label


def _is_data(line: Sequence[str], labels: ClassLabels) -> bool:
    """Return whether a first line has numbers and a label, not the names of columns."""
    if not all(number(cell) is not None for cell in line[:-1]):
        return False
    return bool(line) and (number(line[-1]) is not None or labels.class_of(line[-1]) is not None)


def _picker(kept: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
    """Return a function that selects the cells of the features."""
    first, last = kept[0], kept[-1] + 1
    if last - first == len(kept):
        return lambda row: row[first:last]
    cells = itemgetter(*kept)

    def pick(row: Sequence[str]) -> tuple[str, ...]:
        found: tuple[str, ...] = cells(row)
        return found

    return pick


def _not_a_number(
    where: str, cells: Sequence[tuple[str, str]], names: Sequence[str], choice: Choice, labels: ClassLabels
) -> ConfigurationError:
    """Return the error for the first cell that is no number."""
    name, text = next((name, text) for name, text in cells if number(text) is None)
    remedy = f", {meaning}" if (meaning := describe(text)) else ""
    if not choice.target and (name.lower() in _LABEL_NAMES or labels.class_of(text) is not None):
        remedy = f'; if it is the label, set task.target = "{name}"'
    return ConfigurationError(f"{where}: {name} must be a number, got {text[:40]!r}{remedy}{_header_hint(names, choice)}")


def _header_hint(names: Sequence[str], choice: Choice) -> str:
    """Return a hint if the first line has numbers, so that it may be a row; "" otherwise."""
    found = next((name for name in names if number(name) is not None), None)
    if found is None or choice.target or list(names) == [str(k) for k in range(len(names))]:
        return ""
    return f"; line 1 must name the columns, but has the number {found}"


def _not_a_label(path: Path, cell: str, names: Sequence[str], choice: Choice, labels: ClassLabels) -> ConfigurationError:
    """Return the error for a cell that is no label, with the columns that could have the labels."""
    where = f"{path}, {cell}, {labels.describe()}{_header_hint(names, choice)}"
    if choice.target:
        return ConfigurationError(where)
    others = _label_columns(path, choice, labels)
    if others:
        return ConfigurationError(f'{where}; the labels seem to be in another column: set task.target = "{others[0]}"')
    return ConfigurationError(f"{where}; task.target names the column of the labels, by default the last one")


def _label_columns(path: Path, choice: Choice, labels: ClassLabels) -> list[str]:
    """Return the columns with labels and few of them, in the first rows; those with the name of a label first."""
    rows = read_rows(path, Dialect(choice.delimiter), Counter())
    names = header_of(path, next(rows)[1])
    found: dict[int, set[int]] = {k: set() for k, name in enumerate(names) if name}
    count = 0
    for count, (_, row) in enumerate(rows, 1):
        for k in list(found):
            label = labels.class_of(row[k])
            if label is None:
                del found[k]
            else:
                found[k].add(label)
        if count == _LOOKED_AT:
            break
    likely = [names[k] for k, values in found.items() if 2 <= len(values) <= max(2, count // 2)]
    return sorted(likely, key=lambda name: name.lower() not in _LABEL_NAMES)


def _notes_on_indices(path: Path, choice: Choice, names: Sequence[str], x: np.ndarray, y: np.ndarray) -> list[str]:
    """Return a note on each column that numbers the rows, unless the owner has decided about it.

    Raises:
        ConfigurationError: a column identifies the rows, or numbers them in a file that is sorted by label.
    """
    if choice.ignore is not None:
        return []
    counters, found = column_checks.counters(x), column_checks.identifiers(names, x)
    if column_checks.is_sorted_by_label(y):
        found = sorted({*found, *counters})
    if found:
        values, chosen = x[:, found[0]], ", ".join(f'"{names[k]}"' for k in found)
        raise ConfigurationError(
            f"{path}: the column {names[found[0]]!r} numbers or identifies the rows ({min(values):.15g} to"
            f" {max(values):.15g}), and would be a feature; set task.ignore = [{chosen}] to leave it out, or"
            " task.ignore = [] to use it"
        )
    return [f'{names[k]} numbers the rows; set task.ignore = ["{names[k]}"] if it is an index' for k in counters]


def _notes_on_names(choice: Choice, names: Sequence[str], label: int) -> list[str]:
    notes = []
    if choice.ignore is None and (nameless := [k for k, name in enumerate(names) if column_checks.is_nameless(name)]):
        which = ", ".join(names[k] or str(k + 1) for k in nameless)
        notes.append(f"column {which} has no name, as an index; it is left out")
    others = [name for k, name in enumerate(names) if k != label and name.lower() in _LABEL_NAMES]
    if not choice.target and others and others[0] not in (choice.ignore or ()):
        notes.append(f"the label is {names[label]}, the last column, and {others[0]} is a feature; task.target sets another")
    return notes


def _column_facts(
    names: Sequence[str], kept: Sequence[int], label: int, x: np.ndarray, y: np.ndarray
) -> Iterator[ColumnFacts]:
    ranges = [(float(low), float(high)) for low, high in zip(x.min(0), x.max(0), strict=True)] if len(x) else []
    known = dict(zip(kept, ranges, strict=False))
    for k, name in enumerate(names):
        if k == label:
            yield ColumnFacts(name, "label", "label", len(np.unique(y)))
        elif k in known or k in kept:
            yield ColumnFacts(name, "number", range=known.get(k))
        else:
            yield ColumnFacts(name, "unread", "ignored")


def _hash(names: Sequence[str]) -> str:
    """Return a hash that shows whether other names are the same, without naming them."""
    return sha256(repr(list(names)).encode()).hexdigest()[:16]


def _read_npz(path: Path, choice: Choice, labels: ClassLabels, features: int | None) -> Labelled:
    there = binary_files.names(path)
    arrays = dict(_ARRAYS)
    if "x_train" in there and "y_train" in there and not {"x", "y"} & {*there}:  # as in the archives of Keras
        arrays["train"] = ("x_train", "y_train")
    used = [name for pair in arrays.values() for name in pair]
    for name in arrays["train"]:
        if name not in there:
            raise ConfigurationError(f"{path} has no array {name}; it has {_first_names(there)}, and must have x and y")
    found = binary_files.read_npz(path, used)
    splits: dict[Split, Arrays] = {}
    split: Split
    for split in ("train", *HELD_OUT):
        names = arrays[split]
        if split != "train" and not any(name in found for name in names):
            continue
        for name in names:
            if name not in found:
                raise ConfigurationError(f"{path} has no array {name}; it has {_first_names(there)}")
        splits[split] = _validate(path, found, (names[0], names[1]), labels, features)
        features = splits[split][0].shape[1]
    x, y = splits["train"]
    shape = found[arrays["train"][0]].shape[1:]
    notes = _notes_on_arrays(splits, arrays["train"][0], narrow=choice.narrow, flat=len(shape) == 1)
    if unused := [name for name in there if name not in found]:
        notes.insert(0, f"{_first_names(unused)}: not used; the arrays are x, y, and x_ and y_ with validation or test")
    facts = DataFacts(
        str(path),
        "NPZ",
        sum(len(each) for _, each in splits.values()),
        (
            ColumnFacts(
                arrays["train"][0], f"array of {found[arrays['train'][0]].dtype}", range=(float(x.min()), float(x.max()))
            )
            if x.size
            else ColumnFacts(arrays["train"][0], "array"),
            ColumnFacts(arrays["train"][1], "label", "label", len(np.unique(y))),
        ),
        notes=tuple(f"{path}: {note}" for note in notes),
        details=(" x ".join(map(str, shape)) + (" features" if len(shape) == 1 else " values"),),
    )
    return Labelled(splits, "", facts)


def _notes_on_arrays(splits: Mapping[Split, Arrays], name: str, *, narrow: bool, flat: bool) -> list[str]:
    x, y = splits["train"]
    notes = column_checks.note_on_classes(y)
    if flat and x.shape[1] <= column_checks.MOST_COLUMNS:  # columns, not pixels
        names = [f"{name}[:, {k}]" for k in range(x.shape[1])]
        for k in column_checks.indices(names, x):
            notes.append(f"{names[k]} numbers the rows; leave it out if it is an index")
        notes += column_checks.notes_on(names, x, y, narrow=narrow)
    notes += column_checks.note_on_repeats(lambda place: f"row {place}", column_checks.repeats(column_checks.rows_of(x, y)))
    for split in HELD_OUT:
        if split in splits:
            notes += column_checks.note_on_shared(
                column_checks.rows_of(x, y), column_checks.rows_of(*splits[split]), str(split)
            )
    return notes


def _validate(
    path: Path, arrays: Mapping[str, np.ndarray], names: tuple[str, str], labels: ClassLabels, features: int | None
) -> Arrays:
    x_name, y_name = names
    x, y = arrays[x_name], arrays[y_name]
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise ConfigurationError(
            f"{path}: {x_name} is of shape {list(x.shape)} and {y_name} of {list(y.shape)}, expected [n, ...] and [n]"
            f"{_shape_remedy(x, y, names)}"
        )
    if not len(x) and x_name in ("x", "x_train"):
        raise ConfigurationError(f"{path}: {x_name} has no rows")
    width = int(np.prod(x.shape[1:]))
    if features is not None and width != features:
        raise ConfigurationError(f"{path}: {x_name} has {width} features, task.features is {features}")
    x = x.reshape(len(x), width)
    usable = np.isfinite(x) if x.dtype.kind == "f" else np.ones(x.shape, bool)
    if x.dtype.kind == "f" and x.itemsize > 4:
        usable &= np.abs(x) <= LARGEST
    bad = np.flatnonzero(~usable.all(1))
    if len(bad):
        raise ConfigurationError(
            f"{path}: {x_name}[{bad[0]}] has a value that is not finite, or too large for float32; fill in missing values"
        )
    found = labels.classes_of(y)
    bad = np.flatnonzero(found < 0)
    if len(bad):
        raise ConfigurationError(f"{path}: {y_name}[{bad[0]}] is {y[bad[0]]}, {labels.describe()}")
    return x, found


def _shape_remedy(x: np.ndarray, y: np.ndarray, names: tuple[str, str]) -> str:
    x_name, y_name = names
    if y.ndim == 2 and len(y) == len(x):
        if y.shape[1] == 1:
            return f"; save {y_name}.ravel()"
        if ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
            return f"; {y_name} is one-hot: save {y_name}.argmax(1)"
    if x.ndim == 1 and y.shape == x.shape:
        return f"; save {x_name}.reshape(-1, 1)"
    if x.ndim == 2 and y.ndim == 1 and x.shape[1] == len(y):
        return f"; save {x_name}.T"
    return ""


def _first_names(names: Sequence[str]) -> str:
    shown = list(map(repr, names[:8]))
    return f"{', '.join(shown)} and {len(names) - 8} more" if len(names) > 8 else ", ".join(shown) or "none"
