"""JSON output that every reader accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


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
