"""Facts on the built-in tasks that others need before they import one: one line of a table for each task.

A new task is its module and a line of `TASKS`. A task of a user's own has no line: `OTHERS` says which of its options are
local, the options that it takes from the data are those of its object (`p2pfl.task.Task.derived_options`), and an attribute
of its factory names the files that it reads (see p2pfl.content).

Some options of a task are local to a node: files of its machine, and its preference. They are never shared with other
nodes: a federation that contains one of them is rejected. Each node's owner writes them into `node.toml`, outside of the
tables [task] and [policy].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from p2pfl.errors import ConfigurationError

Kind = Literal["own", "name"]
"""Kind of a local option. `own`: never shared. `name`: the name of a published data set may be shared, a path may not."""


@dataclass(frozen=True)
class TaskSpec:
    """One built-in task.

    Attributes:
        factory: its function, as "package.module:name".
        local: its local options.
        derived: options that it takes from the node's data if they are not set; a federation sets them for all.
        listed: options that say what is in the node's data, or which figures are shown. `p2pfl-node init --data` writes
            them; those of the federation replace them, and the data is checked with these.
        inputs: the function from its options to the paths that it reads, as "package.module:name"; "" if it reads none.
        libraries: distributions besides NumPy and torch whose version can change its figures.
    """

    factory: str
    local: Mapping[str, Kind] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    inputs: str = ""
    libraries: tuple[str, ...] = ()


TABLES = "p2pfl.tasks.fairness:inputs"
MORL = "gymnasium", "mo-gymnasium", "stable-baselines3"

TASKS: Mapping[str, TaskSpec] = {
    "classification": TaskSpec(
        "p2pfl.tasks.table:table",
        {"data": "own"},
        ("classes", "features", "columns"),
        ("labels", "categories", "channels", "ignore", "metrics", "missing"),
        "p2pfl.tasks.table:inputs",
    ),
    "concept-shift": TaskSpec("p2pfl.tasks.concept_shift:concept_shift"),
    "deep-sea-treasure": TaskSpec("p2pfl.tasks.deep_sea_treasure:deep_sea_treasure", {"preference": "own"}),
    "digits": TaskSpec("p2pfl.tasks.digits:digits", inputs="p2pfl.tasks.digits:inputs"),
    "fairness": TaskSpec(
        "p2pfl.tasks.fairness:fairness", {"data": "name", "root": "own", "preference": "own"}, inputs=TABLES
    ),
    "images": TaskSpec(
        "p2pfl.tasks.images:images", {"data": "name", "root": "own", "initial": "own"}, inputs="p2pfl.tasks.images:inputs"
    ),
    "morl": TaskSpec("p2pfl.tasks.morl:morl", {"preference": "own"}, libraries=MORL),
    "praffl": TaskSpec("p2pfl.tasks.praffl:praffl", {"data": "name", "root": "own"}, inputs=TABLES),
    "regression": TaskSpec(
        "p2pfl.tasks.table:regression",
        {"data": "own"},
        ("centre", "scale", "features", "columns"),
        ("categories", "ignore", "metrics", "missing"),
        "p2pfl.tasks.table:inputs",
    ),
    "teachers": TaskSpec("p2pfl.tasks.teachers:teachers", {"preference": "own"}),
}

FACTORIES = {name: spec.factory for name, spec in TASKS.items()}
OTHERS: Mapping[str, Kind] = {"data": "name", "root": "own", "preference": "own"}
"""Local options of tasks without a line in the table. No other option of such a task may look like a path."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_shared(where: str, task: str, options: Mapping[str, Any]) -> None:
    """Check that options of a task may be shared with other nodes.

    Args:
        where: the table, for the error, for example "task".
        task: its name; "" if the options do not belong to a task.

    Raises:
        ConfigurationError: an option names a file of this machine, or is private.
    """
    local = TASKS[task].local if task in TASKS else OTHERS
    for key, value in options.items():
        kind = local.get(key)
        if kind == "own":
            raise _refusal(f"{where}.{key}")
        if kind == "name" and not _is_name(value):
            raise _refusal(f"{where}.{key} = {value!r}")
        if task not in TASKS and any(_looks_like_path(text) for text in (key, *_texts(value))):
            raise _refusal(f"{where}.{key} = {value!r}")


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} cannot be shared, because each node has its own (a file of its machine, or its preference); set it in each"
        " node's node.toml, above the tables"
    )


def _is_name(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, str) and (not each or _NAME.fullmatch(each)) for each in values)


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or "\0" in text or text.startswith(("~", "..")) or text[1:2] == ":"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (str(key), *_texts(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
