"""From a name in a configuration to an object: a table, an entry point, or the user's own `package.module:factory`.

Only names that the user wrote into a configuration of their own come here; nothing that arrives from a peer does.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Literal

import msgspec

from p2pfl.errors import ConfigurationError, none_of, unknown

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_PATH = re.compile(f"{_DOTTED}:{_DOTTED}")


def locate(what: str, name: str, table: Mapping[str, str], group: str) -> str:
    """Return the "package.module:attribute" of the factory called `name`; nothing is imported.

    Args:
        what: the kind of thing, for the error ("policy", "task").
        name: a key of `table`, an entry point of `group`, or "package.module:factory".
        table: names that come with p2pfl, each with its "package.module:attribute".
        group: the entry point group through which other distributions add names.

    Raises:
        ConfigurationError: the name is unknown, malformed, or of a module of Python's standard library.
    """
    if name in table:
        return table[name]
    if ":" in name:
        if not _PATH.fullmatch(name):
            raise ConfigurationError(f"{what} {name!r} is not of the form package.module:factory")
        if (module := root_of(name)) in sys.stdlib_module_names:
            raise ConfigurationError(
                f"{what} {name!r}: {module} is a module of Python's standard library; give a module of your own another name"
            )
        return name
    others = {point.name: point.value for point in entry_points(group=group)}
    if name not in others:
        raise unknown(what, name, {*table, *others})
    return others[name]


def resolve(what: str, name: str, table: Mapping[str, str], group: str, methods: Sequence[str] = ()) -> Callable[..., Any]:
    """Find the factory called `name`, and check it; it is not called. See `locate`.

    Args:
        methods: what a class must have; what a function returns can be checked only once it is called.

    Raises:
        ConfigurationError: the name is unknown, its module cannot be imported, or it stands for something else: something
            of Python's standard library, neither a class nor a function, or a class that lacks a method.
    """
    path = locate(what, name, table, group)
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{what} {name!r} cannot be imported: {error}") from error
    defined = inspect.unwrap(factory)
    if not (inspect.isclass(defined) or inspect.isroutine(defined)):
        raise ConfigurationError(f"{what} {name!r} is neither a class nor a function")
    if (home := root_of(defined.__module__ or "")) in sys.stdlib_module_names:
        raise ConfigurationError(f"{what} {name!r} is no {what}, but something of {home}, in Python's standard library")
    if missing := _lacks(factory, methods):
        raise ConfigurationError(f"{what} {name!r} is no {what}: it lacks {', '.join(missing)}")
    return typing.cast(Callable[..., Any], factory)


def _lacks(factory: Callable[..., Any], methods: Sequence[str]) -> list[str]:
    """Return the methods that a class lacks, as far as that can be seen; what a function makes cannot."""
    if not inspect.isclass(factory) or hasattr(factory, "__getattr__"):  # such a class may hand on what it lacks
        return []
    return [method for method in methods if not callable(getattr(factory, method, None))]


def root_of(path: str) -> str:
    """Return the top-level module of a "package.module:attribute"."""
    return path.partition(":")[0].partition(".")[0]


def named(where: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return what the `name` of a table such as { name = "iid" } stands for, and the table's other keys.

    Raises:
        ConfigurationError: there is no name, or none that is known.
    """
    name = table.get("name")
    if not isinstance(name, str):
        raise ConfigurationError(f'{where} must be a table with a name, such as {{ name = "{next(iter(known))}" }}')
    if name not in known:
        raise unknown(where, name, known)
    return known[name], {key: value for key, value in table.items() if key != "name"}


def build(what: str, factory: Callable[..., Any], options: Mapping[str, Any], **given: Any) -> Any:
    """Call `factory(**given, **options)` after checking the options against its signature.

    Options are converted to the types that the factory's annotations name, so "wrong type" is said with the key.

    Raises:
        ConfigurationError: an unknown, missing or ill-typed option, or one that the factory itself refuses.
    """
    try:
        signature, hints = (_known if isinstance(factory, Hashable) else _described)(factory)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = [name for name in signature.parameters if name not in given]
    values = {}
    for key, value in options.items():
        if key not in known and not open_ended:
            raise unknown("key", f"{what}.{key}", [f"{what}.{name}" for name in known])
        values[key] = convert(f"{what}.{key}", value, hints.get(key, Any))
    try:
        signature.bind(**given, **values)
    except TypeError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    try:
        return factory(**given, **values)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from error


def takes(factory: Callable[..., Any], option: str, given: Sequence[str] = ()) -> bool:
    """Return whether `build` would take an option for a factory, beside the arguments that it is given anyway."""
    parameters = (_known if isinstance(factory, Hashable) else _described)(factory)[0].parameters
    return option not in given and (option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def _described(factory: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return a factory's signature, and the types of its arguments. Raises ValueError if there is none to be had."""
    return inspect.signature(factory), _hints(factory)


_known = lru_cache(maxsize=64)(_described)  # ten thousand nodes are made by one factory, and to look at it takes longer


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a factory's arguments, as far as its annotations can be resolved."""
    for source in (factory, factory.__init__) if inspect.isclass(factory) else (factory,):
        try:
            hints = typing.get_type_hints(source)
        except NameError:  # a name that is imported for type checkers only
            continue
        if hints:
            return hints
    return {}


def convert(where: str, value: Any, kind: Any) -> Any:
    """Return `value` as `kind`, or say at which key it is of another one."""
    if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
        raise none_of(where, value, typing.get_args(kind))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where} is {value!r}: {error}") from error
    except TypeError:  # a type that msgspec does not know, such as a user's own class: the factory will judge
        return value
