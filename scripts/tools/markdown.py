"""Markdown as prose: its lines and sentences, without code and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\]]*\])")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_URL = re.compile(r"<?\bhttps?://[^\s>)]+>?")
_MATH = re.compile(r"\$\$?[^$]+\$\$?")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_NO_PROSE = re.compile(r"\s*(?:\||#|<|:::|\[[^\]]+\]:|\([\w-]+\)=$|(?:[-*_] ?){3,}$|={3,}$)")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|et al|Fig|Eq|Sec|No|[A-Z])\.(?=\s)")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_\]]*\s+(?=[\"'(*_\[]*(?:[A-Z0-9`]|p2pfl\b))")


def text_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of Markdown; code blocks, front matter and comments become empty strings."""
    fence, comment = "", False
    lines = text.splitlines()
    front = lines.index("---", 1) + 1 if lines[:1] == ["---"] and "---" in lines[1:] else 0
    for number, line in enumerate(lines, 1):
        opening = re.match(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}|~{3,})", line)
        if fence:
            shown = False
            if re.fullmatch(rf"\s*{fence[0]}{{{len(fence)},}}\s*", line):
                fence = ""
        elif opening:
            fence, shown = opening[1], False
        else:
            shown = number > front and not comment and not line.lstrip().startswith("<!--")
            comment = (comment or "<!--" in line) and "-->" not in line
        yield number, line if shown else ""


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of Markdown as `text_lines` does, but also without tables, headings and HTML.

    A line that is left out becomes an empty string: it ends a paragraph.
    """
    for number, line in text_lines(text):
        yield number, "" if _NO_PROSE.match(line) else line


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of the paragraphs and list items of Markdown, each with the first line of its paragraph."""
    start, paragraph = 0, ""
    for number, line in [*prose_lines(text), (0, "")]:
        item = _ITEM.match(line)
        if (item or not line.strip()) and paragraph:
            yield from ((start, sentence) for sentence in _split(paragraph))
            paragraph = ""
        if line.strip():
            start = start if paragraph else number
            paragraph = f"{paragraph} {line[item.end() :] if item else line.strip()}".strip()


def _split(paragraph: str) -> list[str]:
    plain = _URL.sub(
        "link", _LINK.sub(r"\1", _MATH.sub("formula", CODE.sub(lambda code: code[0].replace(" ", "_"), paragraph)))
    )
    return _SENTENCE_END.split(_ABBREVIATION.sub(r"\1", plain))


def count_columns(line: str) -> int:
    """Return the length of a line without the target of its longest link: a line cannot be broken in a target."""
    targets = [len(link[0]) - len(link[1]) for link in _LINK.finditer(line)]
    targets += [len(url[0]) for url in _URL.finditer(line)]
    return len(line) - max(targets, default=0)


def count_words(sentence: str) -> int:
    """Return the number of words with a letter or a digit; a code span or a formula counts as one."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())
