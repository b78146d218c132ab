"""Tables with one known fault each, drawn from a seed: each is read right, refused, or noted.

`python -m pytest -n 0 -s tests/p2pfl/tasks/test_generated_tables.py` prints how many of each kind were.
"""

import csv
import gzip
import io
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from p2pfl.data.tabular import table as tables
from p2pfl.errors import ConfigurationError
from p2pfl.task import Part, make_task

SEEDS = 3  # tables of each kind
KINDS, SCHEMA_KINDS = {}, {}
SCHEMA = (
    'train = "{file}"\nnegative = ["0"]\npositive = ["1"]\nsensitive = ["sex"]\nrest = "auto"\n[columns]\nlabel = "label"\n'
)


class Base(NamedTuple):
    """A table without faults: names, numbers [n, d] with three decimals, and classes [n] independent of them."""

    rng: np.random.Generator
    names: list[str]
    x: np.ndarray
    y: np.ndarray

    def cells(self):
        return [[*(f"{value:.3f}" for value in row), str(label)] for row, label in zip(self.x, self.y, strict=True)]

    def rows(self):
        return [[*self.names, "label"], *self.cells()]

    def place(self):
        """Return the indices of a random cell of the features: row and column."""
        return int(self.rng.integers(len(self.x))), int(self.rng.integers(len(self.names)))


class Given(NamedTuple):
    """Table of a kind: a file, options, and what must happen.

    Attributes:
        refused, noted: a pattern of the refusal, or of a note; without both, the table is read without a note.
        x, y: what must be read, if it is not refused.
    """

    content: bytes
    refused: str = ""
    noted: str = ""
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    suffix: str = "csv"


def kind(function):
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def text(rows, delimiter=",", end="\n", **options):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=end, **options).writerows(rows)
    return out.getvalue()


def plain(base, content, **given):
    return Given(content if isinstance(content, bytes) else content.encode(), x=base.x, y=base.y, **given)


def with_column(base, name, values, at=0):
    return [[*row[:at], cell, *row[at:]] for row, cell in zip(base.rows(), [name, *map(str, values)], strict=True)]


def with_cell(base, cell):
    """Return the rows with a text in one random cell, and the words that name its line and column."""
    rows = base.rows()
    row, column = base.place()
    rows[row + 1][column] = cell
    return rows, rf"line {row + 2}: {base.names[column]} "


# An index, an identifier, a leak


@kind
def index_without_name(base):
    return plain(
        base, text(with_column(base, "", range(len(base.y)))), noted="column 1 has no name, as an index; it is left"
    )


@kind
def index_after_a_round_trip(base):
    return plain(base, text(with_column(base, "Unnamed: 0", range(len(base.y)))), noted="Unnamed: 0 has no name.*left out")


@kind
def index_at_the_end_without_name(base):
    rows = with_column(base, "", range(len(base.y)), at=len(base.names) + 1)
    return plain(base, text(rows), refused="line 1: the last column.* has no name.*task.target")


@kind
def counter_from_1_in_a_file_sorted_by_label(base):
    base = base._replace(y=np.sort(base.y))
    rows = with_column(base, "sample", range(1, len(base.y) + 1), at=1)
    return plain(base, text(rows), refused=r"'sample' numbers or identifies the rows.*task.ignore = \[\"sample\"\]")


@kind
def counter_in_a_random_order_of_labels(base):
    rows = with_column(base, "sample", range(len(base.y)))
    return Given(text(rows).encode(), noted=r"sample numbers the rows; set task.ignore = \[\"sample\"\]")


@kind
def counter_of_a_slice_that_goes_down(base):
    base = base._replace(y=np.sort(base.y))
    rows = with_column(base, "line", range(5000, 5000 - len(base.y), -1))
    return plain(base, text(rows), refused="'line' numbers or identifies the rows")


@kind
def counter_in_batches_of_labels(base):
    order = np.concatenate([np.sort(part) for part in np.array_split(base.y, 4)])
    rows = with_column(base._replace(y=order), "sample", range(len(base.y)))
    return plain(base, text(rows), refused="'sample' numbers or identifies the rows")


