"""Facts of what a task's readers understood, as commands show them."""

import json

import pytest

from p2pfl.sim.cli.main import main
from tests.support.extras import needs_torch

TASK = """
import torch
import p2pfl
from p2pfl.data_facts import ColumnFacts, DataFacts

COLUMNS = (ColumnFacts("age", "number", range=(17.0, 90.0), missing=2), ColumnFacts("", "number", "ignored"))
FACTS = DataFacts("own.csv", "CSV", 8, COLUMNS, notes=("own.csv: age looks odd",))


def task(part, seed):
    x = torch.arange(16.0).reshape(8, 2)
    own = (DataFacts("extra.csv", "CSV", part.index),)
    found = p2pfl.classification(lambda: torch.nn.Linear(2, 2), (x, [0, 1] * 4), test=(x, [0, 1] * 4))
    found.data_facts = (FACTS, *own) if part.index < 2 else (FACTS,)
    return found
"""
SCENARIO = 'nodes = 3\nrounds = 1\npolicy = "local"\ntask = {{ name = "{module}:task" }}\n'
LINE = "own.csv: CSV, 8 samples; 1 number; ignored (no name); 2 missing values in age"


@pytest.fixture
def scenario(tmp_path, monkeypatch, request):
    module = request.node.name  # each test imports a module of its own
    (tmp_path / f"{module}.py").write_text(TASK)
    path = tmp_path / "own.toml"
    path.write_text(SCENARIO.format(module=module))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
def test_run_prints_each_source_once_and_stores_it(scenario, tmp_path, capsys):
    assert main(["run", str(scenario), "--out", str(tmp_path / "out"), "--quiet", "--no-report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("data: ")] == [
        f"data: {LINE}",
        "data: extra.csv: CSV, 0 samples",
        "data: extra.csv: CSV, 1 sample",
    ]
    assert "note: own.csv: age looks odd" in lines
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["runs"][0]["data"][0]["line"] == LINE
    assert "own.csv: age looks odd" in summary["notes"]


@needs_torch
def test_data_check_shows_columns_and_notes(scenario, capsys):
    assert main(["data", "check", str(scenario)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"data: {LINE}" in lines
    assert ["age", "number", "feature", "2", "17", "to", "90"] in [line.split() for line in lines]
    assert "note: own.csv: age looks odd" in lines
    assert main(["data", "check", str(scenario), "--json"]) == 0
    (division,) = json.loads(capsys.readouterr().out)["divisions"]
    assert division["data"][0]["columns"][0]["range"] == [17.0, 90.0]
