"""Checks of the installation: a copy where the clone was meant, another p2pfl, and missing extras."""

import json
import shutil
from pathlib import Path

import pytest

from p2pfl import installation
from p2pfl.installation import Need, check_extras, check_package, check_path, check_shadow, needs_of_task


class Installed:
    """Distribution of which only the file direct_url.json is known."""

    def __init__(self, folder=None, editable=False):
        self.about = {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}} if folder else {}

    def read_text(self, name):
        return json.dumps(self.about) if name == "direct_url.json" else None


@pytest.fixture
def clone(tmp_path):
    """Return a clone, and a copy of it as pip makes one."""
    clone, copy = tmp_path / "clone", tmp_path / "site-packages" / "p2pfl"
    for part in ("p2pfl", "node", "protocols", "topologies", "sim"):
        (clone / part).mkdir(parents=True)
        (clone / part / "__init__.py").write_text("")
    (clone / "pyproject.toml").write_text('[project]\nname = "p2pfl-node"\n')
    shutil.copytree(clone / "p2pfl", copy)
    for part in ("node", "protocols", "topologies", "sim"):
        shutil.copytree(clone / part, copy / part)
    return clone, copy


def test_editable_installation_is_right(clone):
    root, _ = clone
    assert check_package(root / "p2pfl", root, Installed(root, editable=True), None).ok


def test_copy_of_a_clone_is_noted_and_wrong_after_a_change(clone, tmp_path):
    root, copy = clone
    noted = check_package(copy, tmp_path, Installed(root), None)
    assert (noted.ok, "is a copy" in noted.result, "-e '.[EXTRAS]'" in noted.remedy) == (None, True, True)
    (root / "node" / "__init__.py").write_text("x = 1\n")
    wrong = check_package(copy, tmp_path, Installed(root), None)
    assert (wrong.ok, "node/__init__.py" in wrong.result) == (False, True)


def test_copy_is_seen_from_inside_a_clone_too(clone):
    root, copy = clone
    assert check_package(copy, root / "node", Installed(), None).ok is None


def test_distribution_of_the_other_project_is_wrong(clone):
    root, copy = clone
    found = check_package(copy, root, Installed(root, editable=True), Installed())
    assert (found.ok, "pip uninstall" in found.remedy) == (False, True)


def test_package_of_the_current_folder_that_hides_this_one_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    package = Path(installation.p2pfl.__file__).resolve().parent
    (tmp_path / "p2pfl.py").write_text("")
    (found,) = check_shadow(tmp_path, package)
    assert (found.ok, str(tmp_path / "p2pfl.py") in found.result) == (False, True)
    assert check_shadow(package.parent, package) == []


def test_command_of_another_environment_is_noted(tmp_path):
    python = tmp_path / "bin" / "python"
    assert check_path("p2pfl-sim", str(tmp_path / "bin" / "p2pfl-sim"), python) == []
    for found in (None, "/other/bin/p2pfl-sim"):
        (each,) = check_path("p2pfl-sim", found, python)
        assert (each.ok, "activate" in each.remedy) == (None, True)


def test_missing_extra_is_named_once_with_its_remedy():
    needs = [Need("the broker", "no_such_module", "mqtt"), Need("the broker", "no_such_one", "mqtt"), Need("x", "json", "y")]
    (found,) = check_extras(needs)
    assert (found.ok, found.result) == (False, "the broker needs the extra mqtt")
    assert "[mqtt]" in found.remedy
    assert check_extras(needs[2:])[0].ok


@pytest.mark.parametrize(
    ("task", "extras"),
    [
        ({"name": "classification"}, set()),
        ({"name": "classification", "metrics": ["f1"]}, {"metrics"}),
        ({"name": "classification", "model": {"name": "cnn"}}, {"torch"}),
        ({"name": "images"}, {"torch"}),
        ({"name": "digits"}, {"metrics"}),
        ({"name": "mine:task"}, set()),
    ],
)
def test_needs_of_tasks(task, extras):
    assert {need.extra for need in needs_of_task(task)} == extras


def test_needs_of_own_folders(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    assert {need.extra for need in needs_of_task({"name": "classification"}, str(tmp_path))} == {"arrow"}
    assert {need.extra for need in needs_of_task({"name": "classification", "data": str(tmp_path.parent)})} == {"images"}