@kind
def counter_ignored(base):
    rows = with_column(base, "sample", range(1, len(base.y) + 1), at=1)
    return plain(base, text(rows), options={"ignore": ["sample"]})


@kind
def shuffled_identifiers(base):
    ids = base.rng.choice(10**6, len(base.y), replace=False)
    return plain(base, text(with_column(base, "user_id", ids)), refused="'user_id' numbers or identifies the rows")


@kind
def ascending_identifiers(base):
    ids = np.cumsum(base.rng.integers(1, 9, len(base.y)))
    return plain(base, text(with_column(base, "Id", ids)), refused="'Id' numbers or identifies the rows")


@kind
def column_sorted_by_label(base):
    order = np.argsort(base.y, kind="stable")
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order)) * 1.5 + base.rng.random(len(order))
    given = text(with_column(base, "rank", [f"{value:.4f}" for value in rank]))
    return Given(given.encode(), noted="rank: alone gives the label of each row")


@kind
def copy_of_the_label(base):
    codes = np.array([7, 3, 9])[base.y]
    return Given(text(with_column(base, "code", codes)).encode(), noted="code: alone gives the label of each row")


# Header, separators, encodings, lines


@kind
def no_header(base):
    return plain(base, text(base.cells()), refused="line 1: it has numbers, but the first line must name the columns")


@kind
def two_columns_of_one_name(base):
    rows = base.rows()
    rows[0][1] = rows[0][0]
    return plain(base, text(rows), refused=f"has two columns '{base.names[0]}'")


for sign, word in ((";", "';'"), ("\t", "tabs"), ("|", r"'\|'")):

    def separated(base, sign=sign, word=word):
        return plain(base, text(base.rows(), sign), refused=f"line 1: the columns are separated by {word}, not by ','")

    KINDS[f"separated by {word}"] = separated


@kind
def separator_as_option(base):
    return plain(base, text(base.rows(), ";"), options={"delimiter": ";"})


@kind
def decimal_commas_in_quotes(base):
    rows = [[cell.replace(".", ",") for cell in row] for row in base.rows()]
    return plain(base, text(rows), refused="line 2: .* must be a number, got .* a decimal comma")


@kind
def decimal_commas_between_semicolons(base):
    rows = [[cell.replace(".", ",") for cell in row] for row in base.rows()]
    return plain(base, text(rows, ";"), refused="line 2: .* a decimal comma", options={"delimiter": ";"})


@kind
def decimal_commas_without_quotes(base):
    lines = [",".join(cell.replace(".", ",") for cell in row) for row in base.rows()]
    return plain(base, "\n".join(lines), refused=r"line 2: \d+ values, but the first line names \d+ columns")


@kind
def utf_16(base):
    return plain(base, text(base.rows()).encode("utf-16"), refused="is not UTF-8 text but UTF-16")


@kind
def utf_16_without_mark(base):
    return plain(base, text(base.rows()).encode("utf-16-le"), refused="is not UTF-8 text but UTF-16 or binary")


@kind
def latin_1(base):
    return plain(
        base, text(with_column(base, "größe", base.x[:, 0] * 2)).encode("latin-1"), refused="line 1 has the byte 0xf6"
    )


@kind
def byte_order_mark(base):
    return plain(base, text(base.rows()).encode("utf-8-sig"))


@kind
def lines_of_windows(base):
    return plain(base, text(base.rows(), end="\r\n"))


@kind
def packed_by_gzip(base):
    return plain(base, gzip.compress(text(base.rows()).encode()))


@kind
def workbook(base):
    return plain(base, b"PK\x03\x04" + base.rng.bytes(500), refused="is an Excel workbook or another zip archive")


@kind
def page_of_html(base):
    return plain(base, "<!DOCTYPE html>\n<html></html>\n", refused="line 1: '<!DOCTYPE html>' does not begin a table")


