"""Numbers written as text, by one strict grammar: digits, a decimal point, an exponent.

Python's `float` also takes underscores (1_0), digits of other scripts, "nan" and "inf". In data files these are codes,
markers of missing values, or mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

_MARKERS = frozenset(
    (
        *("", "?", ".", "-", "--", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "nat", "nil", "none"),
        *("null", "(null)", "missing", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "\\n"),
    )
)
"""Texts that programs write for a missing number, in lower case."""

_LOOKS = (
    (r"[+-]?[\d_]*\d(\.[\d_]+)?([eE][+-]?\d+)?", "an underscore in a number; remove it, unless the text is a code"),
    (r"[+-]?\d{1,3}(,\d{3})+\.\d+", "commas between thousands; write the number without them"),
    (r"[+-]?\d{1,3}(\.\d{3})*,\d+", "a decimal comma, or commas between thousands; write 1234.5"),
    (r"[+-]?\d{1,3}([,.' \u00a0\u202f\u2019]\d{3})+(\.\d*)?", "separators between thousands; write the number without them"),
    (r"[+-]?[\d.,]+\s*%", "a percent sign; write the number without it"),
    (r"[+-]?[$€£¥]\s*[\d.,]+|[\d.,]+\s*[$€£¥]", "a currency sign; write the number without it"),
    (r"[+-]?0[xX][0-9a-fA-F]+", "a hexadecimal number; write it with decimal digits"),
    (r"[+-]?(inf|infinity)", "infinite; write a finite number, or remove the line"),
    (r"[+-]?[\d.]+[dD][+-]?\d+", "an exponent with D, as Fortran writes it; write E"),
    (r"[+-]?\d*\.\d+[+-]\d+", "an exponent without E, as Fortran writes it; write E"),
    (r"[\u2212\u2013\u2014\ufe63\uff0d]\s*[\d.,]+([eE].*)?", "another sign than '-' for minus; write '-'"),
    (r"\(\s*[\d.,]+\s*\)", "a negative number in parentheses; write a minus sign"),
    (r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?", "a date; write a number, such as days since a fixed date"),
    (r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", "a time; write a number, such as seconds"),
    (r"true|false|yes|no", "a truth value; write 1 and 0"),
    (r"'.*'", "in single quotes; remove them, or write double quotes"),
)
_CODE = re.compile(r"0\d+|\d+[eE]\d+", re.ASCII)
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _LOOKS]
_NUMERIC = 12  # of the patterns, the first ones are numbers in another notation


def numbers(cells: Sequence[str]) -> list[float] | None:
    """Return the finite numbers that texts are; None if one of them is no number by the grammar.

    Spaces around a number are allowed.
    """
    text = "".join(cells)
    if not text.isascii() or "_" in text:
        return None
    try:
        found = list(map(float, cells))
    except ValueError:
        return None
    return found if isfinite(sum(found)) or all(map(isfinite, found)) else None


def number(text: str) -> float | None:
    """Return the finite number that a text is; None if it is none."""
    found = numbers((text,))
    return None if found is None else found[0]


def is_marker(text: str) -> bool:
    """Return whether a text is known as the marker of a missing number."""
    return text.strip().lower() in _MARKERS


def is_code(text: str) -> bool:
    """Return whether a number may be a code: it begins with a zero, as 02139, or has E between digits, as 32E013."""
    return _CODE.fullmatch(text) is not None


def is_other_notation(text: str) -> bool:
    """Return whether a text is a number in a notation that this grammar lacks, such as 1,5 or 12 %."""
    return any(pattern.fullmatch(text.strip()) for pattern, _ in _PATTERNS[:_NUMERIC])


def describe(text: str) -> str:
    """Return what a text that is no number seems to be, with the remedy; "" if that is unknown."""
    text = text.strip()
    if is_marker(text):
        return "a missing value; fill it in, or remove the line"
    if not text.isascii() and any(sign.isdecimal() and not sign.isascii() for sign in text):
        return "digits of another script; write 0 to 9"
    if text.isascii() and _float(text) is not None and "_" not in text:
        return "too large for float64"
    return next((meaning for pattern, meaning in _PATTERNS if pattern.fullmatch(text)), "")


def _float(text: str) -> float | None:
    try:
        return float(text) if text.strip("+-")[:1].isdigit() or text.strip("+-")[:1] == "." else None
    except ValueError:
        return None
