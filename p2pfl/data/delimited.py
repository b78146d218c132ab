"""Reader of delimited text (CSV) that takes a file by all of its lines, or names the line that does not fit.

The standard library's csv module parses the lines, in strict mode. This module adds what it leaves to its caller: the
encoding, the separator, lines of another width, comments, and empty lines. Nothing of it is guessed.

Numbers are read by one strict grammar: digits, a decimal point, an exponent. Python's `float` also takes underscores (1_0),
digits of other scripts, "nan" and "inf". In data files these are codes, markers of missing values, or mistakes.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import IO

from p2pfl.data.binary_files import lines_of, reading
from p2pfl.errors import ConfigurationError

EMPTY, COMMENTS = "empty line", "comment line"
SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'", ",": "','"}
_MAGIC = {
    b"PK\x03\x04": "an Excel workbook or another zip archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"SQLite format 3": "an SQLite database",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
}
_ENCODINGS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_INVISIBLE = "\ufeff\u200b\u2060"  # marks of byte order where files were joined, and spaces of no width
_FIRST = 4096  # bytes whose encoding is looked at before anything is parsed
_MARKERS = frozenset(
    (
        *("", "?", ".", "-", "--", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "nat", "nil", "none"),
        *("null", "(null)", "missing", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "\\n"),
    )
)
"""Texts that programs write for a missing number, in lower case."""
_LOOKS = (
    (r"[+-]?[\d_]*\d(\.[\d_]+)?([eE][+-]?\d+)?", "an underscore in a number; remove it, unless the text is a code"),
    (r"[+-]?\d{1,3}(,\d{3})+\.\d+", "commas between thousands; write the number without them"),
    (r"[+-]?\d{1,3}(\.\d{3})*,\d+", "a decimal comma, or commas between thousands; write 1234.5"),
    (r"[+-]?\d{1,3}([,.' \u00a0\u202f\u2019]\d{3})+(\.\d*)?", "separators between thousands; write the number without them"),
    (r"[+-]?[\d.,]+\s*%", "a percent sign; write the number without it"),
    (r"[+-]?[$€£¥]\s*[\d.,]+|[\d.,]+\s*[$€£¥]", "a currency sign; write the number without it"),
    (r"[+-]?0[xX][0-9a-fA-F]+", "a hexadecimal number; write it with decimal digits"),
    (r"[+-]?(inf|infinity)", "infinite; write a finite number, or remove the line"),
    (r"[+-]?[\d.]+[dD][+-]?\d+", "an exponent with D, as Fortran writes it; write E"),
    (r"[+-]?\d*\.\d+[+-]\d+", "an exponent without E, as Fortran writes it; write E"),
    (r"[\u2212\u2013\u2014\ufe63\uff0d]\s*[\d.,]+([eE].*)?", "another sign than '-' for minus; write '-'"),
    (r"\(\s*[\d.,]+\s*\)", "a negative number in parentheses; write a minus sign"),
    (r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?", "a date; write a number, such as days since a fixed date"),
    (r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", "a time; write a number, such as seconds"),
    (r"true|false|yes|no", "a truth value; write 1 and 0"),
    (r"'.*'", "in single quotes; remove them, or write double quotes"),
)
_CODE = re.compile(r"0\d+|\d+[eE]\d+", re.ASCII)
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _LOOKS]
_NUMERIC = 12  # of the patterns, the first ones are numbers in another notation


@dataclass(frozen=True)
class Dialect:
    """Form of a delimited file.

    Attributes:
        delimiter: the character between columns.
        comment: lines that begin with this are left out; "" if there are none.
        columns: number of columns; 0 if the first row is a header and sets it.
        remedy: for errors, what to do about a file with another delimiter.
    """

    delimiter: str = ","
    comment: str = ""
    columns: int = 0
    remedy: str = "set task.delimiter"

    def __str__(self) -> str:
        return f"CSV separated by {SEPARATORS.get(self.delimiter, repr(self.delimiter))}"


class _Lines:
    """Lines of a file for the csv module, without comments. A line within a quoted field is never a comment."""

    def __init__(self, lines: Iterator[str], comment: str, dropped: Counter[str]) -> None:
        self._lines = lines
        self._comment = comment
        self._dropped = dropped
        self.between = True  # whether the next line begins a row
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            line = next(self._lines)
            self.number += 1
            if not (self.between and self._comment and line.startswith(self._comment)):
                self.between = False
                return line
            self._dropped[COMMENTS] += 1


def read_rows(path: Path, dialect: Dialect, dropped: Counter[str], most_bytes: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row, and its cells.

    A plain or gzip file may be used. Rows whose cells are all empty are left out.

    Args:
        dropped: counts the lines that are left out, by reason.
        most_bytes: limit of the unpacked file; 0 if there is none.

    Raises:
        ConfigurationError: the file cannot be read, or is not a text in UTF-8 with equally many values in all lines.
    """
    with reading(path) as (file, most):
        if most_bytes and most > most_bytes and _longer(file, most_bytes):
            raise ConfigurationError(f"{path} has more than {most_bytes:,} bytes")
        _check_encoding(path, file.read(_FIRST))
        file.seek(0)
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        lines = _Lines(lines_of(path, text), dialect.comment, dropped)
        first: list[str] | None = None
        try:
            for row in csv.reader(lines, delimiter=dialect.delimiter, skipinitialspace=True, strict=True):
                lines.between = True
                if not "".join(row).strip():
                    dropped[EMPTY] += 1
                    continue
                if first is None:
                    _check_first(path, lines.number, row, dialect)
                    first = row
                if len(row) != (dialect.columns or len(first)):
                    raise ConfigurationError(f"{path}, line {lines.number}: {_explain_width(row, first, dialect)}")
                if row == first and row is not first and not dialect.columns:
                    raise ConfigurationError(
                        f"{path}, line {lines.number}: it repeats the first line; remove it, or name the columns in line 1"
                    )
                yield lines.number, row
        except UnicodeDecodeError as error:
            raise ConfigurationError(_explain_encoding(path)) from error
        except csv.Error as error:
            raise ConfigurationError(
                f"{path}, line {lines.number}: {error}; a field with quotes needs them at both ends, and doubled inside"
            ) from error


