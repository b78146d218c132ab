"""Format of numbers and lists in tables and sentences, in a terminal and in the HTML of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

STAGES = ("trained", "merged")  # whose figures a table shows, if a run reports the better of both
PARETO_OPTIMAL = "Pareto-optimal: no other row is at least as good in both metric and bytes, and better in one."
LIMITS = ("budget.models", "budget.held", "budget.bytes", "network.bandwidth")  # keys for which 0 means no limit
PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def number(value: float | None) -> str:
    """Format a number: three decimals if it is small, as many digits if it is large; "" if it is not a number."""
    if value is None or value != value:
        return ""
    if abs(value) < 2:
        return f"{value:.3f}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def difference(value: float | None) -> str:
    """Format a difference with its sign; a difference that rounds to zero has a plus."""
    if value is None or value != value:
        return ""
    return f"{round(value, 3) + 0.0:+.3f}" if abs(value) < 2 else f"{value:+,.2f}"


def of_paper(figure: str) -> str:
    """Return the heading of a paper's figures, such as "paper, hypervolume"; the mean is not named."""
    return "paper" if figure in ("", "mean") else f"paper, {figure.rpartition('.')[2]}"


def size(count: float | None) -> str:
    """Format a number of bytes with a decimal prefix, such as 1.5 MB."""
    if count is None:
        return ""
    prefix, factor = next((each for each in PREFIXES if abs(count) >= 0.9995 * each[1]), ("", 1.0))
    return f"{count / factor:.3g} {prefix}B" if factor > 1 else f"{count:.0f} B"


def count(things: int, noun: str) -> str:
    """Return a number with its noun, such as "1 seed" or "3 seeds"."""
    return f"{things:,} {noun}{'s' * (things != 1)}"


def setting(key: str, value: Any) -> str:
    """Format the value of a scenario's key; a limit of 0 is "none", and a table is its name with its options."""
    if key in LIMITS and value in (0, "0"):
        return "none"
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        options = (f"{option}={setting('', each)}" for option, each in value.items() if option != "name")
        return " ".join([value["name"], *options])
    return value if isinstance(value, str) else json.dumps(value, default=str)


def some(words: Iterable[str], most: int = 3) -> str:
    """List words; if there are more than `most`, end with the number of the others."""
    listed = list(words)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


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
