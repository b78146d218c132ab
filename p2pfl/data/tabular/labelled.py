"""Reader of labelled rows, from a .csv file with a header, an .npz file, a folder of images, or a Hugging Face dataset.

The numbers stay float64 (or the type of the array): a task that standardises them narrows them to float32 afterwards.

What a text stands for never follows from the content of one file, because all nodes of a federation must read it alike: the
options of the task list the labels, and the categories of columns with texts. Texts that are not listed are refused, all of
them at once, with the numbers of their lines.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf, nan
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from p2pfl._util.machine import amount, free_memory
from p2pfl.data import binary_files, own_folders
from p2pfl.data.class_labels import ClassLabels
from p2pfl.data.delimited import Dialect, describe, header_of, is_code, is_marker, number, numbers, read_rows
from p2pfl.data.tabular import column_checks
from p2pfl.data_facts import ColumnFacts, DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.queries import Split

Arrays = tuple[np.ndarray, np.ndarray]
HELD_OUT: tuple[Split, Split] = ("validation", "test")
LARGEST = float(np.finfo(np.float32).max)
LABEL_NAMES = {"label", "labels", "target", "targets", "class", "y", "outcome"}
DATASET = "Hugging Face dataset"
_MOST_UNLISTED, _MOST_PLACES = 20, 5  # texts, and places of each, that an error names
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
        categories: columns with texts, each with its categories in order; each category is a feature that is 0 or 1.
        missing: whether features may be missing: a missing number is NaN, and a missing text has no category.
        owner: the column that names the node of each row; "" for none. It is no feature.
        size, channels: height and width of images in pixels, and 1 for grey or 3 for colours.
    """

    target: str = ""
    ignore: tuple[str, ...] | None = None
    delimiter: str = ","
    narrow: bool = True
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    missing: bool = False
    owner: str = ""
    size: int = own_folders.SIZE
    channels: int = 3


class Labelled(NamedTuple):
    """Features and classes of a file of samples, by split.

    Attributes:
        splits: numbers [n, features] and labels [n], at least of "train"; labels are classes int64, or numbers float64.
        columns: hash of the names of the features; "" if they have no names.
        facts: what was understood of the file.
        shape: the shape of a sample in the file.
        owners: the owner of each training row; empty without such a column.
        inputs: the column of each feature, and its category, or "" for a number; empty if they have no names.
        target: the column of the label; "" if it has no name.
    """

    splits: Mapping[Split, Arrays]
    columns: str
    facts: DataFacts
    shape: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    target: str = ""


def read(path: Path, choice: Choice, labels: ClassLabels | None, features: int | None) -> Labelled:
    """Read a .csv or .npz file, a folder of images with a subfolder for each label, or a saved Hugging Face dataset.

    Args:
        labels: the labels and their classes; None if labels are numbers to predict.
        features: required number of features; None if any will do.

    Raises:
        ConfigurationError: it cannot be read; the text names the file, and the line or the array.
    """
    try:
        if path.is_dir():  # whatever its name: some programs write a folder of parts that is called x.csv
            return _read_folder(path, choice, labels, features)
        if path.name.lower().endswith(".npz"):
            return _read_npz(path, choice, labels, features)
        if path.name.lower().endswith((".csv", ".csv.gz")):
            return _read_rows(table_of(path, choice.delimiter), choice, labels, features)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    remedy = "convert other formats, for example with pandas"
    if path.suffix.lower() in (".tsv", ".tab", ".txt", ".data", ".dat"):
        remedy = "give delimited text such a name, and set task.delimiter"
    raise ConfigurationError(f"{path}: the name must end in .npz, .csv or .csv.gz; {remedy}")


class Source(NamedTuple):
    """A table as rows of texts.

    Attributes:
        path: its file or folder.
        format: its format, for facts.
        unit: the word for the place of a row, "line" or "row".
        header: the names of its columns.
        rows: the place of each row, and its cells.
        dropped: counts what was left out, by reason.
    """

    path: Path
    format: str
    unit: str
    header: Sequence[str]
    rows: Iterator[tuple[int, list[str]]]
    dropped: Counter[str]


