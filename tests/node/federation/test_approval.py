"""Approval of a federation's options by a node's owner."""

import io
import sys
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.federation import agreement, loading, membership_changes
from p2pfl.node.federation import join as approval
from p2pfl.node.federation.join import Difference
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols.election import TIMING
from p2pfl.protocols.identity import Identity
from p2pfl.task import Part, make_task


class Terminal(io.StringIO):
    """Standard input connected to a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def home(tmp_path):
    """Alice creates a federation with her options; bob has a bundle for joining it and his own node.toml."""

    def make(options="", own="", policy=""):
        for name, text in (("alice", options), ("bob", own)):
            config.create(tmp_path / name, name)
            path = tmp_path / name / config.CONFIG
            path.write_text(path.read_text().replace("\n[policy]", f"{text}\n\n[policy]", 1))
        path = tmp_path / "alice" / config.CONFIG
        path.write_text(path.read_text().replace("\n[codec]", f"{policy}\n\n[codec]", 1))
        alice = config.load(tmp_path / "alice")
        task = make_task("digits", alice.task_options(), Part(0, 1), 0)
        membership_changes.create_federation(
            tmp_path / "alice", agreement.draft("home", alice, task), tmp_path / "backup.pem"
        )
        line = membership_changes.request(tmp_path / "bob")
        membership_changes.admit(tmp_path / "alice", line, "participant", tmp_path / "bundle")
        return tmp_path

    return make


def differences(root):
    agreed = agreement.read(load_federation(root / "alice").file)
    return approval.differences(config.load(root / "bob"), agreed, root / "bob")


def test_approval_of_equal_options_finds_no_difference(home):
    assert differences(home("samples = 40\nlr = 0.1", "lr = 0.1\nsamples = 40")) == []


def test_approval_of_default_options_finds_no_difference(home):
    assert differences(home("hidden = 64", 'judged_on = "own"', "neighbours = 5")) == []


def test_approval_lists_each_difference_with_both_values(home):
    assert differences(home("samples = 40\nhidden = 16", "lr = 0.1", "tau = 3.0")) == [
        Difference("task.hidden", "16", "64"),
        Difference("task.lr", "0.05", "0.1"),
        Difference("task.samples", "40", "0"),
        Difference("policy.tau", "3.0", "0.0"),
    ]


def test_approval_of_task_not_importable_lists_every_option(home):
    root = home("hidden = 64", "lr = 0.1")
    agreed = agreement.read(load_federation(root / "alice").file)
    other = {"name": "nowhere:task", "hidden": 64}
    changed = msgspec.structs.replace(agreed, task=other)
    own = msgspec.structs.replace(config.load(root / "bob"), task={"name": "nowhere:task", "lr": 0.1})
    assert approval.differences(own, changed, root / "bob") == [
        Difference("task.hidden", "64", approval.NOTHING),
        Difference("task.lr", approval.NOTHING, "0.1"),
    ]


def test_summary_has_only_printable_characters(home):
    agreed = agreement.read(load_federation(home() / "alice").file)
    lines = approval.summary(msgspec.structs.replace(agreed, task={"name": "a:\x1b[2J", "k\x1b\u202e": "v\x1b"}))
    assert all(line.isprintable() for line in lines)


def test_summary_shows_empty_options_as_none(home):
    agreed = agreement.read(load_federation(home() / "alice").file)
    task = {"name": "classification", "classes": 3, "labels": (), "header": None}
    lines = approval.summary(msgspec.structs.replace(agreed, task=task))
    assert "  task classification: classes = 3, labels = none, header = none" in lines


def join(root, *options):
    return main(["join", str(root / "bob"), str(root / "bundle"), *options])


def has_joined(root):
    return load_federation(root / "bob") is not None


def test_join_without_terminal_accepts_equal_options(home, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    root = home("samples = 40", "samples = 40")
    assert join(root) == 0
    assert capsys.readouterr().err.splitlines() == [
        "settings of the federation home:",
        "  task digits: samples = 40",
        "  policy dac",
        "  model of 4,810 values (0.02 MB), 10 rounds",
    ]
    assert has_joined(root)


def test_join_without_terminal_refuses_other_options(home, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    root = home("samples = 40")
    assert join(root) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "  task.samples is 40 in the federation, and 0 in this node's node.toml" in lines
    assert lines[-1].startswith("not joined: the federation's options differ from node.toml (task.samples = 40); ")
    assert lines[-1].endswith(f"p2pfl-node join {root / 'bob'} --yes {root / 'bundle'}")
    assert not has_joined(root)
    assert join(root, "--yes") == 0
    assert has_joined(root)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("\n", 2), ("no\n", 2), ("", 2)])
def test_join_on_terminal_asks_for_approval(home, capsys, monkeypatch, typed, code):
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    root = home()
    assert join(root) == code
    assert "join with these options? [y/N]" in capsys.readouterr().err
    assert has_joined(root) == (code == 0)


def test_join_with_yes_does_not_ask(home, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert join(home("samples = 40"), "--yes") == 0
    assert "[y/N]" not in capsys.readouterr().err


def test_join_not_approved_saves_nothing(home):
    root = home()

    def refuse(own, agreed):
        raise ConfigurationError("no")

    key = Identity.load(root / "bob" / config.KEY).public
    with pytest.raises(ConfigurationError, match="no"):
        membership_changes.accept_bundle(
            root / "bob", (root / "bundle").read_text(), config.load(root / "bob"), key, approve=refuse
        )
    assert not has_joined(root)


# Options that a task takes from the node's data


@pytest.fixture
def files(tmp_path):
    """Alice's file has three classes and bob's two; neither configuration names a number."""

    def make(options="", labels=(0, 1), header="a,b,kind"):
        for name, kinds in (("alice", (0, 1, 2)), ("bob", labels)):
            rows = [f"{k},{k / 2},{kinds[k % len(kinds)]}" for k in range(20)]
            first = "a,b,kind" if name == "alice" else header
            (tmp_path / f"{name}.csv").write_text("\n".join([first, *rows]))
            config.create(tmp_path / name, name, task="classification", data=str(tmp_path / f"{name}.csv"))
        path = tmp_path / "bob" / config.CONFIG
        path.write_text(path.read_text().replace("\n[policy]", f"{options}\n\n[policy]", 1))
        task = loading.task_of(loading.load(tmp_path / "alice"))
        tables = agreement.draft("home", config.load(tmp_path / "alice"), task)
        membership_changes.create_federation(tmp_path / "alice", tables, tmp_path / "backup.pem")
        membership_changes.admit(
            tmp_path / "alice", membership_changes.request(tmp_path / "bob"), "participant", tmp_path / "bundle"
        )
        return tmp_path

    return make


def test_join_takes_sizes_of_the_federation_unasked(files, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    root = files()
    assert join(root) == 0
    ready = loading.load(root / "bob")
    columns = ready.config.task["columns"]
    assert ready.config.task == {"name": "classification", "classes": 3, "features": 2, "columns": columns}
    task = loading.task_of(ready)
    agreement.same_model(ready.agreement, task, task.initial(0))
    assert loading.task_of(loading.load(root / "alice")).layout == task.layout


def test_approval_lists_sizes_that_the_owner_has_set(files):
    assert differences(files("classes = 2\nfeatures = 2")) == [Difference("task.classes", "3", "2")]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"labels": (0, 3)}, "bob.csv, line 3: kind is 3, a label must be a whole number from 0 to 2 (task.classes is 3)"),
        ({"header": "b,a,kind"}, "bob.csv: the columns differ from those of the federation (task.columns), in their names"),
    ],
)
def test_join_refuses_data_that_does_not_fit_the_federation(files, capsys, file, message):
    root = files(**file)
    assert join(root, "--yes") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not has_joined(root)


def test_join_accepts_data_that_is_not_there_yet(files):
    root = files(header="b,a,kind")
    (root / "bob.csv").rename(root / "later.csv")
    assert join(root, "--yes") == 0
    (root / "later.csv").rename(root / "bob.csv")
    with pytest.raises(ConfigurationError, match=r"bob\.csv: the columns differ"):
        loading.task_of(loading.load(root / "bob"))


def test_federation_agrees_on_options_of_the_robust_rule(tmp_path):
    config.create(tmp_path / "alice", "alice")
    path = tmp_path / "alice" / config.CONFIG
    path.write_text(path.read_text().replace('robust = "clip-loss"', 'robust = { name = "cs+", share = 0.3 }'))
    alice = config.load(tmp_path / "alice")
    task = make_task("digits", alice.task_options(), Part(0, 1), 0)
    membership_changes.create_federation(tmp_path / "alice", agreement.draft("home", alice, task), tmp_path / "backup.pem")
    agreed = agreement.read(load_federation(tmp_path / "alice").file)
    assert agreed.robust == {"name": "cs+", "share": 0.3}
    terms = agreement.terms(task.layout, agreement.apply_agreement(alice, agreed), "00")
    assert terms["robust aggregation"] == 'cs+ {"share": 0.3}'


def test_federation_with_unknown_robust_rule_is_refused(home):
    tables = load_federation(home() / "alice").file.tables
    file = SimpleNamespace(name="home", tables={**tables, "robust": "mean"})
    with pytest.raises(ConfigurationError, match=r"the federation home: unknown robust rule 'mean'"):
        agreement.read(file)


def test_federation_without_shared_setting_is_refused(home):
    tables = load_federation(home() / "alice").file.tables
    for key in {*agreement.AGREED} - {"codec", *agreement.SECURE}:
        file = SimpleNamespace(name="home", tables={name: value for name, value in tables.items() if name != key})
        with pytest.raises(ConfigurationError, match=f"the federation home: {key} is missing"):
            agreement.read(file)


def test_file_of_federation_keeps_order_of_its_keys(home):
    """A signature covers the bytes of the file, whose order later versions must not change."""
    shared = ["rounds", "seed", "members", "mode", "deadline", "adaptive", "max_staleness", "patience", "robust", "codec"]
    ready = loading.load(home() / "alice")
    drafted = agreement.draft("home", ready.config, loading.task_of(ready))
    assert [*drafted] == ["name", *shared, "edges", "task", "policy", "model"]


def test_federation_names_secure_sums_only_if_it_has_them(home):
    """Older nodes know the file of a federation without them, and refuse one with them."""
    tables = load_federation(home() / "alice").file.tables
    assert not tables.keys() & set(agreement.SECURE)


def test_federation_with_secure_sums_has_other_terms(tmp_path):
    config.create(tmp_path / "alice", "alice", policy="coordinated-fedavg")
    own = replace(config.load(tmp_path / "alice"), robust="none", secure_sums=True, secure_threshold=4)
    task = make_task("digits", own.task_options(), Part(0, 1), 0)
    drafted = agreement.draft("home", own, task)
    assert [drafted[key] for key in agreement.SECURE] == [True, 4]
    secure, plain = (
        agreement.terms(task.layout, replace(own, **changes), "00", timing=TIMING)
        for changes in ({}, {"secure_sums": False, "secure_threshold": 0})
    )
    assert {key for key in secure if secure[key] != plain[key]} == {"local submission format", "joint aggregation behaviour"}
    assert secure["joint aggregation behaviour"] == "the mean by samples, of a secure sum that at least 4 members open"
