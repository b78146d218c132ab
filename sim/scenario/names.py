"""Names in a scenario: of the tasks, policies, topologies and codecs that its runs use.

A name comes in three forms, and `with_tables` makes one of them:

1. `policy = "random"` is short for the table `policy = { name = "random" }`; `named_changes` does the same for changes.
2. From Python, a function, a class or an object can take the place of a name. If the object can be imported, its place
   "package.module:factory" becomes the name; otherwise an `ObjectName` keeps the object.
3. A name "package.module:factory" in a file is code that runs, and scenario files are shared between people. By itself, a
   scenario therefore imports only modules in its own folder, and entry points that an installed distribution registers.
   Names that the user gives, on the command line or in a dict from Python, are trusted. `module_folders` decides this
   before anything is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any

from p2pfl._util.registry import ObjectName, find_module, locate, root_of
from p2pfl.errors import ConfigurationError, about
from p2pfl.policies import METHODS, POLICIES
from p2pfl.policy import Policy
from p2pfl.task import Part, Task
from p2pfl.task_specs import FACTORIES

KINDS = {"task": (FACTORIES, "p2pfl.tasks"), "policy": (POLICIES, "p2pfl.policies")}
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


def named_changes(changes: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
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


def given_names(changes: Iterable[tuple[str, Any]]) -> frozenset[str]:
    """Return the names of modules in changes such as ("policy.name", "mine:Heed")."""
    found = set()
    for key, value in changes:
        if key in KINDS and isinstance(value, dict):
            key, value = f"{key}.name", value.get("name")
        if key in {f"{kind}.name" for kind in KINDS} and isinstance(value, str) and ":" in value:
            found.add(value)
    return frozenset(found)


def module_folders(
    used: Iterable[tuple[str, str]], *, home: str, modules: str, given: frozenset[str], trust: bool
) -> tuple[str, ...]:
    """Return the folders to search, after all others, for the modules of a scenario's runs; () if none is needed.

    Nothing is imported.

    Args:
        used: the kind and name of each task and policy of its runs.
        home: the folder of its file.
        modules: the folder that its key `modules` names.
        given: names that the user has given, not the scenario.
        trust: import every module that the scenario names.

    Raises:
        ConfigurationError: a name is malformed, or its module is neither in the scenario's folder nor registered nor
            trusted.
    """
    own = sorted((kind, path) for kind, path in used if ":" in path and path not in KINDS[kind][0].values())
    if not own:
        return ()
    if not Path(modules).is_relative_to(home) and not trust:
        modules = home  # a user of someone else's results may have put them there
    folders = (modules, home, str(Path.cwd())) if trust or any(path in given for _, path in own) else (modules,)
    for kind, path in own:
        with about(f"{kind}.name"):
            locate(kind, path, *KINDS[kind])
        if trust or path in given or path in {point.value for point in entry_points(group=KINDS[kind][1])}:
            continue
        if not (places := find_module(modules, root_of(path))).used:
            remedy = (
                "if you trust its code, add --trust"
                if places.elsewhere
                else "put it there, or add --trust to import it from elsewhere"
            )
            elsewhere = f" but in {places.elsewhere}" if places.elsewhere else ""
            raise ConfigurationError(
                f"the {kind} {path!r} needs the module {root_of(path)}, which is not in the scenario's folder"
                f" {modules}{elsewhere}; {remedy} (in Python: trust=True)",
                f"{kind}.name",
            )
    return tuple(dict.fromkeys(folders))
