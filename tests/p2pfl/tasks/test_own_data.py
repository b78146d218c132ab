"""Own data that are no table of numbers: categories, gaps, sites, numbers to predict, images, and saved datasets."""

import json

import numpy as np
import pytest

from p2pfl.data import own_folders
from p2pfl.data.inspection import inspect
from p2pfl.errors import ConfigurationError
from p2pfl.task import Part, make_task

WHOLE = {"validation": 0.0, "test": 0.0}


def make(name, path, part=Part(0, 1), **options):  # noqa: B008
    return make_task(name, {"data": str(path), **options}, part, 0)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_categories_are_inputs_in_the_listed_order(tmp_path):
    path = write(tmp_path / "own.csv", "sex,age,label\nm,30,0\nf,40,1\n")
    x, _ = make("classification", path, categories={"sex": ["f", "m"]}, **WHOLE).data["train"]
    assert x.tolist() == [[30, 0, 1], [40, 1, 0]]


def test_category_of_no_row_and_of_all_rows_is_noted(tmp_path):
    path = write(tmp_path / "own.csv", "\n".join(["age,sex,label", *(f"{k * 7 % 31},f,{k % 2}" for k in range(20))]))
    facts = make("classification", path, categories={"sex": ["f", "m"]}, **WHOLE).data_facts
    notes = [note.partition(": ")[2] for each in facts for note in each.notes]
    assert notes == ["sex = m: no row has this category", "sex = f: all rows have this category"]


def test_all_unlisted_labels_and_categories_are_named_with_lines(tmp_path):
    path = write(tmp_path / "own.csv", "sex,age,label\nm,30,no\nx,40,maybe\nf,50,?\ny,40,maybe\nx,30,no\n")
    options = {"categories": {"sex": ["f", "m"]}}
    with pytest.raises(ConfigurationError, match=r"line 3: label is maybe, .*; also maybe in line 5, \? in line 4"):
        make("classification", path, labels=["no", "yes"], **options)
    with pytest.raises(ConfigurationError, match=r"line 3: sex is x, .*; also x in line 6, y in line 5"):
        make("classification", path, labels=["no", "maybe", "?"], **options)


def test_missing_values_become_the_mean_of_training_rows(tmp_path):
    path = write(tmp_path / "own.csv", "a,b,label\n1,5,0\nNA,7,1\n3,,0\n")
    with pytest.raises(ConfigurationError, match="a must be a number, got 'NA'"):
        make("classification", path)
    x, _ = make("classification", path, missing="mean", **WHOLE).data["train"]
    assert x.tolist() == [[1, 5], [2, 7], [3, 6]]


def test_each_value_of_a_column_is_a_node(tmp_path):
    path = write(tmp_path / "own.csv", "site,a,label\n10,1,0\n9,2,1\n10,3,1\n9,4,0\n")
    rule = {"partition": {"name": "column", "column": "site"}, **WHOLE}
    parts = [make("classification", path, Part(k, 2), **rule).data["train"][0].tolist() for k in range(2)]
    assert parts == [[[2], [4]], [[1], [3]]]  # 9 before 10
    with pytest.raises(ConfigurationError, match="set nodes = 2"):
        make("classification", path, Part(0, 3), **rule)


@pytest.mark.parametrize("standardize", ["none", "local"])  # of the features; r2_pooled needs targets of one scale
def test_regression_scales_labels_alike_for_all_nodes(tmp_path, standardize):
    path = write(tmp_path / "own.csv", "a,price\n" + "".join(f"{k},{1000 + 50 * k}\n" for k in range(20)))
    tasks = [
        make("regression", path, Part(k, 2), partition={"name": "iid"}, standardize=standardize, **WHOLE) for k in range(2)
    ]
    assert tasks[0].derived_options == tasks[1].derived_options
    assert tasks[0].derived_options["centre"] == 1475
    y = np.concatenate([task.data["train"][1].ravel() for task in tasks])
    assert (abs(y.mean()) < 1e-6, abs(y.std() - 1) < 1e-6, tasks[0].metric) == (True, True, "mse")
    assert not tasks[0].higher_is_better
    with pytest.raises(ConfigurationError, match="labels are numbers"):
        make("regression", path, Part(0, 2), partition={"name": "dirichlet", "alpha": 1.0})


