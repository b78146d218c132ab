"""TOML reader for untrusted input: limits on the length of a text, on nesting, and on numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError

LONGEST = 2**26  # bytes of a file
DEEPEST = 64  # nested tables and lists; later processing is recursive
GREATEST = 2**63  # integers are below it, as in the TOML specification


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
        tables = tomllib.loads(content.decode())
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


_TOO_DEEP = f"tables and lists are nested more than {DEEPEST} deep"
