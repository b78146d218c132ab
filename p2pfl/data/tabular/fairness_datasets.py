"""Data sets with groups: tables with a schema, and PraFFL's SYNTHETIC.

SYNTHETIC has two Gaussians in the plane, and a sensitive attribute that depends on the position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from p2pfl.content import digest_file
from p2pfl.data.class_labels import Rows
from p2pfl.data.tabular import table as tables
from p2pfl.data.tabular.sensitive_attributes import groups_of
from p2pfl.data_facts import ColumnFacts, DataFacts
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.random_streams import RandomStreams

SYNTHETIC, SYNTHETIC_ROWS = "synthetic", 5000
MOST_ROWS = 2**24  # of SYNTHETIC
LABEL = "label"
MEANS = np.array([[-2.0, -2.0], [2.0, 2.0]])
COVARIANCES = np.array([[[10.0, 1.0], [1.0, 3.0]], [[5.0, 1.0], [1.0, 5.0]]])
POSITIVE = 0.6  # fraction of positive labels
TURN = np.pi / 4  # rotation of a point before its attribute is drawn


class Fitted(NamedTuple):
    """An encoder that was fitted on training rows.

    Attributes:
        encode: function from indices of rows to their features, float32 [n, d].
        row_encoding: how it encodes a row, in the form of p2pfl.tasks.table; empty for data that are in no file.
    """

    encode: Callable[[np.ndarray], np.ndarray]
    row_encoding: Mapping[str, Any]


class Attribute(NamedTuple):
    """A sensitive attribute: its name, the names of its groups, and the group of each row, int64 [n]."""

    name: str
    groups: tuple[str, ...]
    numbers: np.ndarray


@dataclass(frozen=True, eq=False)
class FairSet:
    """A data set with groups.

    Attributes:
        labels: 0 or 1, int64 [n].
        test: indices of the official test part; None if there is none.
        attribute: function that returns a sensitive attribute by its name.
        encoder: function that fits an encoder on the rows with these indices.
        sensitive: the sensitive attributes that the data set declares.
        facts: function that returns what was understood of each file, for these sensitive attributes.
    """

    labels: np.ndarray
    test: np.ndarray | None
    attribute: Callable[[str], Attribute]
    encoder: Callable[[np.ndarray], Fitted]
    sensitive: tuple[str, ...]
    facts: Callable[[Sequence[str]], tuple[DataFacts, ...]] = lambda sensitive: ()

    def groups(self, by: str) -> np.ndarray:
        """Return the group of each row by an attribute, or by its label; int64 [n]."""
        return self.labels if by == LABEL else self.attribute(by).numbers


def content_of(name: str, root: str) -> bytes:
    """Return a digest of the files of a data set; b"" if it has none, or `load` reports what is wrong with them.

    Args:
        name, root: see `load`.
    """
    if name == SYNTHETIC:
        return b""
    try:
        return b"".join(map(digest_file, tables.files_of(name, root)))
    except (ConfigurationError, OSError):
        return b""


def load(name: str, root: str, seed: int, rows: int = 0, columns: Mapping[str, tables.Kind] | None = None) -> FairSet:
    """Return a data set with groups.

    Args:
        name: "synthetic", or as for p2pfl.data.tabular.table.load.
        root: the folder of the data sets; see p2pfl.data.image_sets.
        seed: seed of SYNTHETIC.
        rows: number of rows of SYNTHETIC; 0 is PraFFL's 5,000.
        columns: changes to the schema's kinds of a table's columns.

    Raises:
        ConfigurationError: the table or its schema is invalid.
    """
    if name == SYNTHETIC:
        if columns:
            raise ConfigurationError(f"task.columns needs a table with a schema; {SYNTHETIC!r} has none")
        if not 0 <= rows <= MOST_ROWS:
            raise ConfigurationError(f"task.rows must be from 0 to {MOST_ROWS:,}, got {rows}")
        return _draw_synthetic(seed, rows or SYNTHETIC_ROWS)
    if rows:
        raise ConfigurationError(f"task.rows applies to the data set {SYNTHETIC!r} only; a table has all rows of its files")
    table = tables.load(name, root, columns)
    whole = table.train if table.test is None else concatenate_rows(table.train, table.test)

    def attribute(of: str) -> Attribute:
        (found,) = groups_of(of, [whole], table.schema.groups)
        return Attribute(of, found.names, found.numbers)

    def encoder(train: np.ndarray) -> Fitted:
        known, schema = tables.Encoder(whole.take(train)), table.schema
        (label,) = schema.columns_of("label")
        gaps = {"missing": [*schema.missing]} if schema.missing else {}
        target = {"column": label, "labels": [schema.negative[0], schema.positive[0]]}
        row_encoding = {"inputs": known.inputs(), "delimiter": schema.delimiter, **gaps, "target": target}
        return Fitted(lambda index: known.transform(whole.take(index)), row_encoding)

    def facts(sensitive: Sequence[str]) -> tuple[DataFacts, ...]:
        groups = table.schema.groups
        used = {groups[of].column or of if of in groups else of for name in sensitive for of in name.split("+")}
        return tuple(replace(each, columns=tuple(_mark(column, used) for column in each.columns)) for each in table.facts)

    test = None if table.test is None else np.arange(len(table.train), len(whole))
    return FairSet(whole.labels, test, attribute, encoder, table.schema.sensitive, facts)


def _mark(column: ColumnFacts, sensitive: Collection[str]) -> ColumnFacts:
    return replace(column, role="sensitive") if column.name in sensitive and column.role == "feature" else column


def concatenate_rows(first: Rows, second: Rows) -> Rows:
    """Return the rows of both parts of a table as one."""
    return Rows(
        {name: np.concatenate([values, second.numbers[name]]) for name, values in first.numbers.items()},
        {name: np.concatenate([values, second.categories[name]]) for name, values in first.categories.items()},
        np.concatenate([first.labels, second.labels]),
    )


def _draw_synthetic(seed: int, rows: int) -> FairSet:
    x, y, z = synthetic(RandomStreams(seed, SYNTHETIC).generator(0, "rows"), rows)

    def attribute(name: str) -> Attribute:
        if name != "z":
            raise unknown("sensitive attribute", name, ["z"])
        return Attribute("z", ("0", "1"), z)

    return FairSet(y, None, attribute, lambda train: Fitted(lambda index: x[index], {}), ("z",))


class Synthetic(NamedTuple):
    """Inputs (x1, x2, z), float32 [n, 3]; labels y and attributes z, 0 or 1, int64 [n]."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