def header_of(path: Path, row: Sequence[str]) -> list[str]:
    """Return the names in a header, without spaces around them and with one for each line end or space inside.

    A column without a name has "".

    Raises:
        ConfigurationError: two columns have the same name.
    """
    names = [" ".join(name.strip(_INVISIBLE).split()) for name in row]
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        hint = "; the first line must name the columns" if number(twice[0]) is not None else "; rename one of them"
        raise ConfigurationError(f"{path} has two columns {twice[0]!r}{hint}")
    return names


def other_separator(row: Sequence[str], delimiter: str) -> str:
    """Return the name of the separator that a line of a single column seems to have; "" if there is none."""
    counts = {name: row[0].count(sign) for sign, name in SEPARATORS.items() if sign != delimiter}
    best = max(counts, key=lambda name: counts[name])
    return best if len(row) == 1 and counts[best] else ""


def _check_first(path: Path, line: int, row: Sequence[str], dialect: Dialect) -> None:
    where = f"{path}, line {line}"
    if row[0].lower().startswith("sep=") and len(row) <= 2:
        raise ConfigurationError(f"{where}: {row[0][:10]!r} is for Excel only; remove the line, and {dialect.remedy}")
    if row[0].startswith("#") and not dialect.comment:
        raise ConfigurationError(
            f"{where}: it begins with '#', but must name the columns; remove lines of comments and the '#' (numpy.savetxt:"
            " comments='')"
        )
    if (
        row[0]
        .lstrip()
        .lower()
        .startswith(("<!doctype", "<html", "<?xml", "{", "[{", "@relation", "version https://git-lfs"))
    ):
        raise ConfigurationError(
            f"{where}: {row[0][:20]!r} does not begin a table of delimited text; convert the file to CSV"
        )
    if found := other_separator(row, dialect.delimiter):
        raise ConfigurationError(
            f"{where}: the columns are separated by {found}, not by {SEPARATORS.get(dialect.delimiter, dialect.delimiter)};"
            f" {dialect.remedy}, or convert the file"
        )


