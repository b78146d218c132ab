"""Command list: nodes below a folder, and their states."""

import json
from pathlib import Path

import pytest

from p2pfl.node.cli.main import main
from p2pfl.node.federation import agreement, membership_changes
from p2pfl.node.folder import config, config_edit
from p2pfl.task import Part, make_task


@pytest.fixture(autouse=True)
def nodes(tmp_path, monkeypatch):
    """Make a member, a node that has finished, and a damaged one, in folders of different depth."""
    monkeypatch.chdir(tmp_path)
    config.create(Path("alice"), "alice", "127.0.0.1:4101")
    tables = agreement.draft("home", config.load(Path("alice"), ["rounds=3"]), make_task("digits", {}, Part(0, 1), 0))
    membership_changes.create_federation(Path("alice"), tables, Path("backup.pem"))
    config.create(Path("rack/1/bob"), "robert", "127.0.0.1:4102")
    status = {"state": "finished", "pid": 1, "history": [], "round": 10, "rounds": 10}
    Path("rack/1/bob/status.json").write_text(json.dumps(status))
    config.create(Path("rack/carol"), "carol")
    Path("rack/carol/node.toml").write_text("name = 3")
    for hidden in (".trash/dave", "rack/carol/inner", "a/b/c/d"):
        config.create(Path(hidden), "dave")


def test_list_prints_nodes_with_their_states(capsys):
    assert main(["list"]) == 0
    head, *rows, problem = capsys.readouterr().out.splitlines()
    assert head.split() == ["node", "state", "round", "federation", "address", "folder"]
    assert [row.split() for row in rows] == [
        ["alice", "new", "0", "of", "3", "home", "127.0.0.1:4101", "alice"],
        ["robert", "finished", "10", "of", "10", "-", "127.0.0.1:4102", "rack/1/bob"],
        ["carol", "invalid", "-", "-", "-", "rack/carol"],
    ]
    assert problem.startswith("rack/carol: rack/carol/node.toml: ")


def test_list_compares_no_round_with_total_of_left_federation(capsys):
    status = {"state": "finished", "pid": 1, "history": [], "round": 64, "rounds": 2000, "federation_id": "00"}
    Path("rack/1/bob/status.json").write_text(json.dumps(status))
    assert main(["list", "rack/1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["robert", "finished", "64", "-"]


def test_list_tells_why_running_node_does_not_learn_with_peers(capsys, monkeypatch):
    status = {"state": "waiting", "pid": 1, "history": [], "round": 0, "rounds": 3, "federation": "home"}
    monkeypatch.setattr("p2pfl.node.status.reader.current", lambda folder: status | {"waiting": {"present": 1, "needed": 3}})
    assert main(["list", "alice"]) == 0
    assert "alice  waiting for members: 1 of 3  0 of 3" in capsys.readouterr().out
    assert main(["list", "alice", "--json"]) == 0
    (alice,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (alice["state"], alice["waiting"]) == ("waiting", {"present": 1, "needed": 3})


def test_request_with_new_key_tells_that_node_has_left(capsys):
    assert main(["request", "alice", "--new-key"]) == 0
    assert capsys.readouterr().err == "note: this node has left the federation home until it joins again\n"


def test_list_with_json_prints_same_nodes(capsys):
    assert main(["list", "rack", "--json"]) == 0
    bob, carol = json.loads(capsys.readouterr().out)["nodes"]
    assert bob == {
        "folder": "rack/1/bob",
        "node": "robert",
        "state": "finished",
        "round": 10,
        "rounds": 10,
        "federation": None,
        "listen": "127.0.0.1:4102",
        "broker": "",
    }
    assert (carol["state"], "problem" in carol) == ("invalid", True)


def test_list_shows_broker_of_node_without_its_account(capsys):
    path = Path("rack/1/bob/node.toml")
    path.write_text(path.read_text().replace("direct = true", "direct = false"))
    config_edit.set_text(path.parent, "broker", "mqtts://bob:secret@host#sha256=" + "0" * 64)
    assert main(["list", "rack/1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["mqtts://host:8883", "rack/1/bob"]


def test_list_of_node_folder_prints_that_node(capsys):
    assert main(["list", "alice", "--json"]) == 0
    assert [node["folder"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["alice"]


def test_list_without_nodes_names_the_next_command(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    assert main(["list", "empty"]) == 0
    assert capsys.readouterr().out == "no nodes below empty; create one with p2pfl-node init FOLDER\n"
    assert main(["list", "nowhere"]) == 2
    assert capsys.readouterr().err == "nowhere is not a folder\n"