def table_of(path: Path, delimiter: str, remedy: str = Dialect.remedy) -> Source:
    """Return the rows of a .csv file, or of the training part of a saved dataset.

    Args:
        remedy: for errors, what to do about a file with another delimiter.

    Raises:
        ConfigurationError: it cannot be read, or has no columns.
    """
    if path.is_dir():
        return _dataset_source(path, own_folders.read_dataset(path), "train")
    dialect, dropped = Dialect(delimiter, remedy=remedy), Counter[str]()
    rows = read_rows(path, dialect, dropped)
    header = next(rows, (1, []))[1]
    if len(header) == 1:
        next(rows, None)  # raises an error that names the line, if the others are wider: the first is a title then
    if not header:
        raise ConfigurationError(f"{path} is empty")
    return Source(path, str(dialect), "line", header, rows, dropped)


class _Unlisted:
    """Texts that the options do not list, in the order of the file, each with its places."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._places: dict[tuple[str, str], list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: int, column: str, text: str) -> None:
        key = column, " ".join(text[:40].split()) or "empty"
        if key in self._places or len(self._places) < _MOST_UNLISTED:
            self._places.setdefault(key, []).append(place)

    @property
    def first(self) -> str:
        """The first text, as "line 3: kind is x"."""
        (column, text), places = next(iter(self._places.items()))
        return f"{self._unit} {places[0]}: {column} is {text}"

    @property
    def rest(self) -> str:
        """The other texts and places, after "; "; "" if there are none."""
        first, *others = self._places.items()
        (column, text), places = first
        found = [((column, text), places[1:]), *others]
        words = [f"{each[1] if each[0] == column else ' '.join(each)} in {self._all(at)}" for each, at in found if at]
        return f"; also {', '.join(words)}" if words else ""

    def _all(self, places: list[int]) -> str:
        shown = ", ".join(map(str, places[:_MOST_PLACES]))
        more = f" and {len(places) - _MOST_PLACES:,} more" if len(places) > _MOST_PLACES else ""
        return f"{self._unit}{'s' * (len(places) > 1)} {shown}{more}"


class _Columns(NamedTuple):
    """Columns of a table by their use, as numbers of columns.

    Attributes:
        names: the names of all columns.
        numbers: features that are numbers.
        texts: features that are categories, with the place of each category.
        label: the label.
        owner: the owner of the row; None without such a column.
    """

    names: list[str]
    numbers: list[int]
    texts: Mapping[int, Mapping[str, int]]
    label: int
    owner: int | None

    @property
    def features(self) -> list[str]:
        """The names of the features in their order."""
        return [f"{name} = {category}" if category else name for name, category in self.inputs]

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """The column of each feature in their order, and its category, or "" for a number."""
        categories = [(self.names[k], text) for k, known in self.texts.items() for text in known]
        return [*((self.names[k], "") for k in self.numbers), *categories]


def _read_rows(source: Source, choice: Choice, labels: ClassLabels | None, features: int | None) -> Labelled:
    path, unit = source.path, source.unit
    columns = _columns(path, source.header, choice, labels, features)
    names, label = columns.names, columns.label
    x, y, places, owners = array("d"), array("q" if labels else "d"), array("q"), list[str]()
    free = free_memory()
    most = inf if free is None else free / 16  # a value takes eight bytes here, and eight more in the final array
    pick = _picker(columns.numbers)
    codes: dict[str, tuple[str, int]] = {}
    wrong_labels, wrong_texts = _Unlisted(unit), _Unlisted(unit)
    for place, row in source.rows:
        cells = pick(row)
        values = numbers(cells)
        if values is None:
            values = _with_gaps(cells) if choice.missing else None
        if values is None:
            given = [(names[k], row[k]) for k in columns.numbers if not (choice.missing and is_marker(row[k]))]
            raise _not_a_number(f"{path}, {unit} {place}", given, names, choice, labels)
        if len(y) < _LOOKED_AT:
            codes |= {names[k]: (row[k], place) for k in columns.numbers if names[k] not in codes and is_code(row[k])}
        x.extend(values)
        for k, known in columns.texts.items():
            chosen = known.get(row[k].strip())
            if chosen is None and not (choice.missing and is_marker(row[k])):
                wrong_texts.add(place, names[k], row[k])
            x.extend(1.0 if each == chosen else 0.0 for each in range(len(known)))
        found = number(row[label]) if labels is None else labels.class_of(row[label])
        if found is None:
            wrong_labels.add(place, names[label], row[label])
            found = 0
        y.append(found)  # type: ignore[arg-type]  # the type of the array is that of the labels
        places.append(place)
        if columns.owner is not None:
            owners.append(intern(row[columns.owner].strip()))
        if len(x) > most:
            raise ConfigurationError(f"{path} has more values than fit into memory; only {amount(most * 16)} is free")
    if not y:
        raise ConfigurationError(f"{path} has no rows below the names of the columns")
    _refuse_unlisted(source, names, choice, labels, wrong_labels, wrong_texts)
    return _labelled(source, columns, choice, (x, y, places), (codes, owners))


def _refuse_unlisted(
    source: Source, names: Sequence[str], choice: Choice, labels: ClassLabels | None, *wrong: _Unlisted
) -> None:
    """Raise ConfigurationError for labels, or categories, that the options do not list."""
    wrong_labels, wrong_texts = wrong
    if wrong_labels:
        raise _not_a_label(source, wrong_labels, names, choice, labels)
    if wrong_texts:
        raise ConfigurationError(
            f"{source.path}, {wrong_texts.first}, which task.categories does not list{wrong_texts.rest}; correct them, or"
            " list them there before the federation is created"
        )


def _labelled(
    source: Source,
    columns: _Columns,
    choice: Choice,
    read: tuple[array[float], array[Any], array[int]],
    about: tuple[Mapping[str, tuple[str, int]], Sequence[str]],
) -> Labelled:
    """Return the rows of a table that were read, with notes on what their owner should check."""
    (values, found, places), (codes, owners) = read, about
    path, unit, names = source.path, source.unit, columns.features
    y = np.array(found, np.int64 if found.typecode == "q" else np.float64)
    x = np.array(values, np.float64).reshape(len(y), len(names))
    too_large = np.argwhere(np.abs(x) > LARGEST)
    if len(too_large):
        row, k = too_large[0]
        raise ConfigurationError(f"{path}, {unit} {places[row]}: {names[k]} must be a finite float32, got {x[row, k]:g}")
    classes = y if y.dtype == np.int64 else np.zeros(len(y), np.int64)  # numbers give no classes away
    numeric = x[:, : len(columns.numbers)]
    notes = [
        *_notes_on_indices(path, choice, names[: len(columns.numbers)], numeric, classes),
        *_notes_on_names(choice, columns.names, columns.label),
        *(f"{name}: read as numbers, but {text!r} in {unit} {place} may be a code" for name, (text, place) in codes.items()),
        *(column_checks.note_on_classes(y) if classes is y else []),
        *column_checks.notes_on(names, x, classes, narrow=choice.narrow, categories=range(len(columns.numbers), len(names))),
        *column_checks.note_on_repeats(
            lambda row: f"{unit} {places[row]}", column_checks.repeats(column_checks.rows_of(x, y))
        ),
    ]
    facts = DataFacts(
        str(path),
        source.format,
        len(y),
        tuple(_column_facts(columns, x, y)),
        source.dropped,
        tuple(f"{path}: {note}" for note in notes),
    )
    named = tuple(columns.inputs), columns.names[columns.label]
    return Labelled({"train": (x, y)}, _hash(names), facts, (len(names),), tuple(owners), *named)


def _with_gaps(cells: Sequence[str]) -> list[float] | None:
    """Return the numbers of some cells, NaN for a missing one; None if one of them is something else."""
    found = [nan if is_marker(cell) else number(cell) for cell in cells]
    return None if None in found else [value for value in found if value is not None]


def _columns(
    path: Path, header: Sequence[str], choice: Choice, labels: ClassLabels | None, features: int | None
) -> _Columns:
    """Return the use of each column."""
    if _is_data(header, labels) and list(header) != [str(k) for k in range(len(header))]:
        raise ConfigurationError(f"{path}, line 1: it has numbers, but the first line must name the columns")
    names = header_of(path, header)
    texts = dict(choice.categories)
    owner = [choice.owner] if choice.owner else []
    for name in (*([choice.target] if choice.target else []), *owner, *texts, *(choice.ignore or ())):
        if name not in names:
            raise ConfigurationError(f"{path} has no column {name!r}; it has {_first_names(names)}")
    if names and not choice.target and not names[-1]:
        raise ConfigurationError(
            f"{path}, line 1: the last column, which is the label by default, has no name; remove a separator at the end of"
            " the lines, or name the column of the labels in task.target"
        )
    label = names.index(choice.target) if choice.target else len(names) - 1
    left_out = {k for k, name in enumerate(names) if not name or name in (choice.ignore or ()) or name in owner}
    if choice.ignore is None:
        left_out |= {k for k, name in enumerate(names) if column_checks.is_nameless(name)}
    if label in left_out:
        raise ConfigurationError(f"{path}: the column {names[label]!r} is the label, and cannot be left out")
    if names[label] in texts:
        raise ConfigurationError(f"{path}: the column {names[label]!r} is the label; task.categories is for the others")
    kept = [k for k in range(len(names)) if k not in left_out and k != label]
    known = {k: {text: place for place, text in enumerate(texts[names[k]])} for k in kept if names[k] in texts}
    found = _Columns(
        names, [k for k in kept if k not in known], known, label, names.index(choice.owner) if choice.owner else None
    )
    if features is not None and len(found.features) != features:
        raise ConfigurationError(
            f"{path} has {len(found.features)} features besides the label, but task.features is {features}"
        )
    if not kept:
        raise ConfigurationError(f"{path} has no features: it must have two columns or more, separated by task.delimiter")
    return found


def _is_data(line: Sequence[str], labels: ClassLabels | None) -> bool:
    """Return whether a first line has numbers and a label, not the names of columns."""
    if not all(number(cell) is not None for cell in line[:-1]):
        return False
    return bool(line) and (number(line[-1]) is not None or (labels is not None and labels.class_of(line[-1]) is not None))


def _picker(kept: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
    """Return a function that selects the cells of the features."""
    if not kept:
        return lambda row: ()
    first, last = kept[0], kept[-1] + 1
    if last - first == len(kept):
        return lambda row: row[first:last]
    cells = itemgetter(*kept)

    def pick(row: Sequence[str]) -> tuple[str, ...]:
        found: tuple[str, ...] = cells(row)
        return found

    return pick


def _not_a_number(
    where: str, cells: Sequence[tuple[str, str]], names: Sequence[str], choice: Choice, labels: ClassLabels | None
) -> ConfigurationError:
    """Return the error for the first cell that is no number."""
    name, text = next((name, text) for name, text in cells if number(text) is None)
    remedy = f", {meaning}" if (meaning := describe(text)) else ""
    is_label = labels is not None and labels.class_of(text) is not None
    if not choice.target and (name.lower() in LABEL_NAMES or is_label):
        remedy = f'; if it is the label, set task.target = "{name}"'
    return ConfigurationError(f"{where}: {name} must be a number, got {text[:40]!r}{remedy}{_header_hint(names, choice)}")


def _header_hint(names: Sequence[str], choice: Choice) -> str:
    """Return a hint if the first line has numbers, so that it may be a row; "" otherwise."""
    found = next((name for name in names if number(name) is not None), None)
    if found is None or choice.target or list(names) == [str(k) for k in range(len(names))]:
        return ""
    return f"; line 1 must name the columns, but has the number {found}"


def _not_a_label(
    source: Source, wrong: _Unlisted, names: Sequence[str], choice: Choice, labels: ClassLabels | None
) -> ConfigurationError:
    """Return the error for cells that are no labels, with the columns that could have the labels."""
    must = "a label must be a number" if labels is None else labels.describe()
    where = f"{source.path}, {wrong.first}, {must}{wrong.rest}{_header_hint(names, choice)}"
    if choice.target or source.unit != "line" or labels is None:
        return ConfigurationError(where)
    others = _label_columns(source.path, choice, labels)
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
    return sorted(likely, key=lambda name: name.lower() not in LABEL_NAMES)


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
    others = [name for k, name in enumerate(names) if k != label and name.lower() in LABEL_NAMES]
    if not choice.target and others and others[0] not in (choice.ignore or ()):
        notes.append(f"the label is {names[label]}, the last column, and {others[0]} is a feature; task.target sets another")
    return notes


def _column_facts(columns: _Columns, x: np.ndarray, y: np.ndarray) -> Iterator[ColumnFacts]:
    place = {k: at for at, k in enumerate(columns.numbers)}
    for k, name in enumerate(columns.names):
        if k == columns.label and y.dtype == np.int64:
            yield ColumnFacts(name, "label", "label", len(np.unique(y)))
        elif k == columns.label:
            yield ColumnFacts(name, "label", "label", range=(float(y.min()), float(y.max())))
        elif k in place:
            values = x[:, place[k]]
            missing = int(np.isnan(values).sum())
            bounds = None if missing == len(values) else (float(np.fmin.reduce(values)), float(np.fmax.reduce(values)))
            yield ColumnFacts(name, "number", range=bounds, missing=missing)
        elif k in columns.texts:
            yield ColumnFacts(name, "category", values=len(columns.texts[k]))
        else:
            yield ColumnFacts(name, "unread" if k != columns.owner else "owner", "ignored")


def _hash(names: Sequence[str]) -> str:
    """Return a hash that shows whether other names are the same, without naming them."""
    return sha256(repr(list(names)).encode()).hexdigest()[:16]


def npz_arrays(path: Path) -> Arrays:
    """Return the training samples and labels of an .npz file as they are in it.

    Raises:
        ConfigurationError: it cannot be read, or does not have these arrays.
    """
    there = binary_files.names(path)
    names = _names_in(there)["train"]
    for name in names:
        if name not in there:
            raise ConfigurationError(f"{path} has no array {name}; it has {_first_names(there)}, and must have x and y")
    found = binary_files.read_npz(path, names)
    return found[names[0]], found[names[1]]


def _names_in(there: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the names of the inputs and labels of each split in an archive."""
    if "x_train" in there and "y_train" in there and not {"x", "y"} & {*there}:  # as in the archives of Keras
        return {**_ARRAYS, "train": ("x_train", "y_train")}
    return dict(_ARRAYS)


