"""Task for a node's own data file."""

import gzip
import io
import re
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pfl._util import machine
from p2pfl._util.shared_work import sharing
from p2pfl.data import binary_files as files
from p2pfl.data.tabular import labelled
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import AdamW
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, make_task

ALONE = Part(0, 1)
ORDER = [7 * k % 20 for k in range(20)]  # in ascending order, `a` would be an index
CSV = "a,b,kind\n" + "".join(f"{k},{-k / 2},{k % 3}\n" for k in ORDER)


def make(path, seed=0, **options):
    return make_task("classification", {"classes": 3, "features": 2, "data": str(path), **options}, Part(0, 1), seed)


def write_csv(folder, text=CSV, encoding="utf-8"):
    path = folder / "own.csv"
    path.write_text(text, encoding=encoding)
    return path


def write_npz(folder, **arrays):
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


def blobs(n, rng=None):
    """Points around three corners, which a small model can separate."""
    rng = rng or np.random.default_rng(0)
    y = np.arange(n) % 3
    corners = np.array([[0, 4], [4, 0], [-4, -4]])
    return corners[y] + rng.normal(size=(n, 2)), y


def rows(task, split):
    x, y = task.data[split]
    return {(*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True)}


def test_csv_file_is_divided_into_disjoint_splits(tmp_path):
    task = make(write_csv(tmp_path), validation=0.2, test=0.1)
    splits = [rows(task, split) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [14, 4, 2]
    assert set.union(*splits) == {(float(k), -k / 2, k % 3) for k in range(20)}
    assert task.layout.shapes == (("0.weight", (64, 2)), ("0.bias", (64,)), ("2.weight", (3, 64)), ("2.bias", (3,)))


def test_csv_and_npz_with_equal_rows_make_equal_tasks(tmp_path):
    x = np.array([[k, -k / 2] for k in ORDER])
    one = make(write_csv(tmp_path))
    other = make(write_npz(tmp_path, x=x, y=np.array(ORDER) % 3))
    for split in ("train", "validation", "test"):
        assert torch.equal(one.data[split].x, other.data[split].x)
        assert torch.equal(one.data[split].y, other.data[split].y)
    assert one.initial(5).tobytes() == other.initial(5).tobytes()


def test_table_splits_depend_on_the_seed(tmp_path):
    path = write_csv(tmp_path)
    assert rows(make(path, seed=1), "test") == rows(make(path, seed=1), "test")
    assert rows(make(path, seed=1), "test") != rows(make(path, seed=2), "test")


def test_target_may_be_any_column_of_a_csv_file(tmp_path):
    path = write_csv(tmp_path, "kind,a,b\n2,0.5,7\n1,1.5,8\n")
    assert rows(make(path, target="kind", validation=0.0, test=0.0), "train") == {(0.5, 7.0, 2), (1.5, 8.0, 1)}


def test_csv_with_bom_empty_lines_and_quotes_is_read(tmp_path):
    path = write_csv(tmp_path, 'a,b,kind\r\n"1",2,0\r\n\r\n3,4e0,2\r\n', encoding="utf-8-sig")
    assert rows(make(path, validation=0.0, test=0.0), "train") == {(1.0, 2.0, 0), (3.0, 4.0, 2)}


def test_npz_with_test_arrays_keeps_its_test_split(tmp_path):
    x, y = blobs(30)
    task = make(write_npz(tmp_path, x=x, y=y, x_test=x[:7], y_test=y[:7]), validation=0.1)
    assert {split: len(task.data[split].x) for split in task.data} == {"train": 27, "validation": 3, "test": 7}
    assert np.allclose(task.data["test"].x, x[:7])


def test_npz_images_are_flattened_and_labels_converted(tmp_path):
    x, y = np.arange(48, dtype=np.uint8).reshape(6, 2, 4), np.array([0, 1, 2, 0, 1, 2], np.uint8)
    task = make(write_npz(tmp_path, x=x, y=y), features=8, validation=0.0, test=0.0)
    assert task.data["train"].x.dtype == torch.float32
    assert torch.equal(task.data["train"].x, torch.arange(48.0).reshape(6, 8))
    assert task.data["train"].y.dtype == torch.int64


def make_plain(path, part=ALONE, **options):
    return make_task("classification", {"data": str(path), **options}, part, 0)


def test_classes_and_features_are_those_of_the_file(tmp_path):
    x, y = blobs(30)
    for path in (write_csv(tmp_path), write_npz(tmp_path, x=x, y=y.clip(max=1), x_test=x, y_test=y)):
        task = make_plain(path)
        assert task.layout == make(path).layout
        sizes = {"classes": 3, "features": 2}
        assert {key: task.derived_options[key] for key in sizes} == sizes


def columns_of(folder, header):
    return make_plain(write_csv(folder, f"{header}\n1,2,0\n"), target="kind").derived_options["columns"]


def test_columns_are_a_hash_of_the_ordered_features(tmp_path):
    columns = columns_of(tmp_path, "a,b,kind")
    assert len(columns) == 16
    assert columns_of(tmp_path, "a, b ,kind") == columns
    assert len({columns, *(columns_of(tmp_path, header) for header in ("b,a,kind", "a,c,kind", "ab,,kind"))}) == 4


def test_columns_in_another_order_are_refused(tmp_path):
    columns = columns_of(tmp_path, "a,b,kind")
    make_plain(write_csv(tmp_path, CSV), columns=columns)
    with pytest.raises(ConfigurationError, match=r"own\.csv: the columns differ from those of the federation"):
        make_plain(write_csv(tmp_path, CSV.replace("a,b", "b,a")), columns=columns)


def test_npz_file_has_no_columns_to_compare(tmp_path):
    task = make_plain(write_npz(tmp_path, x=X, y=Y), columns="0123456789abcdef")
    assert "columns" not in task.derived_options


def test_file_with_one_class_makes_a_model_of_two(tmp_path):
    assert make_plain(write_npz(tmp_path, x=X, y=Y * 0)).derived_options == {"classes": 2, "features": 2}


@pytest.mark.parametrize(
    ("labels", "cells"),
    [([1, 2, 3], "123"), ([1, 2, 3], ("1.0", " 2", "3")), (["x", "y y", "z"], ("x", "y y ", "z")), ([-1, 0.5, "z"], None)],
)
def test_listed_labels_are_classes_in_their_order(tmp_path, labels, cells):
    cells = cells or [str(label) for label in labels]
    path = write_csv(tmp_path, "kind,a\n" + "".join(f"{cells[k % 3]},{k}\n" for k in ORDER))
    task = make_plain(path, target="kind", labels=labels)
    assert (task.derived_options["classes"], task.derived_options["features"]) == (3, 1)
    rows_of = {(k, label) for split in task.data for k, label in rows(task, split)}
    assert rows_of == {(float(k), k % 3) for k in range(20)}


def test_listed_labels_of_npz_file_are_numbers(tmp_path):
    path = write_npz(tmp_path, x=X, y=Y + 1)
    assert rows(make_plain(path, labels=[3, 1, 2], validation=0, test=0), "train") == {(0, 0, 0), (0, 0, 1), (0, 0, 2)}
    with pytest.raises(ConfigurationError, match=r"y\[2\] is 3, a label must be one of task.labels, 1 and 2$"):
        make_plain(path, labels=[1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [1]}, "task.labels must list two different labels or more, got"),
        ({"labels": [1, 1.0, 2]}, "two different labels or more"),
        ({"labels": [1, 2], "classes": 3}, "task.classes is 3, but task.labels lists 2 labels"),
    ],
)
def test_invalid_list_of_labels_is_refused(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_plain(write_npz(tmp_path, x=X, y=Y), **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,kind\n1,2,1000\n", "the greatest label is 1000, which makes 1001 classes; check the column"),
        ("a,b,kind\n1,2,0.5\n", "line 2: kind is 0.5, a label must be a whole number from 0; list other labels in task"),
        ("a,b,kind\n1,2,-1\n", "line 2: kind is -1, a label must be a whole number from 0; list other labels in task"),
        ("a,b,kind\n1,2,cat\n", "line 2: kind is cat, a label must be a whole number from 0; list other labels in task"),
        (
            "a,b,kind\n1,2,1\n1,2,2\n1,2,3\n",
            r"the labels are 1, 2 and 3, but classes are numbered from 0 without gaps; set task.labels = \[1, 2, 3\], or"
            " task.classes = 4 if only this file lacks the others$",
        ),
        ("a,b,kind\n1,2,0\n1,2,7\n", r"the labels are 0 and 7, .* set task.labels = \[0, 7\], or task.classes = 8 if"),
        ("kind\n1\n", "has no features: it must have two columns or more, separated by task.delimiter"),
        ("a;b;kind\n1;2;0\n", r"line 1: the columns are separated by ';', not by ','; set task\.delimiter, or convert"),
        ("a,b,kind\n", "has no rows below the names of the columns"),
        ("a,b,kind\n1,,1\n", "line 2: b must be a number, got '', a missing value; fill it in, or remove the line"),
        ("0.5,1e3,0\n1,2,1\n", "line 1: it has numbers, but the first line must name the columns"),
    ],
)
def test_file_without_usable_sizes_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigurationError, match=message):
        make_plain(write_csv(tmp_path, text))


