"""Tables of numbers and categories with two classes, read as a schema file says.

A schema is a TOML file:

    train = "adult.data"         # plain or gzip, in the folder of the schema file or of the data set
    test = "adult.test"          # if there is an official test part
    rows = 32561                 # if given, the files must have so many
    test_rows = 16281
    home = "..."                 # where the official files come from
    delimiter = ","
    header = true                # the first line names the columns, in any order; those not named below are ignored
    comment = "|"                # lines that begin so are skipped
    missing = ["?"]              # how a missing value is written, beside an empty one
    negative = ["<=50K"]         # the labels of class 0, and of class 1
    positive = [">50K"]
    sensitive = ["sex", "race"]  # columns by which fairness may be looked at

    [columns]                    # in the order of the file if it has no header
    age = "numeric"              # or "categorical", "ignore", and for one of them "label"

`schemas/` has those of adult, bank and compas.
"""

from __future__ import annotations

import csv
import io
import tomllib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from p2pfl.data.files import Missing, reading
from p2pfl.data.sets import data_root
from p2pfl.errors import ConfigurationError

SCHEMAS = Path(__file__).parent / "schemas"
MOST_BYTES = 2**28  # of one file, unpacked
LONGEST_CATEGORY = 256  # characters: a column of categories is as wide as its longest

