"""Classes, functions and modules of the API: signatures, docstrings and members."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any

from scripts.tools.reference.docstrings import docstring_of, markdown
from scripts.tools.reference.markdown import toml

_PATH = re.compile(r"(?<![\w\"'])(?:[a-z_]\w*\.)+(?=\w)")
_CHOICE = re.compile(r"Literal\[([^\]]*)\]")
_LINE = 90  # characters of a signature on one line


def objects(lines: str) -> str:
    """Return the description of each object.

    Args:
        lines: one object per line, by its full name. After it, separated by a colon, come the names of members to
            describe, or `*` for all, or `+` for all including those of base classes.
    """
    return "\n\n".join(block for line in lines.splitlines() for block in _object(*_split(line)))


def _split(line: str) -> tuple[str, list[str]]:
    name, _, members = line.partition(":")
    return name.strip(), members.split()


def _object(name: str, members: list[str]) -> Iterator[str]:
    thing = _resolve(name)
    if isinstance(thing, ModuleType):
        yield f"#### Module `{name}`"
        yield markdown(thing.__doc__ or "")
        for member in members if members != ["*"] else _defined(thing):
            yield from _object(f"{name}.{member}", ["*"] if isinstance(getattr(thing, member), type) else [])
        return
    yield f"#### `{name}`"
    yield f"```text\n{signature(thing)}\n```"
    if not (text := docstring_of(thing)):
        raise ValueError(f"{name} has no docstring")
    yield markdown(text, types_of(thing))
    if isinstance(thing, type):
        for member, value in _members(thing, members):
            yield f"##### `{thing.__name__}.{member}`"
            yield f"```text\n{signature(value, member)}\n```"
            function = _function(value)
            yield markdown(function.__doc__ or "", types_of(function))


def _resolve(name: str) -> Any:
    """Return a module, or an object in one; an attribute takes precedence over a module of the same name."""
    package, _, last = name.rpartition(".")
    try:
        return getattr(resolve_name(package), last)
    except AttributeError:
        return resolve_name(name)


def _defined(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module defines and documents, in order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and isinstance(value, type | FunctionType)
        and value.__module__ == module.__name__
        and docstring_of(value)
    ]


def _members(kind: type, wanted: list[str]) -> Iterator[tuple[str, Any]]:
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith("p2pfl")] if wanted == ["+"] else [kind]
    found = {name: value for base in bases for name, value in vars(base).items()}
    for name in found if wanted in (["*"], ["+"]) else wanted:
        value = found[name]
        function = _function(value)
        if name.startswith("_") or not isinstance(function, FunctionType) or not function.__doc__:
            if wanted not in (["*"], ["+"]):
                raise ValueError(f"{kind.__name__}.{name} has no docstring")
            continue
        yield name, value


def _function(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, cached_property) else value


def signature(thing: Any, name: str = "") -> str:
    """Return the signature of a class, a function or a property."""
    function = _function(thing)
    name = name or thing.__name__
    if isinstance(thing, property | cached_property):
        return f"{name}: {annotation(function.__annotations__.get('return', ''))}"
    word = "async def " if inspect.iscoroutinefunction(function) else "def "
    if isinstance(thing, type):
        word = "class "
        if getattr(thing, "_is_protocol", False) or issubclass(thing, BaseException):
            return f"{word}{name}"
    given = inspect.signature(function)
    parameters = [
        parameter
        for k, parameter in enumerate(given.parameters.values())
        if not (k == 0 and parameter.name in ("self", "cls"))
    ]
    returns = annotation(given.return_annotation)
    end = f" -> {returns}" if returns and not isinstance(thing, type) else ""
    words = list(_parameters(parameters))
    line = f"{word}{name}({', '.join(words)}){end}"
    if len(line) <= _LINE:
        return line
    return f"{word}{name}(\n" + "".join(f"    {each},\n" for each in words) + f"){end}"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        keyword_only |= parameter.kind is parameter.VAR_POSITIONAL
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" * (parameter.kind is parameter.VAR_KEYWORD)
        kind = annotation(parameter.annotation)
        text = star + parameter.name + (f": {kind}" if kind else "")
        if parameter.default is not parameter.empty:
            text += f" = {default(parameter.default)}"
        yield text


def annotation(kind: Any) -> str:
    """Return a type as written in code, without module names."""
    if kind in (inspect.Parameter.empty, inspect.Signature.empty, ""):
        return ""
    if kind is None or kind is type(None):
        return "None"
    text = (
        kind
        if isinstance(kind, str)
        else kind.__name__
        if isinstance(kind, type) and not hasattr(kind, "__args__")
        else str(kind)
    )
    return _PATH.sub("", text)


def default(value: Any) -> str:
    """Return a default value as written in code."""
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return str(getattr(value, "__name__", type(value).__name__))
    if repr(value).endswith(">"):
        return "..."
    return repr(value)


def types_of(thing: Any) -> dict[str, str]:
    """Return types and defaults of arguments or fields by name, for tables."""
    if isinstance(thing, type) and (getattr(thing, "_is_protocol", False) or issubclass(thing, BaseException)):
        return {}
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return {}
    return {name: about(parameter) for name, parameter in parameters.items()}


def about(parameter: inspect.Parameter) -> str:
    """Return the type and the default of one parameter in Markdown."""
    kind = annotation(parameter.annotation)
    kind = _CHOICE.sub(lambda choice: choice[1].replace("'", '"').replace(", ", " | "), kind)
    value = "" if parameter.default is parameter.empty or callable(parameter.default) else toml(parameter.default)
    return "; ".join(filter(None, [f"`{kind}`" if kind else "", f"default {value}" if value else ""]))
