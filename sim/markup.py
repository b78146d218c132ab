"""Conversion of text into HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names its rows."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(f"<tr>{_row(*row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'


def _row(name: str, *cells: str) -> str:
    return f'<th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(each)}</td>" for each in cells)


def paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)


def bullets(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences)
    return f"<ul>\n{items}</ul>\n" if sentences else ""


def terms(pairs: Mapping[str, str]) -> str:
    """Return a list of terms and their descriptions."""
    return "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs.items()) + "</dl>\n"
