"""Task options that are private to a node: files of its machine, and its preference.

They are never shared with other nodes: a federation that contains one of them is rejected. Each node's owner writes
them into `node.toml`, outside of the tables [task] and [policy].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from p2pfl.errors import ConfigurationError

Kind = Literal["own", "name"]
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
OTHERS: Mapping[str, Kind] = {"data": "name", "root": "own", "preference": "own"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


"""`own`: never shared. `name`: the name of a published data set may be shared, the path of a file may not."""


"""By task. For unlisted tasks, no option may look like a path, and `OTHERS` applies."""


def check_shared(where: str, task: str, options: Mapping[str, Any]) -> None:
    """Check that options of a task may be shared with other nodes.

    Args:
        where: the table, for the error, for example "task".
        task: its name; "" if the options do not belong to a task.

    Raises:
        ConfigurationError: an option names a file of this machine, or is private.
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
