"""Classification and regression of a node's own data, for data that never leaves its machine.

The data are a .csv or .npz file, or for classification also a folder of images or a saved dataset of Hugging Face. Settings
common to all nodes (classes, labels, features, the model, the training) are options. The path of a node's file is a local
option: it stays on the machine (see p2pfl.task_specs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from p2pfl._util.binding import build, choose
from p2pfl._util.shared_work import once
from p2pfl.data import own_folders
from p2pfl.data.class_labels import ClassLabels, Label, check_consecutive
from p2pfl.data.delimited import number
from p2pfl.data.partition.partitioner import Partition, check_test, partition_of
from p2pfl.data.tabular.labelled import HELD_OUT, Arrays, Choice, Labelled, read
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task
from p2pfl.tasks.mlp import image_task, mlp_task

Table = Mapping[str, Any]
BY_COLUMN = "column"  # the partition in which each value of a column is a node
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
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: Literal["refuse", "mean"] = "refuse",
    delimiter: str = ",",
    size: int = own_folders.SIZE,
    channels: int = 3,
    hidden: int | list[int] = 64,
    model: Table | None = None,
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
    """Classification of a node's own samples: an MLP features-hidden-classes with ReLU, trained by SGD.

    An .npz file contains the arrays x [n, ...] and y [n], or x_train and y_train as the archives of Keras. For predefined
    splits it also contains x_validation, y_validation, x_test and y_test. A .csv file has one header line, and numbers
    below it; a column without a name, such as the index that pandas writes, is left out. A folder has a subfolder of images
    for each label (extra `images`), or is a dataset that `save_to_disk` of Hugging Face's datasets has written (extra
    `arrow`). Labels are 0 to classes - 1; other labels must be listed in `labels`.

    The members of a federation need the same classes, features, columns, labels and categories. `p2pfl-node federation
    create` writes those of the first node into the federation; the other nodes take them from there.

    Args:
        part: the node, for `partition`.
        classes: the number of classes, 2 or more; by default that of the labels in this node's file, which must be 0 to
            classes - 1 then.
        features: numbers in a sample; by default those of the file. An array with more dimensions is flattened.
        columns: hash of the names of the features in a .csv file, in their order; by default that of this node's file. An
            .npz file has no names, and ignores it.
        labels: the label of each class in the files, such as [1, 2, 3] or ["no", "yes"]; by default the labels are the
            classes 0 to classes - 1. Those of an .npz file are numbers.
        data: path of this node's file or folder.
        target: name of the label's column; by default the last one of a .csv file.
        ignore: names of columns that are left out. By default none, and a column that identifies the rows, or numbers them
            in a file sorted by label, is refused; a list, even an empty one, decides.
        categories: columns with texts, each with its categories, such as { sex = ["f", "m"] }; a category is an input that
            is 0 or 1.
        missing: features without a value are refused, or get the `mean` over this node's training rows.
        delimiter: the character between the columns of a .csv file.
        size, channels: height and width to which images are scaled, in pixels, and 1 for grey or 3 for colours.
        hidden: width of the hidden layer, or a list of widths; an empty list makes a linear model.
        model: for images, another model than this MLP: { name = "cnn" } and others as in the task images; needs PyTorch.
        lr, momentum: learning rate and momentum of SGD.
        optimizer: another optimiser, instead of lr and momentum: { name = "adam" } or "adamw" (lr, betas, eps,
            weight_decay, schedule), or "sgd" (lr, momentum, weight_decay, schedule), where schedule is { name = "cosine",
            rounds = 20 }, "linear", "step", "inverse" or "exponential"; see p2pfl.learning.schedules.
        batch_size: samples in one step of the optimiser.
        validation, test: fractions of the rows that are held out if the file has no such split, drawn from the seed.
        standardize: "local" scales each feature to mean 0 and standard deviation 1 over this node's training rows.
        metrics: further metrics besides accuracy: "f1", "auc", "balanced_accuracy".
        partition: for simulations, divides the rows of one file among the nodes: { name = "iid" }, "dirichlet" (alpha),
            "pathological" (classes), "quantity" (alpha), "clusters" (groups, sizes), or "column" (column), where each value
            of a column, such as a site, is one node. By default the whole file is this node's part.
        judged_on: with a partition, the test rows that a node draws from the test split of an .npz file: in the
            proportions of its `own` training labels (default), or `all`.

    Raises:
        ConfigurationError: an option is invalid, or the file cannot be used; the text names the file and the line.
    """
    if classes is not None and classes < 2:
        raise ConfigurationError("task.classes must be 2 or more")
    choice = _choice(target, ignore, categories, delimiter, partition)
    choice = replace(choice, missing=missing == "mean", narrow=standardize == "none", size=size, channels=channels)
    own = _Own("classification", data, choice, features, columns, hidden, {"validation": validation, "test": test})
    known = ClassLabels(classes, labels)
    file = own.read(known, (classes, tuple(labels)))
    found = own.derived(file) | {"classes": _classes(own.path, file.splits, known)}
    splits, notes, held_out = own.divide(file, part, seed, None if partition is None else (partition, judged_on))
    samples, used = own.scale(splits, standardize)
    steps, how = choose("task.optimizer", optimizer or {"name": "sgd", "lr": lr, "momentum": momentum}, OPTIMIZERS)
    options: dict[str, Any] = {
        "metrics": metrics,
        "optimizer": build("task.optimizer" if optimizer else "task", steps, how),
        "batch_size": batch_size,
        "derived_options": found,
        "data_facts": (file.facts,),
        "data_notes": notes,
        "data_label": own.label(file, part),
        "row_encoding": _row_encoding(file, used, delimiter, {"labels": [*labels] or [*range(found["classes"])]}),
        "held_out": held_out,
    }
    if model is not None:
        return image_task(_image_shape(own.path, file.shape), found["classes"], samples, model=model, **options)
    return mlp_task([found["features"], *own.widths, found["classes"]], samples, **options)


def regression(
    part: Part,
    seed: int,
    *,
    centre: float | None = None,
    scale: float | None = None,
    features: int | None = None,
    columns: str = "",
    data: str = "",
    target: str = "",
    ignore: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: Literal["refuse", "mean"] = "refuse",
    delimiter: str = ",",
    hidden: int | list[int] = 64,
    lr: float = 0.02,
    momentum: float = 0.0,
    optimizer: Table | None = None,
    batch_size: int = 16,
    validation: float = 0.1,
    test: float = 0.1,
    standardize: Literal["none", "local"] = "none",
    metrics: Sequence[str] = (),
    partition: Table | None = None,
) -> Task:
    """Regression of a node's own samples: an MLP features-hidden-1 with ReLU and squared error, trained by SGD.

    The files are those of the task `classification`, but a label is a number: y of an .npz file, or a column. The model
    learns (label - centre) / scale, so that labels of any size train alike. The mean squared error, `mse`, is that of these
    numbers: 1 is the error of a model that always answers the mean, and `mse` times scale**2 is the error of the labels.

    The members of a federation need the same centre, scale, features, columns and categories; see the task
    `classification`.

    Args:
        part: the node, for `partition`.
        centre, scale: number that is subtracted from a label, and by which it is divided then; by default the mean and the
            standard deviation of all labels in this node's file.
        features, columns, data, target, ignore, categories, missing, delimiter: see the task `classification`.
        hidden: width of the hidden layer, or a list of widths; an empty list makes a linear model.
        lr, momentum: learning rate and momentum of SGD.
        optimizer: another optimiser, instead of lr and momentum; see the task `classification`.
        batch_size: samples in one step of the optimiser.
        validation, test: fractions of the rows that are held out if the file has no such split, drawn from the seed.
        standardize: "local" scales each feature to mean 0 and standard deviation 1 over this node's training rows.
        metrics: further metrics besides mse: "mae", "r2".
        partition: for simulations, divides the rows of one file among the nodes: { name = "iid" }, "quantity" (alpha), or
            "column" (column), where each value of a column, such as a site, is one node.

    Raises:
        ConfigurationError: an option is invalid, or the file cannot be used; the text names the file and the line.
    """
    if scale is not None and scale <= 0:
        raise ConfigurationError("task.scale must be greater than 0")
    choice = _choice(target, ignore, categories, delimiter, partition)
    choice = replace(choice, missing=missing == "mean", narrow=standardize == "none")
    own = _Own("regression", data, choice, features, columns, hidden, {"validation": validation, "test": test})
    file = own.read(None, ())
    values = np.concatenate([y for _, y in file.splits.values()])
    centre = float(values.mean()) if centre is None else centre
    scale = (float(values.std()) or 1.0) if scale is None else scale
    splits, notes, held_out = own.divide(file, part, seed, None if partition is None else (partition, "all"))
    scaled = {split: (x, ((y - centre) / scale)[:, None]) for split, (x, y) in splits.items()}
    prepared, used = own.scale(scaled, standardize)
    samples = {split: (x, y.astype(np.float32)) for split, (x, y) in prepared.items()}
    steps, how = choose("task.optimizer", optimizer or {"name": "sgd", "lr": lr, "momentum": momentum}, OPTIMIZERS)
    found = own.derived(file)
    return mlp_task(
        [found["features"], *own.widths, 1],
        samples,
        numbers=True,
        metrics=metrics,
        optimizer=build("task.optimizer" if optimizer else "task", steps, how),
        batch_size=batch_size,
        derived_options={**found, "centre": centre, "scale": scale},
        data_facts=(file.facts,),
        data_notes=notes,
        data_label=own.label(file, part),
        row_encoding=_row_encoding(file, used, delimiter, {"centre": centre, "scale": scale}),
        held_out=held_out,
    )


def _choice(
    target: str,
    ignore: Sequence[str] | None,
    categories: Mapping[str, Sequence[str]] | None,
    delimiter: str,
    partition: Table | None,
) -> Choice:
    """Return the choices of the owner of a table."""
    if len(delimiter) != 1:
        raise ConfigurationError(f"task.delimiter must be one character, got {delimiter!r}")
    texts = tuple((name, tuple(str(each).strip() for each in listed)) for name, listed in (categories or {}).items())
    for name, listed in texts:
        if not listed or len({*listed}) < len(listed):
            raise ConfigurationError(f"task.categories.{name} must list different texts, one or more")
    owner = ""
    if partition is not None and partition.get("name") == BY_COLUMN:
        if set(partition) != {"name", "column"} or not isinstance(partition["column"], str):
            raise ConfigurationError('task.partition "column" takes one option: column = "NAME"')
        owner = partition["column"]
    return Choice(target, None if ignore is None else tuple(ignore), delimiter, categories=texts, owner=owner)


class _Own(NamedTuple):
    """A node's own file, as the options of its task describe it.

    Attributes:
        task: the name of the task, for errors.
        fractions: parts of the rows that are held out.
    """

    task: str
    data: str
    choice: Choice
    features: int | None
    columns: str
    hidden: int | list[int]
    fractions: Mapping[Split, float]

    @property
    def path(self) -> Path:
        return Path(self.data).expanduser()

    @property
    def widths(self) -> list[int]:
        """The widths of the hidden layers."""
        return [self.hidden] if isinstance(self.hidden, int) else self.hidden

    def read(self, labels: ClassLabels | None, key: tuple[Any, ...]) -> Labelled:
        """Read the file.

        Args:
            labels: see p2pfl.data.tabular.labelled.read.
            key: what distinguishes these labels from others.

        Raises:
            ConfigurationError: an option is invalid, or the file cannot be read, or does not fit the federation.
        """
        if (self.features is not None and self.features < 1) or not all(width > 0 for width in self.widths):
            raise ConfigurationError("task.features and task.hidden must be 1 or more")
        validation, test = self.fractions["validation"], self.fractions["test"]
        if not (validation >= 0 and test >= 0 and validation + test < 1):
            raise ConfigurationError("task.validation and task.test must be 0 or more, and together less than 1")
        if not self.data:
            raise ConfigurationError(f"the task {self.task} needs `data`, the path of this node's .npz or .csv file")
        wanted = (read, self.path, self.choice, labels is None, key, self.features)
        file = once(wanted, lambda: read(self.path, self.choice, labels, self.features))  # nodes may divide its rows
        if self.columns and file.columns not in ("", self.columns):
            raise ConfigurationError(
                f"{self.path}: the columns differ from those of the federation (task.columns), in their names or their"
                " order; name and order them as in the file of the node that made the federation"
            )
        return file

    def derived(self, file: Labelled) -> dict[str, Any]:
        """Return options that all nodes must share, from the file."""
        found: dict[str, Any] = {"features": file.splits["train"][0].shape[1]}
        return found | ({"columns": file.columns} if file.columns else {})

    def divide(
        self, file: Labelled, part: Part, seed: int, rule: tuple[Table, Literal["own", "all"]] | None
    ) -> tuple[dict[Split, Arrays], tuple[str, ...], tuple[Split, ...]]:
        """Return a node's rows by split, notes on them, and the splits that were held out of its training rows."""
        splits, notes = dict(file.splits), list[str]()
        if self.choice.owner:
            splits["train"] = _rows_of_owner(self.path, self.choice.owner, file, part)
        elif rule is not None:
            notes = _take_part(splits, partition_of(*rule), part, seed)
        held_out = tuple(split for split in HELD_OUT if split not in splits)
        notes += _hold_out(splits, self.fractions, seed)
        if not len(splits["train"][0]):
            raise ConfigurationError(f"{self.path}: no row is left to train on")
        return splits, tuple(notes), held_out

    def label(self, file: Labelled, part: Part) -> str:
        """Return the value of the column that names the node; "" without such a column."""
        return _owners(file)[part.index] if self.choice.owner else ""

    def scale(self, splits: Mapping[Split, Arrays], standardize: str) -> tuple[dict[Split, Arrays], dict[str, np.ndarray]]:
        """Return inputs as float32, standardised and without gaps; and the numbers used: `fill`, `mean`, `scale`."""
        found, used = dict(splits), dict[str, np.ndarray]()
        if self.choice.missing:
            used["fill"] = _fill(found)
        if standardize == "local":
            used["mean"], used["scale"] = _standardize(found)
        return {split: (x.astype(np.float32), y) for split, (x, y) in found.items()}, used


