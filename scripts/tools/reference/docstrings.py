"""Docstrings in Google's style, as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from scripts.tools.reference.markdown import escape, sentence

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
WIDTH = 100  # columns of the pages

_HEAD = re.compile(rf"({'|'.join(SECTIONS)}):")
_ITEM = re.compile(r"([\w., ]+?): +(.*)", re.S)
_BULLET = re.compile(r"(?:[-*]|\d+\.) ")


class Part(NamedTuple):
    """Text of a docstring, or one of its sections; `section` is "" for text."""

    section: str
    lines: list[str]


def parts(docstring: str) -> list[Part]:
    """Return text and sections in order; the lines of a section have no indentation."""
    found = [Part("", [])]
    for line in inspect.cleandoc(docstring).splitlines():
        head = _HEAD.fullmatch(line)
        if head:
            found.append(Part(head[1], []))
        elif found[-1].section and line and not line.startswith(" "):
            found.append(Part("", [line]))
        else:
            found[-1].lines.append(line.removeprefix("    ") if found[-1].section else line)
    return [part for part in found if any(part.lines)]


def items(lines: list[str]) -> dict[str, str]:
    """Return the entries of a section, each `name: text` or `name, name: text`, by name."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(" ") and joined:
            joined[-1] += f" {line.strip()}"
        elif line:
            joined.append(line)
    found: dict[str, str] = {}
    for entry in joined:
        if not (match := _ITEM.fullmatch(entry)):
            raise ValueError(f"no entry of the form 'name: text': {entry}")
        found |= dict.fromkeys(re.split(r", *", match[1]), match[2])
    return found


def attributes(kind: type) -> dict[str, str]:
    """Return the explanations of attributes in the docstrings of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= described(base.__dict__.get("__doc__") or "", "Attributes")
    return found


def described(docstring: str, section: str) -> dict[str, str]:
    """Return the entries of one section of a docstring."""
    return {name: text for part in parts(docstring) if part.section == section for name, text in items(part.lines).items()}


def markdown(docstring: str) -> str:
    """Return the text of a docstring as Markdown, without its sections."""
    return "\n\n".join(paragraphs(part.lines) for part in parts(docstring) if not part.section)


def grouped(found: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each text with the names that share it."""
    names: dict[str, list[str]] = {}
    for name, text in found.items():
        names.setdefault(text, []).append(name)
    return list(names.items())


def code(names: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def abouts(types: Iterable[str]) -> str:
    """Return the different types and defaults of names that share a row."""
    each = list(types)
    kinds = {about.partition("; default ")[0] for about in each}
    defaults = [about.partition("; default ")[2] for about in each]
    if len(kinds) == 1 and len(set(defaults)) > 1 and all(defaults):
        return f"{kinds.pop()}; defaults {', '.join(defaults)}"
    return " / ".join(dict.fromkeys(filter(None, each)))


def meaning(text: str, about: str = "") -> str:
    """Return an explanation as a table cell, with the type and default below it."""
    return escape(sentence(text)) + (f"<br>*{about}*" if about else "")


def paragraphs(lines: list[str]) -> str:
    """Return the paragraphs, lists and code of a docstring, wrapped."""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.splitlines()
        if all(row.startswith("    ") for row in rows):
            code = textwrap.dedent(block)
            if blocks and blocks[-1].endswith("```"):
                blocks[-1] = f"{blocks[-1][:-4]}\n\n{code}\n```"
            else:
                blocks.append(f"```text\n{code}\n```")
        else:
            blocks.append("\n".join(_wrapped(rows)))
    return "\n\n".join(blocks)


def _wrapped(rows: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for row in [*rows, "- "]:
        if _BULLET.match(row) and paragraph:
            text = " ".join(paragraph)
            bullet = _BULLET.match(text)
            if not bullet and row != "- ":
                text += "\n"
            indent = " " * len(bullet[0]) if bullet else ""
            yield from textwrap.wrap(
                escape(text), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            paragraph = []
        paragraph.append(row.strip())


def docstring_of(thing: Any) -> str:
    """Return the docstring of an object itself, not of its bases; "" without one, or if the library generated it."""
    text = (thing.__dict__.get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)) or ""
    name = thing.__name__ if isinstance(thing, type) else ""
    return "" if name and text.startswith(f"{name}(") else str(text)
