"""Configuration as TOML tables: changed from the command line, checked key by key, turned into typed values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from p2pfl.errors import ConfigurationError, unknown

T = TypeVar("T", bound=msgspec.Struct)


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigurationError: it cannot be read, or is broken; the text says in which line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse_change(change: str) -> tuple[str, Any]:
    """Read "policy.tau=10": a key and a TOML value, or a word without quotes."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"change {change!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text


def apply(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a key such as `policy.tau` in place. To name another policy drops the options of the one before."""
    first, _, rest = key.partition(".")
    if not rest:
        table[first] = value
        return
    inner = table.setdefault(first, {})
    if not isinstance(inner, dict):
        raise ConfigurationError(f"{first} is not a table, so there is no {key}")
    if rest == "name" and inner.get("name") != value:
        inner.clear()
    apply(inner, rest, value)


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `change`, table by table. A table that names another thing replaces the whole table."""
    result = deepcopy(dict(base))
    for key, value in change.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict) and value.get("name", old.get("name")) == old.get("name"):
            result[key] = merged(old, value)
        else:
            result[key] = deepcopy(value)
    return result


def typed(where: str, table: Mapping[str, Any], kind: type[T]) -> T:
    """Return a table as `kind`.

    Raises:
        ConfigurationError: an unknown key, with the nearest known one, or a value of another type.
    """
    _check_keys(where, table, kind)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def named(where: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a table such as `policy` into its name and its options."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ConfigurationError(f"{where}.name is missing")
    return name, {key: value for key, value in table.items() if key != "name"}


def _check_keys(where: str, table: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigurationError(f"{where}: {unknown('key', prefix + key, [prefix + name for name in fields])}")
        inner = fields[key]
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _check_keys(where, value, inner, f"{prefix}{key}.")


def changed(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a table with "key=value" changes applied."""
    result = deepcopy(dict(table))
    for change in changes:
        apply(result, *parse_change(change))
    return result
