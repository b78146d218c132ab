"""Tables of numbers and categories with two classes, described by a schema file.

A schema is a TOML file:

    train = "adult.data"         # plain or gzip, in the folder of the schema file or of the data set
    test = "adult.test"          # if there is an official test part
    rows = 32561                 # expected number of rows, optional
    test_rows = 16281
    home = "..."                 # source of the official files
    delimiter = ","
    header = true                # the first line names the columns, in any order; others than those below are ignored
    comment = "|"                # lines that begin with this are skipped
    missing = ["?"]              # texts of a missing value, in addition to an empty one; for a numeric column also to
                                 # known markers, such as NA, nan and null
    negative = ["<=50K"]         # the labels of class 0, and of class 1; numbers are compared by their value
    positive = [">50K"]
    sensitive = ["sex", "race"]  # possible sensitive columns; [groups] defines their groups (see sensitive_attributes)
    rest = "auto"                # kind of the header's columns that are not named below, "ignore" by default
                                 # (a column without a name, and one that numbers or identifies the rows, is ignored)

    [columns]                    # in the order of the file if it has no header
    age = "numeric"              # or "categorical", "ignore", and for one of them "label"
    job = "auto"                 # numeric if the training part contains only numbers, categorical if it contains texts;
                                 # many different numbers with texts among them are refused

`schemas/` contains the schemas of adult, bank and compas.

A column of kind `auto` becomes numeric or categorical. One of numbers and known markers of missing values is numeric. A
column of texts is categorical. A column of many different numbers with other texts among them is neither: one input for
each number would be useless, so it is refused.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from p2pfl._util import toml_tables
from p2pfl.data.class_labels import Rows
from p2pfl.data.delimited import Dialect, describe, header_of, is_code, is_marker, is_other_notation, number, read_rows
from p2pfl.data.image_sets import data_root
from p2pfl.data.tabular import column_checks
from p2pfl.data.tabular.sensitive_attributes import Grouping
from p2pfl.data_facts import ColumnFacts, DataFacts
from p2pfl.errors import ConfigurationError, MissingRequirementError

SCHEMAS = Path(__file__).parent / "schemas"
MOST_BYTES = 2**28  # of one file, unpacked
MOST_COLUMNS = 2**16  # named by a header
MOST_VALUES = 2**28  # features of all rows encoded together: 1 GiB; and characters of a column of categories
LARGEST = float(np.finfo(np.float32).max)
MANY_CATEGORIES = 100  # of one column; more are noted
LONGEST_CATEGORY = 256  # characters: an array of categories is as wide as its longest one
Kind = Literal["numeric", "categorical", "ignore", "label", "auto"]
FEATURES: tuple[Kind, ...] = ("numeric", "categorical", "auto")
MOST_CODES = 20  # different numbers in a column of categories with texts; more are a column of numbers
_MOST_TEXTS = 1000  # different texts of a column that are kept


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a table's files; see the module."""

    columns: dict[str, Kind]
    train: str
    negative: tuple[str, ...]
    positive: tuple[str, ...]
    test: str = ""
    rows: int = 0
    test_rows: int = 0
    home: str = ""
    delimiter: str = ","
    header: bool = True
    comment: str = ""
    missing: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    rest: Literal["ignore", "auto"] = "ignore"
    groups: dict[str, Grouping] = {}

    def columns_of(self, kind: Kind) -> list[str]:
        """Return the columns of this kind, in order."""
        return [name for name, found in self.columns.items() if found == kind]


class Table(NamedTuple):
    """A data set: its schema, its training part, its official test part, if any, and what was understood of each file."""

    schema: Schema
    train: Rows
    test: Rows | None
    facts: tuple[DataFacts, ...]


