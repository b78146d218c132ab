"""TOML reader for untrusted input: limits on the length of a text, on nesting, and on numbers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError

LONGEST = 2**26  # bytes of a file
DEEPEST = 64  # nested tables and lists; later processing is recursive
GREATEST = 2**63  # integers are below it, as in the TOML specification
_STRING_OR_COMMENT = re.compile(
    r"""
    \"\"\"(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?
  | '''(?:[^']++|'(?!''))*+(?:'{3,5})?
  | "(?:[^"\\\n]++|\\.)*+"?
  | '[^'\n]*+'?
  | \#[^\n]*+
    """,
    re.VERBOSE | re.DOTALL,
)
_KEY = re.compile(r"[^=,{}\[\]\n]+")  # a key or a value, in a text without strings and comments
_TOO_DEEP = f"tables and lists are nested more than {DEEPEST} deep"


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigurationError: the file cannot be read or parsed; the text contains the line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        return parse(content)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse(content: bytes) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: it is not TOML, is too long or too deeply nested, or has an integer of more than 64 bits.
    """
    if len(content) > LONGEST:
        raise ValueError(f"it has more than {LONGEST // 2**20} MiB")
    try:
        text = content.decode()
        # Checked first, because tomllib takes quadratic time and memory in the parts of a dotted key.
        if any(key.group().count(".") > DEEPEST for key in _KEY.finditer(_STRING_OR_COMMENT.sub("", text))):
            raise ValueError(_TOO_DEEP)
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level: list[Any] = [tables]
    for _ in range(DEEPEST + 1):
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
        for value in level:
            if isinstance(value, int) and not -GREATEST <= value < GREATEST:
                raise ValueError("it has an integer of more than 64 bits")
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return tables
    raise ValueError(_TOO_DEEP)