@kind
def separator_line_of_excel(base):
    return plain(base, "sep=;\n" + text(base.rows(), ";"), refused="line 1: 'sep=;' is for Excel only")


@kind
def separators_at_all_ends(base):
    return plain(base, text([[*row, ""] for row in base.rows()]), refused="line 1: the last column.* has no name")


@kind
def separators_at_all_ends_with_target(base):
    content = text([[*row, ""] for row in base.rows()])
    return plain(base, content, options={"target": "label"}, noted="has no name, as an index; it is left out")


@kind
def separators_at_ends_of_rows(base):
    names, *rows = base.rows()
    content = text([names, *([*row, ""] for row in rows)])
    return plain(base, content, refused="line 2: .* remove the separator at the end of the line")


@kind
def row_names_of_r(base):
    names, *rows = base.rows()
    content = text([names, *([str(k + 1), *row] for k, row in enumerate(rows))])
    return plain(base, content, refused=r"line 2: .*row\.names = FALSE")


@kind
def short_line(base):
    rows = base.rows()
    k, _ = base.place()
    rows[k + 1].pop()
    return plain(base, text(rows), refused=f"line {k + 2}: {len(base.names)} values, but the first line names")


@kind
def title_above_the_header(base):
    return plain(
        base,
        "Measured in May\n" + text(base.rows()),
        refused="line 2: .* values, but the first line names 1 column; remove lines above",
    )


@kind
def comment_above_the_header(base):
    return plain(base, "# from the lab\n" + text(base.rows()), refused="line 1: it begins with '#'")


@kind
def header_of_savetxt(base):
    return plain(base, "# " + text(base.rows()), refused="line 1: it begins with '#'.*numpy.savetxt")


@kind
def comment_between_lines(base):
    lines = text(base.rows()).splitlines(keepends=True)
    k, _ = base.place()
    lines.insert(k + 1, "# calibrated\n")
    return plain(base, "".join(lines), refused=f"line {k + 2}: .*remove lines of comments")


@kind
def empty_lines(base):
    lines = text(base.rows()).splitlines(keepends=True)
    for _ in range(3):
        lines.insert(1 + base.place()[0], base.rng.choice(["\n", ",,,,,\n"[: len(base.names)] + "\n", "  \n"]))
    return plain(base, "".join(lines))


@kind
def line_of_totals(base):
    rows = [*base.rows(), ["Total", *[""] * len(base.names)]]
    return plain(base, text(rows), refused=f"line {len(rows)}: {base.names[0]} must be a number, got 'Total'")


@kind
def repeated_header(base):
    rows = base.rows()
    k, _ = base.place()
    rows.insert(k + 2, rows[0])
    return plain(base, text(rows), refused=f"line {k + 3}: it repeats the first line")


@kind
def quote_without_end(base):
    rows, _ = with_cell(base, "@")
    return plain(
        base, text(rows).replace("@", '"1'), refused=r"line \d+: unexpected end of data|line \d+: .* expected after"
    )


@kind
def numbers_in_quotes_with_spaces(base):
    return plain(base, text(base.rows(), quoting=csv.QUOTE_ALL).replace('","', '", "'))


@kind
def line_end_in_a_quoted_field(base):
    rows = with_column(base, "remark", ["one\ntwo, three" if k % 7 == 0 else "-" for k in range(len(base.y))])
    return plain(base, text(rows), options={"ignore": ["remark"]})


@kind
def text_column(base):
    rows = with_column(base, "town", base.rng.choice(["Ulm", "Bonn"], len(base.y)))
    return plain(base, text(rows), refused="line 2: town must be a number, got '(Ulm|Bonn)'")


# Cells


