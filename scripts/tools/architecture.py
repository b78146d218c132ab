"""Checks of the architecture: imports between packages, import cycles, docstrings of subpackages, and lengths of functions.

`architecture.toml` holds the rules as data. `python -m scripts.tools.architecture` prints every fault of the tree,
including checks that are not enforced yet.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import networkx as nx

from scripts.tools.findings import ROOT, Finding, report
from scripts.tools.source_tree import SourceTree

RULES = Path(__file__).with_name("architecture.toml")


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Largest sizes that need no exception.

    Attributes:
        function_lines: lines of one function, with its docstring
        docstring_lines: minimum lines of text in the docstring of a subpackage's `__init__`
    """

    function_lines: int = 60
    docstring_lines: int = 2


class Rules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Rules of one tree.

    Attributes:
        packages: for each package, the packages that it may import
        order: for each folder, its subpackages and modules from the top to the bottom; each imports only from lower
            ones
        limits: largest sizes
        exceptions: for each check, the places that it skips, each with the reason
        enforced: the checks for which the test of the whole tree fails; all if omitted
    """

    packages: Mapping[str, Sequence[str]]
    order: Mapping[str, Sequence[str]] = {}
    limits: Limits = Limits()
    exceptions: Mapping[str, Mapping[str, str]] = {}
    enforced: Sequence[str] | None = None


def load_rules(path: Path = RULES) -> Rules:
    """Read the rules of a tree from a TOML file."""
    return msgspec.toml.decode(path.read_bytes(), type=Rules, strict=True)


def check_arrows(tree: SourceTree, rules: Rules) -> Iterator[Finding]:
    """Find upward imports: of a package that is not allowed, or of a higher subpackage in the folder's order."""
    passed = rules.exceptions.get("arrows", {})
    for source, line, target in tree.imports:
        folder, upper, lower = _fork(source, target)
        if folder == ".":
            fault = lower not in rules.packages.get(upper, ())
        else:
            order = list(rules.order.get(folder, ()))
            fault = upper in order and lower in order and order.index(upper) > order.index(lower)
        if fault and f"{source} -> {target}" not in passed:
            yield Finding(source, line, f"imports {target}: {upper} may not import {lower}")


def check_order(tree: SourceTree, rules: Rules) -> Iterator[Finding]:
    """Find subpackages that are missing from the order of their folder."""
    for folder in tree.folders:
        parent, name = PurePosixPath(folder).parent.as_posix(), PurePosixPath(folder).name
        if parent == ".":
            if name not in rules.packages:
                yield Finding(folder, 0, "package without an entry in [packages]")
        elif name not in rules.order.get(parent, ()):
            yield Finding(folder, 0, f"subpackage without a place in the order of {parent}")


def check_circles(tree: SourceTree, rules: Rules) -> Iterator[Finding]:
    """Find import cycles among the children of one folder, modules and subpackages alike.

    A cycle of modules in several folders is also a cycle among the children of their common folder. This one rule
    therefore covers cycles of modules, of subpackages and of packages.
    """
    passed = rules.exceptions.get("arrows", {})
    folders: dict[str, nx.DiGraph[str]] = {}
    for source, line, target in tree.imports:
        if f"{source} -> {target}" not in passed:
            folder, upper, lower = _fork(source, target)
            graph = folders.setdefault(folder, nx.DiGraph())
            if not graph.has_edge(upper, lower):
                graph.add_edge(upper, lower, place=f"{source}:{line}")
    for folder, graph in sorted(folders.items()):
        for members in sorted(map(sorted, nx.strongly_connected_components(graph))):
            if len(members) > 1:
                edges = [edge[0] for edge in nx.find_cycle(graph.subgraph(members), members[0])]
                places = ", ".join(graph.edges[a, b]["place"] for a, b in zip(edges, [*edges[1:], edges[0]], strict=True))
                yield Finding(folder, 0, f"circle of imports: {' -> '.join([*edges, edges[0]])} ({places})")


def check_docstrings(tree: SourceTree, rules: Rules) -> Iterator[Finding]:
    """Find subpackages without an `__init__`, or without a description of about two lines in it."""
    limit = rules.limits.docstring_lines
    for folder in tree.folders:
        module = tree.modules.get(f"{folder}/__init__.py")
        text = (ast.get_docstring(module) or "") if module else ""
        lines = [line for line in text.splitlines() if line.strip()]
        if module is None:
            yield Finding(folder, 0, "no __init__.py")
        elif len(lines) < limit:
            yield Finding(f"{folder}/__init__.py", 1, f"docstring of {len(lines)} lines, at least {limit} for a subpackage")


def check_functions(tree: SourceTree, rules: Rules) -> Iterator[Finding]:
    """Find functions with too many lines."""
    limit = rules.limits.function_lines
    for file, name, element in _definitions(tree):
        if not isinstance(element, ast.ClassDef) and (lines := _length(element)) > limit:
            yield Finding(file, element.lineno, f"function {name} has {lines} lines, at most {limit}")


Check = Callable[[SourceTree, Rules], Iterator[Finding]]
CHECKS: Mapping[str, Check] = {
    "arrows": check_arrows,
    "order": check_order,
    "circles": check_circles,
    "docstrings": check_docstrings,
    "functions": check_functions,
}


def run_check(name: str, tree: SourceTree, rules: Rules) -> list[Finding]:
    """Run one check without its exceptions; an exception that nothing needs is also a finding.

    An exception names an import ("a.py -> b.py"), a file or a folder. For the check of functions it may also
    name a class or a function ("a.py:Name.method").
    """
    exceptions = rules.exceptions.get(name, {})
    unused, found = set(exceptions), []
    if name == "arrows":
        unused -= {f"{source} -> {target}" for source, _, target in tree.imports}
    for finding in CHECKS[name](tree, rules):
        matching = {finding.path, f"{finding.path}:{_subject(finding.text)}"} & set(exceptions)
        unused -= matching
        if not matching:
            found.append(finding)
    found += [Finding(place.partition(":")[0], 0, f"needs no exception from {name}: remove {place!r}") for place in unused]
    return sorted(found)


def _subject(text: str) -> str:
    """Return the name of the class or function in a finding."""
    kind, _, rest = text.partition(" ")
    return rest.partition(" ")[0] if kind in ("class", "function") else ""


def _fork(source: str, target: str) -> tuple[str, str, str]:
    """Return the deepest folder that holds both modules, and its two children that contain them."""
    ours, theirs = (PurePosixPath(name.removesuffix(".py")).parts for name in (source, target))
    depth = next(k for k in range(min(len(ours), len(theirs))) if ours[k] != theirs[k])
    return "/".join(ours[:depth]) or ".", ours[depth], theirs[depth]


def _definitions(tree: SourceTree) -> Iterator[tuple[str, str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each class and function with its file and its name inside that."""

    def walk(element: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(element):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    for file, module in tree.modules.items():
        for name, element in walk(module, ""):
            yield file, name, element


def _length(element: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (element.end_lineno or element.lineno) - element.lineno + 1


def main() -> int:
    """Print the findings of each check in this tree."""
    tree, rules = SourceTree(ROOT), load_rules()
    return report(finding for name in CHECKS for finding in run_check(name, tree, rules))


if __name__ == "__main__":
    sys.exit(main())