def synthetic(rng: np.random.Generator, n: int) -> Synthetic:
    """Draw n samples.

    y ~ Bernoulli(0.6); x | y ~ N(MEANS[y], COVARIANCES[y]); z ~ Bernoulli(p1(x') / (p1(x') + p0(x'))). Here x' is x
    rotated by 45 degrees, and p_y is the density of x | y. z and y therefore depend on each other, and a classifier of
    x alone is not fair. (Zeng, Chen and Lee 2021, "Improving fairness via federated learning", after Zafar et al. 2017;
    PraFFL, section 6.1, uses n = 5,000.)
    """
    y = (rng.random(n) < POSITIVE).astype(np.int64)
    roots = np.linalg.cholesky(COVARIANCES)
    x = MEANS[y] + np.einsum("nij,nj->ni", roots[y], rng.standard_normal((n, 2)))
    turned = x @ np.array([[np.cos(TURN), np.sin(TURN)], [-np.sin(TURN), np.cos(TURN)]])
    ratio = log_density(turned, 0) - log_density(turned, 1)
    z = (rng.random(n) * (1 + np.exp(np.minimum(ratio, 700))) < 1).astype(np.int64)
    return Synthetic(np.column_stack([x, z]).astype(np.float32), y, z)


def log_density(x: np.ndarray, label: int) -> np.ndarray:
    """Return the logarithm of the density of x | y = label at points [n, 2], up to a constant."""
    away = x - MEANS[label]
    distance = np.einsum("ni,ij,nj->n", away, np.linalg.inv(COVARIANCES[label]), away)
    result: np.ndarray = -(distance + np.log(np.linalg.det(COVARIANCES[label]))) / 2
    return result
