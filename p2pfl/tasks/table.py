"""Classification of a node's own data from an .npz or .csv file, with an MLP, for data that never leaves its machine.

Settings common to all nodes (classes, features, the model, the training) are options. The path of a node's file is
private and is configured separately.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np

from p2pfl.config.binding import build, choose
from p2pfl.data.class_labels import ClassLabels, Label, check_consecutive
from p2pfl.data.formats import npz
from p2pfl.data.formats.reading import lines_of
from p2pfl.data.partition.partitioner import partition_of
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.system.available_memory import amount, free_memory
from p2pfl.task import Part, Task
from p2pfl.tasks.mlp import mlp_task

Arrays = tuple[np.ndarray, np.ndarray]
Table = Mapping[str, Any]
MOST_CLASSES = 1000  # that are taken from a file; more are usually a column of numbers, or of identifiers
_HELD_OUT: tuple[Split, Split] = ("validation", "test")


def table(
    part: Part,
    seed: int,
    *,
    classes: int | None = None,
    features: int | None = None,
    columns: str = "",
    labels: Sequence[Label] = (),
    data: str = "",
    target: str = "",
    hidden: int | list[int] = 64,
    lr: float = 0.1,
    momentum: float = 0.0,
    optimizer: Table | None = None,
    batch_size: int = 16,
    validation: float = 0.1,
    test: float = 0.1,
    standardize: Literal["none", "local"] = "none",
    metrics: Sequence[str] = (),
    partition: Table | None = None,
) -> Task:
    """Classification of numeric features: an MLP features-hidden-classes with ReLU, trained by SGD on this node's file.

    An .npz file contains the arrays x [n, ...] and y [n]. For predefined splits it also contains x_validation,
    y_validation, x_test and y_test. A .csv file has one header line, and numbers below it. Labels are 0 to classes - 1;
    other labels must be listed in `labels`.

    The members of a federation need the same classes, features, columns and labels. `p2pfl-node federation create` writes
    those of the first node into the federation; the other nodes take them from there.

    Args:
        part: the node, for `partition`.
        classes: the number of classes, 2 or more; by default that of the labels in this node's file, which must be 0 to
            classes - 1 then.
        features: numbers in a sample; by default those of the file. An array with more dimensions is flattened.
        columns: hash of the names of the features in a .csv file, in their order; by default that of this node's file. An
            .npz file has no names, and ignores it.
        labels: the label of each class in the files, such as [1, 2, 3] or, in a .csv file, ["no", "yes"]; by default the
            labels are the classes 0 to classes - 1.
        data: path of this node's file.
        target: name of the label's column in a .csv file; by default the last one.
        hidden: width of the hidden layer, or a list of widths; an empty list makes a linear model.
        lr, momentum: learning rate and momentum of SGD.
        optimizer: another optimiser, instead of lr and momentum: { name = "adam" } or "adamw" (lr, betas, eps,
            weight_decay, schedule), or "sgd" (lr, momentum, weight_decay, schedule), where schedule is { name = "cosine",
            rounds = 20 }, "linear", "step", "inverse" or "exponential"; see p2pfl.learning.schedules.
        batch_size: samples in one step of the optimiser.
        validation, test: fractions of the rows that are held out if the file has no such split, drawn from the seed.
        standardize: "local" scales each feature to mean 0 and standard deviation 1 over this node's training rows.
        metrics: further metrics besides accuracy: "f1", "auc", "balanced_accuracy".
        partition: for simulations, divides the rows of one file among the nodes: { name = "iid" }, "dirichlet" (alpha),
            "pathological" (classes), "quantity" (alpha), or "clusters" (groups, sizes). By default the whole file is
            this node's part.

    Raises:
        ConfigurationError: an option is invalid, or the file cannot be used; the text names the file and the line.
    """
    widths = [hidden] if isinstance(hidden, int) else hidden
    if (classes is not None and classes < 2) or (features is not None and features < 1) or not all(w > 0 for w in widths):
        raise ConfigurationError("task.classes must be 2 or more, task.features and task.hidden 1 or more")
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ConfigurationError("task.validation and task.test must be 0 or more, and together less than 1")
    if not data:
        raise ConfigurationError("the task classification needs `data`, the path of this node's .npz or .csv file")
    path, known = Path(data).expanduser(), ClassLabels(classes, labels)
    splits, own_columns = _read(path, target, known, features)
    if columns and own_columns not in ("", columns):
        raise ConfigurationError(
            f"{path}: the columns differ from those of the federation (task.columns), in their names or their order; name"
            " and order them as in the file of the node that made the federation"
        )
    found: dict[str, Any] = _sizes(path, splits, known)
    if own_columns:
        found["columns"] = own_columns
    if partition is not None:
        _take_part(splits, partition, part, seed)
    _hold_out(splits, {"validation": validation, "test": test}, seed)
    if not len(splits["train"][0]):
        raise ConfigurationError(f"{path}: no row is left to train on")
    if standardize == "local":
        _standardize(splits)
    widths = [found["features"], *widths, found["classes"]]
    steps, how = choose("task.optimizer", optimizer or {"name": "sgd", "lr": lr, "momentum": momentum}, OPTIMIZERS)
    return mlp_task(
        widths,
        splits,
        metrics=metrics,
        optimizer=build("task.optimizer" if optimizer else "task", steps, how),
        batch_size=batch_size,
        derived_options=found,
    )


def _sizes(path: Path, splits: Mapping[Split, Arrays], labels: ClassLabels) -> dict[str, int]:
    """Return the numbers of classes and features, from the options or from the file."""
    classes = labels.count
    if classes is None:
        found = np.unique(np.concatenate([y for _, y in splits.values()]))
        classes = max(2, *(int(y.max(initial=0)) + 1 for _, y in splits.values()))
        if classes > MOST_CLASSES:
            raise ConfigurationError(
                f"{path}: the greatest label is {classes - 1}, which makes {classes} classes; check the column of the"
                " labels, or set task.classes"
            )
        check_consecutive(str(path), found)
    return {"classes": classes, "features": splits["train"][0].shape[1]}


def _take_part(splits: dict[Split, Arrays], table: Table, part: Part, seed: int) -> None:
    """Replace the training and test rows by those of one node."""
    rule, (x, y) = partition_of(table), splits["train"]
    own = rule.train(y, part, seed)
    splits["train"] = x[own], y[own]
    if "test" in splits:
        x, labels = splits["test"]
        drawn = rule.test(y[own], labels, part, seed)
        splits["test"] = x[drawn], labels[drawn]


def _read(path: Path, target: str, labels: ClassLabels, features: int | None) -> tuple[dict[Split, Arrays], str]:
    """Return the file's splits, at least "train", and the hash of its columns, "" if they have no names.

    A split is x float32 [n, features] and y int64 [n].
    """
    try:
        if path.suffix == ".npz":
            return _read_npz(path, labels, features), ""
        if path.suffix == ".csv":
            arrays, columns = _read_csv(path, target, labels, features)
            return {"train": arrays}, columns
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    raise ConfigurationError(f"{path}: the name must end in .npz or .csv")


def _read_npz(path: Path, labels: ClassLabels, features: int | None) -> dict[Split, Arrays]:
    names: dict[Split, tuple[str, str]] = {"train": ("x", "y")}
    names |= {split: (f"x_{split}", f"y_{split}") for split in _HELD_OUT}
    arrays = npz.read(path, [name for pair in names.values() for name in pair])
    splits: dict[Split, Arrays] = {}
    for split, (x_name, y_name) in names.items():
        if split != "train" and x_name not in arrays and y_name not in arrays:
            continue
        for name in (x_name, y_name):
            if name not in arrays:
                raise ConfigurationError(f"{path} has no array {name}")
        splits[split] = _validate(path, arrays, (x_name, y_name), labels, features)
        features = splits[split][0].shape[1]
    return splits


def _validate(
    path: Path, arrays: Mapping[str, np.ndarray], names: tuple[str, str], labels: ClassLabels, features: int | None
) -> tuple[np.ndarray, np.ndarray]:
    x_name, y_name = names
    x, y = arrays[x_name], arrays[y_name]
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise ConfigurationError(
            f"{path}: {x_name} is of shape {list(x.shape)} and {y_name} of {list(y.shape)}, expected [n, ...] and [n]"
        )
    width = int(np.prod(x.shape[1:]))
    if features is not None and width != features:
        raise ConfigurationError(f"{path}: {x_name} has {width} features, task.features is {features}")
    with np.errstate(over="ignore"):  # values too large for float32 become inf and are rejected
        x = x.reshape(len(x), width).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x).all(1))
    if len(bad):
        raise ConfigurationError(f"{path}: {x_name}[{bad[0]}] has a value that is not finite, or too large for float32")
    found = labels.classes_of(y)
    bad = np.flatnonzero(found < 0)
    if len(bad):
        raise ConfigurationError(f"{path}: {y_name}[{bad[0]}] is {y[bad[0]]}, {labels.describe()}")
    return x, found


def _read_csv(path: Path, target: str, labels: ClassLabels, features: int | None) -> tuple[Arrays, str]:
    x, y = array("f"), array("q")
    free = free_memory()
    most = inf if free is None else free / 8  # a value takes four bytes here, and four more in the final array
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(lines_of(path, file), strict=True)
            header = next(lines, [])
            column = _label_column(path, header, target, labels, features)
            for row in lines:
                if row:  # skip empty lines
                    where = f"{path}, line {lines.line_num}"
                    x.extend(_numbers(where, header, row, column))
                    label = labels.class_of(row[column])
                    if label is None:
                        raise ConfigurationError(f"{where}: {header[column]} is {row[column][:40]}, {labels.describe()}")
                    y.append(label)
                    if len(x) > most:
                        raise ConfigurationError(
                            f"{path} has more values than fit into memory; only {amount(most * 8)} is free"
                        )
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text") from error
    except csv.Error as error:
        raise ConfigurationError(f"{path}, line {lines.line_num}: {error}") from error
    arrays = np.array(x, np.float32).reshape(len(y), len(header) - 1), np.array(y, np.int64)
    return arrays, _hash([name for k, name in enumerate(header) if k != column])


def _hash(names: Sequence[str]) -> str:
    """Return a hash that shows whether other names are the same, without naming them."""
    return sha256(repr([name.strip() for name in names]).encode()).hexdigest()[:16]


def _label_column(path: Path, header: Sequence[str], target: str, labels: ClassLabels, features: int | None) -> int:
    if _is_data(header, labels) and list(header) != [str(k) for k in range(len(header))]:
        raise ConfigurationError(f"{path}, line 1: it has numbers, but the first line must name the columns")
    if target and target not in header:
        raise ConfigurationError(f"{path} has no column {target!r}; its first line must name the columns")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ConfigurationError(f"{path} has two columns {twice[0]!r}")
    found = max(len(header) - 1, 0)
    if features is not None and found != features:
        raise ConfigurationError(f"{path} has {found} features besides the label, but task.features is {features}")
    if not found:
        raise ConfigurationError(f"{path} has no features: it must have two columns or more, separated by commas")
    return header.index(target) if target else found


def _is_data(line: Sequence[str], labels: ClassLabels) -> bool:
    """Return whether a first line has numbers and a label, not the names of columns."""
    if not all(map(_is_number, line[:-1])):
        return False
    return bool(line) and (_is_number(line[-1]) or labels.class_of(line[-1]) is not None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(where: str, header: Sequence[str], row: Sequence[str], label: int) -> Iterator[float]:
    """Yield the numbers of a row except the label."""
    if len(row) != len(header):
        raise ConfigurationError(f"{where}: {len(row)} values, but the first line names {len(header)} columns")
    for column, (name, text) in enumerate(zip(header, row, strict=True)):
        if column == label:
            continue
        try:
            value = float(text)
        except ValueError:
            remedy = "" if text.strip() else "; fill in the missing value, or remove the line"
            raise ConfigurationError(f"{where}: {name} must be a number, got {text[:40]!r}{remedy}") from None
        if not abs(value) <= float(np.finfo(np.float32).max):
            raise ConfigurationError(f"{where}: {name} must be a finite float32, got {text[:40]!r}")
        yield value


def _hold_out(splits: dict[Split, Arrays], fractions: dict[Split, float], seed: int) -> None:
    """Move a fraction of the rows to each split that the file lacks. A fraction of less than half a row adds none."""
    x, y = splits["train"]
    order = RandomStreams(seed, "classification").generator(0, "splits").permutation(len(x))
    begin = 0
    for split in _HELD_OUT:
        if split not in splits and (size := round(fractions[split] * len(x))):
            index = np.sort(order[begin : begin + size])
            splits[split] = x[index], y[index]
            begin += size
    rest = np.sort(order[begin:])
    splits["train"] = x[rest], y[rest]


def _standardize(splits: dict[Split, Arrays]) -> None:
    x = splits["train"][0]
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    deviation[deviation == 0] = 1  # a constant feature stays 0
    for split, (inputs, labels) in splits.items():
        splits[split] = ((inputs - mean) / deviation).astype(np.float32), labels
