"""Search for phrases that a reader must translate, in Markdown, in docstrings and in the strings of the product.

`banned_phrases.toml` lists the phrases and plain words for each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from scripts.tools.findings import TESTS, Finding
from scripts.tools.markdown import CODE, text_lines

PHRASES = Path(__file__).with_name("banned_phrases.toml")


class BannedPhrases(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Banned phrases by scope, each with plain words; see the comments of the list."""

    everywhere: Mapping[str, str] = {}
    documents: Mapping[str, str] = {}


class _Search(NamedTuple):
    """Pattern for all phrases of a scope, and the plain words for each."""

    pattern: re.Pattern[str]
    plain: Mapping[str, str]


def load_phrases(path: Path = PHRASES) -> BannedPhrases:
    """Read the list of banned phrases."""
    return msgspec.toml.decode(path.read_bytes(), type=BannedPhrases, strict=True)


@cache
def _searches() -> tuple[_Search, _Search]:
    """Return the search in Python and the search in Markdown."""
    listed = load_phrases()
    return _compile(listed.everywhere), _compile({**listed.everywhere, **listed.documents})


def _compile(phrases: Mapping[str, str]) -> _Search:
    longest = sorted(phrases, key=len, reverse=True)
    choices = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in longest)
    plain = {phrase.lower(): words for phrase, words in phrases.items()}
    return _Search(re.compile(rf"(?<!\w)(?:{choices or '(?!)'})(?!\w)", re.I), plain)


def check_document(path: str, text: str) -> Iterator[Finding]:
    """Find banned phrases in Markdown outside code, also in headings and tables."""
    plain = "\n".join(line for _, line in text_lines(text))
    spans = CODE.sub(lambda span: re.sub(r"[^\n]", "`", span[0]), plain)
    yield from _findings(_searches()[1], path, spans, 1)


def check_strings(path: str, text: str) -> Iterator[Finding]:
    """Find banned phrases in the docstrings of a module, and in its other strings unless it is a test."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    module = ast.parse(text)
    docstrings = {
        id(each.body[0].value)
        for each in ast.walk(module)
        if isinstance(each, documented) and each.body and isinstance(each.body[0], ast.Expr)
    }
    for each in ast.walk(module):
        match each:
            case ast.Constant(value=str(value)) if id(each) in docstrings or not path.startswith(f"{TESTS}/"):
                yield from _findings(_searches()[0], path, value, each.lineno)


def _findings(search: _Search, path: str, text: str, first: int) -> Iterator[Finding]:
    for match in search.pattern.finditer(text):
        phrase = " ".join(match[0].lower().split())
        line = first + text.count("\n", 0, match.start())
        yield Finding(path, line, f"banned phrase {phrase!r}: write {search.plain[phrase]!r} or similar")
