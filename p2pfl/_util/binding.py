"""Bind TOML tables to typed structs and to the arguments of factories.

Both check key by key, suggest the nearest known key, and convert values with msgspec.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from p2pfl.errors import ConfigurationError, must_be, none_of, unknown

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
    "forms": "[forms.smoke]",
}
_MISMATCH = re.compile(r"Expected `(float \| array|(?:int \| )?\w+)(?: \| null)?`, got `(\w+)`(?: - at `\$\.?.+`)?")
_PATH = re.compile(r" - at `\$\.?(.+)`")
_STEP = re.compile(r"[^.\[\]]+|\[\.\.\.\]|\[\d+\]")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a number",
    "float | array": "a number or a pair [low, high]",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", tuple: "a pair [low, high]"}  # beside words
_MANY = {str: "strings", int: "whole numbers", float: "numbers"}
_PYTHON = {"int": int, "float": float, "str": str, "bool": bool, "array": list, "object": dict}


def bind(table: Mapping[str, Any], kind: type[T]) -> T:
    """Convert a table to the struct `kind`.

    Raises:
        ConfigurationError: an unknown key or word (the text names the nearest known one), or a value of the wrong type.
    """
    _check_tables(table, kind)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _in_words(str(error), table) from error


def split_name(where: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a table, for example `policy`, into its name and its options.

    Raises:
        ConfigurationError: the name is missing, or is not a string.
    """
    if "name" not in table:
        raise ConfigurationError(f"{where}.name is missing", f"{where}.name")
    name = table["name"]
    if not isinstance(name, str):
        raise must_be(f"{where}.name", "a string", name)
    return name, {key: value for key, value in table.items() if key != "name"}