def _read_npz(path: Path, choice: Choice, labels: ClassLabels | None, features: int | None) -> Labelled:
    there = binary_files.names(path)
    arrays = _names_in(there)
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
    return Labelled(splits, "", facts, shape)


def _read_folder(path: Path, choice: Choice, labels: ClassLabels | None, features: int | None) -> Labelled:
    if own_folders.is_dataset(path):
        return _read_dataset(path, choice, labels, features)
    splits = own_folders.image_splits(path)
    if not splits:
        raise ConfigurationError(
            f"{path} is neither a folder with a subfolder of images for each label, nor a dataset that save_to_disk of"
            " Hugging Face's datasets has written"
        )
    if labels is None:
        raise ConfigurationError(f"{path}: images in subfolders have labels that are classes: use the task classification")
    arrays: dict[Split, Arrays] = {}
    for split in ("train", *HELD_OUT):
        if images := splits.get(split):
            y = np.repeat(_classes_of(path, "folder", list(images), labels), list(map(len, images.values())))
            files = [own_folders.open_file(each) for group in images.values() for each in group]
            arrays[split] = own_folders.read_images(path, files, len(files), choice.size, choice.channels), y
    return _of_images(path, "images", choice, features, arrays)


def _classes_of(path: Path, what: str, texts: Sequence[str], labels: ClassLabels) -> np.ndarray:
    """Return the classes of labels that are texts; what has no class is named, all at once."""
    found = {text: labels.class_of(text) for text in dict.fromkeys(texts)}
    if unknown := [text or "empty" for text, known in found.items() if known is None]:
        more = f" and {len(unknown) - _MOST_UNLISTED} more" if len(unknown) > _MOST_UNLISTED else ""
        raise ConfigurationError(
            f"{path}: the {what}{'s' * (len(unknown) > 1)} {', '.join(unknown[:_MOST_UNLISTED])}{more}: {labels.describe()}"
        )
    return np.array([found[text] for text in texts], np.int64)


