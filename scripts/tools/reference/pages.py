"""Pages of the reference, and their parts that are generated from the code.

A generated part is between `<!-- begin KIND WHAT -->` and `<!-- end KIND -->`. `KINDS` has a function for each kind,
which receives WHAT and returns Markdown. All other text of a page is written by hand and stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.tools import ROOT
from scripts.tools.reference.builtin import aliases, builtin
from scripts.tools.reference.commands import commands
from scripts.tools.reference.keys import keys
from scripts.tools.reference.objects import objects
from scripts.tools.reference.scenarios import scenarios

FOLDER = ROOT / "docs" / "reference"
PART = re.compile(r"^<!-- begin (\w+)\s+([^>]*?)\s*-->\n(?:.*?\n)??<!-- end \1 -->$", re.M | re.S)

KINDS: Mapping[str, Callable[[str], str]] = {
    "aliases": aliases,
    "builtin": builtin,
    "commands": commands,
    "keys": keys,
    "objects": objects,
    "scenarios": scenarios,
}


def find_pages() -> list[Path]:
    """Return the pages that have a generated part."""
    return [path for path in sorted(FOLDER.glob("*.md")) if "<!-- begin " in path.read_text(encoding="utf-8")]


def render(page: str, name: str = "page") -> str:
    """Return the text of a page with its generated parts updated.

    Raises:
        ValueError: a part has an unknown kind or no end, or the code does not document something in it.
    """

    def made(part: re.Match[str]) -> str:
        if part[1] not in KINDS:
            raise ValueError(f"{name}: unknown kind {part[1]!r}; known: {', '.join(KINDS)}")
        opening, _, _ = part[0].partition("-->")
        return f"{opening}-->\n\n{KINDS[part[1]](part[2])}\n\n<!-- end {part[1]} -->"

    found = len(PART.findall(page))
    if found != page.count("<!-- begin ") or found != page.count("<!-- end "):
        raise ValueError(f"{name}: a part has no beginning or no end")
    return PART.sub(made, page)