class _Part(NamedTuple):
    """Contents of one file.

    Attributes:
        header: the names of all columns in their order.
        keys: a hash of each row.
        lines: the line of each row.
        notes: on its columns.
        dropped: lines that were left out, by reason.
    """

    rows: Rows
    header: list[str]
    keys: array[int]
    lines: array[int]
    notes: list[str]
    dropped: Counter[str]

    def without(self, columns: Sequence[str]) -> _Part:
        """Return the part without some numeric columns."""
        kept = {name: values for name, values in self.rows.numbers.items() if name not in columns}
        return self._replace(rows=replace(self.rows, numbers=kept))


def names() -> list[str]:
    """Return the names of the built-in schemas."""
    return sorted(path.stem for path in SCHEMAS.glob("*.toml"))


def files_of(name: str, root: str) -> list[Path]:
    """Return the files of a table: its schema, its training part, and its test part, if any.

    Raises:
        ConfigurationError: there is no such schema, or it cannot be read.
    """
    path, folder = _places(name, root)
    raw = toml_tables.read(path)
    return [path, *(folder / part for part in (raw.get("train"), raw.get("test")) if isinstance(part, str) and part)]


def _places(name: str, root: str) -> tuple[Path, Path]:
    """Return the schema file of a table, and the folder of its data files."""
    if name in names():
        return SCHEMAS / f"{name}.toml", data_root(root, f"the data set {name!r}") / name
    if name.endswith(".toml"):
        return Path(name).expanduser(), Path(name).expanduser().parent
    raise ConfigurationError(f"unknown schema {name!r}: use one of {', '.join(names())}, or a .toml file")


def load(name: str, root: str = "", columns: Mapping[str, Kind] | None = None) -> Table:
    """Read a table.

    Args:
        name: a schema in `schemas/`, with its files in the folder of this name in the data root; or the path of the
            user's own schema file (.toml), with its data files in the same folder.
        root: see p2pfl.data.image_sets.
        columns: changes to the schema's kinds of columns.

    Raises:
        ConfigurationError: the schema is invalid, or a file is missing, damaged, or does not match the schema.
    """
    path, folder = _places(name, root)
    schema = read_schema(path, columns)
    try:
        if not (folder / schema.train).exists():
            raise MissingRequirementError(f"there is no file {folder / schema.train}")
        found, notes = resolve(folder / schema.train, schema)
        train = _read(folder / schema.train, found, schema.rows)
        found, train, left_out = _without_indices(folder / schema.train, schema, found, train)
        test = _read(folder / schema.test, found, schema.test_rows) if schema.test else None
    except ConfigurationError as error:
        where = f"; the official files come from {schema.home}" if schema.home else ""
        raise type(error)(f"{error}{where}") from error
    parts = [(schema.train, train, [*notes, *left_out])]
    if test is not None:
        shared = column_checks.note_on_shared(train.keys, test.keys, "test") + _notes_on_unknown(train.rows, test.rows)
        parts.append((schema.test, test, shared))
    facts = tuple(_facts(str(folder / file), found, part, notes) for file, part, notes in parts)
    return Table(found, train.rows, None if test is None else test.rows, facts)


def read_schema(path: Path, columns: Mapping[str, Kind] | None = None) -> Schema:
    """Read a schema file.

    Args:
        columns: changes to its kinds of columns.

    Raises:
        ConfigurationError: it cannot be read, has an unknown key, or is invalid.
    """
    raw = toml_tables.read(path)
    found = raw.get("columns")
    for name, kind in found.items() if isinstance(found, Mapping) else ():
        if isinstance(kind, Mapping):  # TOML reads the dot of a bare name as a table
            full = f"{name}.{next(iter(kind), '')}"
            raise ConfigurationError(
                f'{path}: [columns] has a name with a dot: put it in quotes, such as "{full}" = "label"'
            )
    try:
        schema = msgspec.convert(_with_texts(raw), Schema)
        schema = msgspec.structs.replace(schema, columns=schema.columns | dict(columns or {}))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    reason = None
    if len(schema.columns_of("label")) != 1:
        reason = "one of the columns must be the label"
    elif schema.rest == "ignore" and not any(schema.columns_of(kind) for kind in FEATURES):
        reason = "no column is numeric or categorical"
    elif len(schema.delimiter) != 1:
        reason = "delimiter must be one character"
    elif not schema.negative or not schema.positive or set(schema.negative) & set(schema.positive):
        reason = "negative and positive must list different labels, at least one each"
    elif schema.rest == "auto" and not schema.header:
        reason = 'rest = "auto" needs a header, which names the columns'
    if reason:
        raise ConfigurationError(f"{path}: {reason}")
    if schema.rest == "ignore" and not schema.columns_of("auto"):
        _check_sensitive(path, schema)
    return schema


