"""Tasks of all nodes of a run, of which only the differences are kept.

A million nodes with one module, one optimiser and one loss need a million arrays of samples, but not a million tasks with
their tensors, dictionaries and checks. `tasks_of` makes the task of each node. If all are TorchProblems that differ in
nothing but their samples and a few facts, it keeps the first one, the samples as rows of one array
(p2pfl.learning.batched_training.StackedData), and the facts; a task that is asked for is a copy of the first one with
these. Other tasks are kept as they are.

The factory of a task may make all of them at once: it then has the attribute `of_all`, a function that is called as
`of_all(first, count, seed, **options)` with the task of the first node, and returns the TaskStack of all, or None if
it has no form for these options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, overload

import numpy as np
from torch import Tensor

from p2pfl.cohort import Counts
from p2pfl.learning.batched_training import StackedData
from p2pfl.learning.torch_problem import Samples, TorchProblem
from p2pfl.queries import Split
from p2pfl.task import Task, group_of

OWN = ("public_info", "preference", "group", "data_facts", "data_notes", "data_label", "row_encoding", "held_out")
"""Attributes of a TorchProblem, besides `data`, in which the nodes of a stack may differ."""
TEXTS = ("public_info", "data_notes", "data_label", "held_out")  # those of numbers and texts alone


def tasks_of(make: Callable[[int], Task], count: int) -> Sequence[Task]:
    """Return the tasks of nodes 0 to `count` - 1; a TaskStack if they are alike."""
    first = make(0)
    if not isinstance(first, TorchProblem) or None in map(_form, first.data.values()):
        return [first, *map(make, range(1, count))]
    stack = TaskStack(first)
    for k in range(1, count):
        task = make(k)
        if not stack.takes(task):
            return [*stack.closed(), task, *map(make, range(k + 1, count))]
    return stack.closed()


class TaskStack(Sequence[Task]):
    """Tasks that differ only in their samples and in the attributes OWN.

    Attributes:
        first: the task of the first node.
        data: the samples of all nodes, by split.
    """

    def __init__(self, first: TorchProblem) -> None:
        self.first = first
        self.data: dict[Split, StackedData] = {split: StackedData() for split in first.data}
        self._facts: dict[str, list[Any]] = {name: [] for name in OWN}
        self._known: dict[tuple[str, str], Any] = {}  # facts by their texts, so that equal ones are kept once
        self._shared: dict[tuple[Split, int], Samples] = {}
        self._count = 0
        self._add(first)

    @classmethod
    def of(
        cls, first: TorchProblem, data: Mapping[Split, StackedData], public_info: Sequence[Mapping[str, Any]]
    ) -> TaskStack:
        """Return the tasks of nodes that differ in their samples and public facts.

        Args:
            first: the task of the first node.
            data: by the splits of the first task.
            public_info: of each node.
        """
        stack = cls(first)
        stack.data, stack._count = {split: data[split] for split in first.data}, len(public_info)
        stack._facts["public_info"] = list(public_info)
        return stack._ready()

    def takes(self, task: Task) -> bool:
        """Add a task if it differs from the first only in its samples and facts; return whether it does."""
        first = self.first
        if not isinstance(task, TorchProblem) or type(task) is not type(first) or list(task.data) != list(first.data):
            return False
        if any(_form(samples) != _form(first.data[split]) for split, samples in task.data.items()):
            return False
        mine, other = _common(first), _common(task)
        if mine.keys() != other.keys() or any(_differ(value, other[name]) for name, value in mine.items()):
            return False
        self._add(task)
        return True

    def _add(self, task: TorchProblem) -> None:
        for split, samples in task.data.items():
            self.data[split].add(*samples)
        for name, column in self._facts.items():
            value = getattr(task, name)
            if name in TEXTS or (isinstance(value, dict) and not value):
                value = self._known.setdefault((name, repr(value)), value)
            column.append(value)
        self._count += 1

    def closed(self) -> TaskStack:
        """Return this object after the last task."""
        for data in self.data.values():
            data.closed()
        return self._ready()

    def _ready(self) -> TaskStack:
        for column in self._facts.values():
            if all(value is column[0] for value in column):
                del column[1:]
        self._known.clear()
        _ = self.first.layout, self.first.measures  # which all tasks share, with the template
        self.first = self._task(0)
        return self

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        places = range(self._count)[index]
        return self._task(places) if isinstance(places, int) else [self._task(k) for k in places]

    def _task(self, k: int) -> TorchProblem:
        task = copy(self.first)
        task.data = {split: self._samples(split, k) for split in self.data}
        for name in self._facts:
            setattr(task, name, self.fact(name, k))
        return task

    def _samples(self, split: Split, k: int) -> Samples:
        """Return the samples of a node: the same object for nodes that share them."""
        data = self.data[split]
        if not data.shared:
            return Samples(*data.samples(k))
        key = split, int(data.offsets[k])
        if key not in self._shared:
            self._shared[key] = Samples(*data.samples(k))
        return self._shared[key]

    def fact(self, name: str, k: int) -> Any:
        """Return one of the attributes OWN of a node."""
        column = self._facts[name]
        return column[0 if len(column) == 1 else k]


def _form(samples: Any) -> tuple[Any, ...] | None:
    """Return the types and the shapes of samples; None if they are not two tensors."""
    if not isinstance(samples, tuple) or len(samples) != 2 or not all(isinstance(part, Tensor) for part in samples):
        return None
    return tuple((part.dtype, part.shape[1:]) for part in samples)


def _common(task: TorchProblem) -> dict[str, Any]:
    """Return the attributes in which the tasks of a stack must be equal."""
    kind = type(task)
    return {
        name: value
        for name, value in vars(task).items()
        if name != "data" and name not in OWN and not isinstance(getattr(kind, name, None), cached_property)
    }


def _differ(one: Any, other: Any) -> bool:
    try:
        return one is not other and bool(one != other)
    except (ValueError, RuntimeError, TypeError):  # of arrays and tensors
        return True


def different(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return the tasks that may differ in more than samples and facts."""
    return tasks[:1] if isinstance(tasks, TaskStack) else tasks


def each(tasks: Sequence[Task], name: str) -> list[Any]:
    """Return one of the attributes OWN of every task."""
    if isinstance(tasks, TaskStack):
        return [tasks.fact(name, k) for k in range(len(tasks))]
    return [getattr(task, name) for task in tasks]


def samples_of(tasks: Sequence[Task]) -> Counts:
    """Return the number of training samples of every task, int64 [N]."""
    return tasks.data["train"].counts if isinstance(tasks, TaskStack) else np.array([task.n_samples for task in tasks])


def groups_of(tasks: Sequence[Task]) -> list[Any]:
    """Return the group of every task's node; see p2pfl.task.group_of."""
    if isinstance(tasks, TaskStack):
        pairs = zip(each(tasks, "public_info"), each(tasks, "group"), strict=True)
        return [info.get("group") if group is None else group for info, group in pairs]
    return [group_of(task) for task in tasks]