def choose(where: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the entry of `known` that a table, for example { name = "iid" }, names, and the table's other keys.

    Raises:
        ConfigurationError: the name is missing or unknown.
    """
    name = table.get("name")
    if not isinstance(name, str):
        raise ConfigurationError(f'{where} must be a table with a name, such as {{ name = "{next(iter(known))}" }}')
    if name not in known:
        raise unknown(where, name, known)
    return known[name], {key: value for key, value in table.items() if key != "name"}


def build(what: str, factory: Callable[..., Any], options: Mapping[str, Any], **given: Any) -> Any:
    """Call `factory(**given, **options)` after checking the options against its signature.

    Options are converted to the types of the factory's annotations, so that errors name the key.

    Args:
        what: name of the table, for the error, for example "policy".
        given: arguments that the table must not set.

    Raises:
        ConfigurationError: an option is unknown, missing or of the wrong type, or the factory rejects it.
    """
    try:
        signature, hints = (_cached_description if isinstance(factory, Hashable) else _describe)(factory)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}", what) from error
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = [name for name in signature.parameters if name not in given]
    values = {}
    for key, value in options.items():
        if not open_ended:
            _check_key(f"{what}.", key, known)
        values[key] = convert(f"{what}.{key}", value, hints.get(key, Any))
    try:
        signature.bind(**given, **values)
    except TypeError as error:
        raise ConfigurationError(f"{what}: {error}", what) from error
    try:
        return factory(**given, **values)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}", what) from error


def takes(factory: Callable[..., Any], option: str, given: Sequence[str] = ()) -> bool:
    """Return whether `build` accepts an option for a factory, apart from the arguments `given`."""
    parameters = (_cached_description if isinstance(factory, Hashable) else _describe)(factory)[0].parameters
    return option not in given and (option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def option_names(factory: Callable[..., Any], given: Sequence[str] = ()) -> list[str]:
    """Return the names of the options that `build` accepts for a factory, apart from the arguments `given`."""
    parameters = (_cached_description if isinstance(factory, Hashable) else _describe)(factory)[0].parameters
    return [name for name, p in parameters.items() if name not in given and p.kind is not p.VAR_KEYWORD]


def _describe(factory: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return a factory's signature, and the types of its arguments. Raises ValueError if it has no signature."""
    return inspect.signature(factory), _hints(factory)


_cached_description = lru_cache(maxsize=64)(_describe)  # inspection is slow, and one factory can build 10,000 nodes


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a factory's arguments, as far as its annotations can be resolved."""
    for source in (factory, factory.__init__) if inspect.isclass(factory) else (factory,):
        try:
            hints = typing.get_type_hints(source)
        except (NameError, TypeError):  # a name that is only imported for type checkers; an object without annotations
            continue
        if hints:
            return hints
    return {}


def convert(where: str, value: Any, kind: Any) -> Any:
    """Convert `value` to the type `kind`.

    Raises:
        ConfigurationError: the value has the wrong type; the text begins with its key `where`.
    """
    _check_literal(where, value, kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        match = _MISMATCH.fullmatch(str(error))
        wanted = _TYPES.get(match[1]) if match and not _PATH.search(str(error)) else None
        text = f"is {value!r}: {error}" if wanted is None else f"must be {wanted}, got {value!r}"
        raise ConfigurationError(f"{where} {text}", where) from error
    except TypeError:  # msgspec does not support the type, for example a user's own class: the factory checks it
        return value


def _in_words(error: str, table: Mapping[str, Any]) -> ConfigurationError:
    """Return an error of msgspec as "KEY must be a whole number, got VALUE"; texts of other kinds unchanged."""
    path, match = _PATH.search(error), _MISMATCH.fullmatch(error)
    key = path[1].partition("[")[0] if path else ""
    if path is None or match is None or match[1] not in _TYPES:
        return ConfigurationError(error, *filter(None, [key]))
    named = list(_entries(_STEP.findall(path[1]), "", table))
    where, value = next((each for each in named if type(each[1]) is _PYTHON.get(match[2])), named[0])
    return ConfigurationError(f"{where} must be {_TYPES[match[1]]}, got {value!r}", key)


def _entries(path: Sequence[str], where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each value at a path of msgspec, in which "[...]" stands for any key of a table, with its dotted key."""
    if not path:
        yield where, value
        return
    first, rest = path[0], path[1:]
    if first == "[...]":
        for key, inner in value.items():
            yield from _entries(rest, f"{where}.{key}", inner)
    elif first.startswith("["):
        yield from _entries(rest, where + first, value[int(first[1:-1])])
    else:
        yield from _entries(rest, f"{where}.{first}" if where else first, value[first])


def _check_key(prefix: str, key: str, known: Iterable[str]) -> None:
    if key not in known:
        raise unknown("key", prefix + key, [prefix + name for name in known])


def _check_literal(where: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise none_of(where, value, get_args(kind))
    several = get_args(kind) if get_origin(kind) in (types.UnionType, typing.Union) else ()
    words = [word for one in several if get_origin(one) is Literal for word in get_args(one)]
    if words and isinstance(value, str) and str not in several and value not in words:
        others = [said for one in several if (said := _KINDS.get(get_origin(one) or one))]  # not None
        raise none_of(where, value, [*words, *others])


def _check_tables(table: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    """Check keys, words and nested tables. msgspec checks all other types, but suggests no keys."""
    fields = _field_types(kind)
    for key, value in table.items():
        _check_key(prefix, key, fields)
        inner, name = _unwrap_optional(fields[key]), prefix + key
        _check_literal(name, value, inner)
        of: Any = get_args(inner)[0] if get_origin(inner) is tuple and get_args(inner)[-1] is Ellipsis else None
        if _is_table(of):
            if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
                raise must_be(name, f"a list of tables, each headed [[{name}]]", value)
            for entry in value if _is_struct(of) else ():
                try:
                    bind(entry, of)
                except ConfigurationError as error:
                    raise ConfigurationError(f"{name}: {error}", name) from error
        elif of in _MANY and not isinstance(value, list | tuple):
            raise must_be(name, f"a list of {_MANY[of]}", value)
        elif _is_table(inner) and not isinstance(value, Mapping):
            raise must_be(name, f"a table such as {EXAMPLES[name]}" if name in EXAMPLES else "a table", value)
        elif _is_struct(inner):
            _check_tables(value, inner, f"{name}.")


@cache  # msgspec evaluates all annotations at each call
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a struct's fields, by their names in a file."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _unwrap_optional(kind: Any) -> Any:
    """Return the struct of `Struct | None`; other types unchanged."""
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 and _is_struct(kinds[0]) and type(None) in get_args(kind) else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_table(kind: Any) -> bool:
    return _is_struct(kind) or get_origin(kind) is dict
