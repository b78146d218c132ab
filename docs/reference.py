"""Fills in what the pages say of the code by looking at the code, so that it cannot be out of date.

A page has a line such as `<!-- commands p2pfl.sim.cli.main -->`. In its place the site has what the function of that name
below
returns, as Markdown. What the code does not explain is an error of the build. A paragraph that begins with "On the site"
tells those who read a page elsewhere what they miss; the site leaves it out.
"""

from __future__ import annotations

import argparse
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from math import inf
from pkgutil import resolve_name
from typing import Any, Literal

import msgspec
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.typing import stringify_annotation

PLACE = re.compile(r"^<!-- (\w+) ([\w.:-]+) -->$", re.M)
ELSEWHERE = re.compile(r"^On the site, .*?\n\n", re.M | re.S)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", types_first, priority=600)  # after napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put in the place of each mark what it stands for."""

    def filled(mark: re.Match[str]) -> str:
        if mark[1] not in MARKS:
            raise ExtensionError(f"{page}: there is no {mark[1]!r}; known: {', '.join(MARKS)}")
        return MARKS[mark[1]](mark[2])

    source[0] = PLACE.sub(filled, ELSEWHERE.sub("", source[0]))


def shorten(
    app: Sphinx, what: str, name: str, of: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, ...]:
    """Write aliases of types in signatures by their short names, as links. (Sphinx leaves some as it has parsed them.)

    A protocol has no signature: nobody makes one.
    """
    if getattr(of, "_is_protocol", False):
        return "", returns
    names = "|".join(map(re.escape, set(app.config.autodoc_type_aliases.values())))
    long = re.compile(rf"TypeAliasForwardRef\('({names})'\)|(?<![~\w.])({names})(?!\w)")
    return tuple(text and long.sub(r"~\1\2", text) for text in (signature, returns))


def types_first(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Have the type of an attribute stand beside its name. (Napoleon puts it below the text.)"""
    place = 0
    for k, line in enumerate(lines):
        if line.startswith(".. attribute::"):
            place = k + 1
        elif line.startswith("   :type:") and place:
            lines.insert(place, lines.pop(k))


def commands(module: str) -> str:
    """Every command of the parser that a module makes: what it does, and its arguments."""
    parser: argparse.ArgumentParser = import_module(module).parser()
    return "\n\n".join(_command(parser, "", parser.prog))


def _command(parser: argparse.ArgumentParser, help: str, prog: str) -> Iterator[str]:
    subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in subparsers:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, subparser in action.choices.items():
            yield from _command(subparser, helps[name], f"{prog} {name}")
    if not subparsers:
        yield f"### {prog}"
        yield _sentence(parser.description or help)
        yield _table(("argument", "meaning"), [_argument(action) for action in parser._actions if action.dest != "help"])


def _argument(action: argparse.Action) -> tuple[str, str]:
    names = [f"`{name}`" for name in action.option_strings]
    value = str(action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()))
    if not names:
        names = [f"`[{value}]`" if action.nargs == "?" else f"`{value}`"]
    elif action.nargs != 0:
        names[-1] = f"`{action.option_strings[-1]} {value}`"
    if not action.help:
        raise ExtensionError(f"{', '.join(names)} has no help")
    return ", ".join(names), re.sub(r"(?<!\w)--[\w-]+", r"`\g<0>`", _sentence(action.help % (vars(action))))


def keys(path: str) -> str:
    """The keys of a table of a TOML file: the fields of a msgspec.Struct, with those of the tables in it."""
    return _table(("key", "meaning"), list(_keys(resolve_name(path), "")))


def _keys(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    said = attributes(kind)
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _keys(field.type, f"{prefix}{field.name}.")
            continue
        if field.name not in said:
            raise ExtensionError(f"the docstring of {kind.__name__} does not say what {field.name} is")
        default = _toml(field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        about = _value(field.type) + (f"; default {default}" if default else "")
        yield f"`{prefix}{field.name}`", f"{_sentence(said[field.name])}<br>*{about}*"


def attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of their attributes."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = re.search(
            r"^Attributes:\n((?:[ ]{4}.*\n?|\n)+)", inspect.cleandoc(base.__dict__.get("__doc__") or ""), re.M
        )
        for names, text in re.findall(r"^ {4}([\w, ]+): ((?:.*\n?)(?: {5,}.*\n?)*)", section[1] if section else "", re.M):
            found |= dict.fromkeys(re.split(r", *", names), " ".join(text.split()))
    return found


WORDS = {int: "whole number", float: "number", str: "string", bool: "`true` or `false`", dict: "table", type(None): ""}


def _value(kind: Any) -> str:
    """The type of a key, in the words of TOML."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ", ".join(f'`"{part}"`' for part in parts)
    if origin in (typing.Union, types.UnionType):
        words = [_value(part) for part in parts if part is not type(None)]
        return " or ".join(dict.fromkeys(words))
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"[{', '.join(_value(part) for part in parts)}]"
    if origin in (list, tuple):
        return f"list of {_value(parts[0])}s"
    if origin in (dict, Mapping):
        return "table of tables" if typing.get_origin(parts[1]) is dict else "table"
    return "table" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else WORDS[kind]


def _toml(value: Any) -> str:
    match value:
        case msgspec.NODEFAULT | None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case float() if value == inf:
            return "`inf`"
        case dict():
            return f"`{{ {', '.join(f'{key} = {_toml(item)[1:-1]}' for key, item in value.items())} }}`" if value else ""
        case list() | tuple():
            return f"`{list(value)}`"
        case str():
            return f'`"{value}"`'
    return f"`{value}`"


def builtin(path: str) -> str:
    """Each entry of a table of names: its class or function, from the docstring."""
    parts: list[str] = []
    for factory, names in _factories(resolve_name(path)).items():
        directive = "autoclass" if inspect.isclass(resolve_name(factory)) else "autofunction"
        parts.append(f"### {', '.join(f'`{name}`' for name in names)}")
        parts.append(f"```{{eval-rst}}\n.. {directive}:: {factory.replace(':', '.')}\n```")
    return "\n\n".join(parts)


def _factories(table: Mapping[str, str | Callable[..., Any]]) -> dict[str, list[str]]:
    """The names of each entry, by "module:name"."""
    found: dict[str, list[str]] = {}
    for name, factory in table.items():
        found.setdefault(factory if isinstance(factory, str) else f"{factory.__module__}:{factory.__name__}", []).append(
            name
        )
    return found


def alias(path: str) -> str:
    """A name for a type, and the text that follows its definition."""
    module, name = path.split(":")
    said = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name), [])
    value = stringify_annotation(resolve_name(path), "smart").replace("~", "")
    lines = [f".. py:type:: {module}.{name}", f"   :canonical: {value}", "", *(f"   {line}" for line in said)]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def scenarios(module: str) -> str:
    """The scenarios that are shipped: what they are about, how large they are, and their forms."""
    from p2pfl.config import toml_reader
    from p2pfl.sim.scenario import scenario

    rows = []
    for name, path in scenario.shipped_scenarios().items():
        file = scenario.load(name)
        forms = ", ".join(f"`{form}`" for form in toml_reader.read(path).get("forms", {}))
        size = f"{len(file.runs)} runs of {file.runs[0].nodes} nodes, {file.runs[0].rounds} rounds"
        rows.append((f"`{name}`", f"{file.description}<br>*{size}; other forms: {forms}*"))
    return _table(("scenario", "about"), rows)


MARKS: Mapping[str, Callable[[str], str]] = {
    "commands": commands,
    "keys": keys,
    "builtin": builtin,
    "alias": alias,
    "scenarios": scenarios,
}


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
