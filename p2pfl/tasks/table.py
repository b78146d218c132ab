"""Classification of a node's own data from an .npz or .csv file, with an MLP, for data that never leaves its machine.

Settings common to all nodes (classes, features, the model, the training) are options. The path of a node's file is
a local option: it stays on the machine (see p2pfl.task_specs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl._util.shared_work import once
from p2pfl.data.class_labels import ClassLabels, Label, check_consecutive
from p2pfl.data.partition.partitioner import Partition, check_test, partition_of
from p2pfl.data.tabular.labelled import HELD_OUT, Arrays, Choice, read
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task
from p2pfl.tasks.mlp import mlp_task

Table = Mapping[str, Any]
MOST_CLASSES = 1000  # that are taken from a file; more are usually a column of numbers, or of identifiers


def inputs(options: Mapping[str, Any]) -> list[Path]:
    """Return the file that the task reads."""
    return [Path(data)] if (data := options.get("data")) else []


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
    ignore: Sequence[str] | None = None,
    delimiter: str = ",",
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
    judged_on: Literal["own", "all"] = "own",
) -> Task:
    """Classification of numeric features: an MLP features-hidden-classes with ReLU, trained by SGD on this node's file.

    An .npz file contains the arrays x [n, ...] and y [n], or x_train and y_train as the archives of Keras. For predefined
    splits it also contains x_validation, y_validation, x_test and y_test. A .csv file has one header line, and numbers
    below it; a column without a name, such as the index that pandas writes, is left out. Labels are 0 to classes - 1; other
    labels must be listed in `labels`.

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
        ignore: names of columns of a .csv file that are left out. By default none, and a column that identifies the rows, or
            numbers them in a file sorted by label, is refused; a list, even an empty one, decides.
        delimiter: the character between the columns of a .csv file.
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
        judged_on: with a partition, the test rows that a node draws from the test split of an .npz file: in the
            proportions of its `own` training labels (default), or `all`.

    Raises:
        ConfigurationError: an option is invalid, or the file cannot be used; the text names the file and the line.
    """
    widths = [hidden] if isinstance(hidden, int) else hidden
    if (classes is not None and classes < 2) or (features is not None and features < 1) or not all(w > 0 for w in widths):
        raise ConfigurationError("task.classes must be 2 or more, task.features and task.hidden 1 or more")
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ConfigurationError("task.validation and task.test must be 0 or more, and together less than 1")
    if len(delimiter) != 1:
        raise ConfigurationError(f"task.delimiter must be one character, got {delimiter!r}")
    if not data:
        raise ConfigurationError("the task classification needs `data`, the path of this node's .npz or .csv file")
    path, known = Path(data).expanduser(), ClassLabels(classes, labels)
    choice = Choice(target, None if ignore is None else tuple(ignore), delimiter, narrow=standardize == "none")
    key = (read, path, choice, classes, tuple(labels), features)
    file = once(key, lambda: read(path, choice, known, features))  # nodes may divide the rows of one file
    splits, own_columns = dict(file.splits), file.columns
    if columns and own_columns not in ("", columns):
        raise ConfigurationError(
            f"{path}: the columns differ from those of the federation (task.columns), in their names or their order; name"
            " and order them as in the file of the node that made the federation"
        )
    found: dict[str, Any] = _sizes(path, splits, known)
    if own_columns:
        found["columns"] = own_columns
    notes = [] if partition is None else _take_part(splits, partition_of(partition, judged_on), part, seed)
    held_out = [split for split in HELD_OUT if split not in splits]
    notes += _hold_out(splits, {"validation": validation, "test": test}, seed)
    if not len(splits["train"][0]):
        raise ConfigurationError(f"{path}: no row is left to train on")
    if standardize == "local":
        _standardize(splits)
    samples = {split: (x.astype(np.float32), y) for split, (x, y) in splits.items()}
    widths = [found["features"], *widths, found["classes"]]
    steps, how = choose("task.optimizer", optimizer or {"name": "sgd", "lr": lr, "momentum": momentum}, OPTIMIZERS)
    return mlp_task(
        widths,
        samples,
        metrics=metrics,
        optimizer=build("task.optimizer" if optimizer else "task", steps, how),
        batch_size=batch_size,
        derived_options=found,
        data_facts=(file.facts,),
        data_notes=tuple(notes),
        held_out=tuple(held_out),
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


def _take_part(splits: dict[Split, Arrays], rule: Partition, part: Part, seed: int) -> list[str]:
    """Replace the training and test rows by those of one node; return notes."""
    x, y = splits["train"]
    own = rule.train(y, part, seed)
    splits["train"] = x[own], y[own]
    if "test" in splits:
        x, labels = splits["test"]
        drawn = rule.test(y[own], labels, part, seed)
        splits["test"] = x[drawn], labels[drawn]
        if rule.judged_on == "own" and (note := check_test(y, labels, own, drawn, 'set task.judged_on = "all"')):
            return [note]
    return []


def _hold_out(splits: dict[Split, Arrays], fractions: dict[Split, float], seed: int) -> list[str]:
    """Move a fraction of the rows to each split that the file lacks, and return notes.

    A fraction of less than half a row adds none.
    """
    x, y = splits["train"]
    order = RandomStreams(seed, "classification").generator(0, "splits").permutation(len(x))
    begin = 0
    for split in HELD_OUT:
        if split not in splits and (size := round(fractions[split] * len(x))):
            index = np.sort(order[begin : begin + size])
            splits[split] = x[index], y[index]
            begin += size
    rest = np.sort(order[begin:])
    splits["train"] = x[rest], y[rest]
    return [
        f"no row is held out for {split}: a fraction of {fractions[split]:g} of {len(x):,} rows is less than half a row"
        for split in HELD_OUT
        if split not in splits and fractions[split]
    ]


def _standardize(splits: dict[Split, Arrays]) -> None:
    """Scale each feature to mean 0 and standard deviation 1 over the training rows, in float64."""
    x = splits["train"][0]
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    deviation[deviation == 0] = 1  # a constant feature stays 0
    for split, (inputs, labels) in splits.items():
        splits[split] = (inputs - mean) / deviation, labels
