"""Exceptions of the project: one base, names that end in Error, and a docstring that shows the tree."""

import ast
import inspect
import pickle
from importlib import import_module
from pathlib import Path

import pytest

from p2pfl import errors

ROOT = Path(__file__).parents[2]
PACKAGES = ("p2pfl", "node", "protocols", "topologies", "sim")


def exceptions():
    """Yield the module and the name of each exception class that a module defines for others."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for element in ast.parse(path.read_text()).body:
            if isinstance(element, ast.ClassDef) and element.name.endswith("Error") and not element.name.startswith("_"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                yield ".".join(parts if parts[0] == "p2pfl" else ("p2pfl", *parts)), element.name


@pytest.mark.parametrize(("module", "name"), list(exceptions()))
def test_exception_derives_from_p2pfl_error(module, name):
    assert issubclass(getattr(import_module(module), name), errors.P2pflError)


def tree(kind, depth=0):
    """Yield the lines of a docstring that shows an exception and its subclasses that are for others."""
    module = "" if kind.__module__ == errors.__name__ else kind.__module__
    yield depth, kind.__name__, module
    for child in (one for one in kind.__subclasses__() if not one.__name__.startswith("_")):
        yield from tree(child, depth + 1)


@pytest.mark.slow
def test_docstring_shows_the_tree_of_exceptions():
    for module, _ in exceptions():
        import_module(module)
    lines = inspect.cleandoc(errors.__doc__).partition("P2pflError\n")[2].splitlines()
    margin = lines[0].index("+") - 2
    shown = [((line.index("+") - margin) // 2, *line.replace("(a ValueError)", "").split()[1:]) for line in lines]
    assert sorted(shown) == sorted(tuple(filter(None, line)) for line in list(tree(errors.P2pflError))[1:])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acc", "did you mean 'accuracy'?"),  # its beginning, though 'auc' has more letters in common
        ("x", "known: accuracy, auc, f1, f2"),
        ("aucc", "did you mean 'auc'?"),
    ],
)
def test_unknown_name_is_compared_with_known_ones(name, hint):
    assert str(errors.unknown("metric", name, ["auc", "accuracy", "f1", "f2"])) == f"unknown metric {name!r}; {hint}"


@pytest.mark.parametrize(
    ("keys", "changed", "source"),
    [
        ((), ["rounds"], "node.toml"),
        (("rounds",), [], "node.toml"),
        (("rounds",), ["rounds"], "command line"),
        (("task.lr",), ["task.samples"], "node.toml"),
        (("task.lr",), ["task"], "command line"),
        (("task",), ["task.lr"], "command line"),
        (("task",), ["tasks"], "node.toml"),
        (("deadline", "network.loss"), ["network.loss"], "command line"),
    ],
)
def test_error_names_source_of_its_keys(keys, changed, source):
    given = errors.about("patience"), errors.about(*keys)
    with pytest.raises(errors.ConfigurationError) as raised, errors.name_source("node.toml", changed), given[0], given[1]:
        raise errors.ConfigurationError("is wrong")
    assert str(raised.value) == f"{source}: is wrong"
    assert isinstance(raised.value, errors.CommandLineError) == (source == "command line")
    assert raised.value.keys == (keys or ("patience",))
    assert pickle.loads(pickle.dumps(raised.value)).keys == raised.value.keys