def test_first_line_with_a_label_as_text_is_refused(tmp_path):
    path = write_csv(tmp_path, "34,1200,yes\n45,900,no\n")
    with pytest.raises(ConfigurationError, match="line 1: it has numbers, but the first line must name the columns"):
        make_plain(path, labels=["no", "yes"])
    years = write_csv(tmp_path, "2024,2025,paid\n1,2,yes\n3,4,no\n")
    assert len(make_plain(years, labels=["no", "yes"], validation=0.0, test=0.0).data["train"].y) == 2


def test_partition_divides_the_rows_among_the_nodes(tmp_path):
    path = write_csv(tmp_path)
    table = {"name": "pathological", "classes": 1}
    tasks = [make_plain(path, Part(k, 3), partition=table, validation=0.0, test=0.0) for k in range(3)]
    shares = [rows(task, "train") for task in tasks]
    assert sorted(len(share) for share in shares) == [6, 7, 7]
    assert set.union(*shares) == {(float(k), -k / 2, k % 3) for k in range(20)}
    assert all(len({label for *_, label in share}) == 1 for share in shares)
    assert len({task.layout for task in tasks}) == 1


def test_partition_draws_test_rows_by_the_labels_of_the_node(tmp_path):
    x, y = blobs(30)
    path = write_npz(tmp_path, x=x, y=y, x_test=x, y_test=y)
    task = make_plain(path, Part(0, 3), partition={"name": "pathological", "classes": 1})
    assert len(task.data["test"].y) == 10
    assert set(task.data["test"].y.tolist()) == set(task.data["train"].y.tolist())