def _with_texts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a schema file, with numbers and truth values that denote texts of the table as texts."""
    lists = {key: raw[key] for key in ("negative", "positive", "missing") if isinstance(raw.get(key), list)}
    return {**raw} | {
        key: [str(value) if isinstance(value, bool | int | float) else value for value in values]
        for key, values in lists.items()
    }


def resolve(path: Path, schema: Schema) -> tuple[Schema, list[str]]:
    """Return the schema with the kind of each "auto" column determined from the file, and notes on these columns.

    Args:
        path: the training part.

    Raises:
        ConfigurationError: the file cannot be read, a column is of no clear kind, or the schema is invalid with the kinds
            that were found.
    """
    if schema.rest == "ignore" and not schema.columns_of("auto"):
        return schema, []
    columns = dict(schema.columns)
    surveys: dict[str, ColumnSurvey] | None = None
    for line, row in _rows(path, schema, Counter()):
        if surveys is None:
            if schema.rest == "auto":
                columns |= {name: "auto" for name in row if name not in columns and not column_checks.is_nameless(name)}
            surveys = {name: ColumnSurvey(name, schema.missing) for name, kind in columns.items() if kind == "auto"}
        for name, survey in surveys.items():
            survey.add(line, row[name])
    if surveys is None:
        raise ConfigurationError(f"{path} has 0 rows")
    notes: list[str] = []
    for name, survey in surveys.items():
        columns[name], found = survey.kind(path)
        notes += found
    resolved = msgspec.structs.replace(schema, columns=columns, rest="ignore")
    if not resolved.columns_of("numeric") and not resolved.columns_of("categorical"):
        raise ConfigurationError(f"{path}: no column is left except the label")
    _check_sensitive(path, resolved)
    return resolved, notes


def _without_indices(path: Path, schema: Schema, found: Schema, part: _Part) -> tuple[Schema, _Part, list[str]]:
    """Leave out the columns that number or identify the rows, unless the schema names their kind.

    Args:
        schema: as its owner wrote it.
        found: with the kinds of all columns.

    Returns:
        The schema and the part without these columns, and a note on each column of this kind.
    """
    numeric = list(part.rows.numbers)
    if not numeric:
        return found, part, []
    values = np.column_stack([part.rows.numbers[name] for name in numeric])
    indices = [numeric[k] for k in column_checks.indices(numeric, values)]
    used = {grouping.column or name for name, grouping in schema.groups.items()} | {*schema.sensitive}
    left_out = [name for name in indices if schema.columns.get(name, "auto") == "auto" and name not in used]
    notes = [f"{name} numbers or identifies the rows; it is left out" for name in left_out]
    notes += [f'{name} numbers or identifies the rows; set it to "ignore"' for name in indices if name not in left_out]
    columns = found.columns | dict.fromkeys(left_out, "ignore")
    found = msgspec.structs.replace(found, columns=columns)
    if not found.columns_of("numeric") and not found.columns_of("categorical"):
        raise ConfigurationError(f"{path}: no column is left except the label and {', '.join(left_out)}")
    return found, part.without(left_out), notes


def _check_sensitive(path: Path, schema: Schema) -> None:
    usable = {*schema.columns_of("numeric"), *schema.columns_of("categorical"), *schema.groups}
    if unusable := [name for name in schema.sensitive if name not in usable]:
        if unusable[0] not in schema.columns:
            raise ConfigurationError(f"{path}: `sensitive` names {unusable[0]!r}, which is no column")
        raise ConfigurationError(f"{path}: sensitive columns must be numeric or categorical, but {unusable[0]!r} is neither")
    try:
        for name, grouping in schema.groups.items():
            grouping.check(name, schema.columns)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _read(path: Path, schema: Schema, rows: int = 0) -> _Part:
    """Read one file of a table.

    Args:
        rows: required number of rows, if not 0.

    Raises:
        ConfigurationError: it cannot be read, is too large, or has an invalid line; the text names the line.
    """
    numbers = {name: array("d") for name in schema.columns_of("numeric")}
    categories: dict[str, list[str]] = {name: [] for name in schema.columns_of("categorical")}
    labels, keys, lines, header = array("q"), array("q"), array("q"), list(schema.columns)
    dropped, markers = Counter[str](), _Markers(schema)
    (label,) = schema.columns_of("label")
    used = [*numbers, *categories]
    for line, row in _rows(path, schema, dropped):
        if not labels:
            header = list(row)
        for name, column in numbers.items():
            column.append(markers.number(path, line, name, row[name]))
        for name, texts in categories.items():
            texts.append(intern(_category(f"{path}, line {line}: {name}", row[name], schema)))
        labels.append(_label(f"{path}, line {line}: {label}", row[label], schema))
        keys.append(hash((labels[-1], *[row[name] for name in used])))
        lines.append(line)
    if not labels or (rows and len(labels) != rows):
        expected = f", not {rows:,}" if rows else ""
        raise ConfigurationError(f"{path} has {len(labels):,} rows{expected}")
    for name, texts in categories.items():
        if len(labels) * max(map(len, texts)) > MOST_VALUES:
            raise ConfigurationError(
                f"{path}: the values of {name} are too long for {len(labels):,} rows; ignore the column"
            )
    found = Rows(
        {name: np.array(column, np.float64) for name, column in numbers.items()},
        {name: np.array(texts) for name, texts in categories.items()},
        np.array(labels, np.int64),
    )
    return _Part(found, header, keys, lines, markers.notes(), dropped)


class _Markers:
    """Numbers of the numeric columns, and the markers of missing ones that the schema does not list."""

    def __init__(self, schema: Schema) -> None:
        self._missing = schema.missing
        self._found: dict[tuple[str, str], list[int]] = {}  # lines by column and text

    def number(self, path: Path, line: int, name: str, text: str) -> float:
        """Return the number in a cell, NaN if it is missing."""
        if not text or text in self._missing:
            return float("nan")
        value = number(text)
        if value is None and is_marker(text):
            self._found.setdefault((name, text), []).append(line)
            return float("nan")
        if value is None or abs(value) > LARGEST:
            meaning = describe(text) if value is None else "too large for float32"
            known = f", {meaning}" if meaning else ""
            raise ConfigurationError(f"{path}, line {line}: {name} must be a finite number, got {text[:40]!r}{known}")
        return value

    def notes(self) -> list[str]:
        """Return a note on each marker."""
        return [
            f"{name}: {text!r} is read as missing ({len(lines):,} value{'s' * (len(lines) > 1)}, first in line {lines[0]})"
            for (name, text), lines in self._found.items()
        ]


def _facts(source: str, schema: Schema, part: _Part, notes: Sequence[str]) -> DataFacts:
    """Return what was understood of a file."""
    rows = part.rows
    different = {name: np.unique(texts) for name, texts in rows.categories.items()}
    all_notes = [
        *notes,
        *part.notes,
        *_notes_on_groups(schema, rows),
        *column_checks.note_on_classes(rows.labels),
        *_notes_on_categories(different, len(rows)),
    ]
    values = [*rows.numbers.values(), *(np.searchsorted(different[name], rows.categories[name]) for name in different)]
    if values:
        columns = np.column_stack(values).astype(float)
        all_notes += column_checks.notes_on([*rows.numbers, *different], columns, rows.labels, narrow=False)
    all_notes += column_checks.note_on_repeats(lambda k: f"line {part.lines[k]}", column_checks.repeats(part.keys))

    def column(name: str) -> ColumnFacts:
        if name in rows.numbers:
            there = rows.numbers[name][~np.isnan(rows.numbers[name])]
            span = (float(there.min()), float(there.max())) if len(there) else None
            return ColumnFacts(name, "number", range=span, missing=len(rows) - len(there))
        if name in different:
            missing = int((rows.categories[name] == "").sum())
            return ColumnFacts(name, "category", values=len(different[name]) - bool(missing), missing=missing)
        is_label = schema.columns.get(name) == "label"
        return ColumnFacts(name, "label", "label", 2) if is_label else ColumnFacts(name, "unread", "ignored")

    return DataFacts(
        source,
        str(_dialect(schema)),
        len(rows),
        tuple(map(column, part.header)),
        part.dropped,
        tuple(f"{source}: {note}" for note in all_notes),
    )


def _notes_on_unknown(train: Rows, test: Rows) -> list[str]:
    """Return a note on each column with categories that only test rows have."""
    found = []
    for name, texts in test.categories.items():
        unknown = texts[~np.isin(texts, train.categories[name])]
        if len(unknown):
            rows = f"{len(unknown):,} row{'s have' if len(unknown) > 1 else ' has'}"
            found.append(f"{name}: {rows} a category that no training row has, such as {str(unknown[0])[:40]!r}")
    return found


def _notes_on_groups(schema: Schema, rows: Rows) -> list[str]:
    """Return a note on each sensitive column in which a missing value counts as a group."""
    found = []
    for name in schema.sensitive:
        grouping = schema.groups.get(name, Grouping())
        texts = rows.categories.get(grouping.column or name)
        if texts is not None and (count := int((texts == "").sum())):
            group = f"the group not {'/'.join(grouping.values)}" if grouping.values else "a group of their own"
            found.append(f"{name}: {count:,} row{'s' * (count > 1)} without a value: {group}; remove them if they have none")
    return found


def _notes_on_categories(different: Mapping[str, np.ndarray], rows: int) -> list[str]:
    """Return a note on each column of categories with many values, each of which becomes an input."""
    found = []
    for name, values in different.items():
        if rows >= column_checks.FEWEST_ROWS and (len(values) > MANY_CATEGORIES or len(values) == rows):
            meaning = describe(str(values[-1]))
            remedy = f" (such as {str(values[-1])[:40]!r}, {meaning})" if meaning else ""
            found.append(
                f"{name}: {len(values):,} different categories in {rows:,} rows, one input for each{remedy}; set it to"
                ' "ignore" if it identifies the rows'
            )
    return found


class Encoder:
    """Encoder of rows as features. It is fitted on training rows and treats other rows in the same way.

    Numbers are scaled to mean 0 and standard deviation 1; a missing one is the mean. A category becomes one feature for
    each value in the training rows. (Missing counts as a value if it occurs there.) A value that does not occur there
    is encoded as zeros.

    Attributes:
        names: names of the features, for example "age" and "sex=Male".
    """

    def __init__(self, train: Rows) -> None:
        self._numbers = {name: _moments(values) for name, values in train.numbers.items()}
        self._categories = {name: np.unique(values) for name, values in train.categories.items()}
        self.names = [*self._numbers, *(f"{name}={value}" for name, known in self._categories.items() for value in known)]

    def inputs(self) -> list[dict[str, Any]]:
        """Return how each feature is made of its column; for the form see p2pfl.tasks.table."""
        numeric: list[dict[str, Any]] = [
            {"column": name, "fill": mean, "mean": mean, "scale": deviation}
            for name, (mean, deviation) in self._numbers.items()
        ]
        known = [(name, value) for name, values in self._categories.items() for value in values.tolist()]
        return numeric + [{"column": name, "category": value} for name, value in known]

    def transform(self, rows: Rows) -> np.ndarray:
        """Return the features of rows, float32 [n, len(names)].

        Raises:
            ConfigurationError: the result would have more than 2**28 numbers.
        """
        if len(rows) * len(self.names) > MOST_VALUES:
            widest = max(self._categories, key=lambda name: len(self._categories[name]))
            raise ConfigurationError(
                f"{len(rows):,} rows of {len(self.names):,} features are too many; the column {widest!r} has"
                f" {len(self._categories[widest]):,} different values: make it numeric, or ignore it"
            )
        features = np.zeros((len(rows), len(self.names)), np.float32)
        for column, (name, (mean, deviation)) in enumerate(self._numbers.items()):
            values = rows.numbers[name]
            features[:, column] = (np.where(np.isnan(values), mean, values) - mean) / deviation
        start = len(self._numbers)
        for name, known in self._categories.items():
            texts = rows.categories[name]
            place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
            found = np.flatnonzero(known[place] == texts)
            features[found, start + place[found]] = 1
            start += len(known)
        return features


def _dialect(schema: Schema) -> Dialect:
    columns = 0 if schema.header else len(schema.columns)
    return Dialect(schema.delimiter, schema.comment, columns, "set `delimiter` in the schema")


def _rows(path: Path, schema: Schema, dropped: Counter[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line of each row, and its texts by column."""
    names = None if schema.header else list(schema.columns)
    for line, row in read_rows(path, _dialect(schema), dropped, MOST_BYTES):
        if names is None:
            names = _header(path, row, schema)
        elif line == 1 and [cell.strip() for cell in row] == names:
            raise ConfigurationError(f"{path}, line 1: it names the columns; set `header = true` in the schema")
        else:
            yield line, {name: text.strip() for name, text in zip(names, row, strict=True)}


