"""The stable API: its page, and that everything written for users imports nothing else."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import p2pfl
import p2pfl.topologies
from tests.support.pages import DOCS, PAGES, blocks
from tests.support.readme import BLOCKS

ROOT = Path(__file__).parents[2]
MODULES = {
    "p2pfl.testing": {"run_in_memory", "InMemoryNode", "InMemoryCoordinator"},
    "p2pfl.topologies": {*p2pfl.topologies.__all__},
}
STABLE = {f"p2pfl.{name}" for name in p2pfl.__all__} | MODULES.keys()
STABLE |= {f"{module}.{name}" for module, names in MODULES.items() for name in names}
DUNDERS = {"p2pfl.__version__", "p2pfl.__file__"}


def imported(text: str) -> Iterator[str]:
    """Yield the dotted names of p2pfl that a text of Python imports, or reads from the package."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("p2pfl."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "p2pfl":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "p2pfl":
            yield f"p2pfl.{node.attr}"


def texts() -> Iterator[tuple[str, str]]:
    """Yield the Python that users read, each with its place."""
    yield from (("README.md", text) for kind, text in BLOCKS if kind == "python")
    yield from ((page, text) for page in PAGES for kind, text in blocks(page) if kind == "python")
    yield from ((path.name, path.read_text(encoding="utf-8")) for path in (ROOT / "examples").glob("*.py"))
    for path in (ROOT / "sim/cli/new_project").glob("*.py.txt"):
        yield path.name, path.read_text(encoding="utf-8").replace("$name", "project")
    notebook = json.loads((ROOT / "examples/notebook.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            lines = [line for line in "".join(cell["source"]).splitlines() if not line.startswith(("%", "!"))]
            yield "notebook.ipynb", "\n".join(lines)


def test_all_written_for_users_imports_stable_names_only():
    found = {(place, name) for place, text in texts() for name in imported(text)}
    assert len({place for place, _ in found}) > 8
    assert {(place, name) for place, name in found if name not in STABLE | DUNDERS} == set()


@pytest.mark.parametrize("text", ["from p2pfl.policies.random import Random", "import p2pfl.node", "p2pfl.task.Part(0, 1)"])
def test_a_private_name_is_found(text):
    assert not {*imported(text)} <= STABLE


def test_page_lists_exactly_the_stable_names():
    page = (DOCS / "reference/stable-api.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in page.splitlines() if line.startswith("|")]
    listed = [(subject, re.findall(r"`(\w+)`", names)) for subject, names in rows]
    own = [name for subject, names in listed if not subject.startswith("`p2pfl.") for name in names]
    assert sorted(own) == sorted(p2pfl.__all__)
    for module, names in MODULES.items():
        assert [{*found} for subject, found in listed if subject.startswith(f"`{module}`")] == [names]
