"""Rows of fields of a text with a graph: encoding, comments, separators and quotes, and the names of its columns.

All lines decide, not the first one: the separator is the sign that is in each line with several fields. A line that does
not fit the others is refused with its number. networkx's readers of lists are not used: they cut each line at the first
`#`, also inside a name, skip lines that they do not understand, and split names at blanks.
"""

from __future__ import annotations

import csv
import re
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SEPARATORS = {"\t": "tabs", ";": "';'", ",": "','", "": "blanks"}
STRONG = ("\t", ";", ",")
QUOTED = re.compile(r'"[^"]*"')
END_COMMENT = re.compile(r"\s#(?=\s|#|$)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LONGEST_LINE = 40_000  # characters of a line of a list; each of its names has fewer
ARROWS = frozenset({"->", "<-", "<->", "--", "-", "-->", "=>", "\u2192"})
COMMENTS_KEPT = 50  # comment lines whose text is kept
PAIRS = (
    ("source", "target"),
    ("src", "dst"),
    ("src", "dest"),
    ("src", "tgt"),
    ("source", "destination"),
    ("source", "dest"),
    ("source", "sink"),
    ("from", "to"),
    ("start", "end"),
    ("begin", "end"),
    ("origin", "destination"),
    ("sender", "receiver"),
    ("sender", "recipient"),
    ("ego", "alter"),
    ("parent", "child"),
    ("citing", "cited"),
    ("follower", "followee"),
)
SHORT = (("u", "v"), ("i", "j"), ("a", "b"), ("x", "y"), ("s", "t"))  # may as well be names of nodes
WEIGHTS = ("weight", "weights", "edgeweight", "w")
COUNTED = re.compile(r"(.*?)[\W_]*(?:(1|2)|(?<![^\W_])(a|b|i|j|x|y|u|v))", re.ASCII)
MATES = {"1": "2", "a": "b", "i": "j", "x": "y", "u": "v"}
GENERAL = re.compile(r"node|vertex|name|index|idx|label|key|id(?![a-z])|(?<=from)id|(?<=to)id|[\W_]")


@dataclass
class Rows:
    """Fields of a text by row, and what was left out.

    Attributes:
        separator: a sign, or "" for blanks.
        fields: the fields of each row, without blanks around them and without empty ones at the end.
        numbers: the line of each row, from 1.
        attributes: for a list that networkx has written with attributes, those of each row; None otherwise.
        quoted_first: whether all fields of the first row are quoted.
        comments: the first comment lines before the first row, without their sign.
        dropped: number of lines that were left out, by reason in the plural.
    """

    separator: str
    fields: list[list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    attributes: list[dict[str, Any]] | None = None
    quoted_first: bool = False
    comments: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)


def decode(content: bytes) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark, with lines that end in "\\n".

    Raises:
        ValueError: it is not text in these encodings.
    """
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    remedy = "convert it, for example with iconv -f LATIN1 -t UTF-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"the file is not UTF-8 text, nor UTF-16 with a byte order mark; {remedy}") from error
    if "\0" in text:
        raise ValueError(f"the file is not UTF-8 text: it has null characters; {remedy}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split(text: str, most: int, tabular: bool = True) -> Rows:
    """Return the rows of a text.

    Args:
        most: maximum number of rows.
        tabular: whether the name of the file says that signs, not blanks, separate the fields.

    Raises:
        ValueError: a line is not like the others, or its reading is ambiguous; the text names it.
    """
    lines: list[str] = []
    numbers: list[int] = []
    comments: list[tuple[int, str]] = []
    empty = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" ").rstrip("\t ")  # a tab at the beginning separates an empty field
        if not line.strip(" \t,;"):
            empty += 1
        elif not lines and re.fullmatch(r"sep=.?", line, re.I):
            raise ValueError(f"line {number}: {line!r} is for Excel only; remove the line")
        elif line.lstrip("\t")[0] in "#%":
            comments.append((number, line.lstrip("\t")))
        elif len(line) > LONGEST_LINE:
            what = "the name of a node" if " " not in line else "a line"
            most_characters = 10_000 if " " not in line else LONGEST_LINE
            raise ValueError(f"line {number}: {what} has more than {most_characters} characters")
        else:
            lines.append(line)
            numbers.append(number)
            if len(lines) > most:
                raise ValueError(f"line {number}: more than {most} lines, the maximum")
    found = _rows(lines, numbers, comments, empty)
    if found.separator in (",", ";") and not tabular and found.attributes is None:
        _refuse_blanks(lines, found)
    return found


def _rows(lines: list[str], numbers: list[int], comments: list[tuple[int, str]], empty: int) -> Rows:
    """Make the rows of lines without comment lines and empty lines."""
    heads, attributes, sign = _attributes(lines, numbers)
    found = Rows(_separator(heads, numbers) if sign is None else sign, numbers=numbers, attributes=attributes)
    cut = 0
    for number, line in zip(numbers, heads, strict=True):
        fields = fields_of(line, found.separator, number)
        if "#" in line and not ('"' in line and "#" not in QUOTED.sub("", line)):
            fields, shortened = _without_comment(line, fields, found.separator, number)
            cut += shortened
        found.fields.append(fields)
    found.quoted_first = bool(heads) and not QUOTED.sub("", heads[0]).strip(" \t;,")
    _refuse_one_column(found)
    _refuse_weight_in_name(found)
    first = numbers[0] if numbers else 0
    found.comments = [line.lstrip("#% \t") for number, line in comments[:COMMENTS_KEPT] if not first or number < first]
    _refuse_marked_rows(comments, found, first)
    found.dropped = {"empty lines": max(0, empty - 1), "comment lines": len(comments), "comments at ends of lines": cut}
    return found


def fields_of(line: str, separator: str, number: int) -> list[str]:
    """Return the fields of one line.

    Raises:
        ValueError: a quote is not closed.
    """
    if '"' in line:
        blanks = not separator
        text = line.replace("\t", " ") if blanks else line
        try:
            (fields,) = csv.reader([text], delimiter=" " if blanks else separator, skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise ValueError(f'line {number}: a quote is not closed, or text follows it; write "" for a quote') from error
    elif separator:
        fields = line.split(separator)
    else:
        fields = [part for part in line.replace("\t", " ").split(" ") if part]
    fields = [part.strip(" \t") for part in fields]
    while len(fields) > 1 and not fields[-1]:
        fields.pop()
    return fields


def _separator(lines: Sequence[str], numbers: Sequence[int]) -> str:
    """Return the sign that separates the fields of all lines; "" for blanks.

    Raises:
        ValueError: lines have different separators.
    """
    bare = [QUOTED.sub("_", line) if '"' in line else line for line in lines]
    with_sign = {sign: [sign in line for line in bare] for sign in STRONG}
    several = [any(each) for each in zip(*with_sign.values(), strict=True)]
    count = sum(several)
    if not count:
        return ""
    full = [sign for sign in STRONG if sum(with_sign[sign]) == count]
    first = several.index(True)
    if not full:
        one = next(sign for sign in STRONG if with_sign[sign][first])
        other = next(k for k, (some, has) in enumerate(zip(several, with_sign[one], strict=True)) if some and not has)
        raise ValueError(
            f"line {numbers[other]} has other separators than line {numbers[first]}, which has {SEPARATORS[one]};"
            " use one separator, and put names that contain it into double quotes"
        )
    sign = full[0]
    near_tab = re.compile(r"[,;]\s*(\t|$)|(^|\t)\s*[,;]")
    if len(full) > 1 and (sign != "\t" or any(near_tab.search(line) for line in bare)):
        names = " and ".join(SEPARATORS[each] for each in full)
        raise ValueError(
            f"line {numbers[first]}: {names} are in every line, so that the separator is not clear; write decimal points"
            " instead of decimal commas, and put names that contain a separator into double quotes"
        )
    for k, line in enumerate(bare):
        if not several[k] and re.search(r"\s", line.strip()):
            raise ValueError(
                f"line {numbers[k]}: it has blanks, but the other lines are separated by {SEPARATORS[sign]};"
                " use one separator, put a name that contains blanks into double quotes, or begin a comment with #"
            )
        if sign == "," and re.match(r"\s*([-+.\d]+\s+[-+.\d]|\S+\s+\S+\s+[-+]?\d+,\d+$)", line):
            raise ValueError(
                f"line {numbers[k]}: both blanks and {SEPARATORS[sign]} separate numbers; use one separator, and write"
                " decimal points instead of decimal commas"
            )
    return sign


def _refuse_one_column(rows: Rows) -> None:
    """Raise ValueError for rows that other signs separate, such as `a->b` or `a|b`, or that end in a separator."""
    if rows.fields and all(len(fields) == 3 and fields[1] in ARROWS for fields in rows.fields):
        raise ValueError(
            f"line {rows.numbers[0]}: {quote(rows.fields[0][1])} stands between the nodes; remove it in each line"
        )
    if any(len(fields) > 1 for fields in rows.fields) and all(fields[0].endswith(":") for fields in rows.fields):
        raise ValueError(
            f"line {rows.numbers[0]}: {quote(rows.fields[0][0])} ends in a colon, as in an adjacency list; remove the"
            " colons, and name the file .adjlist"
        )
    alone = all(len(fields) == 1 for fields in rows.fields)
    other = re.compile(r"->|--|[|:/\\]|\s") if alone and not rows.separator else re.compile(".->.")
    if rows.fields and all(any(map(other.search, fields)) for fields in rows.fields):
        raise ValueError(
            f"line {rows.numbers[0]}: {quote(' '.join(rows.fields[0]))} has an unknown separator; separate the two nodes"
            " of an edge by a comma, a semicolon, a tab or a blank, and put names that contain one into double quotes"
        )
    if alone and rows.separator and any(re.search(r"\s", fields[0]) for fields in rows.fields):
        raise ValueError(
            f"line {rows.numbers[0]}: the separator, {SEPARATORS[rows.separator]}, is only at ends of lines; remove it there"
        )


def _refuse_blanks(lines: Sequence[str], rows: Rows) -> None:
    """Raise ValueError if blanks may separate the fields of a line, and the sign be a part of names."""
    inner = re.compile(r"[^\s,;][ \t]+[^\s,;]")
    k = next((k for k, line in enumerate(lines) if inner.search(END_COMMENT.split(QUOTED.sub("_", line))[0])), None)
    if k is not None:
        raise ValueError(
            f"line {rows.numbers[k]}: blanks or {SEPARATORS[rows.separator]} may separate the fields; name the file .csv, or"
            " put names that contain either into double quotes"
        )


def _refuse_weight_in_name(rows: Rows) -> None:
    """Raise ValueError if blanks seem to separate the weights, and a comma is a part of each line's name."""
    if rows.separator in ("", "\t") or rows.attributes is not None or any(len(fields) != 2 for fields in rows.fields):
        return
    weight = re.compile(r".*\s[-+]?\d+(\.\d+)?", re.ASCII)
    ends = [[weight.fullmatch(part) is not None for part in fields] for fields in rows.fields]
    if ends and all(last for _, last in ends) and not all(first for first, _ in ends):
        raise ValueError(
            f"line {rows.numbers[0]}: {quote(rows.fields[0][1])} may be a name and a weight; use one separator, and put"
            " names that contain it into double quotes"
        )


def _without_comment(line: str, fields: list[str], separator: str, number: int) -> tuple[list[str], bool]:
    """Return the fields of a line that contains `#`, and whether a comment was cut from its end."""
    if found := END_COMMENT.search(line):
        head = fields_of(line[: found.start()], separator, number)
        if not separator or (len(head) > 1 and separator not in line[found.start() :]):
            return head, True
        fault = f"{quote(line[found.start() :].strip())} is a comment or a part of a name"
    elif any(re.match(r"[-+.\d]+#", part) or (not separator and part.startswith("#")) for part in fields):
        fault = "'#' begins a comment or belongs to a name"
    else:
        return fields, False
    raise ValueError(f"line {number}: {fault}; put the name into double quotes, or put the comment on a line of its own")


def _refuse_marked_rows(comments: list[tuple[int, str]], rows: Rows, first: int) -> None:
    """Raise ValueError for a comment line that may be a row whose first name begins with `#` or `%`.

    In a list that blanks separate, only lines between the rows may be: text with blanks begins many files.
    """
    widths = {len(fields) for fields in rows.fields} - {1}
    for number, line in comments:
        if line == "#" and rows.numbers and rows.numbers[0] < number < rows.numbers[-1]:
            raise ValueError(
                f"line {number}: '#' alone divides nodes from edges in the Trivial Graph Format, which is not read"
            )
        if line[1:2] in ("", "#", "%", " ", "\t") or (not rows.separator and number < first):
            continue
        try:
            fields = fields_of(re.sub(r"\s*\{.*\}$", "", line) if rows.attributes else line, rows.separator, number)
        except ValueError:
            continue
        if len(fields) in widths and not (number < first and columns_of([fields[0][1:], *fields[1:]])):
            raise ValueError(
                f"line {number}: it is a comment, or a row whose first name begins with {line[0]!r}; put the name into"
                f" double quotes, or a blank after {line[0]!r}"
            )


def _attributes(lines: list[str], numbers: list[int]) -> tuple[list[str], list[dict[str, Any]] | None, str | None]:
    """Return the lines without the dicts of attributes at their ends, the dicts, and the separator before them.

    The dicts and the separator are None if no line has a dict.
    """
    if not any(line.endswith("}") and "{" in line for line in lines):
        return lines, None, None
    heads, attributes = [], []
    signs = set()
    for number, line in zip(numbers, lines, strict=True):
        head, opening, rest = line.partition("{")
        if not opening or not line.endswith("}") or (head and head[-1] not in " \t,;"):
            raise ValueError(
                f"line {number}: other lines end in a dict of attributes, {{...}}, and this one does not; write the graph"
                " with networkx.write_graphml, or with networkx.write_edgelist(graph, file, data=False)"
            )
        signs.add(head[-1:].strip(" "))
        if len(signs) > 1:
            raise ValueError(f"line {number}: the separator before the attributes differs from that of other lines")
        heads.append(head[:-1])
        attributes.append(_dict("{" + rest, number))
    return heads, attributes, signs.pop()


def _dict(text: str, number: int) -> dict[str, Any]:
    """Return a dict of attributes as networkx has written it."""
    if text == "{}":
        return {}
    try:
        found = literal_eval(text)  # the length of the line is limited
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(
            f"line {number}: the attributes {quote(text)} are not a dict of plain values; write the graph with"
            " networkx.write_graphml, or with networkx.write_weighted_edgelist"
        )
    return found


def quote(text: str) -> str:
    """Return the beginning of a text in quotes, for a message."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def columns_of(header: Sequence[str], short: bool = False) -> tuple[int, int] | None:
    """Return the positions of the source and the target in a row of column names; None if it does not name both.

    Args:
        short: whether pairs of single letters, such as `u` and `v`, are names of columns.

    Raises:
        ValueError: several pairs of columns may be the source and the target, or two columns have one name.
    """
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).casefold() for name in header]
    found = []
    plain = [_plain(name) for name in names]
    exact = [(a, b) for a, b in PAIRS if a in names and b in names]
    for a, b in exact or PAIRS:
        where = names if exact else plain
        if a in where and b in where:
            found.append((where.index(a), where.index(b)))
    if not found:
        found = _counted(names)
    if not found and short:
        found = [(names.index(a), names.index(b)) for a, b in SHORT if a in names and b in names]
    found = list(dict.fromkeys(found))
    if len(found) > 1:
        raise ValueError("several columns may be the source and the target; name only two of them source and target")
    used = [names[k] for pair in found for k in pair]
    if any(names.count(name) > 1 for name in used):
        raise ValueError("two columns have the same name")
    return found[0] if found else None


def weight_of(header: Sequence[str]) -> int | None:
    """Return the position of the weight in a row of column names; None without one."""
    names = [re.sub(r"[\W_]", "", name.casefold()) for name in header]
    found = [k for k, name in enumerate(names) if name in WEIGHTS]
    if len(found) > 1:
        raise ValueError("two columns may be the weight; name only one of them weight")
    return found[0] if found else None


def stem_of(name: str) -> str | None:
    """Return what comes before the number in a name such as `node1`; None without a number."""
    found = re.fullmatch(r"(.*?)[\W_]*\d+", name.strip().casefold(), re.ASCII)
    return found[1] if found else None


def _plain(name: str) -> str:
    """Return a name without words such as node and id: `FromNodeId` and `from_id` are `from`."""
    return GENERAL.sub("", name) or name


def _counted(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of columns such as `id_1` and `id_2`, or `node a` and `node b`."""
    split = {}
    for k, name in enumerate(names):
        if (found := COUNTED.fullmatch(name)) and found[1]:
            split[found[1], found[2] or found[3]] = k
    return [(k, split[stem, MATES[end]]) for (stem, end), k in split.items() if end in MATES and (stem, MATES[end]) in split]
