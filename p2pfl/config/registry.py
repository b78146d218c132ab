"""Resolve a name in a configuration to an object: from a table, an entry point, or the user's `package.module:factory`.

Only names from the user's own configuration are resolved, never names that arrive from a peer.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from p2pfl.config.object_name import PREFIX, ObjectName
from p2pfl.errors import ConfigurationError, needs_extra, unknown

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_PATH = re.compile(f"{_DOTTED}:{_DOTTED}")


def locate(what: str, name: str, table: Mapping[str, str], group: str) -> str:
    """Return the "package.module:attribute" of the factory called `name`, without importing it.

    Args:
        what: the kind of object, for the error ("policy", "task").
        name: a key of `table`, an entry point of `group`, or "package.module:factory".
        table: built-in names, each with its "package.module:attribute".
        group: the entry point group in which other distributions register names.

    Raises:
        ConfigurationError: the name is unknown or malformed, or its module belongs to Python's standard library.
    """
    if name in table:
        return table[name]
    if name.startswith(PREFIX):
        raise ConfigurationError(
            f"{what} {name!r} was an object of a Python program; run that program again, or name a package.module:factory"
        )
    if ":" in name:
        module, _, attribute = name.partition(":")
        if module.endswith(".py"):
            raise ConfigurationError(f"{what} {name!r}: write {module.removesuffix('.py')}:{attribute}, without .py")
        if not _PATH.fullmatch(name):
            raise ConfigurationError(f"{what} {name!r} is not of the form package.module:factory")
        if (module := root_of(name)) in sys.stdlib_module_names:
            raise ConfigurationError(
                f"{what} {name!r}: {module} is a module of Python's standard library; rename your module"
            )
        return name
    others = {point.name: point.value for point in entry_points(group=group)}
    if name not in others:
        raise unknown(what, name, {*table, *others})
    return others[name]


def resolve(what: str, name: str, table: Mapping[str, str], group: str, methods: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the factory called `name` and check it without calling it. See `locate`.

    An ObjectName resolves to the object that it carries.

    Args:
        methods: required methods of a class. The result of a function can only be checked after its call.

    Raises:
        ConfigurationError: the name is unknown, its module cannot be imported, or the object is not valid: it belongs
            to Python's standard library, is neither a class nor a function, or lacks a method.
        MissingRequirementError: its module needs PyTorch, which is not installed.
    """
    factory = name.factory if isinstance(name, ObjectName) else _import(what, name, locate(what, name, table, group))
    if missing := _lacks(factory, methods):
        raise ConfigurationError(f"{what} {name!r} is not a valid {what}: it lacks {', '.join(missing)}")
    return factory


def _import(what: str, name: str, path: str) -> Callable[..., Any]:
    try:
        with needs_extra(f"{what} {name!r}"):
            factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{what} {name!r} cannot be imported: {error}{_remedy(path, error)}") from error
    defined = inspect.unwrap(factory)
    if not (inspect.isclass(defined) or inspect.isroutine(defined)):
        raise ConfigurationError(f"{what} {name!r} is neither a class nor a function")
    if (home := root_of(defined.__module__ or "")) in sys.stdlib_module_names:
        raise ConfigurationError(f"{what} {name!r} is not a valid {what}: it belongs to {home} in Python's standard library")
    return typing.cast(Callable[..., Any], factory)


def _remedy(path: str, error: Exception) -> str:
    """Return the end of an error about a "package.module:attribute" that cannot be imported; "" if nothing is known."""
    module, _, attribute = path.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name == root_of(path):
        return f"; its file {error.name}.py must be in the folder of the scenario or of the node"
    if isinstance(error, AttributeError) and module in sys.modules:
        names = [name for name, value in vars(sys.modules[module]).items() if callable(value)]
        if near := difflib.get_close_matches(attribute, names, n=1):
            return f"; did you mean {module}:{near[0]}?"
    return ""


def _lacks(factory: Callable[..., Any], methods: Sequence[str]) -> list[str]:
    """Return the methods that a class lacks, as far as it can be inspected; none for a function."""
    if not inspect.isclass(factory) or hasattr(factory, "__getattr__"):  # __getattr__ may provide missing methods
        return []
    return [method for method in methods if not callable(getattr(factory, method, None))]


def root_of(path: str) -> str:
    """Return the top-level module of a "package.module:attribute"."""
    return path.partition(":")[0].partition(".")[0]