def test_table_task_takes_optimizer_schedule_and_metrics(tmp_path):
    schedule = {"name": "cosine", "rounds": 4}
    optimizer = {"name": "adamw", "lr": 0.01, "schedule": schedule}
    task = make_plain(write_csv(tmp_path), optimizer=optimizer, metrics=["f1"])
    assert task.optimizer == AdamW(0.01, schedule=schedule)
    learner = task.learner(RandomStreams(0, "a"), "cpu")
    first = task.initial(0)
    assert (learner.train(first, round=1) != first).any()
    assert (learner.train(first, round=5) == first).all()  # the rate is 0 at the end of the schedule
    assert set(learner.evaluate([first], ["test"])[0]) == {"test_loss", "test_accuracy", "test_f1"}


def test_zero_fractions_give_training_data_only(tmp_path):
    assert set(make(write_csv(tmp_path), validation=0.0, test=0.0).data) == {"train"}


def test_standardised_training_features_have_mean_0_and_std_1(tmp_path):
    x, y = blobs(60)
    x = np.column_stack([x * 1000 + 5, np.ones(60)])
    task = make(write_npz(tmp_path, x=x, y=y), features=3, standardize="local")
    train = task.data["train"].x
    assert torch.allclose(train.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-5)
    raw = make(write_npz(tmp_path, x=x, y=y), features=3).data
    again = (raw["test"].x - raw["train"].x.mean(0)) / raw["train"].x.std(0, correction=0).clamp(min=1)
    assert torch.allclose(task.data["test"].x, again, atol=1e-4)


