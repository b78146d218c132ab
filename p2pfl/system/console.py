"""Argument parsers, one-line errors and exit codes of the commands."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from p2pfl.errors import ConfigurationError, RunError
from p2pfl.system.printable import printable

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
EXAMPLES = "examples:\n"
NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}  # types of arguments, in words


class Help(argparse.HelpFormatter):
    """Help formatter that breaks lines only at spaces, so that names are not split, and keeps the lines of examples."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return text
        return textwrap.fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose options may stand between the arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)
        self._has_commands = self._intermixed = False

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands. Without a command the parser prints its help."""
        self._has_commands = True
        self.set_defaults(do=self._show_help)
        return super().add_subparsers(title="commands", metavar="COMMAND", **options)

    def _show_help(self, options: argparse.Namespace) -> int:
        self.print_help()
        return 0

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; see argparse. Before Python 3.12.7, argparse ends optional arguments at the first option."""
        if self._intermixed:
            return super().parse_known_args(args, namespace)
        if self._has_commands:
            return self._complete(super().parse_known_args(args, namespace))
        self._intermixed = True  # the next line calls this method again
        try:
            parsed = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False
        return self._complete(parsed)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return the value of an argument; see argparse. A value that is not a number is an error in plain words."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in NUMBERS:
                raise
            raise argparse.ArgumentError(action, f"must be {NUMBERS[action.type]}, got {arg_string!r}") from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices of its argument, and name the nearest one."""
        near = get_close_matches(str(value), [str(choice) for choice in action.choices or ()], n=1)
        if not near or value in (action.choices or ()):
            super()._check_value(action, value)
            return
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; did you mean {near[0]!r}?")

    def _complete(self, parsed: tuple[Any, list[str]]) -> tuple[Any, list[str]]:
        """Report unknown arguments; reported here, the error names the command and its help."""
        if rest := parsed[1]:
            known = [each[2:] for action in self._actions for each in action.option_strings if each.startswith("--")]
            option = next((word[2:].partition("=")[0] for word in rest if word.startswith("--")), "")
            near = get_close_matches(option, known, n=1, cutoff=0.8)
            hint = f"; did you mean --{near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)


def add_command(commands: Any, name: str, summary: str, *examples: str) -> argparse.ArgumentParser:
    """Add a command to the subparsers of a parser.

    Args:
        summary: its description in one sentence; begins with a small letter and has no full stop.
        examples: command lines that work, for the end of its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=format_examples(*examples)
    )
    return parser


def format_examples(*lines: str) -> str:
    """Return command lines as the epilog of a parser."""
    return EXAMPLES + "\n".join(f"  {line}" for line in lines)


def run_command(command: Callable[[], int]) -> int:
    """Run a command. Print errors that the user can correct as one line on standard error, and return an exit code."""
    try:
        Path.cwd()
    except FileNotFoundError:  # some libraries end the process without it
        return fail("the current folder was deleted; go to another folder first", WRONG_USAGE)
    try:
        return command()
    except ConfigurationError as error:
        return fail(str(error), WRONG_USAGE)
    except RunError as error:
        return fail(str(error), FAILED)
    except MemoryError:
        return fail("not enough memory", FAILED)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def fail(message: str, code: int = FAILED) -> int:
    """Print one line on standard error and return the exit code."""
    print(printable(" ".join(message.split())), file=sys.stderr)
    return code