def _explain_width(row: Sequence[str], first: Sequence[str], dialect: Dialect) -> str:
    """Return what is wrong with a line that has more or fewer values than the first."""
    expected = (
        f"expected {dialect.columns}"
        if dialect.columns
        else f"but the first line names {len(first)} column{'s' * (len(first) != 1)}"
    )
    text = f"{len(row)} value{'s' * (len(row) != 1)}, {expected}"
    if len(first) == 1 and not dialect.columns:
        return f"{text}; remove lines above the names of the columns"
    if found := other_separator(row, dialect.delimiter):
        return f"{text}; the line is separated by {found}"
    if row[0].startswith("#"):
        return f"{text}; remove lines of comments"
    width = dialect.columns or len(first)
    if len(row) == width + 1 and not row[-1].strip():
        return f"{text}; remove the separator at the end of the line"
    if len(row) == width + 1:
        return f"{text}; it has a row name, as R writes it (row.names = FALSE leaves it out), or a separator in a value"
    if dialect.delimiter == "," and len(row) > width:
        return f"{text}; write decimal points, and quote a text that has a comma"
    return f"{text}; correct the line, or remove it"


def _check_encoding(path: Path, first: bytes) -> None:
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            raise ConfigurationError(f"{path} is {what}, not delimited text; convert it to CSV")
    encoding = next((name for mark, name in _ENCODINGS.items() if first.startswith(mark)), "")
    if encoding or b"\0" in first:
        raise ConfigurationError(
            f"{path} is not UTF-8 text but {encoding or 'UTF-16 or binary'}; save it as UTF-8, or convert it to CSV"
        )


def _explain_encoding(path: Path) -> str:
    """Return the first line that is not UTF-8."""
    with reading(path) as (file, _):
        for line, content in enumerate(file, 1):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                return (
                    f"{path} is not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}, as in Latin-1 or"
                    " Windows-1252; save it as UTF-8"
                )
    return f"{path} is not UTF-8 text; save it as UTF-8"


def _longer(file: IO[bytes], most: int) -> bool:
    """Return whether a file has more than this number of bytes, and go back to its begin."""
    left = most + 1
    while left and (block := file.read(min(left, 2**20))):
        left -= len(block)
    file.seek(0)
    return not left


def numbers(cells: Sequence[str]) -> list[float] | None:
    """Return the finite numbers that texts are; None if one of them is no number by the grammar.

    Spaces around a number are allowed.
    """
    text = "".join(cells)
    if not text.isascii() or "_" in text:
        return None
    try:
        found = list(map(float, cells))
    except ValueError:
        return None
    return found if isfinite(sum(found)) or all(map(isfinite, found)) else None


def number(text: str) -> float | None:
    """Return the finite number that a text is; None if it is none."""
    found = numbers((text,))
    return None if found is None else found[0]


def is_marker(text: str) -> bool:
    """Return whether a text is known as the marker of a missing number."""
    return text.strip().lower() in _MARKERS


def is_code(text: str) -> bool:
    """Return whether a number may be a code: it begins with a zero, as 02139, or has E between digits, as 32E013."""
    return _CODE.fullmatch(text) is not None


def is_other_notation(text: str) -> bool:
    """Return whether a text is a number in a notation that this grammar lacks, such as 1,5 or 12 %."""
    return any(pattern.fullmatch(text.strip()) for pattern, _ in _PATTERNS[:_NUMERIC])


def describe(text: str) -> str:
    """Return what a text that is no number seems to be, with the remedy; "" if that is unknown."""
    text = text.strip()
    if is_marker(text):
        return "a missing value; fill it in, or remove the line"
    if not text.isascii() and any(sign.isdecimal() and not sign.isascii() for sign in text):
        return "digits of another script; write 0 to 9"
    if text.isascii() and _float(text) is not None and "_" not in text:
        return "too large for float64"
    return next((meaning for pattern, meaning in _PATTERNS if pattern.fullmatch(text)), "")


def _float(text: str) -> float | None:
    try:
        return float(text) if text.strip("+-")[:1].isdigit() or text.strip("+-")[:1] == "." else None
    except ValueError:
        return None
