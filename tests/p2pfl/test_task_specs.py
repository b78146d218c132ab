"""Local options of a node, which are never part of the shared rules."""

import inspect

import pytest

from p2pfl._util.registry import resolve
from p2pfl.data import image_sets as sets
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import agreement, loading, membership_changes
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols.identity import Identity
from p2pfl.task import Part, make_task
from p2pfl.task_specs import FACTORIES, OTHERS, TASKS, check_shared

REFUSED = [
    ({"name": "images", "data": "/home/alice/photos"}, "task.data = '/home/alice/photos'"),
    ({"name": "images", "data": "../photos"}, "task.data = '../photos'"),
    ({"name": "images", "data": ["mnist", "a/b"]}, "task.data"),
    ({"name": "images", "data": "C:\\photos"}, "task.data"),
    ({"name": "images", "data": "photos", "root": "/home/alice"}, "task.root"),
    ({"name": "images", "initial": "weights.safetensors"}, "task.initial"),
    ({"name": "classification", "classes": 2, "features": 2, "data": "patients.csv"}, "task.data"),
    ({"name": "fairness", "data": "mine.toml"}, "task.data"),
    ({"name": "praffl", "data": "~/mine.toml"}, "task.data"),
    ({"name": "teachers", "preference": [0.25] * 4}, "task.preference"),
    ({"name": "mine:task", "preference": [1.0]}, "task.preference"),
    ({"name": "mine:task", "weights": "/etc/passwd"}, "task.weights = '/etc/passwd'"),
    ({"name": "mine:task", "deep": {"list": ["x", {"file": "..\\up"}]}}, "task.deep"),
    ({"name": "mine:task", "home": "~"}, "task.home"),
]
ALLOWED = [
    {"name": "images", "data": ["mnist", "fashion-mnist"], "model": {"name": "linear"}},
    {"name": "classification", "classes": 2, "features": 2, "target": "km/h"},
    {"name": "fairness", "data": "adult", "sensitive": ["sex+race"]},
    {"name": "mine:task", "data": "mnist", "speed": 1.5, "words": ["a.b", "c-d"], "deep": {"on": True}},
]


@pytest.mark.parametrize(("task", "message"), REFUSED)
def test_check_shared_refuses_local_options(task, message):
    options = {key: value for key, value in task.items() if key != "name"}
    with pytest.raises(ConfigurationError) as caught:
        check_shared("task", task["name"], options)
    assert str(caught.value).startswith(message)
    assert "cannot be shared" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ALLOWED)
def test_check_shared_allows_shared_options(task):
    check_shared("task", task["name"], {key: value for key, value in task.items() if key != "name"})


def test_check_shared_refuses_path_in_policy_option():
    with pytest.raises(ConfigurationError, match=r"policy\.start = '/tmp/x'"):
        check_shared("policy", "", {"start": "/tmp/x"})


def test_built_in_tasks_declare_all_local_options():
    for name, spec in TASKS.items():
        parameters = set(inspect.signature(resolve("task", name, FACTORIES, "p2pfl.tasks")).parameters)
        assert spec.local.keys() == parameters & {*OTHERS, "initial"}, name
        assert parameters >= {*spec.derived}, name


@pytest.fixture
def member(tmp_path):
    """A node that will join, and a function that makes federations with any task and lets it join."""
    config.create(tmp_path / "maker", "maker")
    config.create(tmp_path / "victim", "victim")
    tables = agreement.draft("home", config.load(tmp_path / "maker"), make_task("digits", {}, Part(0, 1), 0))

    def joins(task):
        path = tmp_path / "victim" / config.CONFIG
        path.write_text(path.read_text().replace('name = "digits" ', f'name = "{task["name"]}" '))
        membership_changes.create_federation(tmp_path / "maker", tables | {"task": task}, tmp_path / "backup.pem")
        line = membership_changes.request(tmp_path / "victim")
        membership_changes.admit(tmp_path / "maker", line, "participant", tmp_path / "bundle")
        key = Identity.load(tmp_path / "victim" / config.KEY).public
        membership_changes.accept_bundle(
            tmp_path / "victim", (tmp_path / "bundle").read_text(), config.load(tmp_path / "victim"), key
        )

    return tmp_path, joins


@pytest.mark.parametrize(("task", "message"), REFUSED)
def test_join_refuses_federation_that_names_files(member, task, message):
    root, joins = member
    with pytest.raises(ConfigurationError) as caught:
        joins(task)
    assert str(caught.value).startswith(f"the federation home: {message}")
    assert load_federation(root / "victim") is None


def test_load_refuses_node_of_federation_that_names_files(member):
    """The folder was made by a version without this check."""
    root, joins = member
    task = {"name": "images", "data": "/home/alice/photos"}
    with pytest.raises(ConfigurationError):
        joins(task)
    for name in ("federation.toml", "membership"):
        (root / "victim" / name).write_bytes((root / "maker" / name).read_bytes())
    with pytest.raises(ConfigurationError, match=r"the federation home: task\.data"):
        loading.load(root / "victim")


def test_draft_refuses_federation_that_names_files(tmp_path):
    config.create(tmp_path / "alice", "alice", task="images")
    own = config.load(tmp_path / "alice", ["task.data=/home/alice/photos"])
    with pytest.raises(ConfigurationError, match=r"task\.data.*above the tables"):
        agreement.draft("home", own, make_task("digits", {}, Part(0, 1), 0))


def test_local_options_are_read_from_top_of_node_toml(tmp_path):
    config.create(tmp_path / "alice", "alice", task="images")
    changes = ["initial=w.safetensors", "root=/data", "preference=[0.5,0.5]", "data=mine", "task.samples=7"]
    own = config.load(tmp_path / "alice", changes)
    expected = {"samples": 7, "initial": "w.safetensors", "root": "/data", "preference": (0.5, 0.5), "data": "mine"}
    assert own.task_options() == expected


@pytest.mark.parametrize("name", ["/etc", "../etc", "a/b", "..", "", "a\\b"])
def test_load_data_set_refuses_paths(tmp_path, name):
    with pytest.raises(ConfigurationError, match="must be the name of a folder in the data root, not a path"):
        sets.load(name, str(tmp_path))