def _header(path: Path, row: Sequence[str], schema: Schema) -> list[str]:
    """Return the names of the columns, after checking that they include the schema's."""
    if len(row) > MOST_COLUMNS:
        raise ConfigurationError(f"{path} has {len(row):,} columns, at most {MOST_COLUMNS:,} are allowed: remove some")
    names = header_of(path, row)
    if lacking := [name for name in schema.columns if name not in names]:
        raise ConfigurationError(f"{path} has no column {lacking[0]!r}; its first line must name the columns")
    return names


def _category(where: str, text: str, schema: Schema) -> str:
    if len(text) > LONGEST_CATEGORY:
        raise ConfigurationError(f"{where} has {len(text):,} characters, but a category may have at most {LONGEST_CATEGORY}")
    return "" if text in schema.missing else text


def _label(where: str, text: str, schema: Schema) -> int:
    if text in schema.negative or text in schema.positive:
        return int(text in schema.positive)
    value, known = number(text), [*schema.negative, *schema.positive]
    equal = None if value is None else next((label for label in known if number(label) == value), None)  # 1.0 is 1
    if equal is None:
        raise ConfigurationError(f"{where} must be one of {known}, got {text[:40]!r}")
    return int(equal in schema.positive)


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation without missing values; an empty or constant column is encoded as 0."""
    there = values[~np.isnan(values)]
    if not len(there):
        return 0.0, 1.0
    return float(there.mean()), float(there.std()) or 1.0


class ColumnSurvey:
    """Decision from the texts of a column whether it is numeric or categorical, with notes on doubtful values.

    Args:
        missing: texts of a missing value, besides those of p2pfl.data.delimited.
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
