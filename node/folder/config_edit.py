"""Change of one key of a node's node.toml that keeps the rest of the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import CONFIG
from p2pfl.system.atomic_files import reason, replace_file
from p2pfl.system.disk import PRIVATE


def set_text(folder: Path, key: str, value: str, table: str = "") -> None:
    """Set a key of node.toml that has text as its value.

    Args:
        table: the table of the key; by default the key is above the tables.

    Raises:
        ConfigurationError: the file cannot be read or written, or has a form in which this function cannot set the key.
    """
    path = folder / CONFIG
    line = tomli_w.dumps({key: value}).strip()
    instead = f"write {line} {f'below [{table}]' if table else 'above the first table'} of {path}"
    try:
        before = path.read_text(encoding="utf-8")
        after = _with_line(before, key, line, table)
        if tomllib.loads(after) != _with_key(tomllib.loads(before), key, value, table):
            raise ConfigurationError(f"cannot find the line of {key}; {instead}")
        replace_file(path, [after.encode()], mode=PRIVATE)
    except OSError as error:
        raise ConfigurationError(f"cannot set {key}: {reason(error)}; {instead}") from error
    except ValueError as error:
        raise ConfigurationError(f"cannot set {key}; {instead}") from error


def _with_key(values: dict[str, Any], key: str, value: str, table: str) -> dict[str, Any]:
    if not table:
        return values | {key: value}
    return values | {table: values.get(table, {}) | {key: value}}


def _with_line(text: str, key: str, line: str, table: str) -> str:
    """Return a text with a line in place of the one that sets its key, or as the first line of its table if none does."""
    lines = text.splitlines()
    if table and f"[{table}]" not in (each.partition("#")[0].strip() for each in lines):
        lines += ["", f"[{table}]"]
    heads = [number for number, each in enumerate(lines) if each.startswith("[")]
    start = next(k for k in heads if lines[k].partition("#")[0].strip() == f"[{table}]") + 1 if table else 0
    end = next((number for number in heads if number >= start), len(lines))
    for number in range(start, end):
        if re.match(rf"{re.escape(key)}\s*=", lines[number]):
            _, mark, comment = lines[number].partition(" # ")
            lines[number] = f"{line}{mark}{comment}"
            break
    else:
        lines.insert(start, line)
    return "\n".join(lines) + "\n"