@pytest.mark.parametrize(("hidden", "tensors"), [([], 2), (5, 4), ([5, 4], 6)])
def test_table_model_has_hidden_layers_and_learns(tmp_path, hidden, tensors):
    x, y = blobs(90)
    task = make(write_npz(tmp_path, x=x, y=y), hidden=hidden)
    assert len(task.layout.shapes) == tensors
    learner = task.learner(RandomStreams(0, "alice"), "cpu")
    params = learner.train(task.initial(0), round=1, epochs=20)
    assert learner.evaluate([params], ["validation"])[0]["validation_accuracy"] > 0.9


def test_table_layout_does_not_depend_on_the_file(tmp_path):
    x, y = blobs(30)
    layouts = [make(write_npz(tmp_path, x=x[:n], y=y[:n])).layout.fingerprint for n in (12, 30)]
    assert layouts[0] == layouts[1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b,kind\n1,2,0\n1,x,0\n", {}, "line 3: b must be a number, got 'x'"),
        ("a,b,kind\n1,,0\n", {}, "line 2: b must be a number, got ''"),
        ("a,b,kind\n1,nan,0\n", {}, "line 2: b must be a number, got 'nan', a missing value"),
        ("a,b,kind\n1,-inf,0\n", {}, "line 2: b must be a number, got '-inf', infinite"),
        ("a,b,kind\n1,1e39,0\n", {}, r"line 2: b must be a finite float32, got 1e\+39"),
        ("a,b,kind\n1,2,3\n", {}, "line 2: kind is 3, a label must be a whole number from 0 to 2"),
        ("a,b,kind\n1,2,-1\n", {}, "line 2: kind is -1, a label"),
        ("a,b,kind\n1,2,0.5\n", {}, "line 2: kind is 0.5, a label"),
        ("a,b,kind\n1,2\n", {}, "line 2: 2 values, but the first line names 3 columns"),
        ("a,b,kind\n1,2,0,9\n", {}, "line 2: 4 values"),
        ('a,b,kind\n1,"2,0\n', {}, "line 2: unexpected end of data"),
        ("a,b,c,kind\n1,2,3,0\n", {}, "has 3 features besides the label, but task.features is 2"),
        ("a,a,kind\n1,2,0\n", {}, "has two columns 'a'"),
        ("a,b,kind\n1,2,0\n", {"target": "label"}, "has no column 'label'"),
        ("a,b,kind\n", {}, "has no rows below the names of the columns"),
        ("", {}, "own.csv is empty"),
    ],
)
def test_invalid_csv_file_reports_name_and_line(tmp_path, text, options, message):
    path = write_csv(tmp_path, text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


X, Y = np.zeros((4, 2)), np.array([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "has no array y"),
        ({"x": X, "y": Y, "x_test": X}, "has no array y_test"),
        ({"x": X, "y": Y[:3]}, r"x is of shape \[4, 2\] and y of \[3\]"),
        ({"x": X, "y": np.eye(4)}, r"y of \[4, 4\], expected"),
        ({"x": X[:, 0], "y": Y}, r"x is of shape \[4\]"),
        ({"x": np.zeros((4, 5)), "y": Y}, "x has 5 features, task.features is 2"),
        ({"x": X, "y": Y, "x_test": np.zeros((4, 3)), "y_test": Y}, "x_test has 3 features"),
        ({"x": np.where(np.arange(8).reshape(4, 2) == 5, np.nan, X), "y": Y}, r"x\[2\] has a value that is not finite"),
        ({"x": X + 1e300, "y": Y}, r"x\[0\] has a value that is not finite, or too large"),
        ({"x": X, "y": Y + 1}, r"y\[2\] is 3, a label must be a whole number from 0 to 2"),
        ({"x": X, "y": Y - 1}, r"y\[0\] is -1, a label"),
        ({"x": X, "y": Y + 0.5}, r"y\[0\] is 0.5, a label"),
        ({"x": X.astype(str), "y": Y}, "x must be of numbers, got <U32"),
        ({"x": X, "y": Y * 1j}, "y must be of numbers, got complex128"),
    ],
)
def test_invalid_npz_arrays_report_file_name(tmp_path, arrays, message):
    path = write_npz(tmp_path, **arrays)
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(path)
    assert str(path) in str(caught.value)


