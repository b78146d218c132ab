"""Keys of a table of a TOML file: the fields of a msgspec.Struct, explained by its docstring."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, Literal

import msgspec

from scripts.tools.reference.docstrings import attributes
from scripts.tools.reference.markdown import escape, sentence, table, toml

_WORDS = {int: "whole number", float: "number", str: "string", bool: "`true` or `false`", dict: "table", type(None): ""}


def keys(path: str) -> str:
    """Return a table of the keys of the struct `module:name`, including those of its nested tables."""
    return table(("key", "meaning"), _keys(resolve_name(path), ""))


def _keys(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    explained = attributes(kind)
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _keys(field.type, f"{prefix}{field.name}.")
            continue
        if field.name not in explained:
            raise ValueError(f"the docstring of {kind.__name__} does not explain {field.name}")
        default = toml(field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        about = _value(field.type) + (f"; default {default}" if default else "")
        yield f"`{prefix}{field.encode_name}`", f"{escape(sentence(explained[field.name]))}<br>*{about}*"


def _value(kind: Any) -> str:
    """Return the type of a key in TOML's terms."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ", ".join(f'`"{part}"`' for part in parts)
    if {*parts} - {type(None)} == {int, float}:
        return _WORDS[float]
    if origin in (typing.Union, types.UnionType):
        words = [_value(part) for part in parts if part is not type(None)]
        return " or ".join(dict.fromkeys(words))
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"[{', '.join(_value(part) for part in parts)}]"
    if origin in (list, tuple):
        return f"list of {_value(parts[0])}s"
    if origin in (dict, Mapping):
        return "table of tables" if typing.get_origin(parts[1]) is dict else "table"
    return "table" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else _WORDS[kind]