CELLS = {
    "NA": "a missing value",
    "nan": "a missing value",
    "?": "a missing value",
    "": "a missing value",
    "null": "a missing value",
    "N/A": "a missing value",
    "1_0": "an underscore",
    "inf": "infinite",
    "-Infinity": "infinite",
    "0x1F": "hexadecimal",
    "1٢": "digits of another script",
    "1,234.5": "commas between thousands",
    "1 234": "separators between thousands",
    "12%": "a percent sign",
    "$5.20": "a currency sign",
    "2024-05-01": "a date",
    "3/4/2024": "a date",
    "12:30": "a time",
    "True": "a truth value",
    "(3.5)": "a negative number in parentheses",
    "'1.5'": "in single quotes",
    "1e400": "too large for float64",
    "1e39": "must be a finite float32, got",
    "\u22125.5": "another sign than '-' for minus",
    "1.5D+03": "an exponent with D, as Fortran",
    "3.14-114": "an exponent without E",
    "1.2.3": "must be a number, got",
    "5 kg": "must be a number, got",
}
for cell, meaning in CELLS.items():

    def odd_cell(base, cell=cell, meaning=meaning):
        rows, where = with_cell(base, cell)
        return plain(base, text(rows), refused=f"{where}.*{re.escape(meaning)}")

    KINDS[f"cell {cell!r}"] = odd_cell


@kind
def epoch_seconds_as_they_are(base):
    x = 1.764e9 + 100 * base.rng.random(len(base.y))
    return Given(
        text(with_column(base, "t", [f"{t:.2f}" for t in x])).encode(), noted="t: float32 cannot tell its values apart"
    )


@kind
def epoch_seconds_standardised(base):
    small = base._replace(x=np.round(base.x, 3))
    shifted = base._replace(x=small.x + 1.764e9)
    mean, deviation = small.x.mean(0), small.x.std(0)
    options = {"standardize": "local"}
    return Given(text(shifted.rows()).encode(), x=(small.x - mean) / deviation, y=base.y, options=options)


@kind
def whole_numbers_above_2_to_the_53(base):
    numbers = 2**60 + base.rng.integers(0, 999, len(base.y))
    return Given(text(with_column(base, "account", numbers)).encode(), noted="account: whole numbers above 2")


@kind
def constant_column(base):
    return Given(text(with_column(base, "unit", [5] * len(base.y))).encode(), noted="unit: all rows have the same value")


@kind
def repeated_rows(base):
    again = sorted(base.rng.choice(len(base.y), 4, replace=False))
    more = base._replace(x=np.vstack([base.x, base.x[again]]), y=np.append(base.y, base.y[again]))
    return plain(more, text(more.rows()), noted=rf"4 rows repeat an earlier one \(the first in line {len(base.y) + 2}\)")


@kind
def codes_with_leading_zeros(base):
    zips = [f"{k:05d}" for k in base.rng.integers(100, 99999, len(base.y))]
    return Given(
        text(with_column(base, "zip", zips)).encode(), noted=r"zip: read as numbers, but '0\d+' in line \d+ may be a code"
    )


@kind
def codes_with_an_exponent(base):
    parts = [f"{k}E{k % 7}" for k in base.rng.integers(100, 999, len(base.y))]
    return Given(
        text(with_column(base, "part", parts)).encode(), noted=r"part: read as numbers, but '\d+E\d' in line 2 may be"
    )


@kind
def nines_for_a_missing_value(base):
    values = [f"{value:.2f}" for value in base.rng.normal(size=len(base.y))]
    values[3] = values[9] = "-999"
    return Given(text(with_column(base, "rain", values)).encode(), noted="rain: -999 occurs 2 times, far from all others")


@kind
def second_mark_of_byte_order(base):
    return plain(base, "\ufeff\ufeff" + text(base.rows()), options={"target": "label"})


# Labels


@kind
def label_first(base):
    rows = [[row[-1], *row[:-1]] for row in base.rows()]
    return plain(base, text(rows), refused=r'line \d+: .* a label must be a whole number from 0; .*task\.target = "label"')


@kind
def label_first_with_another_column_of_small_numbers(base):
    rows = [[row[-1], *row[:-1], cell] for row, cell in zip(base.rows(), ["smoker", *"01" * len(base.y)], strict=False)]
    return Given(text(rows).encode(), noted="the label is smoker, the last column, and label is a feature")


