"""Folder of a command without FOLDER: the environment variable, or the current folder."""

import io
import json
from pathlib import Path

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main, parser
from p2pfl.node.cli.options import VARIABLE, default_folder
from p2pfl.node.federation import agreement, membership_changes
from p2pfl.node.folder import config
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Request
from p2pfl.task import Part, make_task


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Make two nodes, and go to the folder of the first one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in ("alice", "bob"):
        config.create(tmp_path / name, name, "127.0.0.1:4101")
    monkeypatch.chdir(tmp_path / "alice")
    return tmp_path


def requested(capsys):
    """Return the name of the node whose request the command prints."""
    assert main(["request"]) == 0
    return Request.parse(capsys.readouterr().out).name


def test_default_folder_is_the_current_one(capsys):
    assert requested(capsys) == "alice"


def test_default_folder_is_that_of_the_variable(capsys, monkeypatch, folder):
    monkeypatch.setenv(VARIABLE, str(folder / "bob"))
    assert requested(capsys) == "bob"


def test_command_without_folder_elsewhere_is_refused(capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError, match=r"^no node named: give its folder, go to its folder, or set P2PFL_NODE;"):
        default_folder()
    assert main(["status"]) == 2
    assert capsys.readouterr().err.startswith("no node named: ")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["invite", "bob"], {"folder": None, "name": "bob"}),
        (["invite", "alice", "bob"], {"folder": Path("alice"), "name": "bob"}),
        (["invite", "alice", "--minutes", "3", "bob"], {"folder": Path("alice"), "name": "bob"}),
        (["export", "--force", "model.onnx"], {"folder": None, "target": Path("model.onnx")}),
        (["join", "bob", "--yes", "bob.token"], {"folder": Path("bob"), "token": "bob.token"}),
        (["run", "--set", "rounds=3", "alice", "-v"], {"folder": Path("alice"), "changes": ["rounds=3"], "verbose": True}),
    ],
)
def test_arguments_after_a_missing_folder_are_found(arguments, found):
    options = vars(parser().parse_args(arguments))
    assert {key: options[key] for key in found} == found


def test_join_with_one_argument_takes_a_file_as_admission(capsys, monkeypatch, folder):
    tables = agreement.draft("home", config.load(Path()), make_task("digits", {}, Part(0, 1), 0))
    membership_changes.create_federation(Path(), tables, folder / "backup.pem")
    membership_changes.admit(Path(), membership_changes.request(folder / "bob"), "participant", folder / "bob.admission")
    monkeypatch.chdir(folder / "bob")
    assert main(["join", "../bob.admission", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"federation": "home"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "none",
            "none does not exist; if the node was moved, name its folder there (p2pfl-node list DIR finds it), or create a"
            " new node with p2pfl-node init none\n",
        ),
        ("j" * 300, f"cannot read {'j' * 300}: File name too long\n"),
        (Request.make(Identity.from_seed(bytes(32)), "bob"), "the argument has a request of `p2pfl-node request`; expected"),
    ],
)
def test_join_with_one_wrong_argument_names_it(capsys, word, message):
    assert main(["join", word]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_admit_takes_request_from_file_or_standard_input(capsys, monkeypatch, folder):
    tables = agreement.draft("home", config.load(Path()), make_task("digits", {}, Part(0, 1), 0))
    membership_changes.create_federation(Path(), tables, folder / "backup.pem")
    request = folder / "bob.request"
    request.write_text(membership_changes.request(folder / "bob"))
    assert main(["admit", str(request), "--out", "bob.admission"]) == 0
    with request.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["admit", str(folder / "alice"), "--out", "bob.admission"]) == 0
    assert capsys.readouterr().out.count("admitted bob;") == 2


def test_admit_without_request_names_it(capsys, monkeypatch, folder):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(folder)
    assert main(["admit", "alice", "--out", "bob.admission"]) == 2
    assert capsys.readouterr().err == "standard input is empty; expected a request of `p2pfl-node request`\n"


@pytest.mark.parametrize(("command", "missing"), [("revoke", "NAME"), ("invite", "NAME"), ("export", "TARGET")])
def test_folder_in_place_of_an_argument_names_that_argument(capsys, monkeypatch, folder, command, missing):
    monkeypatch.chdir(folder)
    assert main([command, "alice"]) == 2
    assert capsys.readouterr().err == f"{missing} is missing: give it after the folder alice\n"


@pytest.mark.parametrize(("arguments", "command"), [([], "init"), (["federation"], "rotate")])
def test_bare_command_prints_its_help(capsys, arguments, command):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith(" ".join(["usage: p2pfl-node", *arguments]))
    assert (f"    {command} " in out, err) == (True, "")
