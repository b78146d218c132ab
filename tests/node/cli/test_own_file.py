"""A node's own file: what init proposes and refuses, and that nodes with the same kind of file join without a question."""

import io
import sys
import tomllib

import pytest

from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.node.cli import main as node_cli
from p2pfl.node.cli.demo import demo
from p2pfl.node.federation import agreement, join, loading
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.tasks import digits


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no answer to a question


def write(folder, name, labels, sex="fm"):
    rows = [f"{k},{k * 7 % 50},{sex[k % len(sex)]},{labels[k * 5 // 3 % len(labels)]}" for k in range(40)]
    (folder / f"{name}.csv").write_text("\n".join(["id,age,sex,diagnosis", *rows]))


def init(name, *options):
    return node_cli.main(["init", name, "--data", f"{name}.csv", *options])


def task_of(folder):
    return tomllib.loads((folder / config.CONFIG).read_text())["task"]


def test_init_writes_the_proposal_with_reasons(tmp_path, capsys):
    write(tmp_path, "alice", ["no", "yes"])
    assert init("alice") == 0
    assert task_of(tmp_path / "alice") == {
        "name": "classification",
        "target": "diagnosis",
        "labels": ["no", "yes"],
        "ignore": ["id"],
        "categories": {"sex": ["f", "m"]},
        "standardize": "local",
    }
    text = (tmp_path / "alice" / config.CONFIG).read_text()
    lines = text.splitlines()
    of_labels, of_categories = (
        next(k for k, line in enumerate(lines) if line.startswith(key)) for key in ("labels", "categ")
    )
    for line in (of_labels, of_categories):
        assert lines[line - 1].endswith("add those that only other nodes have, before p2pfl-node federation create")
    out = capsys.readouterr().out
    assert "label: diagnosis, because labels usually have this name" in out
    assert f"add to labels (line {of_labels + 1}) and categories (line {of_categories + 1}) of alice/node.toml" in out


def test_init_names_all_unreadable_labels_and_creates_nothing(tmp_path, capsys):
    write(tmp_path, "alice", ["no", "yes", "", "NA", "no"])
    assert init("alice") == 2
    assert "the label diagnosis has no label in lines" in capsys.readouterr().err
    assert not (tmp_path / "alice").exists()


def test_init_takes_a_label_from_its_owner(tmp_path):
    write(tmp_path, "alice", ["no", "yes"])
    assert init("alice", "--label", "sex") == 0
    assert task_of(tmp_path / "alice")["labels"] == ["f", "m"]


@pytest.fixture
def federation(tmp_path):
    """Return a function that lets a node with its own file join alice's federation; it returns the exit code."""
    write(tmp_path, "alice", ["no", "yes", "maybe"])
    assert init("alice") == 0
    assert node_cli.main(["federation", "create", "alice", "--backup", "backup.pem"]) == 0

    def differences(name):
        agreed = agreement.read(load_federation(tmp_path / "alice").file)
        own = config.load(tmp_path / name)
        found = join.differences(own, agreed, tmp_path / name)
        join.check_data(own, agreed, tmp_path / name)
        return found

    return differences


def test_nodes_with_the_same_kind_of_file_join_without_a_question(tmp_path, federation):
    write(tmp_path, "bob", ["no", "yes"])  # lacks a label
    write(tmp_path, "carol", ["maybe", "no", "no", "no", "no"], sex="f")  # lacks one, is unbalanced, and lacks a category
    for name in ("bob", "carol"):
        assert init(name) == 0
        assert federation(name) == []


def test_label_of_another_node_that_the_federation_lacks_is_refused_by_name(tmp_path, federation, capsys):
    write(tmp_path, "bob", ["no", "unclear"])
    assert init("bob") == 0
    with pytest.raises(
        ConfigurationError, match=r"diagnosis is unclear, a label must be one of task.labels, maybe, no and yes; also"
    ):
        federation("bob")


def test_option_that_the_owner_has_set_otherwise_is_a_difference(tmp_path, federation):
    write(tmp_path, "bob", ["no", "yes"])
    assert init("bob") == 0
    path = tmp_path / "bob" / config.CONFIG
    path.write_text(path.read_text().replace("\n[policy]", "hidden = 8\n\n[policy]", 1))
    assert [each.key for each in federation("bob")] == ["task.hidden"]


def test_federation_has_the_labels_of_the_first_node(tmp_path, federation):
    agreed = loading.load(tmp_path / "alice").agreement
    assert agreed.task["labels"] == ["maybe", "no", "yes"]


def test_demo_without_scikit_learn_names_no_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits.digit_images.cache_clear()
    digits.digit_shares.cache_clear()
    with pytest.raises(MissingRequirementError, match=r"scikit-learn.*pip install") as refused:
        demo(2, 1, "dac", as_json=True)
    assert "/" not in str(refused.value)
