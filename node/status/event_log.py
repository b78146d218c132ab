"""Event log of a node: lines for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

from p2pfl.system.printable import printable

Format = Literal["text", "json"]


def printer(format: Format, name: str, stream: TextIO, now: Callable[[], float] = time.time) -> Callable[[str], None]:
    """Return a function that prints an event, at once and on one line.

    Args:
        format: "text" prints the event as it is; "json" prints {"time": ISO 8601 in UTC, "node": name, "event": text}.
        name: the node's.
        now: returns seconds since 1970.
    """

    def text(event: str) -> None:
        print(" ".join(_lines(event)), file=stream, flush=True)

    def as_json(event: str) -> None:
        at = datetime.fromtimestamp(now(), UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"time": at, "node": name, "event": "\n".join(_lines(event))}), file=stream, flush=True)

    return as_json if format == "json" else text


def _lines(event: str) -> list[str]:
    """Return the lines of an event, which may quote others, with nothing in them that a terminal obeys."""
    return [printable(line) for line in event.splitlines()]
