"""Rows with groups: sensitive attributes, inferred column kinds, SYNTHETIC, and partitions of rows."""

import hashlib
import os
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.data.partition import group_partition
from p2pfl.data.tabular import fairness_datasets
from p2pfl.data.tabular import table as tables
from p2pfl.data.tabular.fairness_datasets import COVARIANCES, MEANS, log_density, synthetic
from p2pfl.data.tabular.sensitive_attributes import Grouping, groups_of
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import RandomStreams

REAL = os.environ.get("P2PFL_DATA", "")


def real(name):
    return pytest.mark.skipif(not (Path(REAL) / name).is_dir() if REAL else True, reason=f"P2PFL_DATA has no {name}")


# A table with a schema of ten lines

SCHEMA = """
train = "people.csv"
delimiter = ";"
missing = ["NA"]
negative = ["0"]
positive = ["1"]
sensitive = ["sex"]
rest = "auto"
[columns]
id = "ignore"
paid = "label"
"""
ROWS = """id;sex;age;town;score;paid
1;f;30;Ulm;1e3;1
2;m;NA;Ulm;NA;0
3;f;50;;-5;0
4;d;20;Bonn;7;1
5;m;61;NA;.5;1
"""


def schema_in(folder, schema=SCHEMA, rows=ROWS, **files):
    (folder / "people.toml").write_text(schema)
    for name, text in ({"people": rows} | files).items():
        (folder / f"{name}.csv").write_text(text)
    return str(folder / "people.toml")


