"""Changes to TOML tables: those of `--set key=value`, and merging of two tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from p2pfl._util import toml_reader
from p2pfl.errors import ConfigurationError

KEPT = {"attack": ("share", "nodes")}
"""By table, the keys that are no options of what the table names."""


def parse_change(change: str) -> tuple[str, Any]:
    """Parse "policy.tau=10": a key and a TOML value, or a word without quotes."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"change {change!r} is not of the form key=value", key.strip())
    try:
        return key.strip(), toml_reader.parse(f"value = {text}".encode())["value"]
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
