"""Help of p2pfl-sim: descriptions, groups of options, and examples that parse."""

import argparse
import shlex
from itertools import takewhile

import pytest

from p2pfl._util.console import EXAMPLES
from p2pfl.sim.cli.main import parser


def commands(of):
    """Return a parser and the parsers of its commands, of theirs too."""
    subparsers = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    return [of, *(found for action in subparsers for each in action.choices.values() for found in commands(each))]


COMMANDS = commands(parser())
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.prog)


def test_commands_of_the_parser_are_found():
    assert {"p2pfl-sim", "p2pfl-sim run", "p2pfl-sim data check", "p2pfl-sim reproduce"} <= {each.prog for each in COMMANDS}


@each_command
def test_description_is_one_sentence(command):
    assert command.description.count(". ") == 0
    assert command.description[0].isupper()
    assert command.description.endswith(".")


@each_command
def test_examples_begin_with_the_command_and_parse(command):
    assert command.epilog.startswith(EXAMPLES)
    examples = command.epilog.removeprefix(EXAMPLES).splitlines()
    assert examples
    for example in examples:
        words, prog = list(takewhile(lambda word: word[0] != ">", shlex.split(example))), command.prog.split()
        assert words[: len(prog)] == prog
        command.parse_args(words[len(prog) :])


@each_command
def test_examples_keep_their_lines_in_the_help(command):
    assert command.format_help().endswith(command.epilog + "\n")


@each_command
def test_every_argument_has_a_help_text(command):
    for action in command._actions:  # noqa: SLF001
        commands = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        texts = [choice.help for choice in action._choices_actions] if commands else [action.help]  # noqa: SLF001
        assert all(texts), action.dest


@each_command
def test_options_are_in_named_groups(command):
    grouped = {
        name
        for group in command._action_groups  # noqa: SLF001
        if group.title not in ("options", "positional arguments")
        for action in group._group_actions  # noqa: SLF001
        for name in action.option_strings
    }
    options = {name for action in command._actions for name in action.option_strings}  # noqa: SLF001
    assert options - grouped <= {"-h", "--help", "--version"}
