"""Options and answers that the commands of both programs share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from p2pfl.system.json_output import to_json

JSON_HELP = "print one JSON object and nothing else"


def add_output(parser: argparse.ArgumentParser, json_help: str = JSON_HELP) -> argparse._ArgumentGroup:
    """Add a group of options for the output, with --json, and return it."""
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help=json_help)
    return output


def add_changes(group: argparse._ActionsContainer, help: str) -> None:
    """Add --set KEY=VALUE, which can be repeated, as `changes`."""
    group.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_change,
        help=f"{help}; can be repeated",
    )


def _change(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return text


def port(text: str) -> int:
    """Return the number of a TCP port; the type of an option."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, got {text!r}")
    return int(text)


def print_answer(options: argparse.Namespace, text: str, answer: Mapping[str, Any]) -> None:
    """Print the answer of a command: its text or, with --json, its values as one JSON object."""
    print(to_json(answer) if options.json else text, flush=True)
