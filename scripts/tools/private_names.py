"""Search for private names of other objects in strings, such as `setattr(module, "_name", ...)` and patch paths.

Ruff finds private names in attributes (SLF001) and imports (PLC2701), but not in strings. `python -m
scripts.tools.private_names` prints every hit of the tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.tools.findings import ROOT, Finding, find_files, report

CALLS = {"setattr", "getattr", "delattr", "hasattr", "attrgetter", "patch", "object"}  # the last: mock.patch.object
OWN = {"self", "cls"}
FOREIGN = {"_is_protocol"}  # of typing, which has a public name for it since Python 3.13

_PRIVATE = re.compile(r"(.*\.)?_[a-zA-Z]\w*")


def check_strings(path: str, text: str) -> Iterator[Finding]:
    """Find calls that access an attribute of another object through a string with a private name."""
    for element in ast.walk(ast.parse(text)):
        match element:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in CALLS:
                if args and isinstance(args[0], ast.Name) and args[0].id in OWN:
                    continue
                for arg in args[:2]:
                    match arg:
                        case ast.Constant(value=str(named)) if _PRIVATE.fullmatch(named) and named not in FOREIGN:
                            yield Finding(path, arg.lineno, f"{named!r} names something private: use the public interface")


def check_tree(root: Path) -> Iterator[Finding]:
    """Check every Python file below a root."""
    for name in find_files(root):
        if name.endswith(".py"):
            yield from check_strings(name, (root / name).read_text(encoding="utf-8"))


def main() -> int:
    """Check this tree and print the findings."""
    return report(check_tree(ROOT))


if __name__ == "__main__":
    sys.exit(main())