def _of_images(path: Path, format: str, choice: Choice, features: int | None, splits: Mapping[Split, Arrays]) -> Labelled:
    """Return images, uint8 [n, channels, size, size], as numbers from -1 to 1, float32 [n, features]."""
    shape = (choice.channels, choice.size, choice.size)
    width = choice.channels * choice.size**2
    if features is not None and width != features:
        raise ConfigurationError(
            f"{path}: its images have {width} values ({' x '.join(map(str, shape))}), but task.features is {features}"
        )
    flat: dict[Split, Arrays] = {}
    for split, (x, y) in splits.items():
        flat[split] = (x.reshape(len(x), width).astype(np.float32) / np.float32(127.5) - 1, y)
    x, y = flat["train"]
    notes = [
        *column_checks.note_on_classes(y),
        *column_checks.note_on_repeats(
            lambda row: f"image {row + 1}", column_checks.repeats(each.tobytes() for each in splits["train"][0])
        ),
    ]
    facts = DataFacts(
        str(path),
        format,
        sum(len(each) for _, each in splits.values()),
        (ColumnFacts("image", "image"), ColumnFacts("label", "label", "label", len(np.unique(y)))),
        notes=tuple(f"{path}: {note}" for note in notes),
        details=(f"scaled to {choice.size} x {choice.size} pixels, {'grey' if choice.channels == 1 else 'colours'}",),
    )
    return Labelled(flat, "", facts, shape)


