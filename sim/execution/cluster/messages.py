"""Messages between the program and the workers of a cluster, as bytes: plain values, arrays, and objects of plain data.

An object is a struct of msgspec, a dataclass, a named tuple, or an error of this project. It is sent as the name of its
type and its fields. A reader finds the type among the modules that it has already imported; a message imports nothing
and calls nothing but the type.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from p2pfl.errors import ConfigurationError, P2pflError, RunError

# Tags of the values that msgpack cannot tell apart; each is a map with one key.
_TUPLE, _DICT, _ARRAY, _SCALAR, _OBJECT, _ERROR = "t", "d", "a", "n", "o", "e"
_PLAIN = (type(None), bool, int, float, str, bytes)


def encode(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        ConfigurationError: it has a part that is no plain data, such as a function.
    """
    return msgspec.msgpack.encode(_pack(value))


def decode(data: bytes) -> Any:
    """Return the value of `encode`. Arrays are writable copies.

    Raises:
        RunError: the bytes are damaged, or have a type that this process does not know.
    """
    try:
        return _unpack(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise RunError(f"a message from the cluster cannot be read: {type(error).__name__}: {error}") from error


def _pack(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_pack(part) for part in value]
    if kind is tuple:
        return {_TUPLE: [_pack(part) for part in value]}
    if isinstance(value, Mapping):
        return {_DICT: [[_pack(key), _pack(part)] for key, part in value.items()]}
    if kind is np.ndarray and not value.dtype.hasobject:
        return {_ARRAY: [value.dtype.str, list(value.shape), value.tobytes()]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {_SCALAR: [value.dtype.str, value.tobytes()]}
    if isinstance(value, Exception):
        return {_ERROR: _pack_error(value)}
    if (names := _field_names(kind)) is not None:
        return {_OBJECT: [kind.__module__, kind.__qualname__, [_pack(getattr(value, name)) for name in names]]}
    raise ConfigurationError(
        f"the engine ray cannot send {value!r} of type {kind.__qualname__} to other machines; put a task or a policy of your"
        " own into a module, and name it package.module:factory"
    )


def _unpack(data: Any) -> Any:
    if isinstance(data, list):
        return [_unpack(part) for part in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    match tag:
        case "t":
            return tuple(_unpack(part) for part in content)
        case "d":
            return {_unpack(key): _unpack(part) for key, part in content}
        case "a":
            dtype, shape, values = content
            return np.frombuffer(values, dtype).reshape(shape).copy()
        case "n":
            dtype, values = content
            return np.frombuffer(values, dtype)[0]
        case "e":
            return _unpack_error(*content)
        case "o":
            module, name, fields = content
            kind = _type_of(module, name)
            return kind(**dict(zip(_field_names(kind) or (), map(_unpack, fields), strict=True)))
    raise ValueError(f"unknown tag {tag!r}")


def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of a type's fields, in the order of its arguments; None for a type without fields."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, tuple):
        return getattr(kind, "__match_args__", None)
    return None


def _type_of(module: str, name: str) -> type:
    """Return a type of an imported module that consists of fields."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or _field_names(found) is None:
        raise ValueError(f"unknown type {module}.{name}")
    return found


def _pack_error(error: Exception) -> list[Any]:
    """Return an error as its type, its arguments, the name of its run, and its notes."""
    kind, notes = type(error), list(getattr(error, "__notes__", ()))
    run = error.run if isinstance(error, RunError) else ""
    if isinstance(error, P2pflError) and all(type(part) in _PLAIN for part in error.args):
        return [kind.__module__, kind.__qualname__, list(error.args), run, notes]
    if isinstance(error, RunError):
        return [RunError.__module__, RunError.__qualname__, [error.reason()], run, notes]
    return ["builtins", "RuntimeError", [f"{kind.__name__}: {error}"], run, notes]


def _unpack_error(module: str, name: str, args: list[Any], run: str, notes: list[str]) -> Exception:
    found: Any = getattr(sys.modules.get(module), name, None)
    known = isinstance(found, type) and issubclass(found, P2pflError)
    error: Exception = found(*args) if known else RuntimeError(*args)
    if isinstance(error, RunError):
        error.run = run
    for note in notes:
        error.add_note(note)
    return error
