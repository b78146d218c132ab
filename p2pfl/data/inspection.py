"""First look at a user's data: what it is, and which task, division, metric and policy fit it, each with its reason.

`p2pfl-sim new --from DATA` and `p2pfl-node init --data DATA` ask the same question: what does this data need, so that nodes
can learn from it together? `inspect` reads all rows once and answers with a `Proposal`. The commands write it, with the
reasons as comments, into a scenario or a node.toml, where the owner changes what does not fit.

A proposal follows from rules, and not from a model of the data:

- The label is the column with a usual name, such as `label` or `diagnosis`; otherwise the last one that is neither an index
  nor the name of a site. The second case is a guess, and is said.
- Texts, and a few different whole numbers, are classes: the task is `classification`, and `labels` lists them in order.
  Other numbers are predicted: `regression`.
- A column that says where a row comes from, such as `site` or `hospital`, is no feature. In a simulation each of its values
  is a node. Otherwise the rows are divided by Dirichlet proportions of the classes, or at random.
- Columns of texts become categories. What cannot be a feature, such as an index, is left out by name.
- Accuracy is the metric, and `balanced_accuracy` is added if one class is much more common than another.
- The policy is `dac`, because nobody knows beforehand whose data are alike; simulations compare it with learning alone.

Labels and categories are listed, and never only numbered: nodes with other files of the same kind must read them alike. A
label that cannot be read is refused at once, all of them together, with the numbers of their rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from p2pfl.data import binary_files, own_folders
from p2pfl.data.class_labels import ClassLabels
from p2pfl.data.delimited import SEPARATORS, describe, header_of, is_marker, number, numbers, other_separator
from p2pfl.data.tabular import column_checks
from p2pfl.data.tabular.labelled import LABEL_NAMES, Source, npz_arrays, table_of
from p2pfl.errors import ConfigurationError

Task = Literal["", "classification", "regression"]
MOST_NODES = 10  # of a division at random
NODES_OF_IMAGES = 5  # which take longer
LEAST_ROWS = 20  # of a node, on average
MOST_OWNERS = 500  # values of a column that are nodes
MOST_LABELS = 1000
FEW_NUMBERS = 20  # different whole numbers that are classes
MANY_CATEGORIES = 50  # of one column; a column with more is left out
UNBALANCED = 3.0  # times as many rows of the commonest class as of the rarest
ALPHA = 0.5  # of the Dirichlet division
LOOKED_AT = 1000  # rows whose different values are kept
_MOST_PLACES = 5
_LABELS = LABEL_NAMES | {"diagnosis", "species", "survived", "churn", "is_fraud", "fraud", "default", "category"}
_AS_TABLE = "write the rows to a .csv file with that column"
OF_OTHERS = "add those that only other nodes have"
_OWNER = re.compile(
    r"(site|client|node|hospital|clinic|cent(er|re)|ward|practice|user|owner|device|sensor|station|group|region|institution"
    r"|bank|branch|school|store|shop|plant|machine|farm|country|city|state|writer|speaker|subject|patient|participant|person"
    r"|customer|household|vehicle|cell|domain|source|silo|party|member)([ _.-]?(id|no|nr|name|number|code))?",
    re.IGNORECASE,
)


class Reason(NamedTuple):
    """One choice of a proposal.

    Attributes:
        subject: what was chosen, for example "label".
        choice: the choice.
        why: the reason, in one line.
        key: the option of the task that has it; "" if none has.
        guess: whether the data leave another choice open.
        otherwise: how the owner makes another choice, in one line; "" if that is evident.
    """

    subject: str
    choice: str
    why: str
    key: str = ""
    guess: bool = False
    otherwise: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.choice}, because {self.why}" + (f"; {self.otherwise}" if self.otherwise else "")


@dataclass(frozen=True)
class Proposal:
    """Proposal for a user's data.

    Attributes:
        data: the file or folder.
        seen: what it is, in one line.
        task: name and options of the task, without the data.
        nodes: number of nodes of a simulation.
        partition: division of the rows in a simulation.
        policy: name of the policy.
        rows: number of training samples.
        classes: number of classes; 0 if labels are numbers.
        reasons: the choices, in order.
        shape: shape of a sample in an .npz file.
    """

    data: Path
    seen: str
    task: dict[str, Any]
    nodes: int
    partition: dict[str, Any]
    policy: str
    rows: int
    classes: int
    reasons: tuple[Reason, ...]
    shape: tuple[int, ...] = ()

    @property
    def comments(self) -> dict[str, str]:
        """The reason of each option of the task, for a comment above it."""
        found: dict[str, str] = {}
        for each in self.reasons:
            if each.key:
                text = each.why if each.subject != "left out" else f"{each.choice}: {each.why}"
                text += f" ({each.otherwise})" if each.otherwise else ""
                found[each.key] = f"{found[each.key]}; {text}" if each.key in found else text
        return found

    def lines(self, *, simulation: bool) -> list[str]:
        """Return what to print: the data, and a line for each choice."""
        left_out = () if simulation else ("division",)
        return [f"{self.data}: {self.seen}", *(f"  {each}" for each in self.reasons if each.subject not in left_out)]


@dataclass
class _Column:
    """Counts and examples of a column's cells, taken in one pass over the rows."""

    name: str
    rows: int = 0
    numeric: int = 0  # rows with a number
    whole: bool = True
    missing: list[int] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)  # places of each text that is neither number nor marker
    values: Counter[str] = field(default_factory=Counter)

    def add(self, place: int, cell: str, keep: bool) -> None:
        """Count a cell.

        Args:
            keep: whether to keep its value, and not only its kind.
        """
        text = cell.strip()
        self.rows += 1
        value = number(text)
        if value is not None:
            self.numeric += 1
            self.whole &= value == int(value)
        elif is_marker(text):
            self.missing.append(place)
            return
        elif text in self.texts:
            self.texts[text].append(place)
        elif len(self.texts) <= MOST_LABELS:
            self.texts[text] = [place]
        if keep and (text in self.values or len(self.values) <= MOST_LABELS):
            self.values[text] += 1

    @property
    def is_text(self) -> bool:
        """Whether most values are texts."""
        return sum(map(len, self.texts.values())) > self.numeric

    @property
    def differs(self) -> bool:
        """Whether no value that was kept occurs twice."""
        return len(self.values) > column_checks.FEWEST_ROWS and max(self.values.values()) == 1

    @property
    def counts_up(self) -> bool:
        """Whether the values that were kept go up, or down, by 1."""
        values = [number(text) for text in self.values]
        steps = {after - before for before, after in pairwise(value for value in values if value is not None)}
        return not self.texts and steps in ({1.0}, {-1.0})

    def wrong_texts(self) -> str:
        """Return the texts among numbers, with their places; or the missing values; "" if there are none."""
        found = self.texts if not self.is_text else {}
        return ", ".join(f"{text!r} in {_places(places)}" for text, places in [*found.items()][:_MOST_PLACES])


