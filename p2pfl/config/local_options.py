"""Options of tasks that are a node's own business: files of its machine, and its preference.

They are never agreed on with other nodes: a federation that names one of them is refused. Each node's owner writes them into
`node.toml`, outside of the tables [task] and [policy].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from p2pfl.errors import ConfigurationError

Kind = Literal["own", "name"]
"""`own`: never agreed on. `name`: a name of published data may be, the path of a file may not."""

LOCAL_OPTIONS: Mapping[str, Mapping[str, Kind]] = {
    "classification": {"data": "own"},
    "concept-shift": {},
    "deep-sea-treasure": {"preference": "own"},
    "digits": {},
    "fairness": {"data": "name", "root": "own", "preference": "own"},
    "images": {"data": "name", "root": "own", "initial": "own"},
    "morl": {"preference": "own"},
    "praffl": {"data": "name", "root": "own"},
    "teachers": {"preference": "own"},
}
"""By task. Of a task that is not listed, no option may look like a path, and `OTHERS` holds."""

OTHERS: Mapping[str, Kind] = {"data": "name", "root": "own", "preference": "own"}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_shared(where: str, task: str, options: Mapping[str, Any]) -> None:
    """Check that options of a task may be agreed on with other nodes.

    Args:
        where: the table, for the error, such as "task".
        task: its name; "" where the options are not of a task.

    Raises:
        ConfigurationError: one names a file of the own machine, or is private.
    """
    local = LOCAL_OPTIONS.get(task, OTHERS)
    for key, value in options.items():
        kind = local.get(key)
        if kind == "own":
            raise _refusal(f"{where}.{key}")
        if kind == "name" and not _is_name(value):
            raise _refusal(f"{where}.{key} = {value!r}")
        if task not in LOCAL_OPTIONS and any(_looks_like_path(text) for text in (key, *_texts(value))):
            raise _refusal(f"{where}.{key} = {value!r}")


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is a node's own business (a file of its machine, or its preference) and cannot be agreed on; each node's"
        " owner writes it into node.toml, above the tables"
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
