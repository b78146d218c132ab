"""Predictions of a node's model for the rows of a CSV file."""

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import FileStore, facts_of
from p2pfl.node.cli import main as cli
from p2pfl.node.cli.export import export
from p2pfl.node.cli.predict import encode_rows, predict
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from p2pfl.random_streams import RandomStreams
from tests.node.cli.test_tools import checkpoint
from tests.support.extras import needs_torch

CATEGORIES = {"sex": ["m", "f"], "ward": ["north", "east", "west"]}
SCHEMA = """
train = "rows.csv"
delimiter = ";"
missing = ["?"]
negative = ["no"]
positive = ["yes"]
sensitive = ["sex"]
[columns]
age = "numeric"
ward = "categorical"
dose = "numeric"
sex = "categorical"
outcome = "label"
"""
GAPS = {"missing": "mean", "standardize": "local"}
TASKS = {
    "classification": {"categories": CATEGORIES, "labels": ["yes", "no"], **GAPS},
    "regression": {"categories": CATEGORIES, **GAPS},
    "fairness": {"data": "rows.toml"},
    "praffl": {"data": "rows.toml"},
}


def make_node(task, **options):
    """Make a node with random rows and a random model in its checkpoint, and return its task."""
    rng = np.random.default_rng(5)
    schema = "data" in options
    rows = ["age,ward,dose,sex,outcome"]
    for k in range(120):
        age, dose = rng.normal(50, 20), "?" * schema if k % 7 == 0 else f"{rng.normal():.3f}"
        label = f"{age * 2:.2f}" if task == "regression" else ("no", "yes")[age > 50]
        rows.append(f"{age:.2f},{('west', 'north', 'east')[k % 3]},{dose},{'fm'[k % 2]},{label}")
    Path("rows.csv").write_text("\n".join(rows).replace(",", ";" if schema else ",") + "\n", encoding="utf-8")
    Path("rows.toml").write_text(SCHEMA, encoding="utf-8")
    settings = {"task": {"name": task, **options}}
    config.create(Path("alice"), "alice", settings=settings, data="rows.csv" if "categories" in options else "")
    made = loading.task_of(loading.load(Path("alice")))
    model = made.initial(3)
    FileStore(Path("alice", config.CHECKPOINT)).save(checkpoint(made.layout, model, model))
    return made


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path(folder).rglob("*")}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[needs_torch, pytest.mark.slow]) if "data" in o else n for n, o in TASKS.items()]
)
def test_predictions_have_the_nodes_own_inputs_and_figure(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    task = make_node(name, **TASKS[name])
    before = contents("alice")
    found = predict(Path("alice"), Path("rows.csv"), [0.3, 0.7] if name == "praffl" else [])
    assert contents("alice") == before
    assert found.lines == list(range(2, 122))
    x, _, notes = encode_rows(Path("rows.csv"), task.row_encoding, ["age", "ward", "dose", "sex", "outcome"])
    assert notes == found.notes == []
    own = np.concatenate([np.asarray(samples[0]) for samples in task.data.values()])
    assert sorted(x.tolist()) == sorted(own.tolist())  # bit for bit

    with Path("rows.csv").open(encoding="utf-8") as file:
        labels = [row["outcome"] for row in csv.DictReader(file, delimiter=task.row_encoding["delimiter"])]
    validation = np.asarray(task.data["validation"][0]).tolist()
    rows = [k for k, each in enumerate(x.tolist()) if each in validation]
    assert len(rows) == len(validation)
    if name == "regression":
        errors = (np.array(found.answers) - np.array(labels, float)) / task.row_encoding["target"]["scale"]
        figure, own_figure = np.mean(errors[rows] ** 2), "validation_mse"
    else:
        right = [found.answers[k] == labels[k] for k in rows]
        assert 0 < np.mean(right) < 1
        assert 0.5 <= min(found.probabilities) <= max(found.probabilities) <= 1
        figure, own_figure = np.mean(right), "validation_accuracy"
    if name == "praffl":  # which reports no accuracy
        outputs = task.model_for(task.initial(3), [0.3, 0.7])(task.data["validation"].x)
        positive = sum(found.answers[k] == "yes" for k in rows)
        assert positive == int((outputs[:, 0] > 0).sum())
    else:
        (reported,) = task.learner(RandomStreams(0, "alice")).evaluate([task.initial(3)], ["validation"])
        assert figure == pytest.approx(reported[own_figure], rel=1e-4)


def run(capsys, *arguments):
    code = cli.main(["predict", "alice", *arguments])
    return code, *capsys.readouterr()


def test_rows_left_out_and_unknown_categories_are_noted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_node("classification", categories=CATEGORIES, labels=["yes", "no"], missing="mean", ignore=["dose"])
    Path("new.csv").write_text("sex,age,ward\nm,40,east\n\nx,NA,\n", encoding="utf-8")
    code, out, err = run(capsys, "new.csv")
    first, *rows = out.splitlines()
    assert (code, first, [row.partition(",")[0] for row in rows]) == (0, "line,prediction,probability", ["2", "4"])
    assert err.splitlines() == [
        "note: ward: 1 row with a category that the model does not know, the first in line 4 (''); they count as none of its"
        " categories",
        "note: sex: 1 row with a category that the model does not know, the first in line 4 ('x'); they count as none of its"
        " categories",
        "note: 1 empty line left out",
    ]
    assert run(capsys, "new.csv", "--out", "found.csv") == (0, "", err)
    assert Path("found.csv").read_text() == out
    assert run(capsys, "new.csv", "--out", "found.csv")[::2] == (2, "found.csv exists; use --force to overwrite it\n")
    answer = json.loads(run(capsys, "new.csv", "--json")[1])
    assert [row["line"] for row in answer["predictions"]] == [2, 4]


def test_rows_without_a_number_are_left_out_if_training_refuses_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_node("regression", categories=CATEGORIES, ignore=["dose"])
    Path("new.csv").write_text("sex,age,ward\nm,,east\nm,40,east\n", encoding="utf-8")
    code, out, err = run(capsys, "new.csv")
    assert (code, err) == (0, "note: age: 1 row without a value left out, the first in line 2\n")
    assert [row.partition(",")[0] for row in out.splitlines()] == ["line", "3"]


def test_files_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_node("regression", categories=CATEGORIES, ignore=["dose"])
    for rows, error in (
        (
            "age,sex\n40,m\n",
            "lacks the column ward, which the model reads; line 1 must name the columns as in the node's data",
        ),
        ("age,sex,ward,pay\n40,m,east,7\n", "has the column pay, which the node's data do not have; remove it"),
        ("age,sex,ward\n4.5 %,m,east\n", "line 2: age must be a number, got '4.5 %'"),
        ("age,sex,ward\n", "has no rows below the names of the columns"),
        (
            "age;sex;ward\n40;m;east\n",
            "line 1: the columns are separated by ';', not by ','; separate them as in the node's data, or convert the file",
        ),
    ):
        Path("new.csv").write_text(rows, encoding="utf-8")
        with pytest.raises(ConfigurationError) as caught:
            predict(Path("alice"), Path("new.csv"))
        assert str(caught.value).replace(",", "").startswith(f"new.csv {error}".replace(",", ""))


def test_data_that_have_changed_since_the_training_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = make_node("classification", **TASKS["classification"])
    model = task.initial(3)
    store, saved = FileStore(Path("alice", config.CHECKPOINT)), checkpoint(task.layout, model, model)
    store.save(msgspec.structs.replace(saved, task=facts_of(task)))
    assert len(predict(Path("alice"), Path("rows.csv")).lines) == 120
    Path("new.csv").write_text("age,ward,dose,sex\n50,east,1,f\n1,west,3e38,m\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"new.csv, line 3: the model's answer is not finite|too far"):
        predict(Path("alice"), Path("new.csv"))
    with Path("rows.csv").open("a", encoding="utf-8") as file:
        file.write("500,north,9,f,yes\n" * 20)
    for answer in (lambda: predict(Path("alice"), Path("new.csv")), lambda: export(Path("alice"), Path("m.safetensors"))):
        with pytest.raises(ConfigurationError, match="changed since the checkpoint was written"):
            answer()


def test_task_without_columns_and_damaged_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = make_node("digits")
    store = FileStore(Path("alice", config.CHECKPOINT))
    store.save(checkpoint(task.layout, task.initial(3), None))
    store.path.write_bytes(store.path.read_bytes()[:-1])
    before = contents("alice")
    with pytest.raises(ConfigurationError, match="the data of the task digits have no columns with names"):
        predict(Path("alice"), Path("rows.csv"))
    assert contents("alice") == before
