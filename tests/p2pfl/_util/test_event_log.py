"""Event logs: fields of events, text lines for people, and JSON objects for programs."""

import errno
import io
import json
import logging
from datetime import UTC

import pytest

from p2pfl._util.event_log import EventLogger, JsonFormatter, TextFormatter, package_logger, print_events
from tests.support.logs import log_records_to, log_to


@pytest.fixture
def log():
    return EventLogger(logging.Logger("test"))


def output(log, format, *messages, **fields):
    """Return the output of messages in a format."""
    stream = io.StringIO()
    with print_events(log, format, stream):
        for message in messages:
            log.info(message, **fields)
    return stream.getvalue()


def new_record(message, level=logging.INFO, **fields):
    """Return a log record with fields."""
    record = logging.LogRecord("test", level, __file__, 1, message, (), None)
    record.fields = fields
    return record


# Loggers


def test_event_has_fields_of_logger_and_call():
    records = []
    log = log_records_to(records).bind(node="alice", round=1)
    log.warning("bob is missing", peer="bob")
    log.bind(round=2).info("bob is back")
    assert records == [("WARNING", {"node": "alice", "round": 1, "peer": "bob"}), ("INFO", {"node": "alice", "round": 2})]


def test_message_with_percent_and_braces_is_text():
    lines = []
    log_to(lines).info("100 % of {models}, %s")
    assert lines == ["100 % of {models}, %s"]


def test_exception_info_is_not_a_field():
    records = []
    log = log_records_to(records)
    try:
        raise ValueError("chaos")
    except ValueError:
        log.exception("fault", part="page")
    assert records == [("ERROR", {"part": "page"})]


def test_package_prints_nothing_by_itself(capsys):
    package_logger("p2pfl.test").error("nobody reads this")
    assert capsys.readouterr() == ("", "")


def test_package_events_reach_configured_logging(caplog):
    with caplog.at_level(logging.INFO, "p2pfl.test"):
        package_logger("p2pfl.test").info("bob is back", peer="bob")
    assert caplog.messages == ["bob is back"]
    assert caplog.records[0].fields == {"peer": "bob"}


# Formats


def test_text_format_prints_one_line_per_event(log):
    lines = output(log, "text", "round 1 of 3\nsecond line", "100 %", round=1).splitlines()
    assert [line.split(maxsplit=3)[2:] for line in lines] == [["info", "round 1 of 3 second line"], ["info", "100 %"]]


def test_text_format_begins_with_time_and_level():
    formatter = TextFormatter(now=lambda: 1_600_000_000.25, zone=UTC)
    assert formatter.format(new_record("bob is missing", logging.WARNING)) == "2020-09-13 12:26:40 warning bob is missing"
    assert formatter.format(new_record("round 1")) == "2020-09-13 12:26:40 info    round 1"


@pytest.mark.parametrize(("level", "printed"), [(logging.DEBUG, ["a", "b", "c"]), (logging.WARNING, ["c"])])
def test_print_events_prints_events_from_a_level(log, level, printed):
    stream = io.StringIO()
    with print_events(log, "json", stream, level):
        log.debug("a")
        log.info("b")
        log.warning("c")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == printed


def test_json_format_contains_time_level_node_and_fields():
    formatter = JsonFormatter(now=lambda: 1_600_000_000.25)
    record = new_record('without "bob":\nsilent, ä', logging.WARNING, node="alice", peer="bob", round=3, loss=0.5)
    line = formatter.format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2020-09-13T12:26:40.250+00:00",
        "level": "warning",
        "node": "alice",
        "kind": None,
        "event": 'without "bob":\nsilent, ä',
        "peer": "bob",
        "round": 3,
        "loss": 0.5,
    }


def test_json_format_prints_one_object_per_event(log):
    first, second = map(json.loads, output(log.bind(node="alice"), "json", "a", "b").splitlines())
    assert (first["event"], second["event"]) == ("a", "b")
    assert first["time"] <= second["time"]


def test_json_time_without_clock_is_that_of_the_record():
    record = new_record("a")
    record.created = 1_600_000_000.25
    assert json.loads(JsonFormatter().format(record))["time"] == "2020-09-13T12:26:40.250+00:00"


def test_record_of_other_logger_has_no_node_and_fields():
    record = logging.LogRecord("other", logging.ERROR, __file__, 1, "%d models", (3,), None)
    event = json.loads(JsonFormatter().format(record))
    assert (event["level"], event["node"], event["event"]) == ("error", None, "3 models")
    assert TextFormatter().format(record).endswith(" error   3 models")


def test_json_field_does_not_replace_reserved_key():
    event = json.loads(JsonFormatter().format(new_record("a", time=1, event="b")))
    assert event["event"] == "a"
    assert event["time"] != 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, None), (True, True), (3, 3), (0.5, 0.5), (float("nan"), None), (float("inf"), None), ((1, 2), "(1, 2)")],
)
def test_json_field_is_a_valid_json_value(value, shown):
    assert json.loads(JsonFormatter().format(new_record("a", value=value)))["value"] == shown


BAD = [
    *map(chr, range(0x20)),
    "\x7f",
    *map(chr, range(0x80, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e",
]
BAD += "\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_formatters_remove_control_characters(formatter):
    for bad in BAD:
        line = formatter.format(new_record(f"refused, {bad}[2Jgrüße", peer=f"{bad}[2J"))
        assert line.isprintable(), ascii(bad)
        event = json.loads(line) if line.startswith("{") else {"event": line.split(maxsplit=3)[3], "peer": ""}
        assert event["event"].replace("\n", "").isprintable(), ascii(bad)
        assert event["event"].startswith("refused, "), ascii(bad)
        assert event["event"].endswith("[2Jgrüße"), ascii(bad)
        assert event["peer"].isprintable(), ascii(bad)


# Printing


def test_print_events_restores_the_logger(log):
    log.logger.setLevel(logging.ERROR)
    assert output(log, "text", "a").endswith(" a\n")
    assert (log.logger.handlers, log.logger.level) == ([], logging.ERROR)


class Broken(io.StringIO):
    """Stream that cannot be written."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


def test_closed_pipe_raises_broken_pipe_error(log):
    with pytest.raises(BrokenPipeError), print_events(log, "text", Broken(BrokenPipeError())):
        log.info("a")


def test_full_disk_is_reported_once_without_error(log, capsys):
    with print_events(log, "text", Broken(OSError(errno.ENOSPC, "No space left on device"))):
        log.info("a")
        log.info("b")
    assert capsys.readouterr().err == "cannot write the log: No space left on device\n"