Kind = Literal["numeric", "categorical", "ignore", "label"]


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table's files look like; see the module."""

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

    def named(self, kind: Kind) -> list[str]:
        """Return the columns of a kind, in order."""
        return [name for name, found in self.columns.items() if found == kind]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, column by column.

    Attributes:
        numbers: float64 [n] of each numeric column, NaN where it is missing.
        categories: strings [n] of each categorical column, "" where it is missing.
        labels: 0 or 1, int64 [n].
    """

    numbers: Mapping[str, np.ndarray]
    categories: Mapping[str, np.ndarray]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


class Table(NamedTuple):
    """A data set: its schema, its training part, and its test part if it has an official one."""

    schema: Schema
    train: Rows
    test: Rows | None


def names() -> list[str]:
    """Return the tables whose schemas come with p2pfl."""
    return sorted(path.stem for path in SCHEMAS.glob("*.toml"))


def load(name: str, root: str = "") -> Table:
    """Read a table.

    Args:
        name: that of a schema in `schemas/`, whose files are in the folder of this name in the data root; or the path of a
            schema file of one's own (.toml), beside which its data files are.
        root: see p2pfl.data.sets.

    Raises:
        ConfigurationError: the schema makes no sense, or a file is missing, damaged, or not as the schema says.
    """
    if name in names():
        schema, folder = read_schema(SCHEMAS / f"{name}.toml"), data_root(root, f"the data set {name!r}") / name
    elif name.endswith(".toml"):
        schema, folder = read_schema(Path(name).expanduser()), Path(name).expanduser().parent
    else:
        raise ConfigurationError(f"there is no schema {name!r}: name one of {', '.join(names())}, or a .toml file")
    try:
        if not (folder / schema.train).exists():
            raise Missing(f"there is no {folder / schema.train}")
        train = read(folder / schema.train, schema, schema.rows)
        test = read(folder / schema.test, schema, schema.test_rows) if schema.test else None
    except ConfigurationError as error:
        where = f"; the official files come from {schema.home}" if schema.home else ""
        raise type(error)(f"{error}{where}") from error
    return Table(schema, train, test)


def read_schema(path: Path) -> Schema:
    """Read a schema file.

    Raises:
        ConfigurationError: it cannot be read, has an unknown key, or makes no sense.
    """
    try:
        schema = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Schema)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    reason = None
    if len(schema.named("label")) != 1:
        reason = "one of the columns must be the label"
    elif not schema.named("numeric") and not schema.named("categorical"):
        reason = "no column is numeric or categorical"
    elif len(schema.delimiter) != 1:
        reason = "delimiter must be one character"
    elif not schema.negative or not schema.positive or set(schema.negative) & set(schema.positive):
        reason = "negative and positive must name different labels, one at least each"
    elif not set(schema.sensitive) <= {*schema.named("numeric"), *schema.named("categorical")}:
        reason = "sensitive columns must be numeric or categorical ones"
    if reason:
        raise ConfigurationError(f"{path}: {reason}")
    return schema


def read(path: Path, schema: Schema, rows: int = 0) -> Rows:
    """Read one file of a table.

    Args:
        rows: how many it must have, if not 0.

    Raises:
        ConfigurationError: it cannot be read, is too large, or has a line that does not fit; the text names the line.
    """
    numbers = {name: array("d") for name in schema.named("numeric")}
    categories: dict[str, list[str]] = {name: [] for name in schema.named("categorical")}
    labels = array("q")
    (label,) = schema.named("label")
    for where, row in _rows(path, schema):
        for name, column in numbers.items():
            column.append(_number(f"{where}: {name}", row[name], schema))
        for name, texts in categories.items():
            texts.append(_category(f"{where}: {name}", row[name], schema))
        labels.append(_label(f"{where}: {label}", row[label], schema))
    if not labels or (rows and len(labels) != rows):
        expected = f", not {rows:,}" if rows else ""
        raise ConfigurationError(f"{path} has {len(labels):,} rows{expected}")
    return Rows(
        {name: np.array(column, np.float64) for name, column in numbers.items()},
        {name: np.array(texts) for name, texts in categories.items()},
        np.array(labels, np.int64),
    )


class Encoder:
    """Turns rows into features: what it knows it has from training rows, and other rows are treated the same.

    Numbers get mean 0 and deviation 1, a missing one is the mean. A category becomes one feature for each value that occurs
    in training (a missing one counts as a value if it occurs there); a value that does not occur there is all zeros.

    Attributes:
        names: of the features, such as "age" and "sex=Male".
    """

    def __init__(self, train: Rows) -> None:
        self._numbers = {name: _moments(values) for name, values in train.numbers.items()}
        self._categories = {name: np.unique(values) for name, values in train.categories.items()}
        self.names = [*self._numbers, *(f"{name}={value}" for name, known in self._categories.items() for value in known)]

    def transform(self, rows: Rows) -> np.ndarray:
        """Return the features of rows, float32 [n, len(names)]."""
        columns = [np.empty((len(rows), 0))]
        for name, (mean, deviation) in self._numbers.items():
            values = rows.numbers[name]
            columns.append(((np.where(np.isnan(values), mean, values) - mean) / deviation)[:, None])
        for name, known in self._categories.items():
            columns.append(rows.categories[name][:, None] == known[None])
        return np.concatenate(columns, 1).astype(np.float32)


def _rows(path: Path, schema: Schema) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row as texts by column, and where it stands."""
    with reading(path) as (file, most):
        data = file.read(min(MOST_BYTES, most) + 1)
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES:,} bytes")
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    kept = ("\n" if schema.comment and line.startswith(schema.comment) else line for line in text)
    lines = csv.reader(kept, delimiter=schema.delimiter, skipinitialspace=True, strict=True)
    names: Sequence[str] | None = None if schema.header else list(schema.columns)
    try:
        for row in lines:
            where = f"{path}, line {lines.line_num}"
            if not row:  # an empty line is none
                continue
            if names is None:
                names = row
                lacking = [name for name in schema.columns if name not in names]
                if lacking:
                    raise ConfigurationError(f"{path} has no column {lacking[0]!r}; its first line must name the columns")
            elif len(row) != len(names):
                raise ConfigurationError(f"{where}: {len(row)} values, expected {len(names)}")
            else:
                yield where, {name: text.strip() for name, text in zip(names, row, strict=True)}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text") from error
    except csv.Error as error:
        raise ConfigurationError(f"{path}, line {lines.line_num}: {error}") from error


def _number(where: str, text: str, schema: Schema) -> float:
    if not text or text in schema.missing:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ConfigurationError(f"{where} is {text[:40]!r}, and must be a finite number")
    return value


def _category(where: str, text: str, schema: Schema) -> str:
    if len(text) > LONGEST_CATEGORY:
        raise ConfigurationError(f"{where} has {len(text):,} characters, a category {LONGEST_CATEGORY} at most")
    return "" if text in schema.missing else text


def _label(where: str, text: str, schema: Schema) -> int:
    if text not in schema.negative and text not in schema.positive:
        raise ConfigurationError(f"{where} is {text[:40]!r}, and must be one of {[*schema.negative, *schema.positive]}")
    return int(text in schema.positive)


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the deviation of the numbers that are there; a column without any, or all alike, becomes 0."""
    there = values[~np.isnan(values)]
    if not len(there):
        return 0.0, 1.0
    return float(there.mean()), float(there.std()) or 1.0
