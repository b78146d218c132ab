"""Facts of a node's task, which its checkpoint keeps. They tell what has changed if the task no longer fits it.

A checkpoint fits a task if its model has the same layout. A file with the same number of columns, but other ones, gives
the same layout, and the model would continue with inputs that have another meaning. So the names are compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from p2pfl.task import Task, data_facts_of, derived_options_of

MOST_FEATURES = 10_000  # names of features that a checkpoint keeps
MOST_NAMED = 6  # names in a message


class TaskFacts(msgspec.Struct, frozen=True):
    """Facts of a task.

    Attributes:
        features: names of the columns that are inputs of the model, in their order; empty if unknown.
        options: options that the task has taken from its data, by name.
        shapes: names and shapes of the model's tensors.
    """

    features: list[str] = []
    options: dict[str, Any] = {}
    shapes: list[tuple[str, list[int]]] = []


def facts_of(task: Task) -> TaskFacts:
    """Return the facts of a task."""
    columns = [column for facts in data_facts_of(task) for column in facts.columns]
    features = [column.name for column in columns if column.role in ("feature", "sensitive")]
    return TaskFacts(
        features[:MOST_FEATURES] if all(features) else [],
        dict(derived_options_of(task)),
        [(name, list(shape)) for name, shape in task.layout.shapes],
    )


def describe_change(before: TaskFacts, now: TaskFacts) -> str:
    """Return what has changed in a task, as a sentence; "" if nothing that is known."""
    if before.features and now.features and before.features != now.features:
        return _describe_columns(before.features, now.features)
    counts = [
        f"{now.options[name]} {name} instead of {value}"
        for name, value in before.options.items()
        if isinstance(value, int) and now.options.get(name, value) != value
    ]
    if counts:
        return f"the data now have {' and '.join(counts)}"
    if before.options.get("columns") != now.options.get("columns") and before.options.get("columns"):
        return "the data now have other columns, or the same ones in another order"
    if before.shapes and before.shapes != now.shapes:
        return _describe_shapes(before.shapes, now.shapes)
    return ""


def _describe_columns(before: Sequence[str], now: Sequence[str]) -> str:
    new, gone = ([name for name in a if name not in set(b)] for a, b in ((now, before), (before, now)))
    if not new and not gone and len(now) == len(before):
        return f"the features of the data are in another order: {_names(now)} instead of {_names(before)}"
    count = f"{len(now)} features instead of {len(before)}" if len(now) != len(before) else "other features"
    changes = [f"{what} {_names(names)}" for what, names in (("new:", new), ("missing:", gone)) if names]
    return f"the data now have {count} ({', '.join(changes)})"


def _describe_shapes(before: Sequence[tuple[str, list[int]]], now: Sequence[tuple[str, list[int]]]) -> str:
    was, present = dict(before), dict(now)
    for name, shape in now:
        if name in was and was[name] != shape:
            return (
                f"the model is another one now: its tensor {name} has the shape {_shape(shape)} instead of"
                f" {_shape(was[name])}; the data may have other columns, or the task other options"
            )
    new, gone = ([name for name in a if name not in b] for a, b in ((present, was), (was, present)))
    changes = [f"{what} {_names(names)}" for what, names in (("new:", new), ("missing:", gone)) if names]
    return f"the model has other tensors now ({', '.join(changes) or 'in another order'})"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "of one value"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
