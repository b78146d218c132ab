"""Classes, functions, type aliases and modules of the API, as directives of Sphinx's autodoc."""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any


def objects(lines: str) -> str:
    """Return the directives that describe objects.

    Args:
        lines: one object per line, by its full name. After it, separated by a colon, come the names of members to
            describe, or `*` for all, or `+` for all including those of base classes.
    """
    directives = "\n\n".join(block for line in lines.splitlines() for block in _directives(*_split(line)))
    return f"```{{eval-rst}}\n{directives}\n```"


def _split(line: str) -> tuple[str, list[str]]:
    name, _, members = line.partition(":")
    return name.strip(), members.split()


def _directives(name: str, members: list[str]) -> Iterator[str]:
    thing = _resolve(name)
    if isinstance(thing, ModuleType):
        yield f".. automodule:: {name}"
        for member in members if members != ["*"] else _defined(thing):
            yield from _directives(f"{name}.{member}", ["*"] if isinstance(getattr(thing, member), type) else [])
        return
    kind = "class" if isinstance(thing, type) else "function" if isinstance(thing, FunctionType) else "data"
    if issubclass(thing, BaseException) if isinstance(thing, type) else False:
        kind = "exception"
    wanted = {"": "", "*": "\n   :members:", "+": "\n   :members:\n   :inherited-members:"}
    chosen = " ".join(members)
    yield f".. auto{kind}:: {name}" + wanted.get(chosen, f"\n   :members: {', '.join(members)}")


def _resolve(name: str) -> Any:
    """Return a module, or an object in one; an attribute takes precedence over a module of the same name."""
    package, _, last = name.rpartition(".")
    try:
        return getattr(resolve_name(package), last)
    except AttributeError:
        return resolve_name(name)


def _defined(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module defines, in order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, type | FunctionType) and value.__module__ == module.__name__
    ]
