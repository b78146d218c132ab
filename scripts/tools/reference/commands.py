"""Commands of an argument parser, with their arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module

from scripts.tools.reference.docstrings import paragraphs
from scripts.tools.reference.markdown import sentence, table

_SubParsers = argparse._SubParsersAction  # noqa: SLF001 (argparse shows its commands in no other way)


def commands(module: str) -> str:
    """Return every command of the parser from a module's `parser()`."""
    parser: argparse.ArgumentParser = import_module(module).parser()
    return "\n\n".join(_command(parser, "", parser.prog))


def _command(parser: argparse.ArgumentParser, help: str, prog: str) -> Iterator[str]:
    actions = parser._actions  # noqa: SLF001
    subparsers = [action for action in actions if isinstance(action, _SubParsers)]
    for action in subparsers:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
        for name, subparser in action.choices.items():
            yield from _command(subparser, helps[name], f"{prog} {name}")
    if not subparsers:
        yield f"### {prog}"
        yield paragraphs([sentence(parser.description or help)])
        yield table(("argument", "meaning"), [_argument(action) for action in actions if action.dest != "help"])


def _argument(action: argparse.Action) -> tuple[str, str]:
    names = [f"`{name}`" for name in action.option_strings]
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    value = str(action.metavar or choices or action.dest.upper())
    if not names:
        names = [f"`[{value}]`" if action.nargs == "?" else f"`{value}`"]
    elif action.nargs != 0:
        names[-1] = f"`{action.option_strings[-1]} {value}`"
    if not action.help:
        raise ValueError(f"{', '.join(names)} has no help")
    return ", ".join(names), re.sub(r"(?<!\w)--[\w-]+", r"`\g<0>`", sentence(action.help % vars(action)))
