"""Arrays, lists and columns of a user: equal numbers come out, or one line names what is no number."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.samples.datasets import read_samples, read_source
from p2pfl.task import Part

pd = pytest.importorskip("pandas", reason="needs the extra notebook")
pl = pytest.importorskip("polars", reason="needs the extra polars")

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


def task(data, **options):
    return p2pfl.classification(lambda: nn.Linear(3, 2), train=data, **options)


def refusal(data, **options):
    with pytest.raises(ConfigurationError) as caught:
        task(data, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


KINDS = [
    np.bool_,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
]


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, (4, 3))),
    st.sampled_from(["array", "list", "object", "pairs", "tensor", "masked", "reversed", "readonly", "frame", "rows"]),
)
def test_numbers_come_out_equal_or_are_refused(values, form):
    wide = values.astype(object)
    given = {
        "array": lambda: values,
        "list": values.tolist,
        "object": lambda: wide,
        "pairs": lambda: None,
        "tensor": lambda: torch.from_numpy(values.copy()),
        "masked": lambda: np.ma.MaskedArray(values, False),
        "reversed": lambda: values[::-1].copy()[::-1],
        "readonly": lambda: np.frombuffer(values.tobytes(), values.dtype).reshape(4, 3),
        "frame": lambda: pd.DataFrame(values),
        "rows": lambda: list(values),
    }[form]()
    samples = [*zip(values, Y, strict=True)] if form == "pairs" else (given, Y)
    if values.dtype == np.uint64 and int(values.max()) > 2**63 - 1:  # int64 cannot hold them
        with pytest.raises(ConfigurationError, match=r"more than the greatest int64|too large for 64 bits"):
            read_samples("train", samples)
        return
    x, y = read_samples("train", samples)
    found = np.asarray(x, np.float64)
    with np.errstate(over="ignore"):  # a task refuses what float32 cannot hold
        kept = values.astype(np.float32) if form == "pairs" and values.dtype.kind == "f" else values
    expected = kept.astype(np.float64)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.asarray(y).tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.ma.MaskedArray(X, X == 4), r"train data: inputs: \[1, 1\] is masked; a missing value; fill it in"),
        ([np.ma.MaskedArray(row, row == 4) for row in X], "train data: inputs: number 1 has masked values"),
        (scipy.sparse.csr_matrix(X), r"a sparse matrix \(csr_matrix\); pass its toarray\(\)"),
        (torch.from_numpy(X).to_sparse(), r"a tensor of layout torch.sparse_coo; pass its to_dense\(\)"),
        (X.astype(complex), "train data: inputs must be numbers, got complex128"),
        (np.zeros(4, [("a", float), ("b", int)]), "a structured array; make a column of each field"),
        (X.astype("datetime64[s]"), r"got dates \(datetime64\[s\]\); convert them to numbers, such as days"),
        (pd.DataFrame(X).astype("Int64").where(X != 4), r"\[1, 1\] \(column 1\) is <NA>; a missing value"),
        (pd.DataFrame({"a": [1, 2, 3, 4], "city": list("abcd")}), r"\[0, 1\] \(column 'city'\) is 'a', text"),
        ([[1, 2, 3], [4, None, 6], [7, 8, 9], [0, 1, 2]], r"\[1, 1\] is None; a missing value"),
        ([[1, 2, 3], [4, "five", 6], [7, 8, 9], [0, 1, 2]], "must be numbers, got text"),
        ([X[0].astype(np.uint8), *X[1:]], "number 1 is of float32, but number 0 of uint8; all samples need one type"),
        (
            [X[0].astype(np.uint8), X[1].astype(np.uint16)],
            "number 1 is of uint16, but number 0 of uint8; all samples need one",
        ),
        (X.astype(str), "inputs must be numbers, got text; convert it to numbers"),
        ([*X[:3], X[3] > 0], "number 3 is of bool, but number 0 of float32; all samples need one type"),
        (pl.DataFrame({"a": [1.0, None, 2.0, 3.0], "b": [1.0] * 4, "c": [1.0] * 4}), "input 1 is not finite"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_values_that_are_no_numbers_are_refused(inputs, message):
    with pytest.raises(ConfigurationError, match=message):
        task((inputs, Y))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (Y == 1, [0, 1, 0, 1]),
        (Y.astype(float), [0, 1, 0, 1]),
        (pd.Series(Y, index=[9, 3, 2, 7]), [0, 1, 0, 1]),
        (pd.Series(Y, dtype="Int64"), [0, 1, 0, 1]),
        (pd.Series(Y, dtype="category"), [0, 1, 0, 1]),
        (pl.Series(Y), [0, 1, 0, 1]),
        ([np.int64(0), 1, True, 0.0], [0, 1, 1, 0]),
        (Y[::-1], [1, 0, 1, 0]),
    ],
    ids=str,
)
def test_class_numbers_of_many_types_are_read(targets, expected):
    assert task((X, targets)).data["train"].y.tolist() == expected


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.eye(2)[Y], "targets have the shape [n, 2], expected class numbers [n]; for one-hot vectors take y.argmax(1)"),
        (Y[:, None], "targets have the shape [n, 1], expected class numbers [n]; for a column take y.reshape(-1)"),
        (np.array(["0", "1", "0", "1"]), "targets must be numbers, got text; number the classes from 0, or list `labels`"),
        (pd.Series([0, 1, None, 1], dtype="Int64"), "target 2 is nan; a class must be a whole number from 0"),
        (pd.Series([0, 1, None, 1], dtype=object), "targets: number 2 is None; a missing value; fill it in, or remove the"),
        (pl.Series([0, 1, None, 1]), "target 2 is nan; a class must be a whole number from 0"),
        (np.ma.MaskedArray(Y, [0, 0, 1, 0]), "targets: number 2 is masked; a missing value"),
        ([0, -1, 0, 1], "target 1 is -1, but module Linear has 2 outputs"),
        ([0, np.inf, 0, 1], "target 1 is inf; a class must be a whole number from 0"),
        ([0, 1e300, 0, 1], "target 1 is 1e+300; a class must be a whole number from 0"),
        ([0, 2**70, 0, 1], "targets: a number is too large for 64 bits"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_labels_that_are_no_class_numbers_are_refused(targets, message):
    assert message in refusal((X, targets))


def test_column_of_classes_with_a_partition_names_the_remedy():
    given = {"partition": p2pfl.partition("iid"), "part": Part(0, 2)}
    assert "got targets of shape [4, 1]; for a column take y.reshape(-1)" in refusal((X, Y[:, None]), **given)


def test_pandas_columns_of_several_types_are_numbers():
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": [True, False, True, False], "c": [0.5, 1, 2, 3]})
    assert task((frame, Y)).data["train"].x.tolist() == [[1, 1, 0.5], [2, 0, 1], [3, 1, 2], [4, 0, 3]]


def test_table_as_data_is_refused_with_a_remedy():
    frame = pd.DataFrame({"a": [1, 2], "label": [0, 1]})
    for table in (frame, pl.DataFrame({"a": [1, 2], "label": [0, 1]})):
        assert refusal(table).endswith("pass (inputs, targets), such as (table[['a']], table['label'])")


def test_two_lists_of_two_are_refused():
    assert "may be two samples, or inputs and targets" in refusal([[0.5, 0], [0.7, 1]])


def test_pixels_of_8_and_16_bits_in_one_dataset_are_refused():
    samples = [(np.full(3, 255, np.uint8), 0), (np.full(3, 65535, np.uint16), 1)]
    assert refusal(samples) == "train data: input 1 is of uint16, but earlier ones of uint8; all samples need one type"


def test_texts_in_labels_are_shown_with_quotes():
    assert refusal((X, Y), labels=["0", "1"]) == "train data: target 0 is 0; a label must be one of '0', '1'"


def test_indices_of_a_subset_in_a_column_are_refused():
    indices = torch.nonzero(torch.tensor(Y) >= 0)
    data = Subset(TensorDataset(torch.from_numpy(X), torch.tensor(Y)), indices)
    assert refusal(data) == ("train data: the indices of the Subset must be whole numbers [n], got int64 of shape [4, 1]")


def test_memory_map_is_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    assert task((np.load(tmp_path / "x.npy", mmap_mode="r"), Y)).data["train"].x.tolist() == X.tolist()


def test_tensor_with_gradient_is_read_without():
    given = torch.from_numpy(X).requires_grad_()
    for inputs in (given, [*given]):
        found = task((inputs, Y)).data["train"].x
        assert found.tolist() == X.tolist()
        assert not found.requires_grad


def test_images_with_channels_last_get_a_hint():
    with pytest.raises(ConfigurationError, match=r"with the channels first: x.transpose\(0, 3, 1, 2\)"):
        p2pfl.classification(lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), train=(np.zeros((4, 8, 8, 3)), Y))


def test_numbers_too_large_for_float32_are_refused():
    assert "input 1 is not finite (NaN, infinite, or too large for float32)" in refusal((X.astype(float) * 1e38, Y))


def test_lost_precision_and_other_ranges_are_noted():
    seconds = 1.7e9 + np.arange(12.0).reshape(4, 3)
    assert "feature 0 varies too little for its size (1.7e+09 to 1.7e+09)" in task((seconds, Y)).data_facts[0].notes[0]
    assert task((seconds - seconds.mean(0), Y)).data_facts[0].notes == ()
    assert task((X, Y), test=(X * 255, Y)).data_notes == (
        "test data: inputs are more than 50 times as great as those of the training data; scale both alike",
    )


# Samples of a dataset


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((X[1].astype(np.uint8), 1), "input 1 is of uint8, but earlier ones of float32; all samples need one type"),
        ((X[1] > 0, 1), "input 1 is of bool, but earlier ones of float32"),
        ((X[1], 1, "name"), "a sample must be (input, target) or a dict, got tuple of 3 as number 1"),
        ({"x": X[1], "y": 1}, "a sample must be (input, target) or a dict, got x, y as number 1"),
        ((X[1], None), "target 1: it is None; a missing value; fill it in, or remove the sample"),
        ((X[1], "one"), "target 1 must be numbers, got text"),
        ((X[1], [1]), "target 1 has the shape [1], but number 0 has []"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value),
)
def test_samples_of_several_forms_are_refused(second, message):
    assert message in refusal(Rows([(X[0], 0), second, (X[2], 0)]))


def test_dicts_with_other_columns_are_refused():
    first = {"a": 1.0, "b": 2.0, "c": 3.0, "label": 0}
    assert "sample 1 has other columns than number 0: a, label" in refusal([first, {"a": 1.0, "label": 1}])
    assert "sample 1 has other columns than number 0: a, b, c, label, d" in refusal([first, first | {"d": 1}])
    assert "(b of sample 1 is '20_29')" in refusal([first, first | {"b": "20_29"}])


def test_larger_numbers_later_in_a_set_are_kept():
    x, y = read_samples("train", Rows([(np.uint8([1, 2]), np.uint8(0)), (np.int64([300, 4]), np.int64(70000))]))
    assert (x.tolist(), y.tolist()) == ([[1, 2], [300, 4]], [0, 70000])
    assert read_samples("train", Rows([(1, 0), (2.5, 1)]))[0].tolist() == [1, 2.5]


# Subsets

TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize("base", [TENSORS, Rows([*zip(X, Y, strict=True)])], ids=["tensors", "dataset"])
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (np.array([True, False, True, False]), "the indices of the Subset are a mask of booleans"),
        ([True, False, True, True], "the indices of the Subset are a mask of booleans"),
        (torch.tensor([True, False, True, True]), "the indices of the Subset are a mask of booleans"),
        ([0, -1], "index 1 of the Subset is -1, but the dataset has the positions 0 to 3"),
        ([0, 4], "index 1 of the Subset is 4, but the dataset has the positions 0 to 3"),
        ([0.0, 1.7], "the indices of the Subset must be whole numbers [n], got float64"),
        ([[0, 1]], "the indices of the Subset must be whole numbers [n]"),
    ],
    ids=str,
)
def test_invalid_indices_of_a_subset_are_refused(base, indices, message):
    assert message in refusal(Subset(base, indices))
    assert message in refusal(Subset(Subset(base, indices), [0]))
    assert message in refusal(ConcatDataset([Subset(base, [1]), Subset(base, indices)]))


@pytest.mark.parametrize("base", [TENSORS, Rows([*zip(X, Y, strict=True)])], ids=["tensors", "dataset"])
def test_repeated_indices_of_a_subset_are_noted(base):
    source = read_source("train", Subset(base, [3, 1, 3]))
    assert source.x.tolist() == X[[3, 1, 3]].tolist()
    assert source.facts.notes == ("train data: 1 of the 3 indices of the Subset repeat an earlier one",)