def test_regression_refuses_texts(tmp_path):
    path = write(tmp_path / "own.csv", "a,price\n1,2.5\n2,x\n3,y\n")
    with pytest.raises(ConfigurationError, match=r"line 3: price is x, a label must be a number; also y in line 4"):
        make("regression", path)


def photos(folder, sides=(9, 12)):
    image = pytest.importorskip("PIL.Image")
    for k, label in enumerate(("cat", "dog")):
        (folder / label).mkdir(parents=True)
        for n in range(12):
            pixels = np.full((sides[n % 2], 10, 3), 100 * k + n, np.uint8)
            image.fromarray(pixels).save(folder / label / f"{n}.png")
    return folder


def test_folder_of_images_is_scaled_and_labelled_by_subfolder(tmp_path):
    path = photos(tmp_path / "photos")
    found = inspect(path, has_torch=False)
    assert (found.task["labels"], found.task["channels"]) == (["cat", "dog"], 3)
    x, y = make("classification", path, labels=["dog", "cat"], size=8, **WHOLE).data["train"]
    assert (tuple(x.shape), y.tolist()) == ((24, 192), [1] * 12 + [0] * 12)
    assert abs(float(x[0, 0]) + 1) < 1e-6  # black
    with pytest.raises(ConfigurationError, match=r"the folder dog: a label must be one of task.labels, cat and fox"):
        make("classification", path, labels=["cat", "fox"], size=8)


def test_unreadable_images_are_named_together(tmp_path):
    path = photos(tmp_path / "photos")
    for name in ("a.png", "b.jpg"):
        (path / "cat" / name).write_bytes(b"no image")
    with pytest.raises(ConfigurationError, match=r"2 of 26 images cannot be read.*a\.png.*b\.jpg"):
        make("classification", path, labels=["cat", "dog"], size=8)


def test_sizes_of_images_are_checked_before_memory_is_taken(tmp_path, monkeypatch):
    path = photos(tmp_path / "photos")
    monkeypatch.setattr(own_folders, "MOST_PIXELS", 100)
    with pytest.raises(ConfigurationError, match=r"12 of 24 images cannot be read.*more than 100 pixels"):
        make("classification", path, labels=["cat", "dog"], size=8)
    monkeypatch.setattr("p2pfl._util.machine.free_memory", lambda: 1000)
    with pytest.raises(ConfigurationError, match="24 images of 8 x 8 pixels needs"):
        make("classification", path, labels=["cat", "dog"], size=8)


def dataset(folder, columns, features=None):
    arrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = arrow.table(columns)
    with arrow.OSFile(str(folder / "data.arrow"), "wb") as file, arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return folder


def test_saved_dataset_is_read_with_its_splits_and_class_names(tmp_path):
    kind = {"label": {"_type": "ClassLabel", "names": ["no", "yes"]}}
    for split, rows in (("train", 40), ("test", 6)):
        columns = {"a": [k * 7 % 11 / 2 for k in range(rows)], "label": [k % 2 for k in range(rows)]}
        dataset(tmp_path / "own" / split, columns, kind)
    (tmp_path / "own" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = inspect(tmp_path / "own")
    assert found.task["labels"] == ["no", "yes"]
    options = {key: value for key, value in found.task.items() if key != "name"}
    task = make("classification", tmp_path / "own", **options)
    assert {split: len(task.data[split][0]) for split in ("train", "validation", "test")} == {
        "train": 36, "validation": 4, "test": 6,
    }  # fmt: skip


def test_saved_dataset_of_images_is_read(tmp_path):
    source = photos(tmp_path / "photos")
    images = [{"bytes": path.read_bytes(), "path": None} for path in sorted(source.rglob("*.png"))]
    kinds = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    path = dataset(tmp_path / "own", {"image": images, "label": [0] * 12 + [1] * 12}, kinds)
    options = {key: value for key, value in inspect(path, has_torch=False).task.items() if key != "name"}
    assert make("classification", path, **options).n_samples == 20


def test_saved_dataset_cannot_name_files_outside_of_its_folder(tmp_path):
    path = dataset(tmp_path / "own", {"a": [1.0], "label": [0]})
    (path / "state.json").write_text('{"_data_files": [{"filename": "../data.arrow"}]}')
    with pytest.raises(ConfigurationError, match="lists no data files"):
        inspect(path)