def _dataset_source(path: Path, parts: Mapping[str, own_folders.Columns], split: str) -> Source:
    if split not in parts:
        raise ConfigurationError(f"{path} has no split {split}; it has {_first_names(list(parts))}")
    columns = parts[split].plain
    if not columns:
        raise ConfigurationError(f"{path} has no column of numbers or texts")
    where = path / split if len(parts) > 1 else path
    return Source(where, DATASET, "row", columns, parts[split].rows(columns), Counter())


def _read_dataset(path: Path, choice: Choice, labels: ClassLabels | None, features: int | None) -> Labelled:
    parts = own_folders.read_dataset(path)
    first = parts.get("train")
    if first is None:
        raise ConfigurationError(f"{path} has no split train; it has {_first_names(list(parts))}")
    splits: dict[Split, Arrays] = {}
    if first.pictures and labels is not None:
        target = choice.target or next((name for name in first.plain if name.lower() in LABEL_NAMES), "")
        if target not in first.plain:
            raise ConfigurationError(f"{path} has no column {target!r} of labels; it has {_first_names(first.plain)}")
        for split in ("train", *HELD_OUT):
            if split in parts:
                part = parts[split]
                y = _classes_of(path, f"column {target} has the label", list(part.texts(target)), labels)
                images = part.images(first.pictures[0])
                splits[split] = own_folders.read_images(path, images, len(y), choice.size, choice.channels), y
        return _of_images(path, DATASET, choice, features, splits)
    found: Labelled | None = None
    for split in ("train", *HELD_OUT):
        if split in parts:
            each = _read_rows(_dataset_source(path, parts, split), choice, labels, features)
            found, features = found or each, len(each.splits["train"][0][0])
            splits[split] = each.splits["train"]
    assert found is not None
    return found._replace(splits=splits)


