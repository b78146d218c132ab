"""Built-in policies, tasks, topologies and codecs, and aliases of types."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import pairwise
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
    paragraphs,
)
from scripts.tools.reference.markdown import table
from scripts.tools.reference.objects import about

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
    yield markdown(text, without=("Args", "Attributes", "Raises", "Returns"))
    explained = attributes(factory) if isinstance(factory, type) else described(text, "Args")
    explained.setdefault("reported_stage", REPORTED_STAGE)
    options = [each for each in inspect.signature(factory).parameters.values() if each.name not in FILLED_IN]
    missing = [each.name for each in options if each.name not in explained]
    if missing:
        raise ValueError(f"the docstring of {path} does not explain {', '.join(missing)}")
    if options:
        types = {each.name: about(each) for each in options}
        rows = [
            (code(names), meaning(text, abouts(types[name] for name in names)))
            for text, names in grouped({name: explained[name] for name in types})
        ]
        yield table(("option", "meaning"), rows)
    yield f"Defined in `{path.replace(':', '.')}`."


def aliases(lines: str) -> str:
    """Return the definition and the explanation of each type alias; `lines` has one `module:name` per line."""
    return "\n\n".join(block for line in lines.split() for block in _alias(line))


def _alias(path: str) -> Iterator[str]:
    name, _, alias = path.partition(":")
    source = inspect.getsource(import_module(name))
    body = ast.parse(source).body
    for element, following in pairwise(body):
        if isinstance(element, ast.Assign) and [getattr(target, "id", "") for target in element.targets] == [alias]:
            yield f"#### `{name}.{alias}`"
            yield f"```text\n{ast.get_source_segment(source, element)}\n```"
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield paragraphs(inspect.cleandoc(str(following.value.value)).splitlines())
            return
    raise ValueError(f"{path} is no alias")
