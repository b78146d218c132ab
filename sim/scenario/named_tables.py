"""Short forms of a scenario: a name or a Python object where a table with a `name` is expected.

`policy = "random"` stands for `policy = { name = "random" }`. From Python, a function, a class or an object can take
the place of a name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from p2pfl.config.object_name import ObjectName
from p2pfl.errors import ConfigurationError
from p2pfl.policies import METHODS
from p2pfl.policy import Policy
from p2pfl.task import Part, Task

NAMED = ("task", "policy", "topology", "codec")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass
class Copies:
    """Factory of copies of a policy, one for each node."""

    policy: Policy

    def __call__(self) -> Policy:
        return deepcopy(self.policy)


@dataclass
class TaskList:
    """Factory of given tasks, one for each node."""

    tasks: Sequence[Task]

    def __call__(self, part: Part, seed: int) -> Task:
        if part.count != len(self.tasks):
            raise ConfigurationError(f"task has {len(self.tasks)} objects for {part.count} nodes; give one for each node")
        return self.tasks[part.index]


def with_tables(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a scenario file without short forms. A list of tasks sets `nodes`, unless the layer does.

    Raises:
        ConfigurationError: an object is neither a factory, nor a policy, nor a list of tasks.
    """
    found = {key: _table(key, value) if key in NAMED else value for key, value in layer.items()}
    name = found.get("task", {}).get("name") if isinstance(found.get("task"), dict) else None
    if isinstance(name, ObjectName) and isinstance(name.factory, TaskList):
        found.setdefault("nodes", len(name.factory.tasks))
    if isinstance(runs := found.get("run"), list):
        found["run"] = [with_tables(run) if isinstance(run, Mapping) else run for run in runs]
    if isinstance(forms := found.get("forms"), Mapping):
        found["forms"] = {key: with_tables(form) if isinstance(form, Mapping) else form for key, form in forms.items()}
    return found


def named_changes(changes: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return changes without short forms: `policy=random` changes `policy.name`."""
    return [(f"{key}.name", value) if key in NAMED and isinstance(value, str) else (key, value) for key, value in changes]


def _table(key: str, value: Any) -> Any:
    """Return a table for a short form; other values unchanged."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        name = _name(key, value.get("name"))
        return value if name is None else {**value, "name": name}
    name = _name(key, value)
    return value if name is None else {"name": name}


def _name(key: str, value: Any) -> str | None:
    """Return the name of an object: its place in a module if it can be imported, otherwise an ObjectName.

    Returns:
        None for a value that is no object for this key.
    """
    if key not in ("task", "policy") or isinstance(value, str):
        return None
    if isinstance(value, type) or (callable(value) and not hasattr(value, "round")):
        return _path(value) or ObjectName(getattr(value, "__qualname__", type(value).__qualname__), value)
    if key == "policy" and all(hasattr(value, method) for method in METHODS):
        return ObjectName(type(value).__qualname__, Copies(value))
    if key == "task" and hasattr(value, "learner"):
        raise ConfigurationError("task is one object; give a list with a task for each node, or a function f(part, seed)")
    if key == "task" and isinstance(value, list | tuple) and value and all(hasattr(task, "learner") for task in value):
        return ObjectName(f"{len(value)} tasks", TaskList(value))
    return None


def _path(factory: Any) -> str | None:
    """Return "package.module:factory" if it leads to this object, also in another process."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if module in (None, "__main__") or module not in sys.modules or not _NAME.fullmatch(name):
        return None
    try:
        return f"{module}:{name}" if attrgetter(name)(sys.modules[module]) is factory else None
    except AttributeError:
        return None
