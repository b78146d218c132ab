"""Code blocks of documentation pages, for tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts)
BLOCK = re.compile(r"^( *)```(\S*)(?: [^\n]*)?\n(.*?)^\1```$", re.M | re.S)


class Block(NamedTuple):
    """Code block: the text between two fences, and its language."""

    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    return [Block(found[2], found[3]) for found in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))]


def commands(page: str, folder: Path, others: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Write the files of a page and yield its commands, in the order of the page.

    Args:
        others: replacements of texts of the page, for example of ports.
    """
    for kind, text in blocks(page):
        if others:
            old = "|".join(map(re.escape, others))
            text = re.sub(rf"(?<!\w)({old})(?!\w)", lambda found: others[found[1]], text)
        if kind in ("python", "toml"):
            first, _, _ = text.partition("\n")
            (folder / first.removeprefix("# ")).write_text(text, encoding="utf-8")
        elif kind == "sh":
            yield text


def block(page: str, word: str) -> str:
    """Return the one block of commands of a page with this word in it."""
    (found,) = [text for kind, text in blocks(page) if kind == "sh" and word in text]
    return found


def line(page: str, word: str) -> str:
    """Return the one line of commands of a page with this word in it."""
    (found,) = [each for kind, text in blocks(page) if kind == "sh" for each in text.splitlines() if word in each]
    return found
