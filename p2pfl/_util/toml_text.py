"""Text of TOML keys with comments, for files that people read and change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit


def options_text(options: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    """Return the lines of further keys of a table that has begun, each with the comment above it; tables are inline."""
    lines = []
    for key, value in options.items():
        lines += [f"# {comments[key]}"] if key in comments else []
        inline = tomlkit.item(value)
        if isinstance(value, Mapping):
            inline = tomlkit.inline_table()
            inline.update(value)
        lines += tomlkit.dumps({key: inline}).splitlines()
    return lines
