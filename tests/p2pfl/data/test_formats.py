"""Published formats: hand-made and damaged bytes, real files if present, and the command that checks them."""

import gzip
import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl._util import machine
from p2pfl.data import binary_files
from p2pfl.data import image_sets as sets
from p2pfl.data.image_sets import KNOWN
from p2pfl.data.tabular import table as tables
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.sim.cli.main import main
from tests.support.extras import needs_torch

REAL = os.environ.get("P2PFL_DATA", "")
TYPES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def real(folder):
    return pytest.mark.skipif(
        not Path(REAL or "/nowhere", folder).is_dir(), reason=f"P2PFL_DATA names no folder with {folder}"
    )


def idx_bytes(array):
    array = np.asarray(array)
    head = bytes([0, 0, TYPES[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, content, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


# IDX


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (0,)])
def test_idx_read_of_every_type_returns_array(tmp_path, kind, shape, packed):
    array = (np.arange(np.prod(shape)).reshape(shape) * 3 - (5 if kind[0] != "u" else 0)).astype(kind)
    found = binary_files.read_idx(write(tmp_path / "x", idx_bytes(array), packed))
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    assert np.array_equal(found, array)


GOOD = idx_bytes(np.arange(6, dtype=np.int16).reshape(2, 3))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it begins with nothing"),
        (b"PK\3\4", "is not an IDX file: it begins with 50 4b 03 04"),
        (b"\0\0\7\1" + bytes(20), "is not an IDX file"),
        (b"\0\0\x08\0" + bytes(20), "is not an IDX file"),
        (b"\0\0\x08\xff" + bytes(20), "is not an IDX file"),
        (GOOD[:10], "ends within its header"),
        (GOOD[:-1], "its header announces 12 bytes, but there are 11|too short"),
        (GOOD + b"\0", "its header announces 12 bytes, but there are more"),
        (b"\0\0\x0e\4" + b"\xff" * 16, "more than the limit"),
        (b"\0\0\x08\2" + struct.pack(">II", 30_000, 60_000) + bytes(9), "too short for its header"),
        (b"\0\0\x0e\4" + bytes(4) + b"\xff" * 12, "its dimensions .* are more than an array can have"),
    ],
)
def test_idx_read_of_invalid_file_is_refused(tmp_path, content, message, packed):
    with pytest.raises(ConfigurationError, match=message):
        binary_files.read_idx(write(tmp_path / "x", content, packed))


def test_idx_read_of_damaged_gzip_is_refused(tmp_path):
    packed = gzip.compress(GOOD)
    for content in (packed[:-9], packed[:-5] + b"\0" + packed[-4:], packed[:12] + b"\xff\xff" + packed[14:]):
        with pytest.raises(ConfigurationError, match="is damaged"):
            binary_files.read_idx(write(tmp_path / "x", content))


def test_idx_read_of_missing_file_or_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        binary_files.read_idx(tmp_path / "x")
    with pytest.raises(ConfigurationError, match="directory"):
        binary_files.read_idx(tmp_path)