def _notes_on_arrays(splits: Mapping[Split, Arrays], name: str, *, narrow: bool, flat: bool) -> list[str]:
    x, y = splits["train"]
    y = y if y.dtype == np.int64 else np.zeros(len(y), np.int64)  # numbers give no classes away
    notes = column_checks.note_on_classes(y) if y is splits["train"][1] else []
    if flat and x.shape[1] <= column_checks.MOST_COLUMNS:  # columns, not pixels
        names = [f"{name}[:, {k}]" for k in range(x.shape[1])]
        for k in column_checks.indices(names, x):
            notes.append(f"{names[k]} numbers the rows; leave it out if it is an index")
        notes += column_checks.notes_on(names, x, y, narrow=narrow)
    rows = column_checks.rows_of(*splits["train"])
    notes += column_checks.note_on_repeats(lambda place: f"row {place}", column_checks.repeats(rows))
    for split in HELD_OUT:
        if split in splits:
            notes += column_checks.note_on_shared(
                column_checks.rows_of(*splits["train"]), column_checks.rows_of(*splits[split]), str(split)
            )
    return notes


def _validate(
    path: Path, arrays: Mapping[str, np.ndarray], names: tuple[str, str], labels: ClassLabels | None, features: int | None
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
    if labels is None:
        bad = np.flatnonzero(~np.isfinite(y))
        if len(bad):
            raise ConfigurationError(f"{path}: {y_name}[{bad[0]}] is {y[bad[0]]}, a label must be a finite number")
        return x, y.astype(np.float64)
    found = labels.classes_of(y)
    bad = np.flatnonzero(found < 0)
    if len(bad):
        others = ", ".join(f"{y[k]} in row {k}" for k in bad[1:_MOST_PLACES])
        more = f" and {len(bad) - _MOST_PLACES:,} more rows" if len(bad) > _MOST_PLACES else ""
        rest = f"; also {others}{more}" if others else ""
        raise ConfigurationError(f"{path}: {y_name}[{bad[0]}] is {y[bad[0]]}, {labels.describe()}{rest}")
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