@kind
def labels_as_text(base):
    rows = [[*row[:-1], cell] for row, cell in zip(base.rows(), ["label", *("abc"[k] for k in base.y)], strict=True)]
    return plain(base, text(rows), refused="line 2: label is [abc], a label must be a whole number.*task.labels")


@kind
def labels_from_1(base):
    return plain(
        base, text(base._replace(y=base.y + 1).rows()), refused=r"the labels are 1, 2 and 3.*task.labels = \[1, 2, 3\]"
    )


@kind
def labels_with_underscore(base):
    rows = base.rows()
    k, _ = base.place()
    rows[k + 1][-1] = "1_0"
    return plain(base, text(rows), refused=f"line {k + 2}: label is 1_0, a label must be")


@kind
def missing_label(base):
    rows = base.rows()
    k, _ = base.place()
    rows[k + 1][-1] = ""
    return plain(base, text(rows), refused=f"line {k + 2}: label is empty, a label must be")


# Archives


def archive(base, refused="", noted="", **arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return Given(out.getvalue(), refused, noted, arrays.get("x", base.x), base.y, suffix="npz")


@kind
def npz_of_keras(base):
    return archive(base, x_train=base.x, y_train=base.y)


@kind
def npz_with_other_names(base):
    return archive(base, features=base.x, target=base.y, refused="has no array x; it has 'features', 'target'")


@kind
def npz_of_objects(base):
    return archive(
        base, x=base.x, y=base.y.astype(object), refused="y must be of numbers, got object; save it with a numeric"
    )


@kind
def npz_of_texts(base):
    return archive(base, x=base.x, y=base.y.astype(str), refused="y must be of numbers, got <U21; number the labels")


@kind
def npz_of_complex_numbers(base):
    return archive(base, x=base.x * 1j, y=base.y, refused="x must be of numbers, got complex128; save its real")


@kind
def npz_of_fields(base):
    x = np.zeros(len(base.y), [("a", "f8"), ("b", "f8")])
    return archive(base, x=x, y=base.y, refused="x must be of numbers, got .*; save its fields as columns")


@kind
def npz_of_dates(base):
    return archive(
        base, x=np.full((len(base.y), 2), "2024-01-01", "M8[D]"), y=base.y, refused="x must be of numbers, got dat"
    )


@kind
def npz_one_hot(base):
    return archive(base, x=base.x, y=np.eye(3)[base.y], refused=r"y is one-hot: save y\.argmax\(1\)")


@kind
def npz_labels_in_a_column(base):
    return archive(base, x=base.x, y=base.y[:, None], refused=r"expected \[n, \.\.\.\] and \[n\]; save y\.ravel\(\)")


@kind
def npz_of_other_lengths(base):
    return archive(base, x=base.x[1:], y=base.y, refused=r"x is of shape .* and y of .*, expected")


@kind
def npz_transposed(base):
    return archive(base, x=base.x.T, y=base.y, refused=r"save x\.T")


@kind
def npz_with_nan(base):
    row, column = base.place()
    x = base.x.copy()
    x[row, column] = np.nan
    return archive(base, x=x, y=base.y, refused=rf"x\[{row}\] has a value that is not finite.*fill in")


@kind
def npz_of_one_number(base):
    return archive(base, x=np.float64(3), y=base.y, refused=r"x is of shape \[\]")


@kind
def npz_with_test_rows_of_training(base):
    return archive(
        base, x=base.x, y=base.y, x_test=base.x[:7], y_test=base.y[:7], noted="7 test rows are also among the train"
    )


@kind
def npz_with_an_index(base):
    x = np.column_stack([np.arange(len(base.y)), base.x])
    return archive(base, x=x, y=base.y, noted=r"x\[:, 0\] numbers the rows")


@kind
def npz_of_truth_values(base):
    return archive(base, x=base.rng.random((len(base.y), 40)) < 0.5, y=base.y)


@kind
def npz_of_fortran(base):
    return archive(base, x=np.asfortranarray(base.x), y=base.y)


@kind
def npz_with_unused_arrays(base):
    return archive(base, x=base.x, y=base.y, x_val=base.x, y_val=base.y, noted="'x_val', 'y_val': not used")


@kind
def npz_of_whole_floats_as_labels(base):
    return archive(base, x=base.x, y=base.y.astype(float))


@kind
def npz_of_broken_floats_as_labels(base):
    return archive(base, x=base.x, y=base.y + 0.5, refused=r"y\[0\] is \d\.5, a label must be a whole number")


@kind
def npz_of_huge_labels(base):
    return archive(base, x=base.x, y=base.y.astype(np.uint64) + 2**63, refused=r"y\[0\] is 922337203685477580\d, a label")


# Tables with a schema


def schema_kind(function):
    SCHEMA_KINDS[function.__name__.replace("_", " ")] = function
    return function


def schema_rows(base, name="", values=()):
    """Return the rows of a table with a sensitive column, and a further column if it is named."""
    rows = with_column(base._replace(y=base.y % 2), "sex", base.rng.choice(["f", "m"], len(base.y)))
    extra = [name, *map(str, values)] if name else []
    return [[*row[:-1], cell, row[-1]] for row, cell in zip(rows, extra, strict=True)] if name else rows


def some(base, values, text, count=3):
    """Return texts of values with another text in some places, and the line of the first."""
    texts = [f"{value:.3f}" for value in values]
    places = sorted(base.rng.choice(len(texts), count, replace=False))
    for k in places:
        texts[k] = text
    return texts, places[0] + 2


def table(base, rows, refused="", noted="", numbers=(), left_out=(), schema=SCHEMA, **files):
    """Return a table whose numeric columns must be those of the base and `numbers`, without `left_out`."""
    numeric = sorted({*base.names, *numbers} - {*left_out})
    content = rows if isinstance(rows, bytes) else text(rows).encode()
    return Given(content, refused, noted, options={"schema": schema, "numeric": numeric, **files})


for marker in ("NA", "nan", "NULL", "n/a", "-", "?"):

    def marked(base, marker=marker):
        texts, line = some(base, base.x[:, 0] + 1, marker)
        noted = rf"income: '{re.escape(marker)}' is read as missing \(3 values, first in line {line}\)"
        return table(base, schema_rows(base, "income", texts), noted=noted, numbers=["income"])

    SCHEMA_KINDS[f"marker {marker}"] = marked


@schema_kind
def schema_without_faults(base):
    return table(base, schema_rows(base))


@schema_kind
def schema_empty_cells(base):
    texts, _ = some(base, base.x[:, 0] + 1, "")
    return table(base, schema_rows(base, "income", texts), numbers=["income"])


for odd in ("unknown", "1_000", "1,5", "12%", "inf", "twelve"):

    def with_odd_texts(base, odd=odd):
        texts, line = some(base, base.x[:, 0] + 1, odd)
        refused = f"line {line}: income is '{re.escape(odd)}', but most of its values are numbers;"
        return table(base, schema_rows(base, "income", texts), refused=refused)

    SCHEMA_KINDS[f"numbers with {odd}"] = with_odd_texts


@schema_kind
def schema_decimal_commas(base):
    texts = [f"{value:.3f}".replace(".", ",") for value in base.x[:, 0]]
    return table(base, schema_rows(base, "income", texts), refused="line 2: income is .*a decimal comma.*write 1234.5")


@schema_kind
def schema_percentages(base):
    texts = [f"{k}%" for k in base.rng.permutation(len(base.y))]
    return table(base, schema_rows(base, "rate", texts), refused="line 2: rate is .* a percent sign")


@schema_kind
def schema_bands_with_underscores(base):
    return table(base, schema_rows(base, "band", base.rng.choice(["20_29", "30_39", "40_49"], len(base.y))))


@schema_kind
def schema_codes_of_numbers_and_texts(base):
    texts = [*base.rng.choice(["1", "2", "3"], len(base.y) - 1), "3a"]
    return table(base, schema_rows(base, "grade", texts), noted="grade: categories, not numbers, because of '3a' in line")


@schema_kind
def schema_index_without_name(base):
    rows = [["", *schema_rows(base)[0]], *([str(k), *row] for k, row in enumerate(schema_rows(base)[1:]))]
    return table(base, rows)


@schema_kind
def schema_index_after_a_round_trip(base):
    rows = [["Unnamed: 0", *schema_rows(base)[0]], *([str(k), *row] for k, row in enumerate(schema_rows(base)[1:]))]
    return table(base, rows)


@schema_kind
def schema_identifier(base):
    ids = base.rng.permutation(10**4)[: len(base.y)]
    return table(base, schema_rows(base, "id", ids), noted="id numbers or identifies the rows; it is left out")


@schema_kind
def schema_counter(base):
    return table(base, schema_rows(base, "n", range(len(base.y))), noted="n numbers or identifies the rows; it is left out")


@schema_kind
def schema_unique_texts(base):
    return table(
        base, schema_rows(base, "name", [f"p{k}x" for k in range(len(base.y))]), noted="name: .* different categories"
    )


@schema_kind
def schema_dates(base):
    days = [date(2024, 1, 1) + timedelta(int(k)) for k in base.rng.permutation(len(base.y))]
    return table(base, schema_rows(base, "since", days), noted=r"since: .* different categories .*a date; write a number")


@schema_kind
def schema_leading_zeros(base):
    texts = [f"{k:05d}" for k in base.rng.integers(100, 99999, len(base.y))]
    return table(base, schema_rows(base, "zip", texts), noted="zip: read as numbers, but '0", numbers=["zip"])


@schema_kind
def schema_marker_among_categories(base):
    texts = [*base.rng.choice(["DE", "FR"], len(base.y) - 1), "NA"]
    return table(base, schema_rows(base, "country", texts), noted="country: 'NA' .* is a category of its own")


@schema_kind
def schema_constant(base):
    return table(base, schema_rows(base, "unit", ["cm"] * len(base.y)), noted="unit: all rows have the same value")


@schema_kind
def schema_copy_of_the_label(base):
    codes = [["low", "high"][k] for k in base.y % 2]
    return table(base, schema_rows(base, "risk", codes), noted="risk: alone gives the label of each row")


@schema_kind
def schema_rows_of_training_in_test(base):
    rows = schema_rows(base)
    return table(base, rows, noted="6 test rows are also among", schema='test = "test.csv"\n' + SCHEMA, test=text(rows[:7]))


@schema_kind
def schema_repeated_rows(base):
    rows = schema_rows(base)
    return table(base, [*rows, *rows[5:9]], noted=rf"4 rows repeat an earlier one \(the first in line {len(rows) + 1}\)")


@schema_kind
def schema_totals(base):
    rows = schema_rows(base)
    return table(base, [*rows, ["Total", *["1"] * (len(rows[0]) - 2), ""]], refused=r"line \d+: ")


@schema_kind
def schema_repeated_header(base):
    rows = schema_rows(base)
    return table(base, [*rows[:9], rows[0], *rows[9:]], refused="line 10: it repeats the first line")


@schema_kind
def schema_other_separator(base):
    return table(
        base, text(schema_rows(base), ";").encode(), refused="separated by ';', not by ','; set `delimiter` in the sch"
    )


@schema_kind
def schema_comment_character_in_a_quoted_field(base):
    texts = ["fine\n| or not" if k % 2 else "bad" for k in range(len(base.y))]
    return table(base, schema_rows(base, "remark", texts), schema='comment = "|"\n' + SCHEMA)


@schema_kind
def schema_utf_16(base):
    return table(base, text(schema_rows(base)).encode("utf-16"), refused="is not UTF-8 text but UTF-16")


@schema_kind
def schema_header_that_is_not_announced(base):
    names = "".join(f'"{name}" = "auto"\n' for name in schema_rows(base)[0][:-1])
    schema = "header = false\n" + SCHEMA.replace('rest = "auto"\n', "").replace("[columns]\n", f"[columns]\n{names}")
    return table(base, schema_rows(base), refused="line 1: it names the columns; set `header = true`", schema=schema)


@pytest.mark.slow
def test_tables_with_a_schema_and_a_known_fault(tmp_path):
    outcomes = defaultdict(Counter)
    for name, make in SCHEMA_KINDS.items():
        for seed in range(SEEDS):
            base = base_of(name, seed)
            outcomes[name][schema_outcome_of(tmp_path, base, make(base))] += 1
    report(outcomes)
    assert {name: found for name, found in outcomes.items() if found.keys() - {"read right", "refused", "noted"}} == {}


def schema_outcome_of(folder, base, given):
    (folder / "own.csv").write_bytes(given.content)
    (folder / "test.csv").write_text(given.options.get("test", ""))
    (folder / "own.toml").write_text(given.options["schema"].format(file="own.csv"))
    try:
        found = tables.load(str(folder / "own.toml"))
    except ConfigurationError as error:
        right = given.refused and re.search(given.refused, str(error)) and "\n" not in str(error)
        return "refused" if right else f"refused: {error}"
    if given.refused:
        return "read, but must be refused"
    if sorted(found.train.numbers) != given.options["numeric"]:
        return f"numeric: {sorted(found.train.numbers)}"
    for k, name in enumerate(base.names):
        if not np.array_equal(found.train.numbers[name][: len(base.y)], base.x[:, k]):
            return f"other numbers in {name}"
    notes = [note for facts in found.facts for note in facts.notes]
    if given.noted:
        return "noted" if any(re.search(given.noted, note) for note in notes) else f"notes: {notes}"
    return "read right" if not notes else f"notes: {notes}"


@pytest.mark.slow
def test_labelled_tables_with_a_known_fault(tmp_path):
    outcomes = defaultdict(Counter)
    for name, make in KINDS.items():
        for seed in range(SEEDS):
            found = outcome_of(tmp_path, make(base_of(name, seed)))
            outcomes[name][found] += 1
    report(outcomes)
    assert {name: found for name, found in outcomes.items() if found.keys() - {"read right", "refused", "noted"}} == {}


def base_of(name, seed):
    rng = np.random.default_rng([seed, *name.encode()])
    n, d = int(rng.integers(40, 120)), int(rng.integers(3, 6))
    x = np.round(rng.normal(size=(n, d)) * 10.0 ** rng.integers(0, 3, d), 3)
    names = list(rng.permutation(["age", "bmi", "height", "pulse", "x ray"])[:d])
    return Base(rng, names, x, np.append([0, 1, 2], rng.integers(3, size=n - 3)))


def outcome_of(folder, given):
    """Return what happened to a table: "read right", "refused" or "noted" as it must, or what was wrong."""
    path = folder / f"own.{given.suffix}"
    path.write_bytes(given.content)
    options = {"data": str(path), "validation": 0.0, "test": 0.0, **given.options}
    try:
        task = make_task("classification", options, Part(0, 1), 0)
    except ConfigurationError as error:
        message = str(error)
        right = given.refused and re.search(given.refused, message) and "\n" not in message and str(path) in message
        return "refused" if right else f"refused: {message}"
    if given.refused:
        return "read, but must be refused"
    if given.x is not None:
        (x, y) = task.data["train"]
        if not np.array_equal(y, given.y):
            return "other labels"
        if x.shape != given.x.shape or not np.allclose(x, given.x, atol=1e-6):
            return "other numbers"
    notes = [note for facts in task.data_facts for note in facts.notes]
    if given.noted:
        return "noted" if any(re.search(given.noted, note) for note in notes) else f"notes: {notes}"
    return "read right" if not notes else f"notes: {notes}"


def report(outcomes):
    whole = sum(outcomes.values(), Counter())
    print(f"\n{sum(whole.values())} tables of {len(outcomes)} kinds: {dict(whole)}")
    for name, found in outcomes.items():
        print(f"  {name:<50} {', '.join(f'{what} {count}' for what, count in found.items())}")
