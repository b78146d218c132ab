"""Exceptions of the project: one base, names that end in Error, and a docstring that shows the tree."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from p2pfl import errors

ROOT = Path(__file__).parent.parent
PACKAGES = ("p2pfl", "node", "protocols", "topologies", "sim")


def exceptions():
    """Yield the module and the name of each exception class that a module defines for others."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for element in ast.parse(path.read_text()).body:
            if isinstance(element, ast.ClassDef) and element.name.endswith("Error") and not element.name.startswith("_"):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts), element.name


@pytest.mark.parametrize(("module", "name"), list(exceptions()))
def test_exception_has_the_base_of_the_project(module, name):
    assert issubclass(getattr(import_module(module), name), errors.P2pflError)


def test_docstring_shows_the_tree_of_exceptions():
    def tree(kind, depth):
        yield depth, kind.__name__, "" if kind.__module__ == errors.__name__ else kind.__module__
        for child in kind.__subclasses__():
            yield from tree(child, depth + 1)

    for module, _ in exceptions():
        import_module(module)
    shown, path = set(), []
    for line in errors.__doc__.splitlines():
        if not line.startswith("    "):
            continue
        depth = 0 if "+" not in line else line.index("+") // 2 - 2
        name, *module = line.strip(" +").replace(" (a ValueError)", "").split()
        path = [*path[:depth], name]
        shown.add((depth, name, "".join(module), path[depth - 1] if depth else ""))
    found = {
        (depth, name, module, getattr(import_module(module or errors.__name__), name).__base__.__name__ if depth else "")
        for depth, name, module in tree(errors.P2pflError, 0)
    }
    assert shown == found