def bomb(size):
    """`size` zero bytes, compressed a thousandfold, after a header that announces six."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(idx_bytes(np.zeros(6, np.uint8)))]
    parts += [packer.compress(bytes(2**20)) for _ in range(size // 2**20)]
    return b"".join([*parts, packer.flush()])


@pytest.mark.slow
def test_read_of_gzip_bomb_unpacks_only_announced_size(tmp_path):
    path = write(tmp_path / "x", bomb(2**26))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="its header announces 6 bytes, but there are more"):
            binary_files.read_idx(path)
        with pytest.raises(ConfigurationError, match="more than 100 records"):
            binary_files.read_cifar(path, limit=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**23


@pytest.mark.slow
def test_idx_read_larger_than_memory_is_refused_early(tmp_path, monkeypatch):
    values = bytes(2**26)
    path = write(tmp_path / "x", gzip.compress(b"\0\0\x08\1" + struct.pack(">I", len(values)) + values, 1))
    monkeypatch.setattr(machine, "free_memory", lambda: 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match=r"x needs 64\.0 MiB of memory, but only 1\.0 MiB is free"):
            binary_files.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@given(content=st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda end: b"\0\0\x08\1\0\0\0" + end)))
def test_idx_read_of_any_bytes_succeeds_or_refuses(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with suppress(ConfigurationError):
        assert idx_bytes(binary_files.read_idx(path)) == content


# CIFAR


def cifar_bytes(n, label_bytes=1, seed=0):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (n, label_bytes + 3072), np.uint8)
    records[:, :label_bytes] = rng.integers(0, 10, (n, label_bytes))
    return records.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_read_returns_images_and_labels(tmp_path, label_bytes, packed):
    content = cifar_bytes(5, label_bytes)
    x, y = binary_files.read_cifar(write(tmp_path / "x.bin", content, packed), label_bytes)
    assert x.shape == (5, 3, 32, 32)
    assert x.dtype == np.uint8
    assert y.dtype == np.int64
    record = content[2 * (label_bytes + 3072) :]
    assert y[2].tolist() == list(record[:label_bytes])
    assert x[2, 1, 3, 4] == record[label_bytes + 1024 + 3 * 32 + 4]  # green, row 3, column 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a multiple of the record size of 3,073"),
        (cifar_bytes(2)[:-1], "has 6,145 bytes, which is not a multiple of the record size"),
        (b"\x80\x02}q", "pickled Python version, which is not supported; use the binary version"),
        (cifar_bytes(4), "more than 3 records"),
    ],
)
def test_cifar_read_of_invalid_file_is_refused(tmp_path, content, message):
    with pytest.raises(ConfigurationError, match=message):
        binary_files.read_cifar(write(tmp_path / "x.bin", content), limit=3)


# Data sets by name


def images(n, seed=0, shape=(4, 4)):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def make_idx(folder, n=12, test="t10k", prefix="", packed=True, changes=()):
    files = {
        f"{prefix}train-images-idx3-ubyte": images(n),
        f"{prefix}train-labels-idx1-ubyte": np.arange(n, dtype=np.uint8) % 3,
        f"{prefix}{test}-images-idx3-ubyte": images(5, 1),
        f"{prefix}{test}-labels-idx1-ubyte": np.arange(5, dtype=np.uint8) % 3,
    } | dict(changes)
    for name, array in files.items():
        if array is not None:
            write(folder / (name + ".gz" * packed), idx_bytes(array), packed)


@pytest.mark.parametrize("options", [{}, {"test": "test", "prefix": "emnist-letters-"}, {"packed": False}])
def test_load_folder_of_idx_files_returns_image_set(tmp_path, options):
    make_idx(tmp_path / "own", **options)
    data = sets.load("own", str(tmp_path))
    assert data.train.x.shape == (12, 1, 4, 4)
    assert np.array_equal(data.test.x[:, 0], images(5, 1))
    assert data.train.y.tolist() == [0, 1, 2] * 4
    assert data.classes == 3
    assert data.mean == (pytest.approx((images(12) / 255).mean(), abs=1e-4),)
    assert data.std == (pytest.approx((images(12) / 255).std(), abs=1e-4),)
    assert sets.load("own", str(tmp_path)) is data


def test_load_finds_folder_in_root_and_refuses_paths(tmp_path, monkeypatch):
    make_idx(tmp_path / "own")
    monkeypatch.setenv("P2PFL_DATA", str(tmp_path))
    assert len(sets.load("own").train.y) == 12
    for path in (str(tmp_path / "own"), "../own", "..", ""):
        with pytest.raises(ConfigurationError, match="must be the name of a folder in the data root, not a path"):
            sets.load(path)


def test_load_without_root_explains_how_to_set_it(monkeypatch):
    monkeypatch.delenv("P2PFL_DATA", raising=False)
    with pytest.raises(
        ConfigurationError, match=r"'mnist' needs the folder .* environment variable P2PFL_DATA, or the option"
    ):
        sets.load("mnist")
    with pytest.raises(ConfigurationError, match="root is /nowhere, which is not a folder"):
        sets.load("mnist", "/nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train-labels-idx1-ubyte": np.zeros(11, np.uint8)}, "the training part has 12 images, but 11 labels"),
        ({"train-labels-idx1-ubyte": None}, "no file of the labels of the train part"),
        ({"t10k-labels-idx1-ubyte": None, "t10k-images-idx3-ubyte": None}, "has no test part"),
        ({"t10k-images-idx3-ubyte": images(5, shape=(4, 5))}, "training and test images have different shapes"),
        ({"train-images-idx3-ubyte": images(12).astype(np.int16)}, "must have images of bytes"),
        ({"train-labels-idx1-ubyte": np.full(12, -1, np.int8)}, "has the label -1"),
        ({"other-train-images-idx3-ubyte": images(12)}, "contains several data sets"),
        ({"train-images-idx3-ubyte": images(0), "train-labels-idx1-ubyte": np.zeros(0, np.uint8)}, "training part is empty"),
    ],
)
def test_load_idx_folder_with_mismatched_files_is_refused(tmp_path, changes, message):
    make_idx(tmp_path / "own", changes=changes)
    with pytest.raises(ConfigurationError, match=message):
        sets.load("own", str(tmp_path))


def test_load_of_missing_or_wrong_set_names_its_source(tmp_path):
    with pytest.raises(
        MissingRequirementError,
        match=r"there is no folder .*mnist; MNIST comes from yann.lecun.com/exdb/mnist: train-images",
    ):
        sets.load("mnist", str(tmp_path))
    make_idx(tmp_path / "fashion-mnist")
    with pytest.raises(
        ConfigurationError, match=r"have the shape \[1, 4, 4\], but those of Fashion-MNIST \[1, 28, 28\]; .*zalandoresearch"
    ):
        sets.load("fashion-mnist", str(tmp_path))
    shape = images(12, shape=(28, 28)), images(5, shape=(28, 28))
    make_idx(tmp_path / "mnist", changes={"train-images-idx3-ubyte": shape[0], "t10k-images-idx3-ubyte": shape[1]})
    with pytest.raises(ConfigurationError, match="12 training images, but MNIST has 60,000"):
        sets.load("mnist", str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="contains neither IDX files nor binary files of CIFAR"):
        sets.load("empty", str(tmp_path))


def test_load_cifar10_joins_available_batches(tmp_path):
    for name, n, packed in (
        ("data_batch_1.bin", 6, False),
        ("data_batch_3.bin.gz", 4, True),
        ("test_batch_first2.bin.gz", 2, True),
    ):
        write(tmp_path / "cifar10" / name, cifar_bytes(n, seed=n), packed)
    data = sets.load("cifar10", str(tmp_path))
    assert data.train.x.shape == (10, 3, 32, 32)
    assert np.array_equal(data.train.x[6:], binary_files.read_cifar(tmp_path / "cifar10" / "data_batch_3.bin.gz")[0])
    assert (len(data.test.y), data.classes) == (2, 10)


def test_load_cifar100_uses_fine_labels_and_official_folder(tmp_path):
    content = cifar_bytes(7, 2)
    write(tmp_path / "cifar-100-binary" / "train.bin", content)
    write(tmp_path / "cifar-100-binary" / "test.bin", content)
    data = sets.load("cifar100", str(tmp_path))
    assert data.train.y.tolist() == [content[k * 3074 + 1] for k in range(7)]
    assert data.classes == 100


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"data_batch_1": b"\x80"}, "pickled Python version"),
        ({"data_batch_1.bin": cifar_bytes(1)}, "has no test part; CIFAR-10 comes from"),
        (
            {"data_batch_1.bin": b"\x0b" + cifar_bytes(1)[1:], "test_batch.bin": cifar_bytes(1)},
            "a training image has the label 11",
        ),
    ],
)
def test_load_cifar_folder_with_invalid_files_is_refused(tmp_path, files, message):
    for name, content in files.items():
        write(tmp_path / "cifar10" / name, content)
    with pytest.raises(ConfigurationError, match=message):
        sets.load("cifar10", str(tmp_path))


def test_load_digits_needs_no_file(monkeypatch):
    monkeypatch.delenv("P2PFL_DATA", raising=False)
    data = sets.load("digits")
    assert (len(data.train.y), len(data.test.y), data.train.x.max()) == (1438, 359, 16)
    pixels = data.train.x / 16
    assert pixels.mean() == pytest.approx(data.mean[0], abs=2e-3)
    assert pixels.std() == pytest.approx(data.std[0], abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=real(name)) for name in ("mnist", "fashion-mnist", "cifar10")])
def test_load_real_images_matches_known_moments(name):
    data, known = sets.load(name, REAL), KNOWN[name]
    assert data.train.x.shape[1:] == known.shape
    assert set(data.train.y.tolist()) == set(range(10))
    mean, std = sets.moments(data.train.x)
    assert mean == pytest.approx(known.mean, abs=0.01)  # CIFAR-10 may be incomplete
    assert std == pytest.approx(known.std, abs=0.01)


@pytest.mark.slow
@real("qmnist_writers")
@real("mnist")
def test_load_real_qmnist_has_writers():
    data = sets.load("qmnist", REAL)
    assert len(set(data.train.writers.tolist())) == 539
    sizes = np.bincount(np.unique(data.train.writers, return_inverse=True)[1])
    assert (sizes.min(), sizes.max()) == (19, 131)
    assert len(data.test.writers) == len(data.test.y) == 10_000
    assert not set(data.test.writers.tolist()) & set(data.train.writers.tolist())


def test_npz_read_of_impossible_shape_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (0, 10**20)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(ConfigurationError, match="is damaged, or not a file of plain arrays"):
        binary_files.read_npz(tmp_path / "x.npz", ["x"])


# Tables

SCHEMA = """
train = "rows.csv"
missing = ["?"]
negative = ["no"]
positive = ["yes"]
sensitive = ["sex"]
[columns]
age = "numeric"
sex = "categorical"
code = "ignore"
y = "label"
"""
ROWS = "y,sex,age,more,code\nyes, f ,30,x,1\n\nno,m,?,x,2\nno,?,50,x,3\n"


def schema_in(folder, schema=SCHEMA, **files):
    (folder / "own.toml").write_text(schema)
    for name, text in ({"rows": ROWS} | files).items():
        (folder / f"{name}.csv").write_text(text)
    return str(folder / "own.toml")


def test_load_own_table_returns_columns(tmp_path):
    table = tables.load(schema_in(tmp_path))
    assert table.test is None
    assert table.train.labels.tolist() == [1, 0, 0]
    assert table.train.categories["sex"].tolist() == ["f", "m", ""]
    assert np.array_equal(table.train.numbers["age"], [30, np.nan, 50], equal_nan=True)
    assert table.schema.sensitive == ("sex",)


def test_encoder_learns_from_training_rows_only(tmp_path):
    test = "y,sex,age,code\nyes,d,1000,1\nno,m,40,2\nno,,,3\n"
    path = schema_in(tmp_path, schema='test = "test.csv"\n' + SCHEMA, test=test)
    table = tables.load(path)
    encoder = tables.Encoder(table.train)
    assert encoder.names == ["age", "sex=", "sex=f", "sex=m"]
    assert encoder.transform(table.train).tolist() == [[-1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]]
    assert encoder.transform(table.test).tolist() == [[96, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]


def test_encoder_maps_empty_column_to_zero(tmp_path):
    rows = "y,sex,age,code\nyes,f,?,1\nno,f,?,2\n"
    table = tables.load(schema_in(tmp_path, rows=rows))
    assert tables.Encoder(table.train).transform(table.train).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("y,sex,age\nyes,f,1\n", "has no column 'code'; its first line must name the columns"),
        ("y,sex,age,code\nyes,f,1\n", "line 2: 3 values, but the first line names 4 columns"),
        ("y,sex,age,code\n\nyes,f,old,1\n", "line 3: age must be a finite number, got 'old'"),
        ("y,sex,age,code\nyes,f,inf,1\n", "age must be a finite number, got 'inf'"),
        ("y,sex,age,code\nmaybe,f,1,1\n", r"y must be one of \['no', 'yes'\], got 'maybe'"),
        ("y,sex,age,code\nyes," + "f" * 257 + ",1,1\n", "sex has 257 characters, but a category may have at most 256"),
        ("y,sex,age,code\n", "has 0 rows"),
        ("y,sex,age,code,more,sex,more\n", "has two columns 'sex'"),
        ("y,sex,age,code" + "," * 2**16, "has 65,540 columns, at most 65,536 are allowed: remove some"),
        ('y,sex,age,code\nyes,"f"f,1,1\n', "line 2: ',' expected after '\"'"),
    ],
)
def test_load_table_with_invalid_rows_is_refused(tmp_path, rows, message):
    with pytest.raises(ConfigurationError, match=message):
        tables.load(schema_in(tmp_path, rows=rows))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA.replace('"label"', '"ignore"'), "one of the columns must be the label"),
        (SCHEMA.replace("numeric", "number"), "Invalid enum value 'number'"),
        (SCHEMA + 'other = "label"', "one of the columns must be the label"),
        (SCHEMA.replace('"no"', '"yes"'), "must list different labels"),
        (SCHEMA.replace('sensitive = ["sex"]', 'sensitive = ["code"]'), "sensitive columns must be numeric or categorical"),
        ('delimiter = ", "' + SCHEMA, "delimiter must be one character"),
        ("colour = 1" + SCHEMA, "unknown field `colour`"),
        ("rows = 4" + SCHEMA, "has 3 rows, not 4"),
        ("rows", "own.toml: "),
    ],
)
def test_load_table_with_invalid_schema_is_refused(tmp_path, schema, message):
    with pytest.raises(ConfigurationError, match=message):
        tables.load(schema_in(tmp_path, schema))


def test_load_of_missing_table_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"unknown schema 'law': use one of adult, bank, compas, or a \.toml file"):
        tables.load("law", str(tmp_path))
    with pytest.raises(
        MissingRequirementError, match=r"there is no file .*bank-full.csv; the official files come from archive.ics.uci.edu"
    ):
        tables.load("bank", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test", "positive", "features"),
    [
        pytest.param("adult", 32_561, 16_281, 7_841, 107, marks=real("adult")),
        pytest.param("bank", 45_211, 0, 5_289, 50, marks=real("bank")),
        pytest.param("compas", 7_214, 0, 3_251, 19, marks=real("compas")),
    ],
)
def test_load_real_tables_have_known_counts(name, train, test, positive, features):
    table = tables.load(name, REAL)
    assert (len(table.train), len(table.test or ())) == (train, test)
    assert table.train.labels.sum() == positive
    encoder = tables.Encoder(table.train)
    x = encoder.transform(table.train)
    assert x.shape == (train, features)
    assert np.isfinite(x).all()
    numeric = len(table.train.numbers)
    assert np.abs(x[:, :numeric].mean(0)).max() < 1e-4
    for column in table.schema.sensitive:
        assert column in table.train.categories or column in table.train.numbers
    if table.test is not None:
        assert table.test.labels.sum() == 3_846
        assert np.isfinite(encoder.transform(table.test)).all()


# The command


def sim(capsys, *arguments):
    code = main(["data", "check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_data_check_lists_state_of_each_set(tmp_path, capsys):
    make_idx(tmp_path / "mnist")
    write(tmp_path / "cifar10" / "data_batch_1.bin", cifar_bytes(3))
    write(tmp_path / "cifar10" / "test_batch.bin", cifar_bytes(2))
    code, out, _ = sim(capsys, "--root", str(tmp_path), "--json")
    found = {about["name"]: about for about in json.loads(out)["sets"]}
    assert code == 1  # a present set must be valid
    assert {name: about["state"] for name, about in found.items()} == {
        "digits": "complete",
        "mnist": "wrong",
        "fashion-mnist": "missing",
        "cifar10": "part",
        "cifar100": "missing",
        "femnist": "missing",
        "qmnist": "wrong",
        "adult": "missing",
        "bank": "missing",
        "compas": "missing",
    }
    assert (found["cifar10"]["train"], found["cifar10"]["shape"]) == (3, [3, 32, 32])
    code, out, _ = sim(capsys, "--root", str(tmp_path))
    assert "cifar10        part      3 + 2 samples of 3 x 32 x 32, 10 classes" in out


SCENARIO = """
nodes = 5
task = { name = "images", samples = 100, validation = 40, test = 30 }
[[run]]
name = "alike"
[[run]]
name = "alike, too"
policy = { name = "local" }
[[run]]
name = "turned"
task = { shift = { name = "rotation", angles = [0, 90], sizes = [3, 2] } }
"""


MORE_STEPS = """
[[run]]
name = "once"
[[run]]
name = "twice"
task.batch_size = 16
"""


@pytest.mark.slow
@needs_torch
def test_data_check_of_scenario_lists_splits_of_nodes(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    code, out, _ = sim(capsys, str(path), "--json", "--set", "seed=3")
    assert code == 0
    first, second = json.loads(out)["divisions"]
    assert (first["runs"], second["runs"]) == (["alike", "alike, too"], ["turned"])
    assert first["seed"] == 3
    assert [node["group"] for node in second["nodes"]] == [0, 0, 0, 1, 1]
    for node in first["nodes"]:
        assert {split: node[split]["samples"] for split in ("train", "validation", "test")} == {
            "train": 100,
            "validation": 40,
            "test": 30,
        }
        assert sum(node["train"]["labels"]) == 100
    _, out, _ = sim(capsys, str(path), "--only", "turned")
    lines = out.splitlines()
    assert lines[0] == "turned: task images, 5 nodes, seed 0"
    assert lines[1].split() == ["node", "group", "train", "validation", "test", "training", "samples", "per", "label"]
    assert lines[-1].split()[:5] == ["node-4", "1", "100", "40", "30"]


@needs_torch
@pytest.mark.parametrize("options", ['name = "fairness", data = "synthetic"', 'name = "praffl"'])
def test_data_check_counts_groups_of_tables_once(tmp_path, capsys, options):
    path = tmp_path / "mine.toml"
    path.write_text(f"nodes = 2\ntask = {{ {options}, rows = 300 }}\n" + MORE_STEPS)
    divisions = json.loads(sim(capsys, str(path), "--json")[1])["divisions"]
    assert [division["runs"] for division in divisions] == [["once", "twice"]]
    for node in divisions[0]["nodes"]:
        for split in ("train", "test"):
            assert [sum(counts) for counts in node[split]["groups"].values()] == [node[split]["samples"]]
            assert sum(node[split]["labels"]) == node[split]["samples"]
    head = sim(capsys, str(path))[1].splitlines()[1]
    assert "training samples per label" in head
    assert "per group" in head
    assert "node    train" in head  # no empty column of groups


@needs_torch
def test_data_check_notes_same_rows_of_all_nodes(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    path = tmp_path / "mine.toml"
    path.write_text(
        f'nodes = 2\ntask = {{ name = "classification", data = "{tmp_path}/rows.csv" }}\n[[run]]\nname = "same"\n'
    )
    note = "note: all nodes have the same rows; set partition"
    assert sim(capsys, str(path))[1].splitlines()[-1] == note
    assert note not in sim(capsys, str(path), "--set", "task.partition.name=iid")[1]


@needs_torch
def test_data_check_accepts_tasks_without_classes(capsys):
    code, out, _ = sim(capsys, "dac-synthetic", "--set", "nodes=3")
    assert code == 0
    assert out.splitlines()[2].split() == ["node-0", "0", "50", "100", "1000"]


@pytest.mark.slow
def test_data_check_with_invalid_arguments_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("P2PFL_DATA", raising=False)
    code, _, err = sim(capsys)
    assert code == 2
    assert "name one with --root DIR or the environment variable P2PFL_DATA" in err
    assert sim(capsys, "--only", "x")[0] == 2
    code, _, err = sim(capsys, "fairness-adult", "--root", str(tmp_path))
    assert code == 2
    assert f"there is no file {tmp_path / 'adult' / 'adult.data'}" in err  # a scenario reads from the given root, too
    assert "P2PFL_DATA" not in os.environ
    code, _, err = sim(capsys, "digits-gossip", "--set", "nodes=2000", "--set", "task.labels=10")
    assert code == 2
    assert err.startswith("run 'local': 2000 nodes are too many")
