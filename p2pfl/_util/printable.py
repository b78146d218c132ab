"""Text for terminals, logs and pages from untrusted text; plurals and sizes; JSON that every reader accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def printable(text: str) -> str:
    """Return a text with "?" for each character that a terminal would interpret instead of display.

    These are control characters, line and paragraph separators, direction marks, other invisible characters, and
    characters that are not assigned in Unicode.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def key_name(key: bytes) -> str:
    """Return the first hexadecimal digits of a key, short enough for messages."""
    return key.hex()[:16]


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 model" or "2 models"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def byte_size(count: float) -> str:
    """Return a number of bytes in the largest unit that fits, such as "900 B" or "19.9 kB"; a kB is 1,000 bytes."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON. Numbers that are not finite become null, because JSON has no text for them."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
