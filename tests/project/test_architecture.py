"""Architecture: imports between packages, import cycles, docstrings of subpackages, and lengths of functions."""

import pytest

from scripts.tools.architecture import CHECKS, Limits, Rules, load_rules, run_check
from scripts.tools.source_tree import Import, SourceTree

RULES = load_rules()
PACKAGES = {"low": ("top.low", "low"), "high": ("top.high", "high")}
ALLOWED = {"low": [], "high": ["low"]}
DOCSTRING = '"""A package.\n\nIt holds a few modules.\n"""\n'


@pytest.fixture(scope="session")
def this_tree():
    """Return the tree of the product, whose modules are parsed once."""
    return SourceTree()


@pytest.fixture
def plant(tmp_path):
    """Return a function that makes a tree of two packages from files and their text."""

    def make(files):
        for name, text in {"low/__init__.py": DOCSTRING, "high/__init__.py": DOCSTRING, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return SourceTree(tmp_path, PACKAGES)

    return make


def found(check, tree, **rules):
    return [str(finding) for finding in run_check(check, tree, Rules(ALLOWED, **rules))]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS if RULES.enforced is None else RULES.enforced)
def test_this_tree_has_no_fault(check, this_tree):
    assert [str(finding) for finding in run_check(check, this_tree, RULES)] == []


def test_rules_name_known_checks():
    assert set(RULES.enforced or ()) | set(RULES.exceptions) <= set(CHECKS)
    assert set(RULES.packages) == set(SourceTree().packages)


@pytest.mark.parametrize(
    "statement",
    [
        "import top.high.a",
        "import high.a as b",
        "from top.high import a",
        "from top.high.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from top.high import a",
        "def later():\n    import top.high.a",
        "from importlib import import_module\nimport_module('top.high.a')",
    ],
)
def test_import_from_a_package_above_is_found(plant, statement):
    tree = plant({"high/a.py": "name = 1", "low/b.py": statement})
    line = len(statement.splitlines())
    assert found("arrows", tree) == [f"low/b.py:{line}: imports high/a.py: low may not import high"]


def test_import_from_a_package_below_is_no_fault(plant):
    tree = plant({"low/a.py": "name = 1", "high/b.py": "from top.low.a import name\nimport json"})
    assert [found(check, tree) for check in CHECKS] == [[]] * len(CHECKS)
    assert tree.imports == [Import("high/b.py", 1, "low/a.py")]


@pytest.mark.parametrize("statement", ["from . import a", "from .a import name", "from ..one.a import name"])
def test_relative_import_is_resolved(plant, statement):
    tree = plant({"low/one/__init__.py": DOCSTRING, "low/one/a.py": "name = 1", "low/one/b.py": statement})
    assert tree.imports == [Import("low/one/b.py", 1, "low/one/a.py")]


def test_import_of_a_name_of_a_package_resolves_to_its_init(plant):
    tree = plant({"low/a.py": "from top.high import name"})
    assert tree.imports == [Import("low/a.py", 1, "high/__init__.py")]


def test_files_behind_links_are_read_once(plant, tmp_path):
    tree = plant({"high/a.py": ""})
    (tmp_path / "low" / "high").symlink_to("../high")
    assert list(tree.modules) == ["high/__init__.py", "high/a.py", "low/__init__.py"]


def test_import_against_the_order_of_a_package_is_found(plant):
    order = {"high": ["cli", "core"]}
    parts = {"high/cli/__init__.py": DOCSTRING, "high/core/__init__.py": DOCSTRING}
    tree = plant({**parts, "high/cli/a.py": "", "high/core/b.py": "import high.cli.a"})
    assert found("arrows", tree, order=order) == ["high/core/b.py:1: imports high/cli/a.py: core may not import cli"]
    tree = plant({**parts, "high/cli/a.py": "import high.core.b", "high/core/b.py": ""})
    assert found("arrows", tree, order=order) == []
    assert found("order", tree, order=order) == []


def test_subpackage_without_a_place_in_the_order_is_found(plant):
    tree = plant({"high/cli/__init__.py": DOCSTRING})
    assert found("order", tree) == ["high/cli: subpackage without a place in the order of high"]


def test_circle_of_modules_is_found(plant):
    tree = plant({"low/a.py": "def f():\n    import low.b", "low/b.py": "import low.c", "low/c.py": "import low.a"})
    assert found("circles", tree) == ["low: circle of imports: a -> b -> c -> a (low/a.py:2, low/b.py:1, low/c.py:1)"]


def test_circle_of_subpackages_only_is_found(plant):
    files = {"low/x/a.py": "import low.y.a", "low/x/b.py": "", "low/y/a.py": "", "low/y/b.py": "import low.x.b"}
    assert found("circles", plant(files)) == ["low: circle of imports: x -> y -> x (low/x/a.py:1, low/y/b.py:1)"]


def test_circle_of_packages_is_found(plant):
    tree = plant({"low/a.py": "import high.a", "high/a.py": "", "high/b.py": "import low.a"})
    assert found("circles", tree) == [".: circle of imports: high -> low -> high (high/b.py:1, low/a.py:1)"]


def test_arrow_with_an_exception_is_ignored(plant):
    tree = plant({"low/__init__.py": DOCSTRING + "import high.a", "high/a.py": "import low.b", "low/b.py": ""})
    passed = {"arrows": {"low/__init__.py -> high/a.py": "a reason"}}
    assert found("arrows", tree, exceptions=passed) == found("circles", tree, exceptions=passed) == []
    assert len(found("arrows", tree)) == len(found("circles", tree)) == 1


def test_subpackage_without_a_docstring_is_found(plant):
    tree = plant({"low/a/__init__.py": "", "low/b/__init__.py": '"""Short."""', "low/c/module.py": ""})
    assert found("docstrings", tree) == [
        "low/a/__init__.py:1: docstring of 0 lines, at least 2 for a subpackage",
        "low/b/__init__.py:1: docstring of 1 lines, at least 2 for a subpackage",
        "low/c: no __init__.py",
    ]


def test_function_with_too_many_lines_is_found(plant):
    text = "class Small:\n    def long(self):\n        1\n        2\n\n\nasync def short():\n    1\n"
    tree = plant({"low/a.py": text})
    assert found("functions", tree, limits=Limits(function_lines=2)) == [
        "low/a.py:2: function Small.long has 3 lines, at most 2"
    ]
    assert found("functions", tree, limits=Limits(function_lines=3)) == []


@pytest.mark.parametrize("place", ["low/a.py:long", "low/a.py"])
def test_exception_is_ignored_only_while_needed(plant, place):
    tree = plant({"low/a.py": "def long():\n    1\n", "low/b.py": ""})
    passed = {"functions": {place: "a reason"}}
    assert found("functions", tree, limits=Limits(function_lines=1), exceptions=passed) == []
    assert found("functions", tree, exceptions=passed) == [f"low/a.py: needs no exception from functions: remove {place!r}"]
