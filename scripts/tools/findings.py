"""Findings of a check, and the search for the files to check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("p2pfl", "protocols", "topologies", "node", "sim", "benchmarks", "docs", "examples", "tools")
TESTS = "tests"
SKIPPED = {".git", ".venv", "_build", "__pycache__", "runs", "dist"}


class Finding(NamedTuple):
    """One fault in a file, whose path is relative to the root of the tree; line 0 means the whole file."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


def report(findings: Iterable[Finding]) -> int:
    """Print findings in the order of their places and return the exit status: 1 if there is one."""
    ordered = sorted(findings)
    for finding in ordered:
        print(finding)
    return 1 if ordered else 0


def find_files(root: Path) -> Iterator[str]:
    """Yield the files to check, relative to the root: Markdown everywhere, Python of the product and of the tests."""
    for top in sorted(root.iterdir()):
        if top.suffix == ".md" and top.is_file():
            yield top.name
        elif top.is_dir() and top.name not in SKIPPED and (not top.name.startswith(".") or top.name == ".github"):
            for path in sorted(top.rglob("*")):
                parts = path.relative_to(root).parts
                linked = any(root.joinpath(*parts[:k]).is_symlink() for k in range(1, len(parts)))
                python = path.suffix == ".py" and top.name in (*PRODUCT, TESTS)
                if (path.suffix == ".md" or python) and not linked and not SKIPPED.intersection(parts):
                    yield "/".join(parts)
