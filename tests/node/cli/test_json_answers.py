"""Answers of commands as JSON: one object and nothing else."""

# ruff: noqa: SLF001 (argparse shows its options in no other way)
import json
import re
from pathlib import Path

import pytest

from p2pfl.node.cli.main import main
from p2pfl.node.folder import config
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Invitation, Request
from tests.node.cli.test_help import COMMANDS, SubParsers
from tests.sim.cli.test_help import COMMANDS as SIM
from tests.support.pages import DOCS

LEAVES = [
    command
    for command in [*COMMANDS.values(), *SIM]
    if not any(isinstance(each, SubParsers) for each in command._actions) and not command.prog.endswith(" completion")
]


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command with --json in an empty folder and returns its answer."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        assert main([*arguments, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", key) for key in found)
        assert list(found) == documented()[" ".join(arguments[: 2 if arguments[0] == "federation" else 1])]
        return found

    return run


def documented():
    """Return the keys of the answer of each command in the reference."""
    text = (DOCS / "reference/commands.md").read_text(encoding="utf-8").partition("| command | keys |\n")[2]
    rows = re.findall(r"^\| `([a-z ]+)` \| (`.*`) \|$", text.partition("\n\n")[0], re.M)
    return {command: re.findall(r"`([^`]+)`", keys) for command, keys in rows}


@pytest.mark.parametrize("command", LEAVES, ids=lambda command: command.prog)
def test_every_command_takes_json(command):
    assert "--json" in command._option_string_actions


def test_init_and_request_answer_with_the_key(answer):
    made = answer("init", "bob", "--port", "4101")
    assert made == {
        "folder": "bob",
        "name": "bob",
        "listen": ":4101",
        "key": Identity.load(Path("bob/key.pem")).public.hex(),
    }
    assert Request.parse(answer("request", "bob")["request"]).key.hex() == made["key"]


@pytest.mark.slow
def test_membership_commands_answer_with_results(answer, capsys):
    for name in ("alice", "bob"):
        config.create(Path(name), name, "127.0.0.1:4101")
    made = answer("federation", "create", "alice", "--backup", "one.pem", "--set", "max_staleness=inf")
    assert (made["federation"], made["member"], made["backup"]) == ("home", "alice", "one.pem")
    shown = answer("federation", "show", "alice")
    assert (shown["id"], shown["agreed"]["max_staleness"]) == (made["id"], None)
    assert answer("federation", "extend", "alice", "--rounds", "25") == {"rounds": 25}
    assert main(["federation", "committee", "alice"]) == 2
    assert "the federation home has no committee: all its members elect the coordinator" in capsys.readouterr().err
    assert answer("federation", "show", "alice")["agreed"]["rounds"] == 25
    invited = answer("invite", "alice", "carol", "--address", "127.0.0.1:4101")
    assert Invitation.parse(invited["token"]).member == invited["name"] == "carol"
    assert invited["addresses"] == ["127.0.0.1:4101"]
    Path("bob.request").write_text(answer("request", "bob")["request"])
    admitted = answer("admit", "alice", "bob.request", "--out", "bob.admission", "--role", "observer")
    assert admitted == {"name": "bob", "role": "observer", "admission": "bob.admission"}
    assert main(["join", "bob", "bob.admission", "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"federation": "home"}
    assert err.startswith("settings of the federation home:")
    assert answer("federation", "rotate", "alice", "--backup", "two.pem") == {"backup": "two.pem"}
    assert answer("revoke", "alice", "bob") == {"revoked": "bob"}
