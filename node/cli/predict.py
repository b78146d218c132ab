"""Predictions of a node's best model for the rows of a CSV file, which are encoded like the node's own."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p2pfl._util.machine import READING
from p2pfl._util.printable import plural
from p2pfl.data.delimited import describe, header_of, is_marker, number
from p2pfl.data.tabular.column_checks import is_nameless
from p2pfl.data.tabular.labelled import LARGEST, table_of
from p2pfl.errors import ConfigurationError
from p2pfl.learning.dense import DenseProblem
from p2pfl.node.checkpoint import same_rows
from p2pfl.node.cli.export import best_model, newest
from p2pfl.node.federation import loading
from p2pfl.parameters import Parameters
from p2pfl.task import PreferenceConditioned, Task

_SHOWN = 40  # characters of a cell in an error


class Predictions(NamedTuple):
    """Answers of a model.

    Attributes:
        lines: the line of each row in its file.
        answers: a label or a number for each of these rows.
        probabilities: those of the labels, by the model; empty for numbers.
        notes: rows that were left out, and categories that the model does not know.
    """

    lines: Sequence[int]
    answers: Sequence[Any]
    probabilities: Sequence[float]
    notes: Sequence[str]

    def rows(self) -> list[dict[str, Any]]:
        """Return the columns of each row: `line`, `prediction` and, for labels, `probability`."""
        if not self.probabilities:
            return [{"line": line, "prediction": each} for line, each in zip(self.lines, self.answers, strict=True)]
        columns = zip(self.lines, self.answers, self.probabilities, strict=True)
        return [{"line": line, "prediction": label, "probability": share} for line, label, share in columns]

    def csv(self) -> str:
        """Return the rows as the content of a CSV file; the numbers of a model have nine digits at most."""
        text, rows = io.StringIO(), self.rows()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0] if rows else ["line", "prediction"])
        writer.writerows([f"{v:.9g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
        return text.getvalue()


def predict(folder: Path, path: Path, preference: Sequence[float] = ()) -> Predictions:
    """Apply the best model of a node, running or not, to the rows of a CSV file; no file of the node is changed.

    Args:
        path: a file with the columns of the node's data; the label and columns that the node ignores may be missing.
        preference: for a task with a model for each preference, the preference.

    Raises:
        ConfigurationError: the node has no checkpoint yet, or its task reads no columns with names; the file cannot be
            read, lacks a column, or has one that the node's data lack; or a cell is not a number, or too large for the
            model. Also if the data have changed since the last round, or there is no model for the preference.
    """
    ready = loading.load(folder)
    checkpoint = newest(folder)
    task = loading.task_of(ready, copies=READING)
    encoding = task.row_encoding
    if "inputs" not in encoding:
        raise ConfigurationError(
            f"the data of the task {ready.config.task['name']} have no columns with names, so its model cannot read a CSV"
            f" file; use the model itself: p2pfl-node export {folder} model.safetensors"
        )
    same_rows(checkpoint, task)
    params = best_model(checkpoint, task.layout, partial(task.initial, checkpoint.seed)).params
    known = {column.name for facts in task.data_facts for column in facts.columns}
    x, lines, notes = encode_rows(path, encoding, known)
    outputs = _outputs(task, params, x, checkpoint.seed, preference)
    if len(wrong := np.flatnonzero(~np.isfinite(outputs).all(1))):
        raise ConfigurationError(
            f"{path}, line {lines[wrong[0]]}: the model's answer is not finite; write its numbers in the units of the node's"
            " data"
        )
    answers, probabilities = _answers(outputs, encoding["target"])
    return Predictions(lines, answers, probabilities, notes)


def encode_rows(path: Path, encoding: Mapping[str, Any], known: Collection[str]) -> tuple[np.ndarray, list[int], list[str]]:
    """Return the inputs of a model, float32 [n, d], the line of each row, and notes.

    Args:
        encoding: see p2pfl.tasks.table.
        known: the columns of the node's own data.

    Raises: see `predict`.
    """
    source = table_of(path, encoding["delimiter"], "separate them as in the node's data")
    names, inputs = header_of(path, source.header), encoding["inputs"]
    places = {each["column"]: names.index(each["column"]) for each in inputs if each["column"] in names}
    if lacking := list(dict.fromkeys(each["column"] for each in inputs if each["column"] not in places)):
        raise ConfigurationError(
            f"{path} lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}, which the model reads; line 1 must"
            " name the columns as in the node's data"
        )
    if others := [name for name in names if name not in known and not is_nameless(name)]:
        raise ConfigurationError(
            f"{path} has the column{'s' * (len(others) > 1)} {', '.join(others)}, which the node's data do not have; remove"
            f" {'them' if len(others) > 1 else 'it'}"
        )
    categories: dict[str, set[str]] = {}
    for each in inputs:
        if "category" in each:
            categories.setdefault(each["column"], set()).add(each["category"])
    gaps, unknown, marks = dict[str, list[int]](), dict[str, list[tuple[int, str]]](), {*encoding.get("missing", ())}
    found, lines = list[list[float]](), list[int]()
    for line, row in source.rows:
        cells = {name: "" if (text := row[k].strip()) in marks else text for name, k in places.items()}
        lack = [each["column"] for each in inputs if not {"category", "fill"} & {*each} and is_marker(cells[each["column"]])]
        if lack:
            gaps.setdefault(lack[0], []).append(line)
            continue
        for name, listed in categories.items():
            if cells[name] not in listed:
                unknown.setdefault(name, []).append((line, cells[name]))
        found.append([_value(cells[each["column"]], each, f"{path}, line {line}") for each in inputs])
        lines.append(line)
    notes = [
        f"{name}: {plural(len(rows), 'row')} without a value left out, the first in line {rows[0]}"
        for name, rows in gaps.items()
    ]
    notes += [
        f"{name}: {plural(len(rows), 'row')} with a category that the model does not know, the first in line"
        f" {rows[0][0]} ({rows[0][1][:_SHOWN]!r}); they count as none of its categories"
        for name, rows in unknown.items()
    ]
    notes += [f"{plural(count, kind)} left out" for kind, count in source.dropped.items()]
    if not (found or gaps):
        raise ConfigurationError(f"{path} has no rows below the names of the columns")
    x = np.array(found, np.float64).reshape(len(found), len(inputs))
    if len(large := np.argwhere(np.abs(x) > LARGEST)):
        row, k = large[0]
        raise ConfigurationError(
            f"{path}, line {lines[row]}: {inputs[k]['column']} is too far from the values of the training"
        )
    return x.astype(np.float32), lines, notes


def _value(text: str, how: Mapping[str, Any], where: str) -> float:
    """Return one input of a model for the text of a cell."""
    if "category" in how:
        value: float | None = float(text == how["category"])
    else:
        value = how["fill"] if is_marker(text) else number(text)
    if value is None or abs(value) > LARGEST:
        meaning = describe(text) if value is None else "too large for float32"
        remedy = f", {meaning}" if meaning else ""
        raise ConfigurationError(f"{where}: {how['column']} must be a number, got {text[:_SHOWN]!r}{remedy}")
    return float((value - how.get("mean", 0.0)) / how.get("scale", 1.0))


def _outputs(task: Task, params: Parameters, x: np.ndarray, seed: int, preference: Sequence[float]) -> np.ndarray:
    """Return the outputs of a model, float64 [n, k]."""
    conditioned = isinstance(task, PreferenceConditioned)
    if conditioned != bool(preference):
        problem = "choose one with --preference, such as 0.3,0.7" if conditioned else "leave out --preference"
        raise ConfigurationError(f"the node's task has {'a' if conditioned else 'no'} model for each preference; {problem}")
    if isinstance(task, DenseProblem):
        return task.network.outputs(params, x).astype(np.float64)
    import torch

    from p2pfl.learning.torch_problem import TorchProblem

    if isinstance(task, PreferenceConditioned):
        module = task.model_for(params, preference)
    else:
        assert isinstance(task, TorchProblem)  # the other tasks that describe rows
        module = task.loaded(params, seed)
    with torch.no_grad():
        outputs: np.ndarray = module(torch.from_numpy(x)).double().numpy()
    return outputs


def _answers(outputs: np.ndarray, target: Mapping[str, Any]) -> tuple[list[Any], list[float]]:
    """Return a label with its probability, or a number, for each row of outputs; see p2pfl.tasks.table."""
    labels = target.get("labels")
    if labels is None:
        return (outputs[:, 0] * target["scale"] + target["centre"]).tolist(), []
    if "threshold" not in target:
        shares = np.exp(outputs - outputs.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
    else:
        second = 1 / (1 + np.exp(-outputs[:, 0])) if target["threshold"] == 0 else outputs[:, 0]
        shares = np.column_stack([1 - second, second])
    return [labels[k] for k in shares.argmax(1)], shares.max(1).tolist()
