"""Change of one key of a node's node.toml that keeps the rest of the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import tomli_w

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import CONFIG
from p2pfl.system.atomic_files import reason, replace_file
from p2pfl.system.disk import PRIVATE


def set_text(folder: Path, key: str, value: str) -> None:
    """Set a key of node.toml that is above the tables, and has text as its value.

    Raises:
        ConfigurationError: the file cannot be read or written, or has a form in which this function cannot set the key.
    """
    path = folder / CONFIG
    line = tomli_w.dumps({key: value}).strip()
    instead = f"write {line} above the first table of {path}"
    try:
        before = path.read_text(encoding="utf-8")
        after = _with_line(before, key, line)
        if tomllib.loads(after) != tomllib.loads(before) | {key: value}:
            raise ConfigurationError(f"cannot find the line of {key}; {instead}")
        replace_file(path, [after.encode()], mode=PRIVATE)
    except OSError as error:
        raise ConfigurationError(f"cannot set {key}: {reason(error)}; {instead}") from error
    except ValueError as error:
        raise ConfigurationError(f"cannot set {key}; {instead}") from error


def _with_line(text: str, key: str, line: str) -> str:
    """Return a text with a line in place of the one that sets its key, or as its first line if none does."""
    lines = text.splitlines()
    top = next((number for number, each in enumerate(lines) if each.startswith("[")), len(lines))
    for number in range(top):
        if re.match(rf"{key}\s*=", lines[number]):
            _, mark, comment = lines[number].partition(" # ")
            lines[number] = f"{line}{mark}{comment}"
            break
    else:
        lines.insert(0, line)
    return "\n".join(lines) + "\n"
