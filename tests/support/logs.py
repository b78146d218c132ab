"""Event loggers that keep their events, for tests of objects that log."""

import logging
import re

from p2pfl._util.event_log import EventLogger


def log_to(lines):
    """Return a logger that appends the text of each event to a list."""
    return _logger(lambda record: lines.append(record.getMessage()))


def log_records_to(records):
    """Return a logger that appends the level and the fields of each event to a list."""
    return _logger(lambda record: records.append((record.levelname, record.fields)))


def messages(printed):
    """Return a printed text log without the times and levels of its lines."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+ +", "", printed, flags=re.M)


def _logger(emit):
    handler = logging.Handler()
    handler.emit = emit
    logger = logging.Logger("test", logging.INFO)  # it has no parent logger
    logger.addHandler(handler)
    return EventLogger(logger)
