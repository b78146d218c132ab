"""Completion of commands, options and files in a shell, by scripts that shtab writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from p2pfl.errors import MissingRequirementError
from p2pfl.system.console import Parser, add_command

SHELLS = ("bash", "zsh", "fish")
FILES = ("FILE", "TARGET", "TOKEN", "REQUEST", "TOPOLOGY")  # metavars of arguments that are files
FOLDERS = ("FOLDER", "DIR")
Words = Callable[[], Iterable[str]]
FUNCTIONS = {  # shell functions that complete words and files
    "bash": '{name}() {{\n  compgen -W "{words}" -- "$1"\n  compgen -f -- "$1"\n}}\n',
    "zsh": '{name}() {{\n  _alternative "words:name:({words})" "files:file:_files"\n}}\n',
    "fish": "function {name}\n  printf '%s\\n' {words}\n  __fish_complete_path (commandline -ct)\nend\n",
}


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