def inspect(
    path: Path, *, label: str = "", task: Task = "", by: str = "", nodes: int = 0, has_torch: bool = True
) -> Proposal:
    """Look at data and propose what to do with it.

    Args:
        path: a .csv or .npz file, a folder of images or a saved dataset, or a folder with one of them.
        label, task, by, nodes: choices of the owner: the column of the labels, the task, the column that names the node of
            each row, and the number of nodes; by default they are proposed.
        has_torch: whether PyTorch is installed, so that a model with convolutions can be proposed.

    Raises:
        ConfigurationError: the data cannot be read, or has no labels that can be used; the text names them and their rows.
        MissingRequirementError: a library that reads it is not installed.
    """
    path = find_data(path)
    given = _Given(label, task, by, nodes)
    if path.is_dir() and not own_folders.is_dataset(path):
        return _of_images(path, given, has_torch)
    if path.name.lower().endswith(".npz"):
        return _of_arrays(path, given, has_torch)
    if path.is_dir():
        parts = own_folders.read_dataset(path)
        first = parts.get("train")
        if first is not None and first.pictures:
            return _of_pictures(path, parts, given, has_torch)
    return _of_table(path, given)


class _Given(NamedTuple):
    label: str
    task: Task
    by: str
    nodes: int


def find_data(path: Path) -> Path:
    """Return the file or folder with the data: the path itself, or the only one in that folder.

    Raises:
        ConfigurationError: nothing is there, or several are.
    """
    path = path.expanduser()
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; name a .csv or .npz file, a folder of images, or a saved dataset")
    if path.is_file() or own_folders.is_dataset(path) or own_folders.image_splits(path):
        return path
    found = [each for each in sorted(path.iterdir()) if _is_data(each)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.name for each in found[:_MOST_PLACES])
        more = f" and {len(found) - _MOST_PLACES} more" if len(found) > _MOST_PLACES else ""
        raise ConfigurationError(
            f"{path} has several data: {names}{more}; name one of them, or join tables into one, with a column that says"
            " where each row comes from"
        )
    raise ConfigurationError(
        f"{path} has no data that can be read: no .csv or .npz file, no subfolders of images, and no dataset that"
        " save_to_disk of Hugging Face's datasets has written"
    )


