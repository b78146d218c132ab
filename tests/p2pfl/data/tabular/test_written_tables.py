"""Tables as csv, pandas and polars write them: read as they were written, or refused; never another table."""

import csv
import io
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.data.class_labels import ClassLabels
from p2pfl.data.delimited import is_marker, number, numbers
from p2pfl.data.tabular import table as tables
from p2pfl.data.tabular.labelled import Choice, read
from p2pfl.errors import ConfigurationError

FINITE = st.floats(-1e30, 1e30) | st.integers(-(10**6), 10**6).map(float) | st.floats(-10, 10).map(lambda x: round(x, 3))
ODD = st.sampled_from([float("nan"), float("inf"), None])
NAMES = st.lists(
    st.text("abxyzäß _-.;,\"'#\n0123456789", min_size=1, max_size=8).map(str.strip).filter(bool),
    min_size=2,
    max_size=5,
    unique=True,
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


def by_csv(columns, index, sep):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=sep)
    writer.writerow([*([""] if index else []), *columns])
    for k, row in enumerate(zip(*columns.values(), strict=True)):
        writer.writerow([*([k] if index else []), *row])
    return out.getvalue()


def by_pandas(columns, index, sep):
    import pandas

    return pandas.DataFrame(columns).to_csv(index=index, sep=sep)


def by_polars(columns, index, sep):
    import polars

    frame = polars.DataFrame(columns, strict=False)
    return (frame.with_row_index(" ") if index else frame).write_csv(separator=sep)


FOUND = [write for library, write in {"csv": by_csv, "pandas": by_pandas, "polars": by_polars}.items() if find_spec(library)]
WRITERS = st.sampled_from(FOUND)


def unless_refused(do):
    """Return what `do` returns; None if it refuses the file in one line that names it."""
    try:
        return do()
    except ConfigurationError as error:
        message = str(error)
    assert "own.csv" in message
    assert "\n" not in message
    return None


@st.composite
def labelled_columns(draw, values):
    names = draw(NAMES)
    rows = draw(st.integers(1, 14))
    columns = {name: draw(st.lists(values, min_size=rows, max_size=rows)) for name in names[:-1]}
    return columns | {names[-1]: draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))}


@pytest.mark.slow
@given(labelled_columns(FINITE), WRITERS, st.booleans(), st.sampled_from(",;\t|"), st.booleans())
def test_written_numbers_are_read_back_or_refused(tmp_path_factory, columns, write, index, sep, told):
    path = tmp_path_factory.mktemp("written") / "own.csv"
    path.write_text(write(columns, index, sep), encoding="utf-8", newline="")
    found = unless_refused(lambda: read(path, Choice(delimiter=sep if told else ","), ClassLabels(3), None))
    if found is None:
        return
    *names, label = columns
    x, y = found.splits["train"]
    assert y.tolist() == columns[label]
    assert np.array_equal(x, np.column_stack([columns[name] for name in names]))
    assert [column.name for column in found.facts.columns if column.role == "feature"] == [
        " ".join(name.split()) for name in names
    ]


@pytest.mark.parametrize("write", FOUND)
def test_plain_table_of_each_writer_is_read(tmp_path, write):
    path = tmp_path / "own.csv"
    path.write_text(write({"a": [0.5, 1e-7, -3.0], "b": [1.0, 2.5, 1e20], "kind": [0, 2, 1]}, False, ","))
    x, y = read(path, Choice(), ClassLabels(3), None).splits["train"]
    assert (x.tolist(), y.tolist()) == ([[0.5, 1.0], [1e-7, 2.5], [-3.0, 1e20]], [0, 2, 1])


@pytest.mark.slow
@given(labelled_columns(FINITE | ODD), WRITERS)
def test_written_table_with_missing_or_infinite_value_is_refused(tmp_path_factory, columns, write):
    *names, _ = columns
    odd = any(value is None or not np.isfinite(value) for name in names for value in columns[name])
    path = tmp_path_factory.mktemp("written") / "own.csv"
    path.write_text(write(columns, False, ","), encoding="utf-8", newline="")
    found = unless_refused(lambda: read(path, Choice(), ClassLabels(3), None))
    assert found is None or not odd


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6) | st.none(), TEXTS), min_size=2, max_size=12),
    WRITERS,
    st.sampled_from(",;\t|"),
)
def test_written_numbers_and_texts_are_read_back_or_refused(tmp_path_factory, cells, write, sep):
    folder = tmp_path_factory.mktemp("written")
    labels = [k % 2 for k in range(len(cells))]
    columns = {"a": [number for number, _ in cells], "b": [text for _, text in cells], "y": labels}
    (folder / "own.csv").write_text(write(columns, False, sep), encoding="utf-8", newline="")
    (folder / "own.toml").write_text(
        f'train = "own.csv"\ndelimiter = "{sep}"\nnegative = ["0"]\npositive = ["1"]\n'.replace("\t", "\\t")
        + '[columns]\na = "numeric"\nb = "categorical"\ny = "label"\n'
    )
    found = unless_refused(lambda: tables.load(str(folder / "own.toml")))
    if found is None:
        return
    rows = found.train
    assert rows.labels.tolist() == labels
    assert np.array_equal(rows.numbers["a"], np.array(columns["a"], float), equal_nan=True)
    assert rows.categories["b"].tolist() == [text.strip() for text in columns["b"]]


@pytest.mark.slow
@given(st.text("0123456789+-.eE_ \t٣infaNx,", max_size=12))
def test_numbers_are_those_of_the_grammar(text):
    grammar = text.strip()
    digits = grammar.lstrip("+-")
    found = number(text)
    if found is not None:
        assert grammar.isascii()
        assert "_" not in grammar
        assert digits[0] in "0123456789."
        assert found == float(grammar)
    assert numbers([text, "1"]) == (None if found is None else [found, 1.0])
    assert not (is_marker(text) and found is not None)


@pytest.mark.parametrize("text", ["1_0", "nan", "inf", "-Infinity", "0x10", "٣", "1e999", "1,5", "", "1 2", "1d5", "--1"])
def test_texts_outside_the_grammar_are_no_numbers(text):
    assert number(text) is None


@pytest.mark.parametrize("text", ["7", "-.5", "+1.", "1e5", "1E-5", " 3 ", "007"])
def test_texts_of_the_grammar_are_numbers(text):
    assert number(text) == float(text)
