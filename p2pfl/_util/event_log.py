"""Event log: log records with a message for people and fields for machines, printed as text or as JSON.

Objects receive an `EventLogger`. A command prints the events of one logger with `print_events`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, tzinfo
from math import isfinite
from typing import Any, Literal, TextIO

from p2pfl._util.printable import printable

Format = Literal["text", "json"]
_OPTIONS = ("exc_info", "stack_info", "stacklevel")  # keywords of a logger's methods that are not fields


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs messages with fields: `log.warning(f"without {name}", peer=name)` has a field `peer`.

    The fields are the attribute `fields` of the log record. Their values are strings, numbers, or None.

    Args:
        fields: fields of every event.
    """

    def __init__(self, logger: logging.Logger, fields: Mapping[str, object] | None = None) -> None:
        super().__init__(logger, dict(fields or {}))

    def bind(self, **fields: object) -> EventLogger:
        """Return a logger that adds fields to every event."""
        return EventLogger(self.logger, {**(self.extra or {}), **fields})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Collect the keywords that are fields in one attribute of the record."""
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        return msg, {**options, "extra": {"fields": {**(self.extra or {}), **kwargs}}}


def package_logger(name: str) -> EventLogger:
    """Return the logger of a package. It prints nothing unless the program configures logging."""
    logger = logging.getLogger(name)
    logger.addHandler(logging.NullHandler())
    return EventLogger(logger)


class TextFormatter(logging.Formatter):
    """Writes an event as one line with its time, its level and its message.

    Args:
        now: returns seconds since 1970; by default the time of the record is used.
        zone: time zone of the times; by default that of this machine.
    """

    def __init__(self, now: Callable[[], float] | None = None, zone: tzinfo | None = None) -> None:
        super().__init__()
        self._now = now
        self._zone = zone

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created if self._now is None else self._now(), self._zone)
        return f"{at:%Y-%m-%d %H:%M:%S} {record.levelname.lower():<7} {' '.join(_lines(record))}"


class JsonFormatter(logging.Formatter):
    """Writes an event as one JSON object on one line.

    The object contains `time` (ISO 8601 in UTC), `level`, `node`, `kind`, `event`, and the event's fields. `kind` is a
    name for programs, which stays the same when the text in `event` changes.

    Args:
        now: returns seconds since 1970; by default the time of the record is used.
    """

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._now = now

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: _json_value(value) for name, value in getattr(record, "fields", {}).items()}
        at = datetime.fromtimestamp(record.created if self._now is None else self._now(), UTC)
        event = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": fields.get("node"),
            "kind": fields.get("kind"),
            "event": "\n".join(_lines(record)),
        }
        return json.dumps(event | fields | event)


@contextmanager
def print_events(log: EventLogger, format: Format, stream: TextIO, level: int = logging.INFO) -> Iterator[None]:
    """Print the events of a logger during this block, each at once and on one line.

    Args:
        level: lowest level of the events to print.

    Raises:
        BrokenPipeError: raised by the logger's methods if the reader of the stream has closed it.
    """
    logger, handler = log.logger, _StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


class _StreamHandler(logging.StreamHandler[TextIO]):
    """Raises the error of a closed pipe, which ends the command, and reports other errors once."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is that of the standard library)
        error = sys.exc_info()[1]
        if isinstance(error, BrokenPipeError):
            raise
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._reported:
            self._reported = True
            with suppress(OSError):
                print(f"cannot write the log: {error.strerror or error}", file=sys.stderr)


def _lines(record: logging.LogRecord) -> list[str]:
    """Return the lines of a message without terminal control characters, because it may quote untrusted text."""
    return [printable(line) for line in record.getMessage().splitlines()]


def _json_value(value: object) -> object:
    """Return a field as a JSON value: text as in `_lines`, and None for a number that is not finite."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, int) else printable(str(value))
