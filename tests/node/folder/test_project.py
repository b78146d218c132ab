"""Nodes from a project: `p2pfl-node init FOLDER --from PROJECT`."""

import re
import subprocess
import sys

import pytest

from p2pfl.node.cli.init import read_project
from p2pfl.node.cli.main import main
from p2pfl.node.folder import config
from p2pfl.privacy import Privacy
from p2pfl.sim.cli.new import make_project
from tests.support import forked

SCENARIO = """
nodes = 8
rounds = 3
seeds = [5, 6]
robust = "none"
codec = { name = "top-k", share = 0.1 }
task = { name = "mine:make", samples = 4, partition = { name = "iid" } }
policy = { name = "local" }
topology = { name = "ring" }

[[run]]
name = "alone"

[[run]]
name = "others"
policy = { name = "random", neighbours = 2 }
rounds = 7

[[run]]
name = "many"
each = { seed = [1, 2] }
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """Forget modules of the same names that another test has imported, and the folders of its nodes."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "pytest-of-" not in place])
    for name in ("mine", "helper", "parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def scenario(tmp_path):
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "study.toml").write_text(SCENARIO)
    (folder / "mine.py").write_text("import json\ndef make(part, seed):\n    from helper import help\n")
    (folder / "helper.py").write_text("import parts.first\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "first.py").write_text("from . import second\n")
    (folder / "other.py").write_text("raise SystemExit\n")
    return folder / "study.toml"


def refusal(capsys, tmp_path, *options):
    assert main(["init", str(tmp_path / "alice"), *map(str, options)]) == 2
    assert not (tmp_path / "alice").exists()
    return capsys.readouterr().err


def test_init_takes_settings_of_scenario(scenario, tmp_path, capsys):
    assert main(["init", str(tmp_path / "alice"), "--from", str(scenario), "--part", "1/8"]) == 0
    own = config.load(tmp_path / "alice")
    assert (own.part, own.rounds, own.seed, own.robust) == ("1/8", 3, 5, "none")
    assert own.task == {"name": "mine:make", "samples": 4, "partition": {"name": "iid"}}
    assert (own.policy, own.codec) == ({"name": "local"}, {"name": "top-k", "share": 0.1})
    out = capsys.readouterr().out
    assert f"task mine:make and policy local from {scenario}\n" in out
    assert "for simulations only, not used by the node: nodes, topology\n" in out


def test_init_takes_the_privacy_budget_of_all_nodes(scenario, capsys, tmp_path):
    scenario.write_text(f'privacy = {{ epsilon = 8, by_node = {{ "0" = {{ epsilon = 2 }} }} }}\n{SCENARIO}')
    assert main(["init", str(tmp_path / "alice"), "--from", str(scenario)]) == 0
    assert config.load(tmp_path / "alice").privacy == Privacy(epsilon=8)
    assert "not used by the node: nodes, topology, privacy.by_node\n" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "file", "unused"), [((), "a.csv", ""), (("--data", "b.csv"), "b.csv", "task.data, ")])
def test_init_takes_data_of_scenario_or_own_data(tmp_path, monkeypatch, capsys, options, file, unused):
    project = tmp_path / "project"
    project.mkdir()
    (project / "table.toml").write_text(
        'nodes = 3\n[task]\nname = "classification"\ndata = "a.csv"\nhidden = [4]\npartition = { name = "iid" }\n'
        '[policy]\nname = "random"\n'
    )
    monkeypatch.chdir(tmp_path)
    for path in (project / "a.csv", tmp_path / "b.csv"):
        path.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 10)
    assert main(["init", "alice", "--from", "project/table.toml", *options]) == 0
    own = config.load(tmp_path / "alice")
    assert own.task == {"name": "classification", "hidden": [4]}
    assert own.data == str((project if file == "a.csv" else tmp_path) / file)
    assert f"not used by the node: nodes, {unused}task.partition\n" in capsys.readouterr().out
    assert main(["federation", "create", "alice", "--backup", "backup.pem"]) == 0


def test_init_copies_modules_that_task_imports(scenario, tmp_path, capsys):
    assert main(["init", str(tmp_path / "alice"), "--from", str(scenario)]) == 0
    assert "copied helper.py, mine.py, parts;" in capsys.readouterr().out
    assert (tmp_path / "alice" / "parts" / "first.py").read_text() == "from . import second\n"
    assert not (tmp_path / "alice" / "other.py").exists()


def test_init_takes_named_run(scenario, tmp_path):
    assert main(["init", str(tmp_path / "alice"), "--from", str(scenario), "--run", "others"]) == 0
    own = config.load(tmp_path / "alice")
    assert (own.rounds, own.policy) == (7, {"name": "random", "neighbours": 2})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--run", "other"), "unknown run 'other'; did you mean 'others'?"),
        (("--run", "many"), "the run 'many' has the key `each`, so it is many runs; choose another one"),
        (("--task", "digits"), "--from takes the task and the policy from the project; leave out --task and --policy"),
    ],
)
def test_init_refuses_options_that_do_not_fit_project(scenario, tmp_path, capsys, options, reason):
    assert reason in refusal(capsys, tmp_path, "--from", scenario, *options)


def test_init_refuses_run_without_project(tmp_path, capsys):
    assert "--run chooses a run of the scenario of --from" in refusal(capsys, tmp_path, "--run", "alone")


def test_init_refuses_missing_scenario(tmp_path, capsys):
    assert f"{tmp_path} has no scenario.toml; make a project" in refusal(capsys, tmp_path, "--from", tmp_path)
    assert "study.toml does not exist" in refusal(capsys, tmp_path, "--from", tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('policy = { name = "local" }', "", "has no policy for all runs; .* choose a run with --run: alone, others, many"),
        ("mine:make", "hers:make", "the task 'hers:make' needs the module hers, which is not in "),
        ("rounds = 3", "rounds = -1", "rounds must be 0 or more, got -1"),
        ("rounds = 3", "budget = { models = 0.5 }", "budget.models"),
    ],
)
def test_init_refuses_scenario(scenario, tmp_path, capsys, before, after, reason):
    scenario.write_text(SCENARIO.replace(before, after))
    assert re.search(reason, refusal(capsys, tmp_path, "--from", scenario))


def test_init_refuses_module_that_another_one_hides(scenario, tmp_path, capsys, monkeypatch):
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "mine.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    assert f"a node would import the module mine from {installed}/mine.py" in refusal(capsys, tmp_path, "--from", scenario)


def test_init_in_project_copies_nothing(scenario):
    project = read_project(scenario)
    project.copy_modules(scenario.parent)
    assert [path.name for path in project.files] == ["helper.py", "mine.py", "parts"]


@pytest.mark.slow
def test_node_trains_task_of_new_project(tmp_path):
    make_project(tmp_path / "my_study")
    assert main(["init", str(tmp_path / "alice"), "--from", str(tmp_path / "my_study"), "--part", "0/12"]) == 0
    options = ["run", "alice", "--until-done", "--set", "rounds=2", "--set", "mdns=false"]
    command = [sys.executable, "-m", "p2pfl.node", *options]
    running = forked.python(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = running.communicate()
    assert running.returncode == 0, output
    assert "the model of round 2" in output
