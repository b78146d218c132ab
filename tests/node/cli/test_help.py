"""Help of p2pfl-node: every option has a text, every command has examples that parse, and the lines fit a terminal."""

# ruff: noqa: SLF001 (argparse shows its commands and groups in no other way)
import argparse
import shlex
from itertools import takewhile

import pytest

from p2pfl.node.cli.main import parser

SubParsers = argparse._SubParsersAction


def walk(command):
    yield command
    for action in command._actions:
        if isinstance(action, SubParsers):
            for each in action.choices.values():
                yield from walk(each)


COMMANDS = {command.prog: command for command in walk(parser())}


@pytest.fixture(params=COMMANDS)
def command(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return COMMANDS[request.param]


def examples(command):
    return [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]


def test_every_command_of_the_program_is_checked():
    assert {"p2pfl-node", "p2pfl-node run", "p2pfl-node federation create"} < set(COMMANDS)


def test_help_has_an_example_that_parses(command):
    assert examples(command)
    for line in examples(command):
        words = list(takewhile(lambda word: word[0] not in "<>", shlex.split(line)))
        prog = command.prog.split()
        assert words[: len(prog)] == prog, line
        assert vars(command.parse_args(words[len(prog) :]))


def test_help_has_a_description_of_one_sentence(command):
    assert command.description.endswith(".")
    assert ". " not in command.description


def test_help_explains_every_option(command):
    actions = [action for action in command._actions if not isinstance(action, SubParsers)]
    assert [action for action in actions if not action.help] == []


def test_help_puts_options_in_named_groups(command):
    grouped = {"positional arguments", "options", "commands"}
    for group in command._action_groups:
        names = [action.dest for action in group._group_actions]
        if group.title == "options":
            assert set(names) <= {"help", "version"}
        elif group.title not in grouped:
            assert names


def test_help_fits_80_columns(command):
    assert [line for line in command.format_help().splitlines() if len(line) > 80] == []
