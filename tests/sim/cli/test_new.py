"""`p2pfl-sim new`: the files of a new project, its checks, and refused names."""

import json
import re
import subprocess
import sys

import pytest

from p2pfl.sim.cli.main import main
from p2pfl.sim.scenario.scenario import load
from tests.support import forked

FILES = ["README.md", "policy.py", "scenario.toml", "task.py", "test_my_study.py"]


@pytest.fixture
def project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my_study"]) == 0
    capsys.readouterr()
    return tmp_path / "my_study"


def refusal(capsys, name):
    assert main(["new", name]) == 2
    return capsys.readouterr().err


def test_new_creates_files_with_name_of_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my_study", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "my_study", "files": FILES}
    assert sorted(path.name for path in (tmp_path / "my_study").iterdir()) == FILES
    assert "$" not in "".join(path.read_text() for path in (tmp_path / "my_study").iterdir())
    assert len((tmp_path / "my_study" / "README.md").read_text().splitlines()) <= 10


def test_new_scenario_compares_own_policy(project):
    file = load(str(project / "scenario.toml"))
    assert (file.name, file.against) == ("my_study", "alone")
    assert [run.policy["name"] for run in file.runs] == ["local", "random", "policy:SimilarPeers"]


@pytest.mark.slow
def test_tests_of_new_project_pass(project):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = forked.python(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = tested.communicate()
    assert tested.returncode == 0, output
    assert "2 passed" in output


@pytest.mark.slow
@pytest.mark.parametrize("command", [["check", "--select", "A,B,C4,E,F,I,N,PTH,RUF,SIM,UP,W"], ["format", "--check"]])
def test_ruff_accepts_new_project(project, command):
    ruff = [sys.executable, "-m", "ruff", command[0], "--isolated", "--no-cache", *command[1:], "."]
    done = subprocess.run(ruff, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-study", "the name 'my-study' must begin with a letter, .*, such as my_study"),
        ("1st", "the name '1st' must begin with a letter"),
        ("class", "the name 'class' must .* not be a Python keyword"),
        (".", "the name '' must begin with a letter"),
        ("json", "json is a module of Python's standard library; choose another name"),
        ("numpy", "a module numpy is installed, in .*numpy.*; choose another name"),
        ("none/study", "cannot create none/study: No such file or directory"),
    ],
)
def test_new_refuses_name(tmp_path, monkeypatch, capsys, name, reason):
    monkeypatch.chdir(tmp_path)
    assert re.match(reason, refusal(capsys, name))
    assert list(tmp_path.iterdir()) == []


def test_new_refuses_folder_with_files(project, capsys):
    assert refusal(capsys, "my_study") == "my_study exists and is not an empty folder; choose another name\n"
    (project.parent / "file").write_text("")
    assert "file exists and is not an empty folder" in refusal(capsys, "file")


def test_new_takes_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_study").mkdir()
    assert main(["new", "my_study"]) == 0


def test_new_refuses_installed_module_of_same_name(tmp_path, monkeypatch, capsys):
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "policy.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(tmp_path)
    assert f"the module policy is installed in {installed}" in refusal(capsys, "my_study")
    assert not (tmp_path / "my_study").exists()