def digest(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def test_load_strips_header_and_ignores_unnamed_column(tmp_path):
    rows = "".join(f"{k};{line}\n" for k, line in enumerate(ROWS.splitlines()[1:]))
    path = schema_in(tmp_path, rows=f"; id ;sex ; age;town;score ;paid \n{rows}")
    table = tables.load(path)
    assert sorted([*table.train.numbers, *table.train.categories]) == ["age", "score", "sex", "town"]


def test_load_with_ten_line_schema_infers_columns(tmp_path):
    path = schema_in(tmp_path)
    assert len(SCHEMA.strip().splitlines()) == 10
    table = tables.load(path)
    assert table.schema.columns == {
        "id": "ignore",
        "paid": "label",
        "sex": "categorical",
        "age": "numeric",
        "town": "categorical",
        "score": "numeric",
    }
    encoder = tables.Encoder(table.train)
    assert encoder.names == ["age", "score", "sex=d", "sex=f", "sex=m", "town=", "town=Bonn", "town=Ulm"]
    assert table.train.labels.tolist() == [1, 0, 0, 1, 1]


def test_encoder_output_matches_golden_digest(tmp_path):
    table = tables.load(schema_in(tmp_path))
    x = tables.Encoder(table.train.take(np.array([0, 2, 3]))).transform(table.train)
    ages, scores = np.array([30.0, 50.0, 20.0]), np.array([1000.0, -5.0, 7.0])
    assert x.dtype == np.float32
    assert x[:, 0] == pytest.approx((np.array([30, ages.mean(), 50, 20, 61]) - ages.mean()) / ages.std())
    assert x[:, 1] == pytest.approx((np.array([1000, scores.mean(), -5, 7, 0.5]) - scores.mean()) / scores.std())
    assert x[:, 2:].tolist() == [[0, 1, 0, 0, 1], [0, 0, 0, 0, 1], [0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0]]
    assert digest(x) == "4b389a05005e3cde"


def test_load_infers_column_kinds_from_training_part(tmp_path):
    test = "id;sex;age;town;score;paid\n1;f;old;Ulm;1;1\n"
    path = schema_in(tmp_path, 'test = "later.csv"' + SCHEMA, later=test)
    with pytest.raises(ConfigurationError, match=r"later.csv, line 2: age must be a finite number, got 'old'"):
        tables.load(path)
    path = schema_in(tmp_path, 'test = "later.csv"' + SCHEMA + 'age = "categorical"', later=test)
    assert tables.load(path).test.categories["age"].tolist() == ["old"]


def test_facts_name_kinds_missing_values_and_sensitive_columns(tmp_path):
    path = schema_in(tmp_path)
    (facts,) = tables.load(path).facts
    assert facts.line == (
        f"{tmp_path}/people.csv: CSV separated by ';', 5 samples; 2 categories; 2 numbers; label paid; ignored id;"
        " 4 missing values in age, town, score"
    )
    (found,) = fairness_datasets.load(path, "", 0).facts(["sex", "age+town"])
    roles = {column.name: column.role for column in found.columns}
    assert roles == {
        "id": "ignored",
        "sex": "sensitive",
        "age": "sensitive",
        "town": "sensitive",
        "score": "feature",
        "paid": "label",
    }


def test_load_without_header_infers_auto_columns(tmp_path):
    schema = """
train = "people.csv"
header = false
negative = ["no"]
positive = ["yes"]
[columns]
first = "auto"
second = "auto"
y = "label"
"""
    table = tables.load(schema_in(tmp_path, schema, "1,a,no\n2,,yes\n"))
    assert table.schema.columns == {"first": "numeric", "second": "categorical", "y": "label"}


@pytest.mark.parametrize(
    ("schema", "rows", "message"),
    [
        ("header = false" + SCHEMA, ROWS, r'people.toml: rest = "auto" needs a header'),
        (SCHEMA.replace('["sex"]', '["id"]'), ROWS, "sensitive columns must be numeric or categorical"),
        (SCHEMA, "id;paid\n1;0\n", "no column is left except the label"),
        (SCHEMA.replace("auto", "some"), ROWS, "people.toml: Invalid enum value 'some'"),
        (SCHEMA + "[groups]\nheight = { bounds = [1] }", ROWS, "groups.height: 'height' must be a numeric or a categorical"),
        (SCHEMA + "[groups]\nid = { bounds = [1] }", ROWS, "groups.id: 'id' must be a numeric or a categorical column"),
        (SCHEMA + "[groups]\nage = {}", ROWS, "groups.age: a numeric column needs `between` or `bounds`"),
        (
            SCHEMA + '[groups]\nage = { values = ["30"] }',
            ROWS,
            'codes such as 0 and 1 is categorical: set columns.age = "cat',
        ),
        (SCHEMA.replace("paid = ", "paid.late = "), ROWS, 'a name with a dot: put it in quotes, such as "paid.late" = '),
        (SCHEMA + "[groups]\nsex = { bounds = [1] }", ROWS, "groups.sex: 'sex' is categorical"),
        (SCHEMA + "[groups]\nage = { between = [30] }", ROWS, "between must be two numbers"),
        (SCHEMA + "[groups]\nage = { between = [30, 20] }", ROWS, "between must be two numbers, the smaller one first"),
        (SCHEMA + "[groups]\nage = { bounds = [30, 30] }", ROWS, "bounds must ascend"),
        (SCHEMA + "[groups]\nage = { above = 30 }", ROWS, "unknown field `above`"),
    ],
)
def test_load_invalid_schema_reports_one_line(tmp_path, schema, rows, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        tables.load(schema_in(tmp_path, schema, rows))
    assert "\n" not in str(caught.value)


def test_encoder_refuses_too_many_features_before_encoding(tmp_path, monkeypatch):
    table = tables.load(schema_in(tmp_path))
    encoder = tables.Encoder(table.train)
    monkeypatch.setattr(tables, "MOST_VALUES", 5 * 8)
    assert encoder.transform(table.train).shape == (5, 8)
    monkeypatch.setattr(tables, "MOST_VALUES", 5 * 8 - 1)
    message = "5 rows of 8 features are too many; the column 'sex' has 3 different values: make it numeric, or ignore it"
    with pytest.raises(ConfigurationError, match=message):
        encoder.transform(table.train)


def test_load_refuses_long_texts_before_allocation(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_VALUES", 19)
    with pytest.raises(ConfigurationError, match="the values of town are too long for 5 rows; ignore the column"):
        tables.load(schema_in(tmp_path))


# Attributes


def people(tmp_path):
    return [tables.load(schema_in(tmp_path, rows=ROWS.replace("NA;Ulm", "60;Ulm"))).train]


@pytest.mark.parametrize(
    ("name", "rule", "numbers", "names"),
    [
        ("sex", {}, [1, 2, 1, 0, 2], ("d", "f", "m")),
        ("sex", {"values": ["m", "d"]}, [0, 1, 0, 1, 1], ("not m/d", "m/d")),
        ("town", {}, [2, 2, 0, 1, 0], ("", "Bonn", "Ulm")),
        ("age", {"between": [30, 60]}, [1, 1, 1, 0, 0], ("not 30 to 60", "30 to 60")),
        ("age", {"bounds": [30, 61]}, [1, 1, 1, 0, 2], ("below 30", "from 30", "from 61")),
        ("young", {"column": "age", "bounds": [25]}, [1, 1, 1, 0, 1], ("below 25", "from 25")),
    ],
)
def test_groups_of_column_follow_the_schema(tmp_path, name, rule, numbers, names):
    (found,) = groups_of(name, people(tmp_path), {name: msgspec.convert(rule, Grouping)})
    assert found.numbers.tolist() == numbers
    assert found.names == names


def test_groups_of_attributes_joined_by_plus(tmp_path):
    rules = {"age": Grouping(bounds=(40,)), "sex": Grouping(values=("f",))}
    (found,) = groups_of("sex + age", people(tmp_path), rules)
    assert found.names == ("not f, below 40", "not f, from 40", "f, below 40", "f, from 40")
    assert found.numbers.tolist() == [2, 1, 3, 0, 1]


def test_groups_have_equal_numbers_in_all_parts(tmp_path):
    (rows,) = people(tmp_path)
    parts = groups_of("sex", [rows.take(np.array([0])), rows.take(np.array([1, 3]))], {})
    assert [part.numbers.tolist() for part in parts] == [[1], [2, 0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sexx", "unknown sensitive attribute 'sexx'; did you mean 'sex'"),
        ("age", "'age' is numeric: set groups.age in the schema file, or columns.age = .categorical. if its numbers are"),
        ("score", "'score': some rows have no value of 'score'"),
        ("sex+sex+sex+sex", "'sex.sex.sex.sex' has 81 groups; it must have 2 to 64"),
        ("none", "no row has the value 'x' of a sensitive attribute; known: d, f, m"),
    ],
)
def test_groups_of_invalid_attribute_are_refused(tmp_path, name, message):
    with pytest.raises(ConfigurationError, match=message):
        groups_of(name, people(tmp_path), {"none": Grouping(column="sex", values=("x",))})


def test_two_numbers_are_two_groups(tmp_path):
    (rows,) = people(tmp_path)
    ages = rows.numbers["age"]
    few = rows.take(np.flatnonzero(np.isin(ages, np.unique(ages)[:2])))
    (found,) = groups_of("age", [few], {})
    low, high = np.unique(ages)[:2]
    assert found.names == (f"{low:g}", f"{high:g}")
    assert found.numbers.tolist() == [int(age == high) for age in few.numbers["age"]]


def test_groups_of_single_value_are_refused(tmp_path):
    rows = tables.load(schema_in(tmp_path)).train.take(np.array([0, 2]))
    with pytest.raises(ConfigurationError, match="'sex' has 1 group;"):
        groups_of("sex", [rows], {})


# SYNTHETIC


def test_synthetic_has_distributions_of_the_paper():
    x, y, z = synthetic(np.random.default_rng(0), 100_000)
    assert x.dtype == np.float32
    assert x.shape == (100_000, 3)
    assert np.array_equal(x[:, 2], z)
    assert y.mean() == pytest.approx(0.6, abs=0.01)
    for label in (0, 1):
        points = x[y == label, :2].astype(float)
        assert points.mean(0) == pytest.approx(MEANS[label], abs=0.06)
        assert np.cov(points.T) == pytest.approx(COVARIANCES[label], abs=0.15)


def test_log_density_is_gaussian():
    points = np.array([[1.0, -2.0], [0.0, 3.0], [-2.0, -2.0]])
    for label in (0, 1):
        away = points - MEANS[label]
        inverse = np.linalg.inv(COVARIANCES[label])
        expected = [np.exp(-a @ inverse @ a / 2) / np.sqrt(np.linalg.det(COVARIANCES[label])) for a in away]
        assert np.exp(log_density(points, label)) == pytest.approx(expected)


def test_synthetic_attribute_depends_on_rotated_point():
    """Rotation moves (4, 0) to (2.83, 2.83), near the mean of the positive class, and (-4, 0) near the negative one."""
    x, _, z = synthetic(np.random.default_rng(1), 200_000)
    for centre in ((4.0, 0.0), (0.0, 4.0), (0.0, -4.0), (-1.0, 1.0)):
        near = np.linalg.norm(x[:, :2] - centre, axis=1) < 0.4
        half = np.sqrt(0.5)
        turned = np.array([[half * (centre[0] - centre[1]), half * (centre[0] + centre[1])]])
        odds = np.exp(log_density(turned, 1) - log_density(turned, 0))[0]
        assert near.sum() > 200
        assert z[near].mean() == pytest.approx(odds / (1 + odds), abs=0.08)


def test_synthetic_best_classifier_is_unfair():
    """Its error is 0.123 and its disparity (PraFFL's eq. 2) 0.386: a hypervolume of 0.54 with reference (1, 1)."""
    x, y, z = synthetic(np.random.default_rng(2), 100_000)
    points = x[:, :2].astype(float)
    positive = log_density(points, 1) + np.log(0.6) > log_density(points, 0) + np.log(0.4)
    assert (positive != y).mean() == pytest.approx(0.123, abs=0.005)
    assert abs(positive[z == 0].mean() - positive.mean()) == pytest.approx(0.386, abs=0.01)


# Division of rows


def shares_of(data, n_nodes=3, seed=0, **options):
    given = {"partition": {"name": "iid"}, "sensitive": data.sensitive, "validation": 0.1, "test": 0.3, "official": True}
    return group_partition.divide(data, n_nodes, seed, **(given | options))


PARTITIONS = [
    {"name": "iid"},
    {"name": "stratified"},
    {"name": "dirichlet", "alpha": 1.0},
    {"name": "dirichlet", "alpha": 1.0, "by": "z"},
    {"name": "proportions", "by": "z", "shares": [[0.2, 0.4, 0.4], [0.5, 0.3, 0.2]]},
]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_divide_puts_each_row_at_one_node_in_one_split(partition):
    data = fairness_datasets.load("synthetic", "", 0, 1000)
    shares = shares_of(data, partition=partition)
    everything = np.concatenate([np.concatenate(share) for share in shares])
    assert sorted(everything.tolist()) == list(range(1000))
    assert sum(len(share.test) for share in shares) == 300
    for share in shares:
        assert all((np.diff(split) > 0).all() for split in share if len(split))
        assert len(share.validation) == pytest.approx(0.1 * (len(share.train) + len(share.validation)), abs=1)
    again = shares_of(data, partition=partition)
    assert digest(*(split for share in again for split in share)) == digest(*(split for share in shares for split in share))
    other = shares_of(data, partition=partition, seed=1)
    assert digest(other[0].train) != digest(shares[0].train)


def test_divide_matches_golden_digests():
    data = fairness_datasets.load("synthetic", "", 0, 1000)
    assert digest(data.labels, data.groups("z")) == "cbf3d23e5d3d2093"
    for partition, expected in ((PARTITIONS[1], "927c9d592a2be430"), (PARTITIONS[2], "16c924cbb313f7bb")):
        shares = shares_of(data, partition=partition)
        assert digest(*(split for share in shares for split in share)) == expected


def test_divide_synthetic_matches_the_paper():
    data = fairness_datasets.load("synthetic", "", 0)
    z = data.groups("z")
    assert len(z) == 5000
    shares = shares_of(data, partition=PARTITIONS[-1])
    for group, expected in ((1, (0.5, 0.3, 0.2)), (0, (0.2, 0.4, 0.4))):
        for split in ("rest", "test"):
            rows = [np.concatenate([s.train, s.validation]) if split == "rest" else s.test for s in shares]
            counts = np.array([(z[index] == group).sum() for index in rows])
            assert counts / counts.sum() == pytest.approx(expected, abs=1 / counts.sum())
    assert sum(len(share.test) for share in shares) == 1500


@given(st.integers(1, 7), st.integers(0, 2**31))
def test_stratified_parts_have_equal_proportions(n_nodes, seed):
    data = fairness_datasets.load("synthetic", "", 0, 400)
    cells = 2 * data.labels + data.groups("z")
    for part in group_partition.divide_rows(
        np.arange(400),
        group_partition.stratified(data, n_nodes, None, ("z",)),
        n_nodes,
        RandomStreams(seed, "x").generator(0, ""),
    ):
        for cell in range(4):
            exact = (cells == cell).sum() / n_nodes
            assert np.floor(exact) <= (cells[part] == cell).sum() <= np.ceil(exact)
        assert len(part) in (400 // n_nodes, -(-400 // n_nodes))


def test_divide_keeps_or_joins_official_test_part(tmp_path):
    rows = "id;sex;age;town;score;paid\n" + "1;f;30;Ulm;1;1\n2;m;20;Ulm;2;0\n" * 20
    later = "id;sex;age;town;score;paid\n" + "1;f;30;Ulm;1;1\n2;m;20;Ulm;2;0\n" * 5
    data = fairness_datasets.load(schema_in(tmp_path, 'test = "later.csv"' + SCHEMA, rows, later=later), "", 0)
    assert data.test.tolist() == list(range(40, 50))
    tests = np.concatenate([share.test for share in shares_of(data)])
    assert sorted(tests.tolist()) == list(range(40, 50))
    drawn = np.concatenate([share.test for share in shares_of(data, official=False)])
    assert len(drawn) == 15
    assert drawn.min() < 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "task.validation and task.test must be from 0 to below 1"),
        ({"validation": -0.1}, "task.validation and task.test must be from 0 to below 1"),
        ({"partition": {"name": "idd"}}, "unknown task.partition 'idd'"),
        ({"partition": {"name": "dirichlet", "alpha": 0.0}}, "task.partition.alpha must be from"),
        ({"partition": {"name": "dirichlet", "alpha": 1.0, "by": "x"}}, "unknown sensitive attribute 'x'"),
        ({"partition": {"name": "proportions", "by": "z", "shares": [[1, 0, 0]]}}, "must have 2 rows"),
        ({"partition": {"name": "proportions", "by": "z", "shares": [[1, 1, 1], [0, 0, 0]]}}, "must have 2 rows"),
        ({"partition": {"name": "proportions", "by": "z", "shares": [[1, 1, 1], [1, 1, -1]]}}, "of 3 numbers"),
        ({"partition": {"name": "proportions", "by": "z", "shares": [[1, 1, 1], [1, 1, float("inf")]]}}, "of 3 numbers"),
        ({"partition": {"name": "proportions", "by": "z", "shares": [[1, 0, 0], [1, 0, 0]]}}, "node 1 has no row"),
        ({"n_nodes": 2000}, "2000 nodes are too many for the data"),
    ],
)
def test_divide_with_invalid_options_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        shares_of(fairness_datasets.load("synthetic", "", 0, 500), **options)


def test_load_refuses_rows_option_for_other_data_sets(tmp_path):
    with pytest.raises(ConfigurationError, match=r"task\.rows applies to the data set 'synthetic'"):
        fairness_datasets.load(schema_in(tmp_path), "", 0, 10)
    with pytest.raises(ConfigurationError, match=r"task\.rows must be from 0"):
        fairness_datasets.load("synthetic", "", 0, 10**9)


# Real tables


@cache
def load_real(name):
    return fairness_datasets.load(name, REAL, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attribute", "counts"),
    [
        pytest.param("adult", "sex", [16_192, 32_650], marks=real("adult")),
        pytest.param("adult", "race", [7_080, 41_762], marks=real("adult")),
        pytest.param("adult", "employer", [14_936, 33_906], marks=real("adult")),
        pytest.param("bank", "age", [1_997, 43_214], marks=real("bank")),
        pytest.param("bank", "young", [809, 44_402], marks=real("bank")),
        pytest.param("bank", "quintile", [11_111, 7_602, 8_537, 9_642, 8_319], marks=real("bank")),
        pytest.param("bank", "debtless", [7_244, 37_967], marks=real("bank")),
        pytest.param("compas", "race", [3_518, 3_696], marks=real("compas")),
        pytest.param("compas", "sex+race", [743, 652, 2_775, 3_044], marks=real("compas")),
        pytest.param("compas", "older", [4_613, 2_601], marks=real("compas")),
    ],
)
def test_real_tables_have_the_groups_of_the_papers(name, attribute, counts):
    assert np.bincount(load_real(name).groups(attribute)).tolist() == counts