class Trap:
    """Object that records its unpickling."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_npz_with_pickled_objects_is_not_unpickled(tmp_path):
    path = write_npz(tmp_path, x=X, y=np.array([Trap()] * 4, dtype=object))
    with pytest.raises(ConfigurationError, match="y must be of numbers, got object"):
        make(path)
    assert not Trap.sprung


def test_npz_with_a_single_array_is_refused(tmp_path):
    path = tmp_path / "own.npz"
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(ConfigurationError, match=r"not a file of plain arrays written by numpy\.savez"):
        make(path)


def archive():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=X, y=Y)
    return buffer.getvalue()


def refusal(path):
    """Return the error for a file, or "" if it is read: a flipped bit in a time stamp is harmless."""
    try:
        make(path)
    except ConfigurationError as error:
        return str(error)
    return ""


@given(st.data())
def test_damaged_npz_is_read_or_reports_one_line(tmp_path_factory, data):
    content = bytearray(archive())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    content = content[: data.draw(st.sampled_from([len(content), len(content) // 2, 3, 0]))]
    path = tmp_path_factory.mktemp("damaged") / "own.npz"
    path.write_bytes(content)
    error = refusal(path)
    assert not error or (str(path) in error and "\n" not in error)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.csv", "none.csv: No such file"),
        ("none.npz", "No such file"),
        ("own.txt", "must end in .npz, .csv or .csv.gz; give delimited text such a name"),
        ("", "needs `data`"),
    ],
)
def test_missing_or_unknown_table_file_is_refused(tmp_path, name, message):
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path / name if name else "")


def test_folder_or_binary_as_csv_is_refused(tmp_path):
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match=r"folder\.csv is neither a folder with a subfolder of images"):
        make(folder)
    path = write_csv(tmp_path, "a,b,kind\nä,1,2\n", encoding="latin-1")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        make(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "task.classes must be 2 or more"),
        ({"features": 0}, "task.features"),
        ({"hidden": 0}, "task.hidden"),
        ({"hidden": [4, -1]}, "task.hidden"),
        ({"hidden": "wide"}, "task.hidden is 'wide'"),
        ({"validation": 0.5, "test": 0.5}, "together less than 1"),
        ({"test": -0.1}, "0 or more"),
        ({"validation": float("nan")}, "0 or more"),
        ({"standardize": "global"}, "task.standardize must be one of none, local"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"lr": -1.0}, "lr must be 0 or more"),
    ],
)
def test_table_task_refuses_invalid_options(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(write_csv(tmp_path), **options)


def test_compressed_npz_is_read_and_unknown_member_ignored(tmp_path):
    path = tmp_path / "own.npz"
    path.write_bytes(archive())
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("notes.txt", "of the owner")
    assert make(path, validation=0.0, test=0.0).n_samples == 4


# Files that are small on disk and large in memory


def npy(header, values=b""):
    """A member of an archive with the given header and values."""
    text = repr(header) if isinstance(header, dict) else header
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + values


def header(descr="<f8", shape=(4, 2)):
    return {"descr": descr, "fortran_order": False, "shape": shape}


def write_members(folder, **members):
    path = folder / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.slow
def test_npz_reads_only_the_arrays_that_it_needs(tmp_path):
    path = write_npz(tmp_path, x=X, y=Y)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x_junk.npy", npy(header(shape=(2**24,)), bytes(2**27)))
    tracemalloc.start()
    try:
        assert make(path, validation=0.0, test=0.0).n_samples == 4
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (b"", "is damaged"),
        (b"no array", "is damaged"),
        (npy("(" * 9000), "is damaged"),
        (npy("-" * 9000 + "1"), "is damaged"),
        (npy({"descr": "<f8"}), "is damaged"),
        (npy(header(shape=(-4, 2))), "is damaged"),
        (npy(header(shape=(1,) * 40)), "is damaged"),
        (npy(header(descr="|O"), bytes(64)), "x must be of numbers, got object"),
        (npy(header(shape=(2**40, 2)), bytes(64)), "the header of x announces 17,592,186,044,416 bytes, but there are 64"),
        (npy(header(), bytes(65)), "the header of x announces 64 bytes, but there are 65"),
    ],
)
def test_npz_with_invalid_member_is_refused(tmp_path, member, message):
    path = write_members(tmp_path, x=member, y=npy(header("<i8", (4,)), bytes(32)))
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.slow
def test_npz_larger_than_memory_is_refused_before_allocation(tmp_path, monkeypatch):
    x, y = (npy(header(kind, shape), bytes(2**25)) for kind, shape in (("<f4", (2**22, 2)), ("<i8", (2**22,))))
    path = write_members(tmp_path, x=x, y=y)
    monkeypatch.setattr(machine, "free_memory", lambda: 2**24)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match=r"own\.npz needs 0\.1 GiB of memory, but only 16\.0 MiB is free"):
            make(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_npz_with_wrong_size_in_directory_is_refused(tmp_path):
    path = write_npz(tmp_path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02", 0, content.rindex(b"PK\x01\x02"))  # the directory's entry of x
    content[place + 24 : place + 28] = struct.pack("<I", 2**31)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is damaged"):
        make(path)


def test_csv_with_too_long_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 50)
    with pytest.raises(ConfigurationError, match="has a line of more than 50 characters"):
        make(write_csv(tmp_path, "a,b,kind\n" + " " * 51))


def test_csv_larger_than_memory_is_refused_while_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled, "free_memory", lambda: 1600)
    path = write_csv(tmp_path, "a,b,kind\n" + "1,2,0\n" * 50)
    assert make(path).n_samples
    with pytest.raises(ConfigurationError, match="has more values than fit into memory"):
        make(write_csv(tmp_path, "a,b,kind\n" + "1,2,0\n" * 51))


def test_nodes_of_one_run_share_the_reading_of_a_file(tmp_path):
    path = write_csv(tmp_path)
    options = {"partition": {"name": "iid"}, "validation": 0.0, "test": 0.0}
    with sharing():
        tasks = [make_plain(path, Part(k, 4), **options) for k in range(4)]
    assert len({id(task.data_facts[0]) for task in tasks}) == 1
    assert set.union(*(rows(task, "train") for task in tasks)) == {(float(k), -k / 2, k % 3) for k in range(20)}
    assert make_plain(path, **options).data_facts == tasks[0].data_facts


def test_facts_of_a_csv_file_name_format_columns_and_ranges(tmp_path):
    (facts,) = make_plain(write_csv(tmp_path, CSV.replace("\n", "\n\n", 1))).data_facts
    assert (
        facts.line == f"{tmp_path}/own.csv: CSV separated by ',', 20 samples; 2 numbers; label kind; 1 empty line left out"
    )
    ranges = {column.name: (column.role, column.range, column.values) for column in facts.columns}
    assert ranges == {
        "a": ("feature", (0.0, 19.0), None),
        "b": ("feature", (-9.5, 0.0), None),
        "kind": ("label", None, 3),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ignore": ["c"]}, "has no column 'c'; it has 'a', 'b', 'kind'"),
        ({"ignore": ["kind"]}, "the column 'kind' is the label, and cannot be left out"),
        ({"ignore": ["a", "b"]}, "has no features"),
        ({"delimiter": ";;"}, "task.delimiter must be one character, got ';;'"),
    ],
)
def test_invalid_choice_of_columns_is_refused(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_plain(write_csv(tmp_path), **options)


def test_left_out_columns_do_not_enter_the_hash_of_columns(tmp_path):
    plain = make_plain(write_csv(tmp_path)).derived_options
    text = "".join(f"{f'row{k}' if k else ''},{line}\n" for k, line in enumerate(CSV.splitlines()))
    assert make_plain(write_csv(tmp_path, text)).derived_options == plain
    assert make_plain(write_csv(tmp_path, f"remark{text}"), ignore=["remark"]).derived_options == plain


@pytest.mark.parametrize("offset", [0.0, 1.764e9, -5.4e6])
def test_large_numbers_are_standardised_before_they_are_narrowed(tmp_path, offset):
    x = RandomStreams(0, "offset").generator(0, "x").random((60, 2))
    y = np.arange(60) % 3
    csv_file = write_csv(
        tmp_path, "a,b,kind\n" + "".join(f"{a + offset!r},{b!r},{k}\n" for (a, b), k in zip(x.tolist(), y, strict=True))
    )
    npz_file = write_npz(tmp_path, x=x + np.array([offset, 0]), y=y)
    for path in (csv_file, npz_file):
        train = make(path, standardize="local", validation=0.0, test=0.0).data["train"].x
        assert np.allclose(train, (x - x.mean(0)) / x.std(0), atol=1e-5)


def test_compressed_table_and_name_in_capitals_are_read(tmp_path):
    (tmp_path / "own.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (tmp_path / "OWN.CSV").write_text(CSV)
    for name in ("own.csv.gz", "OWN.CSV"):
        assert make_plain(tmp_path / name).data_facts[0].samples == 20


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("label,a\nno,1\nyes,2\n", {}, "label must be a number, got 'no'; if it is the label, set task.target = \"label\""),
        ("kind,a\nno,1\n", {"labels": ["no", "yes"]}, "got 'no'; if it is the label, set task.target = \"kind\""),
        ("5.1,3.5,Iris-setosa\n4.9,3.0,Iris-virginica\n", {}, "line 1 must name the columns, but has the number 5.1"),
        ("842302,M,0.5\n842517,B,0.7\n", {}, "M must be a number, got 'B'; line 1 must name the columns"),
    ],
)
def test_cell_that_is_no_number_names_the_likely_cause(tmp_path, text, options, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make_plain(write_csv(tmp_path, text), **options)


def test_file_of_one_class_is_noted(tmp_path):
    csv = write_csv(tmp_path, "a,y\n1,0\n2,0\n3,0\n")
    npz = write_npz(tmp_path, x=X, y=Y * 0)
    for path in (csv, npz):
        assert make_plain(path).data_facts[0].notes[0] == f"{path}: all rows have a label of class 0"


def test_half_precision_and_empty_arrays(tmp_path, recwarn):
    assert rows(make_plain(write_npz(tmp_path, x=X.astype(np.float16), y=Y), validation=0, test=0), "train")
    assert not recwarn
    with pytest.raises(ConfigurationError, match=r"own\.npz: x has no rows"):
        make_plain(write_npz(tmp_path, x=X[:0], y=Y[:0]))