def _is_data(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    if path.is_dir():
        return own_folders.is_dataset(path) or bool(own_folders.image_splits(path))
    return path.name.lower().endswith((".csv", ".csv.gz", ".npz"))


# Tables
def _of_table(path: Path, given: _Given) -> Proposal:
    source, delimiter = _open(path)
    columns = _survey(source, {given.label, given.by})
    by_name = {column.name: column for column in columns if column.name}
    for name, option in ((given.label, "--label"), (given.by, "--by")):
        if name and name not in by_name:
            raise ConfigurationError(f"{option}: {path} has no column {name!r}; it has {', '.join(by_name)}")
    rows = columns[0].rows if columns else 0
    if not rows:
        raise ConfigurationError(f"{path} has no rows below the names of the columns")
    owner, owners = _choose_owner(columns, given, rows)
    target, why, guess = _choose_label(path, columns, given, owner)
    if sum(by_name[target].values.values()) < by_name[target].numeric:  # its values were kept in the first rows only
        columns = _survey(_open(path)[0], {target, owner})
    chosen = next(column for column in columns if column.name == target)
    _refuse_labels(path, source.unit, chosen, given)
    kind, because, unsure = _choose_task(path, chosen, given)
    task: dict[str, Any] = {"name": kind}
    reasons = [Reason("label", target, why, "target", guess), Reason("task", kind, because, "name", unsure)]
    if delimiter != ",":
        task["delimiter"] = delimiter
        reasons.append(Reason("delimiter", SEPARATORS[delimiter], "the first line is separated so", "delimiter"))
    task["target"] = target
    counts: list[int] = []
    if kind == "classification":
        counts = _add_labels(task, reasons, chosen)
    _add_features(path, task, reasons, columns, owner)
    _add_metrics(task, reasons, counts)
    nodes, partition = _divide(reasons, given, rows, len(counts), (owner, owners))
    reasons.append(_policy(bool(owner)))
    features = len(columns) - 1
    seen = f"{source.format}, {rows:,} rows, {features:,} column{'s' * (features != 1)} besides the label"
    return Proposal(path, seen, task, nodes, partition, "dac", rows, len(counts), tuple(reasons))


def _open(path: Path) -> tuple[Source, str]:
    """Open a table with its separator, which the first line shows."""
    if path.is_dir():
        return table_of(path, ","), ","
    with binary_files.reading(path) as (file, _):
        first = file.readline(2**20).decode("utf-8-sig", "replace").strip()
    found = other_separator([first], ",") if first.count(",") == 0 else ""
    delimiter = next((sign for sign, name in SEPARATORS.items() if name == found), ",")
    return table_of(path, delimiter), delimiter


def _survey(source: Source, chosen: Collection[str]) -> list[_Column]:
    """Read all rows; the different values are kept of all columns in the first rows, and of labels and texts in all.

    Args:
        chosen: names of columns whose values are kept in all rows.
    """
    names = header_of(source.path, source.header)
    columns = [_Column(name) for name in names]
    likely = {k for k, name in enumerate(names) if name in chosen or name.lower() in _LABELS or _OWNER.fullmatch(name)}
    likely.add(len(columns) - 1)
    rest: list[int] = []
    others = list(range(len(columns)))
    for count, (place, row) in enumerate(source.rows):
        if count < LOOKED_AT:
            for k, cell in enumerate(row):
                columns[k].add(place, cell, keep=True)
            continue
        if count == LOOKED_AT:
            rest = [k for k, column in enumerate(columns) if k not in likely and not column.texts]
            others = [k for k in range(len(columns)) if k not in {*rest}]
        if rest and numbers([row[k] for k in rest]) is None:
            for k in rest:
                columns[k].add(place, row[k], keep=False)
        else:
            for k in rest:
                columns[k].rows += 1
                columns[k].numeric += 1
        for k in others:
            columns[k].add(place, row[k], keep=True)
    return columns


def _choose_owner(columns: Sequence[_Column], given: _Given, rows: int) -> tuple[str, int]:
    """Return the column that says where rows come from, and its number of values; "" if there is none."""
    if given.by:
        column = next(each for each in columns if each.name == given.by)
        if not 2 <= len(column.values) <= MOST_OWNERS or column.missing:
            raise ConfigurationError(
                f"--by: each value of {given.by} would be a node, but it has {len(column.values)} different values, and"
                f" {len(column.missing)} rows lack one; use a column with 2 to {MOST_OWNERS}"
            )
        return given.by, len(column.values)
    for column in columns:
        if column.name == given.label or column.missing or not _OWNER.fullmatch(column.name):
            continue
        if 1 <= len(column.values) <= min(MOST_OWNERS, max(1, rows // LEAST_ROWS)):
            return column.name, len(column.values)
    return "", 0


def _choose_label(path: Path, columns: Sequence[_Column], given: _Given, owner: str) -> tuple[str, str, bool]:
    """Return the column of the labels, the reason, and whether it is a guess."""
    if given.label:
        return given.label, "--label names it", False
    usual = [column.name for column in columns if column.name.lower() in _LABELS and column.name != owner]
    if len(usual) == 1:
        return usual[0], "labels usually have this name", False
    possible = [column.name for column in columns if column.name and column.name != owner and not _is_index(column)]
    if not possible or len(columns) < 2:
        raise ConfigurationError(f"{path} has no column of labels besides features; name it with --label")
    if usual:
        return usual[-1], f"of {' and '.join(usual)} it is the last; --label chooses another", True
    return possible[-1], "it is the last column, and none has a usual name; --label chooses another", True


def _is_index(column: _Column) -> bool:
    """Return whether a column numbers or identifies the rows."""
    if column_checks.is_nameless(column.name):
        return True
    if not column.differs:
        return False
    return column.is_text or column_checks.names_identifier(column.name) or column.counts_up


def _refuse_labels(path: Path, unit: str, column: _Column, given: _Given) -> None:
    """Raise ConfigurationError that names all labels that cannot be read, with their rows."""
    problems = []
    if column.missing:
        problems.append(f"no label in {_places(column.missing, unit)}")
    if column.texts and not column.is_text:
        problems.append(f"{column.wrong_texts()} among numbers")
    if given.task == "regression" and column.is_text:
        problems.append(f"{len(column.texts):,} different texts, such as {next(iter(column.texts))!r}, instead of numbers")
    if problems:
        raise ConfigurationError(
            f"{path}: the label {column.name} has {' and '.join(problems)}; correct these rows, remove them, or choose"
            " another column with --label"
        )
    if column.is_text and (len(column.values) > MOST_LABELS or column.differs):
        raise ConfigurationError(
            f"{path}: the label {column.name} has a different text in nearly each row; choose another column with --label"
        )
    if len(column.values) < 2:
        raise ConfigurationError(
            f"{path}: all rows have the label {next(iter(column.values))!r} in the column {column.name}; choose another"
            " column with --label"
        )


def _choose_task(path: Path, column: _Column, given: _Given) -> tuple[str, str, bool]:
    """Return the task, the reason, and whether it is a guess."""
    different = len(column.values)
    if given.task:
        if given.task == "classification" and different > MOST_LABELS:
            raise ConfigurationError(
                f"{path}: {column.name} has more than {MOST_LABELS:,} different values, too many classes"
            )
        return given.task, "--task says so", False
    if column.is_text:
        return "classification", f"{column.name} has {different:,} different texts", False
    if column.whole and different <= FEW_NUMBERS and column.rows >= 5 * different:
        why = f"{column.name} has {different} different whole numbers"
        return "classification", f"{why}; --task regression predicts them as numbers" * (different > 2) or why, different > 2
    shown = "whole numbers" if column.whole else "numbers"
    many = f"more than {MOST_LABELS:,}" if different > MOST_LABELS else f"{different:,}"
    why = f"{column.name} has {many} different {shown}"
    guess = column.whole and different <= 100
    return "regression", f"{why}; --task classification takes them as classes" if guess else why, guess


def _add_labels(task: dict[str, Any], reasons: list[Reason], column: _Column) -> list[int]:
    """Add the labels of a column, in order; return the number of rows of each."""
    if column.is_text:
        order = sorted(column.values)
        alike = Counter(" ".join(text.lower().split()) for text in order)
        twins = [text for text in order if alike[" ".join(text.lower().split())] > 1]
        why = f"all nodes must number them alike; {OF_OTHERS}"
        if twins:
            why += f"; {' and '.join(map(repr, twins[:4]))} differ only in case or spaces, and are different labels"
        task["labels"] = order
        reasons.append(Reason("labels", _some(order), why, "labels", bool(twins)))
        return [column.values[text] for text in order]
    found: Counter[int] = Counter()
    for text, count in column.values.items():
        found[int(float(text))] += count
    numbers = sorted(found)
    if numbers != list(range(len(numbers))):
        task["labels"] = numbers
        reasons.append(Reason("labels", _some(numbers), f"they are not 0 to K - 1; {OF_OTHERS}", "labels"))
    return [found[value] for value in numbers]


def _add_features(path: Path, task: dict[str, Any], reasons: list[Reason], columns: Sequence[_Column], owner: str) -> None:
    """Add how the columns besides the label are read."""
    target = task["target"]
    left_out: dict[str, str] = {}
    keep: dict[str, str] = {}
    categories: dict[str, list[str]] = {}
    gaps: list[str] = []
    numeric = 0
    for column in columns:
        if column.name in ("", target):
            continue
        why = _reason_to_leave_out(column, owner)
        if why:
            left_out[column.name] = why
            # In a simulation that divides by this column, it is no feature, whatever `ignore` says.
            keep[column.name] = _how_to_keep(column, "to use it on a node" if column.name == owner else "to use it")
            continue
        if column.missing:
            gaps.append(f"{column.name} in {len(column.missing):,} rows")
        if column.is_text:
            categories[column.name] = sorted(column.values)
        else:
            numeric += 1
    if not numeric and not categories:
        raise ConfigurationError(
            f"{path}: no column is left besides the label {target}: {'; '.join(f'{n}: {w}' for n, w in left_out.items())}"
        )
    task["ignore"] = [name for name in left_out if name != owner] + ([owner] if owner else [])
    for name, why in left_out.items():
        reasons.append(Reason("left out", name, why, "ignore", otherwise=keep[name]))
    if categories:
        task["categories"] = categories
        named = ", ".join(f"{name} ({len(listed)})" for name, listed in categories.items())
        reasons.append(
            Reason(
                "categories", named, f"these columns have texts, which all nodes must list alike; {OF_OTHERS}", "categories"
            )
        )
    if gaps:
        task["missing"] = "mean"
        reasons.append(Reason("missing", "the mean of the node's rows", f"no value is there for {_some(gaps)}", "missing"))
    task["standardize"] = "local"
    reasons.append(Reason("scale", "of each node's own rows", "columns have different units", "standardize"))


def _reason_to_leave_out(column: _Column, owner: str) -> str:
    """Return why a column is no feature; "" if it is one."""
    if column.name == owner:
        return "it says where a row comes from"
    if _is_index(column):
        return "it has another value in each row, as an index or a name"
    if not column.values:
        return "no row has a value"
    if column.is_text:
        first, places = next(iter(column.texts.items()))
        if (meaning := describe(first)) and (column.numeric or len(column.texts) > 2):
            return f"{first!r} in {_places(places[:1])} is {meaning}"
        if len(column.values) > MANY_CATEGORIES:
            return f"it has more than {MANY_CATEGORIES} different texts"
        return "it has the same text in all rows" if len(column.values) == 1 else ""
    if column.texts:
        return f"it has {column.wrong_texts()} among numbers; correct them to use it"
    return ""


def _how_to_keep(column: _Column, to: str) -> str:
    """Return how a column that was left out becomes a feature; "" for one that cannot sensibly be one.

    Args:
        to: the words for the purpose.
    """
    if _is_index(column) or not column.values or (column.texts and not column.is_text):
        return ""
    if not column.is_text:
        return f"{to}, remove it from ignore"
    if len(column.values) > MANY_CATEGORIES:
        return f"{to}, remove it from ignore, and list its texts in categories"
    listed = ", ".join(map(json.dumps, sorted(column.values)))
    return f"{to}, remove it from ignore, and add {json.dumps(column.name)} = [{listed}] to categories"


# Images and arrays
def _of_images(path: Path, given: _Given, has_torch: bool) -> Proposal:
    splits = own_folders.image_splits(path)
    images = splits["train"]
    files = [each for group in images.values() for each in group]
    step = max(1, len(files) // 200)
    looked = own_folders.look_at(own_folders.open_file(each) for each in files[::step])
    if given.label or given.by or given.task == "regression":
        raise ConfigurationError(f"{path}: the subfolders of images are their labels; leave out --label, --by and --task")
    counts = {name: len(group) for name, group in images.items()}
    others = f", and the splits {' and '.join(sorted(set(splits) - {'train'}))}" if len(splits) > 1 else ""
    seen = f"{len(files):,} images in {len(counts)} subfolders, {looked[0]} to {looked[1]} pixels wide or high{others}"
    reason = Reason("label", "the name of the subfolder", "each subfolder has images", "target")
    return _of_pixels(_Pictures(path, seen, counts, reason, looked), given, has_torch)


def _of_pictures(path: Path, parts: Mapping[str, own_folders.Columns], given: _Given, has_torch: bool) -> Proposal:
    first = parts["train"]
    usual = [name for name in first.plain if name.lower() in _LABELS or name in first.names]
    target = given.label or (usual or first.plain or [""])[0]
    if target not in first.plain:
        raise ConfigurationError(f"{path} has no column of labels besides its images; it has {', '.join(first.plain)}")
    if given.by or given.task == "regression":
        raise ConfigurationError(f"{path}: images are classified; leave out --by and --task")
    column = _Column(target)
    for place, text in enumerate(first.texts(target), 1):
        column.add(place, text, keep=True)
    _refuse_labels(path, "row", column, given)
    pictures = first.images(first.pictures[0])
    looked = own_folders.look_at(each for _, each in zip(range(200), pictures, strict=False))
    seen = f"Hugging Face dataset, {column.rows:,} images in the column {first.pictures[0]}; splits: {', '.join(parts)}"
    why = "labels usually have this name" if target.lower() in _LABELS else "it is the column of labels"
    found = _Pictures(path, seen, dict(column.values), Reason("label", target, why, "target"), looked, target)
    return _of_pixels(found, given, has_torch)


class _Pictures(NamedTuple):
    """Images that were looked at: their number by label, and the least side, the greatest, and whether all are grey."""

    path: Path
    seen: str
    counts: Mapping[str, int]
    label: Reason
    looked: tuple[int, int, bool]
    target: str = ""


def _of_pixels(found: _Pictures, given: _Given, has_torch: bool) -> Proposal:
    path, seen, counts, label, looked, target = found
    options = {"target": target} if target else {}
    if len(counts) < 2:
        raise ConfigurationError(f"{path}: all images have the label {next(iter(counts))!r}; two labels or more are needed")
    labels = sorted(counts)
    least, _, grey = looked
    task: dict[str, Any] = {"name": "classification", **options, "labels": labels, "size": own_folders.SIZE}
    task["channels"] = 1 if grey else 3
    reasons = [
        label,
        Reason("task", "classification", "the samples are images with labels", "name"),
        Reason("labels", _some(labels), f"all nodes must number them alike; {OF_OTHERS}", "labels"),
        Reason("size", f"{own_folders.SIZE} x {own_folders.SIZE} pixels", "all nodes need one size, and a small one learns"
               f" quickly; the least side here has {least}", "size"),
        Reason("colours", "none" if grey else "red, green and blue",
               "all images that were looked at are grey" if grey else "some images have colours", "channels"),
    ]  # fmt: skip
    _add_model(task, reasons, has_torch)
    numbers = [counts[label] for label in labels]
    _add_metrics(task, reasons, numbers)
    rows = sum(numbers)
    nodes, partition = _divide(reasons, given, rows, len(labels), ("", 0))
    reasons.append(_policy(False))
    return Proposal(path, seen, task, nodes, partition, "dac", rows, len(labels), tuple(reasons))


def _add_model(task: dict[str, Any], reasons: list[Reason], has_torch: bool) -> None:
    if has_torch:
        task |= {"model": {"name": "cnn"}, "lr": 0.05}
        reasons.append(Reason("model", "convolutions (cnn)", "the samples are images", "model"))
    else:
        reasons.append(Reason("model", "one hidden layer", "PyTorch is not installed; with it, convolutions fit images", ""))


def _of_arrays(path: Path, given: _Given, has_torch: bool) -> Proposal:
    x, y = npz_arrays(path)
    if given.label:
        raise ConfigurationError(f"{path}: the labels of an .npz file are its array y; leave out --label")
    if given.by:
        raise ConfigurationError(f"{path}: an .npz file is not divided by an array; leave out --by, or {_AS_TABLE}")
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        ClassLabels(None)  # the reader names the shapes
    column = _Column("y")
    values, counts = np.unique(y, return_counts=True)
    column.rows = column.numeric = int(y.size)
    column.whole = bool(np.isfinite(values).all() and (values == np.floor(values)).all())
    column.values = Counter({f"{value:.17g}": int(count) for value, count in zip(values[: MOST_LABELS + 1].tolist(),
                             counts.tolist(), strict=False)})  # fmt: skip
    if len(values) < 2:
        raise ConfigurationError(f"{path}: all rows have the same label; two labels or more are needed")
    kind, why, guess = _choose_task(path, column, given)
    task: dict[str, Any] = {"name": kind}
    reasons = [
        Reason("label", "y", "an .npz file has its labels there", ""),
        Reason("task", kind, why, "name", guess),
    ]
    found = _add_labels(task, reasons, column) if kind == "classification" else []
    pixels = x.ndim == 3 or (x.ndim == 4 and x.shape[1] in (1, 3))
    if pixels and kind == "classification" and min(x.shape[-2:]) >= 16:
        _add_model(task, reasons, has_torch)
    task["standardize"] = "local"
    reasons.append(Reason("scale", "of each node's own rows", "features may have different units", "standardize"))
    _add_metrics(task, reasons, found)
    for name in filter(_OWNER.fullmatch, binary_files.names(path)):
        why = f"an .npz file is not divided by an array; for a node of each of its values, {_AS_TABLE}"
        reasons.append(Reason(f"array {name}", "not used", why, "", True))
    nodes, partition = _divide(reasons, given, len(x), len(found), ("", 0))
    reasons.append(_policy(False))
    shape = " x ".join(map(str, x.shape[1:]))
    return Proposal(
        path,
        f"NPZ, {len(x):,} rows of {shape} values",
        task,
        nodes,
        partition,
        "dac",
        len(x),
        len(found),
        tuple(reasons),
        x.shape[1:],
    )


# Choices of all data
def _add_metrics(task: dict[str, Any], reasons: list[Reason], counts: Sequence[int]) -> None:
    if task["name"] == "regression":
        task["metrics"] = ["mae", "r2"]
        why = "labels are numbers; they are scaled, so that 1 is the error of a model that always answers their mean"
        reasons.append(Reason("metric", "mean squared error, and mae and r2", why, "metrics"))
    elif max(counts) >= UNBALANCED * min(counts):
        task["metrics"] = ["balanced_accuracy"]
        share = max(counts) / sum(counts)
        why = f"the commonest label has {share:.0%} of the rows, and the rarest {min(counts):,} rows"
        reasons.append(Reason("metric", "accuracy and balanced_accuracy", why, "metrics"))
    else:
        reasons.append(Reason("metric", "accuracy", "the labels are about equally common", ""))


def _divide(
    reasons: list[Reason], given: _Given, rows: int, classes: int, owner: tuple[str, int]
) -> tuple[int, dict[str, Any]]:
    """Return the number of nodes of a simulation and the division of the rows, and add the reason."""
    column, owners = owner
    if owners >= 2 and not given.nodes:
        reasons.append(
            Reason("division", f"{owners} nodes by {column}", "the column says where a row comes from", "partition")
        )
        return owners, {"name": "column", "column": column}
    most = NODES_OF_IMAGES if any(each.subject == "model" for each in reasons) else MOST_NODES
    nodes = given.nodes or max(2, min(most, rows // LEAST_ROWS))
    if nodes < 2 or nodes > rows:
        raise ConfigurationError(f"--nodes must be from 2 to the number of rows, {rows:,}, got {nodes}")
    unknown = "no column says where a row comes from" if not owners else f"--nodes sets their number, not {column}"
    if classes:
        why = f"{unknown}; Dirichlet proportions give nodes different shares of the labels"
        reasons.append(Reason("division", f"{nodes} nodes, Dirichlet with alpha = {ALPHA}", why, "partition", True))
        return nodes, {"name": "dirichlet", "alpha": ALPHA}
    reasons.append(Reason("division", f"{nodes} nodes, at random", unknown, "partition", True))
    return nodes, {"name": "iid"}


def _policy(by_owner: bool) -> Reason:
    whose = "the nodes' data come from different places" if by_owner else "the nodes' data differ"
    return Reason("policy", "dac", f"{whose}; it gives a peer more weight if the peer's model fits the own data", "")


def _places(places: Sequence[int], unit: str = "line") -> str:
    shown = ", ".join(map(str, places[:_MOST_PLACES]))
    more = f" and {len(places) - _MOST_PLACES:,} more" if len(places) > _MOST_PLACES else ""
    return f"{unit}{'s' * (len(places) > 1)} {shown}{more}"


def _some(values: Sequence[Any]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 8 else f"{', '.join(shown[:7])}, ... ({len(shown):,} in all)"
