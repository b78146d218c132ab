"""`p2pfl-sim new --from DATA`: the scenario for a user's data or module; and `p2pfl-sim doctor`."""

import json
from importlib.util import module_from_spec, spec_from_file_location

import networkx as nx
import pytest

from p2pfl.sim.cli.main import main
from p2pfl.sim.doctor import run_checks
from p2pfl.sim.scenario.scenario import load
from p2pfl.sim.simulation.plan import plan
from p2pfl.task import Part
from tests.support.extras import needs_torch

SITES = ["x", "y", "z"]
ROWS = "\n".join(f"{k * 7 % 50},{k % 9}.5,{'no' if k * 7 % 50 < 25 else 'yes'},{'xyz'[k % 3]}" for k in range(90))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(f"a,b,label,site\n{ROWS}\n")
    return tmp_path


def new(*options):
    return main(["new", *options])


@needs_torch
def test_scenario_has_the_proposal_with_reasons(folder, capsys):
    assert new("--from", "own.csv") == 0
    assert "next: p2pfl-sim run own_study/scenario.toml" in capsys.readouterr().out
    file = load("own_study/scenario.toml")
    assert (file.name, [run.name for run in file.runs]) == ("own_study", ["alone", "dac", "fedavg"])
    (task,) = {json.dumps(run.task, sort_keys=True) for run in file.runs}
    assert json.loads(task)["partition"] == {"name": "column", "column": "site"}
    assert file.runs[0].nodes == 3
    assert [(each.run, each.against, each.yes) for each in file.answers] == [
        ("dac", "alone", "above"),
        ("fedavg", ["alone", "dac"], "above"),
    ]
    assert "# 3 nodes by site: the column says where a row comes from" in (folder / "own_study/scenario.toml").read_text()


@needs_torch
@pytest.mark.slow
def test_run_ends_in_a_result(folder, capsys):
    assert new("own", "--from", str(folder), "--run", "--json") == 0
    assert {run["name"] for run in json.loads(capsys.readouterr().out)["runs"]} == {"alone", "dac", "fedavg"}


@pytest.mark.slow
def test_values_of_site_column_are_labels_of_nodes(folder, capsys):
    assert new("--from", "own.csv") == 0
    capsys.readouterr()
    assert main(["data", "check", "own_study/scenario.toml", "--json"]) == 0
    division = json.loads(capsys.readouterr().out)["divisions"][0]
    assert [node["label"] for node in division["nodes"]] == SITES
    runs = load("own_study/scenario.toml").runs
    assert plan(runs[0]).topology.labels == SITES
    assert plan(runs[0], nx.path_graph(["a", "b", "c"])).topology.labels == ["a", "b", "c"]  # those of a graph come first


def test_values_that_number_the_nodes_are_no_labels(folder):
    text = (folder / "own.csv").read_text()
    for k, site in enumerate(SITES):
        text = text.replace(f",{site}\n", f",{k}\n")
    (folder / "own.csv").write_text(text)
    assert new("--from", "own.csv", "--by", "site") == 0
    assert plan(load("own_study/scenario.toml").runs[0]).topology.labels == []


def test_wrong_data_creates_nothing(folder, capsys):
    (folder / "own.csv").write_text(f"a,b,label,site\n{ROWS}\n1,2,,x\n")
    assert new("--from", "own.csv") == 2
    assert "no label in line 92" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["own.csv"]


def test_options_of_new_need_data(capsys):
    assert new("--label", "a") == 2
    assert "--label needs --from DATA" in capsys.readouterr().err
    assert new() == 2
    assert "name the project, or its data" in capsys.readouterr().err


NET = "from torch import nn\n\n\ndef net():\n    return nn.Linear({}, 2)\n"


@needs_torch
@pytest.mark.parametrize(("width", "code"), [(2, 0), (3, 2)])
def test_own_module_is_tried_with_the_data(folder, capsys, monkeypatch, width, code):
    monkeypatch.syspath_prepend(str(folder))
    (folder / f"net{width}.py").write_text(NET.format(width))
    assert new("net_study", "--from", f"net{width}:net", "--data", "own.csv") == code
    out, err = capsys.readouterr()
    if code:
        assert "does not fit own.csv, which has 2 classes to predict; it was tried with samples of [2]" in err
        return
    assert "takes samples of 2 values and has 2 outputs" in out
    assert sorted(path.name for path in (folder / "net_study").iterdir()) == ["net2.py", "scenario.toml", "task.py"]
    spec = spec_from_file_location("own_task", folder / "net_study" / "task.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    task = module.make_task(Part(1, 3), 0, data="own.csv", partition={"name": "column", "column": "site"})
    assert task.layout.shapes == (("weight", (2, 2)), ("bias", (2,)))
    assert task.n_samples == 24


@pytest.mark.slow
@needs_torch
def test_doctor_checks_scenario_and_its_data(folder, capsys):
    assert new("own", "--from", "own.csv") == 0
    checks = {found.check: found.ok for found in run_checks("own/scenario.toml", folder)}
    assert (checks["scenario"], checks["data"], checks["extras"]) == (True, True, True)
    (folder / "own.csv").unlink()
    (found,) = [each for each in run_checks("own/scenario.toml", folder) if each.check == "data"]
    assert (found.ok, "own.csv: No such file" in found.result) == (False, True)
    (folder / "own/scenario.toml").write_text("rondas = 3\n")
    assert main(["doctor", "own/scenario.toml"]) == 1
    assert "unknown key 'rondas'" in capsys.readouterr().out


def test_doctor_takes_the_scenario_of_the_current_folder(folder):
    (found,) = [each for each in run_checks(None, folder) if each.check == "scenario"]
    assert (found.ok, "SCENARIO" in found.remedy) == (None, True)
