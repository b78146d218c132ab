"""The guide on LEAF and FLamby: its scenario and its script run on small files of the published forms."""

import csv
import json
import random
import re
import runpy
from pathlib import Path

import pytest

from p2pfl.sim.cli.main import main
from tests.p2pfl.data.test_leaf import make
from tests.support.extras import needs_torch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-federated-benchmarks.md"


def file_of_page(name):
    """Write a file of the page into the current folder."""
    (text,) = re.findall(rf"```\w+\n(# {re.escape(name)}\n.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return Path(name).write_text(text, encoding="utf-8")


@needs_torch
@pytest.mark.slow
def test_scenario_of_the_page_runs_on_writers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("P2PFL_DATA", str(tmp_path / "data"))
    make(tmp_path / "data", sizes=(12, 9, 10, 11))
    file_of_page("femnist.toml")
    changes = ["--set", "nodes=4", "--set", "rounds=1", "--seeds", "0:1"]
    assert main(["run", "femnist.toml", *changes, "--out", "out"]) == 0
    out = capsys.readouterr().out
    assert "4 writers" in out
    assert {run["name"] for run in json.loads(Path("out/summary.json").read_text())["runs"]} == {"local", "dac", "fedavg"}


def write_hospital(name, rows, seed, whole):
    """Write a table in the form of the UCI repository: 14 columns without names, "?" for a missing value."""
    rng, number = random.Random(seed), (lambda value: f"{value}.0") if whole else str
    lines = []
    for k in range(rows):
        sick = rng.random() < 0.5
        values = [number(rng.randint(29, 77)), number(rng.randint(0, 1)), number(rng.randint(1, 4))]
        values += [number(rng.randint(94, 200)), "?" if k == 3 else number(rng.randint(126, 564)), number(rng.randint(0, 1))]
        values += [number(rng.randint(0, 2)), number(rng.randint(71, 202)), number(int(sick)), str(rng.random())]
        lines.append(",".join([*values, "?", "?", "?", str(rng.randint(1, 4) if sick else 0)]))
    Path(f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return lines


@needs_torch
@pytest.mark.slow
def test_script_of_the_page_makes_a_node_of_each_hospital(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = {"cleveland": 40, "hungarian": 35, "switzerland": 30, "va": 20}
    lines = {name: write_hospital(name, rows, rows, whole=name == "cleveland") for name, rows in sizes.items()}
    file_of_page("heart.py")
    runpy.run_path("heart.py")
    rows = list(csv.DictReader(Path("heart.csv").read_text().splitlines()))
    for name, written in lines.items():
        own = [row for row in rows if row["centre"] == name]
        assert len(own) == len(written) - 1  # one lacks a value
        labels = [line.rsplit(",", 1)[1] for k, line in enumerate(written) if k != 3]
        assert [row["disease"] for row in own] == ["no" if label == "0" else "yes" for label in labels]
    assert {row["ecg"] for row in rows} == {"type 0", "type 1", "type 2"}
    assert main(["new", "heart", "--from", "heart.csv", "--by", "centre"]) == 0
    assert main(["data", "check", "heart/scenario.toml"]) == 0
    out = capsys.readouterr().out
    assert "4 nodes by centre" in out
    assert all(name in out for name in sizes)
