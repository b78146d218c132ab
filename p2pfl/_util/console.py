"""Console of the commands of both programs: argument parsers, one-line errors, exit codes, and completion in a shell."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from p2pfl._util.printable import printable, to_json
from p2pfl._version import describe_version
from p2pfl.errors import ConfigurationError, MissingRequirementError, RunError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
EXAMPLES = "examples:\n"
NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}  # types of arguments, in words
JSON_HELP = "print one JSON object and nothing else"
SHELLS = ("bash", "zsh", "fish")
FILES = ("FILE", "TARGET", "TOKEN", "REQUEST", "TOPOLOGY")  # metavars of arguments that are files
FOLDERS = ("FOLDER", "DIR")
Words = Callable[[], Iterable[str]]
FUNCTIONS = {  # shell functions that complete words and files
    "bash": '{name}() {{\n  compgen -W "{words}" -- "$1"\n  compgen -f -- "$1"\n}}\n',
    "zsh": '{name}() {{\n  _alternative "words:name:({words})" "files:file:_files"\n}}\n',
    "fish": "function {name}\n  printf '%s\\n' {words}\n  __fish_complete_path (commandline -ct)\nend\n",
}


class Help(argparse.HelpFormatter):
    """Help formatter that breaks lines only at spaces, so that names are not split, and keeps the lines of examples."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return text
        return textwrap.fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent)


class _Version(argparse.Action):
    """Option that prints the version and ends the command; git is asked for the commit only then."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"p2pfl {describe_version()}")
        parser.exit()


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


def add_version(parser: Parser) -> None:
    """Add the option --version."""
    parser.add_argument("--version", action=_Version, help="print the version, and in a clone the commit, and exit")


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


def add_completion(commands: Any, program: Parser, words: Mapping[str, Words] | None = None) -> None:
    """Add the command `completion`, which prints a script for a shell.

    Args:
        program: parser of the whole program.
        words: by metavar, a function that returns words for an argument, which can also be a file.
    """
    prog = program.prog
    parser = add_command(
        commands,
        "completion",
        "print a script that completes commands, options and files in a shell",
        f"{prog} completion bash >{prog}.bash",
        f"{prog} completion zsh >~/.zfunc/_{prog}",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")

    def run(options: argparse.Namespace) -> int:
        print(script(program, options.shell, words or {}))
        return 0

    parser.set_defaults(do=run)


def script(program: Parser, shell: str, words: Mapping[str, Words]) -> str:
    """Return the script that completes a program in a shell.

    Raises:
        MissingRequirementError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise MissingRequirementError("completion needs shtab: pip install 'p2pfl-node[completion]'") from error
    completed = dict.fromkeys(FILES, shtab.FILE) | dict.fromkeys(FOLDERS, shtab.DIRECTORY)
    functions = ""
    for metavar, choices in words.items():
        name = f"_p2pfl_complete_{metavar.lower()}"
        functions += FUNCTIONS[shell].format(name=name, words=" ".join(choices()))
        completed[metavar] = {shell: f"({name})" if shell == "fish" else name}
    for command in _commands(program):
        for action in command._actions:  # noqa: SLF001 (argparse shows its arguments in no other way)
            if action.metavar in completed:
                action.complete = completed[action.metavar]  # type: ignore[attr-defined]
    text: str = shtab.complete(program, shell, preamble=functions)
    return text


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return a parser and those of its commands, at all levels."""
    found = [parser]
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                found += _commands(command)
    return found
