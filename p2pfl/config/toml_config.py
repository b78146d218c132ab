"""Configuration as TOML tables: changed from the command line, checked key by key, turned into typed values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from p2pfl.config import toml_reader
from p2pfl.errors import ConfigurationError, none_of, unknown

T = TypeVar("T", bound=msgspec.Struct)

EXAMPLES = {
    "task": '{ name = "digits" }',
    "policy": '{ name = "dac" }',
    "topology": '{ name = "ring" }',
    "network": "{ latency = 0.1 }",
    "compute": "{ seconds = 2.0 }",
    "budget": "{ models = 3 }",
    "codec": '{ name = "int8" }',
    "search": "{ iterations = 20 }",
}


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file; see p2pfl.config.toml_reader.read."""
    return toml_reader.read(path)


def parse_change(change: str) -> tuple[str, Any]:
    """Read "policy.tau=10": a key and a TOML value, or a word without quotes."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"change {change!r} is not of the form key=value")
    try:
        return key.strip(), toml_reader.parse(f"value = {text}".encode())["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text
    except ValueError as error:
        raise ConfigurationError(f"{key.strip()}: {error}") from error


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
        ConfigurationError: an unknown key or word, with the nearest known one, or a value of another type.
    """
    _check_keys(where, table, kind)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def named(where: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a table such as `policy` into its name and its options."""
    if "name" not in table:
        raise ConfigurationError(f"{where}.name is missing")
    name = table["name"]
    if not isinstance(name, str):
        raise ConfigurationError(f"{where}.name must be a string, got {name!r}")
    return name, {key: value for key, value in table.items() if key != "name"}


def _check_keys(where: str, table: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigurationError(f"{where}: {unknown('key', prefix + key, [prefix + name for name in fields])}")
        inner, name = _given(fields[key]), prefix + key
        if get_origin(inner) is Literal and value not in get_args(inner):
            raise ConfigurationError(f"{where}: {none_of(name, value, get_args(inner))}")
        if get_origin(inner) is tuple and _is_struct(get_args(inner)[0]) and not isinstance(value, Sequence):
            raise ConfigurationError(f"{where}: {name} must be a list of tables, each headed [[{name}]], got {value!r}")
        if not (_is_struct(inner) or get_origin(inner) is dict):
            continue
        if not isinstance(value, Mapping):
            example = f" such as {EXAMPLES[name]}" if name in EXAMPLES else ""
            raise ConfigurationError(f"{where}: {name} must be a table{example}, got {value!r}")
        if _is_struct(inner):
            _check_keys(where, value, inner, f"{name}.")


def _given(kind: Any) -> Any:
    """Return the type of a value that is set: for `Struct | None` the struct."""
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 and _is_struct(kinds[0]) and type(None) in get_args(kind) else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def changed(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a table with "key=value" changes applied."""
    result = deepcopy(dict(table))
    for change in changes:
        apply(result, *parse_change(change))
    return result
