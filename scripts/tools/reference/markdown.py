"""Formatting of tables and sentences in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import msgspec

_CODE_SPAN = re.compile(r"(`+[^`]+`+)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning, unless it begins with a symbol such as "m,", and a full stop."""
    first = text[:1] if re.match(r"[b-z]\b", text) else text[:1].upper()
    return first + text[1:].rstrip(".") + "."


def escape(text: str) -> str:
    """Return a text with its angle brackets escaped outside code spans."""
    parts = _CODE_SPAN.split(text)
    return "".join(part if k % 2 else re.sub(r"<(?=[A-Za-z/!])", r"\\<", part) for k, part in enumerate(parts))


def toml(value: Any) -> str:
    """Return a default value as TOML code; "" for none."""
    match value:
        case msgspec.NODEFAULT | None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case float() if value == inf:
            return "`inf`"
        case dict():
            return f"`{{ {', '.join(f'{key} = {toml(item)[1:-1]}' for key, item in value.items())} }}`" if value else ""
        case list() | tuple():
            return f"`{list(value)}`"
        case str():
            return f'`"{value}"`'
    return f"`{value}`"
