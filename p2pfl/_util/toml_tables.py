"""TOML tables: a reader for untrusted input, the changes of `--set key=value`, merging, and text with comments.

The reader limits the length of a text, nesting, and numbers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from p2pfl._util.disk import SYSTEM
from p2pfl.errors import ConfigurationError

LONGEST = 2**26  # bytes of a file
DEEPEST = 64  # nested tables and lists; later processing is recursive
GREATEST = 2**63  # integers are below it, as in the TOML specification
_STRING_OR_COMMENT = re.compile(
    r"""
    \"\"\"(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?
  | '''(?:[^']++|'(?!''))*+(?:'{3,5})?
  | "(?:[^"\\\n]++|\\.)*+"?
  | '[^'\n]*+'?
  | \#[^\n]*+
    """,
    re.VERBOSE | re.DOTALL,
)
_KEY = re.compile(r"[^=,{}\[\]\n]+")  # a key or a value, in a text without strings and comments
_TOO_DEEP = f"tables and lists are nested more than {DEEPEST} deep"
_REMEDIES = {
    "Cannot mutate immutable namespace": "a table in braces ends with them: write the key inside",
    "Cannot declare": "the table is there already: write all of its keys in one place",
    "Cannot overwrite": "the key is there already: remove one of the two",
    "Invalid value": 'write a value after =, and a text in quotes, as in name = "dac"',
}
"""By the beginning of a message of `tomllib` that names no remedy, the remedy."""
KEPT = {"attack": ("share", "nodes")}
"""By table, the keys that are no options of what the table names."""


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigurationError: the file cannot be read or parsed; the text contains the line, and the remedy for frequent
            mistakes.
    """
    try:
        return parse(SYSTEM.read(path, LONGEST + 1))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        remedies = (f"; {remedy}" for beginning, remedy in _REMEDIES.items() if str(error).startswith(beginning))
        raise ConfigurationError(f"{path}: {error}{next(remedies, '')}") from error


def parse(content: bytes) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: it is not TOML, is too long or too deeply nested, or has an integer of more than 64 bits.
    """
    if len(content) > LONGEST:
        raise ValueError(f"it has more than {LONGEST // 2**20} MiB")
    try:
        text = content.decode()
        # Checked first, because tomllib takes quadratic time and memory in the parts of a dotted key.
        if any(key.group().count(".") > DEEPEST for key in _KEY.finditer(_STRING_OR_COMMENT.sub("", text))):
            raise ValueError(_TOO_DEEP)
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level: list[Any] = [tables]
    for _ in range(DEEPEST + 1):
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
        for value in level:
            if isinstance(value, int) and not -GREATEST <= value < GREATEST:
                raise ValueError("it has an integer of more than 64 bits")
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return tables
    raise ValueError(_TOO_DEEP)


def parse_change(change: str) -> tuple[str, Any]:
    """Parse "policy.tau=10": a key and a TOML value, or a word without quotes."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"change {change!r} is not of the form key=value", key.strip())
    try:
        return key.strip(), parse(f"value = {text}".encode())["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text
    except ValueError as error:
        raise ConfigurationError(f"{key.strip()}: {error}", key.strip()) from error


def apply_all(table: dict[str, Any], changes: Iterable[tuple[str, Any]]) -> None:
    """Set keys in place, in this order; see `apply`."""
    for key, value in changes:
        apply(table, key, value)


def apply(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a key, for example `policy.tau`, in place. A new `name` drops the options of the old one."""
    first, _, rest = key.partition(".")
    if not rest:
        table[first] = value
        return
    inner = table.setdefault(first, {})
    if not isinstance(inner, dict):
        raise ConfigurationError(f"{first} is not a table, so there is no {key}", first)
    if rest == "name" and inner.get("name") != value:
        kept = {option: inner[option] for option in KEPT.get(first, ()) if option in inner}
        inner.clear()
        inner.update(kept)
    apply(inner, rest, value)


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `change`, table by table. A table with a new `name` replaces the old one."""
    result = deepcopy(dict(base))
    for key, value in change.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict) and value.get("name", old.get("name")) == old.get("name"):
            result[key] = merge(old, value)
        else:
            result[key] = deepcopy(value)
    return result


def with_changes(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a table with "key=value" changes applied."""
    result = deepcopy(dict(table))
    apply_all(result, map(parse_change, changes))
    return result


def options_text(options: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    """Return the lines of further keys of a table that has begun, each with the comment above it; tables are inline."""
    import tomlkit

    lines = []
    for key, value in options.items():
        lines += [f"# {comments[key]}"] if key in comments else []
        inline = tomlkit.item(value)
        if isinstance(value, Mapping):
            inline = tomlkit.inline_table()
            inline.update(value)
        lines += tomlkit.dumps({key: inline}).splitlines()
    return lines
