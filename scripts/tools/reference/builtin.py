"""Built-in policies, tasks, topologies and codecs, with their options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from scripts.tools.reference.docstrings import (
    abouts,
    attributes,
    code,
    described,
    docstring_of,
    grouped,
    markdown,
    meaning,
)
from scripts.tools.reference.markdown import table, toml

_PATH = re.compile(r"(?<![\w\"'])(?:[a-z_]\w*\.)+(?=\w)")
_CHOICE = re.compile(r"Literal\[([^\]]*)\]")

FILLED_IN = ("part", "seed", "n")  # arguments that are not options
REPORTED_STAGE = "the model of a round that is reported and that early stopping compares."


def builtin(path: str) -> str:
    """Return the text and the options of each entry of a table; `path` is its `module:name`."""
    return "\n\n".join(block for factory, names in _factories(resolve_name(path)) for block in _entry(factory, names))


def _factories(entries: Mapping[str, str | Callable[..., Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each factory as "module:name", with its names."""
    found: dict[str, list[str]] = {}
    for name, factory in entries.items():
        path = factory if isinstance(factory, str) else f"{factory.__module__}:{factory.__name__}"
        found.setdefault(path, []).append(name)
    yield from found.items()


def _entry(path: str, names: list[str]) -> Iterator[str]:
    factory = resolve_name(path)
    if not (text := docstring_of(factory)):
        raise ValueError(f"{path} has no docstring")
    yield f"### {', '.join(f'`{name}`' for name in names)}"
    yield markdown(text)
    explained = attributes(factory) if isinstance(factory, type) else described(text, "Args")
    explained.setdefault("reported_stage", REPORTED_STAGE)
    options = [each for each in inspect.signature(factory).parameters.values() if each.name not in FILLED_IN]
    missing = [each.name for each in options if each.name not in explained]
    if missing:
        raise ValueError(f"the docstring of {path} does not explain {', '.join(missing)}")
    if options:
        types = {each.name: _about(each) for each in options}
        rows = [
            (code(names), meaning(text, abouts(types[name] for name in names)))
            for text, names in grouped({name: explained[name] for name in types})
        ]
        yield table(("option", "meaning"), rows)
    yield f"Defined in `{path.replace(':', '.')}`."


def _about(parameter: inspect.Parameter) -> str:
    """Return the type of an option, without the names of modules, and its default."""
    given = parameter.annotation
    kind = given.__name__ if isinstance(given, type) and not hasattr(given, "__args__") else str(given)
    kind = _CHOICE.sub(lambda choice: choice[1].replace("'", '"').replace(", ", " | "), _PATH.sub("", kind))
    if given is parameter.empty:
        kind = ""
    value = "" if parameter.default is parameter.empty or callable(parameter.default) else toml(parameter.default)
    return "; ".join(filter(None, [f"`{kind}`" if kind else "", f"default {value}" if value else ""]))