def _row_encoding(
    file: Labelled, used: Mapping[str, np.ndarray], delimiter: str, target: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how rows become inputs, in the form that `p2pfl-node export` writes as JSON.

    `inputs` lists the inputs of the model in their order: the `column`, its `category` if the input is 1 for this text and 0
    otherwise, the value `fill` of a missing number, and `mean` and `scale`, for (value - mean) / scale. Samples without
    names have their `shape` instead, and lists `fill`, `mean` and `scale`. `target` has the column, and the label of each
    output, or the centre and the scale of labels that are numbers. A model with one output and two labels also has the
    `threshold` above which its answer is the second one. `missing` lists texts that stand for a gap, besides the known ones.
    """
    lists = {key: values.tolist() for key, values in used.items()}
    if not file.inputs:
        return {"shape": [*file.shape], **lists, "target": {**target}}
    inputs: list[dict[str, Any]] = []
    for k, (column, category) in enumerate(file.inputs):
        steps = {key: values[k] for key, values in lists.items() if not (category and key == "fill")}
        inputs.append({"column": column, **({"category": category} if category else {}), **steps})
    return {"inputs": inputs, "delimiter": delimiter, "target": {"column": file.target, **target}}


def _owners(file: Labelled) -> list[str]:
    """Return the different owners of rows, in the order of the nodes: numbers by value, then texts."""
    return sorted(set(file.owners), key=lambda text: (number(text) is None, number(text) or 0.0, text))


def _rows_of_owner(path: Path, column: str, file: Labelled, part: Part) -> Arrays:
    """Return the rows of one owner, which is one node."""
    owners = _owners(file)
    if len(owners) != part.count:
        raise ConfigurationError(
            f"{path}: the column {column} has {len(owners)} different values, and each is one node: set nodes ="
            f" {len(owners)}, or use another task.partition"
        )
    x, y = file.splits["train"]
    own = np.array([each == owners[part.index] for each in file.owners])
    return x[own], y[own]


def _image_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the channels, the height and the width of images in a file."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return shape[0], shape[1], shape[2]
    raise ConfigurationError(
        f"{path}: task.model is for images, of shape [height, width] or [channels, height, width]; a sample here has the"
        f" shape {list(shape)}"
    )


def _classes(path: Path, splits: Mapping[Split, Arrays], labels: ClassLabels) -> int:
    """Return the number of classes, from the options or from the file."""
    if labels.count is not None:
        return labels.count
    found = np.unique(np.concatenate([y for _, y in splits.values()]))
    classes: int = max(2, *(int(y.max(initial=0)) + 1 for _, y in splits.values()))
    if classes > MOST_CLASSES:
        raise ConfigurationError(
            f"{path}: the greatest label is {classes - 1}, which makes {classes} classes; check the column of the labels, or"
            " set task.classes"
        )
    check_consecutive(str(path), found)
    return classes


def _take_part(splits: dict[Split, Arrays], rule: Partition, part: Part, seed: int) -> list[str]:
    """Replace the training and test rows by those of one node; return notes."""
    x, y = splits["train"]
    if y.dtype != np.int64:
        if rule.needs_classes:
            raise ConfigurationError('task.partition divides by classes, but the labels are numbers; use { name = "iid" }')
        own = rule.train(np.zeros(len(y), np.int64), part, seed)
        splits["train"] = x[own], y[own]
        return []
    own = rule.train(y, part, seed)
    splits["train"] = x[own], y[own]
    if "test" in splits:
        x, labels = splits["test"]
        drawn = rule.test(y[own], labels, part, seed)
        splits["test"] = x[drawn], labels[drawn]
        if rule.judged_on == "own" and (note := check_test(y, labels, own, drawn, 'set task.judged_on = "all"')):
            return [note]
    return []


def _hold_out(splits: dict[Split, Arrays], fractions: Mapping[Split, float], seed: int) -> list[str]:
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


def _fill(splits: dict[Split, Arrays]) -> np.ndarray:
    """Replace missing numbers by the mean of the feature over the training rows, by 0 if no row has it; return these."""
    x = splits["train"][0]
    known = ~np.isnan(x)
    mean = np.where(known, x, 0).sum(0) / np.maximum(known.sum(0), 1)
    for split, (inputs, labels) in splits.items():
        splits[split] = np.where(np.isnan(inputs), mean, inputs), labels
    return np.asarray(mean)


def _standardize(splits: dict[Split, Arrays]) -> tuple[np.ndarray, np.ndarray]:
    """Scale each feature to mean 0 and standard deviation 1 over the training rows, in float64; return both."""
    x = splits["train"][0]
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    deviation[deviation == 0] = 1  # a constant feature stays 0
    for split, (inputs, labels) in splits.items():
        splits[split] = (inputs - mean) / deviation, labels
    return mean, deviation
