"""Reader of lists and tables of edges.

A first row with names of columns is recognised by evidence from all rows, and never becomes an edge. Rows that can be
read in two ways, such as an adjacency list or an index column of pandas, are refused; the remedy is a first row
`source,target,weight`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from p2pfl.topologies.graph_facts import LINK, ROUND, Content, Limits
from p2pfl.topologies.text_rows import NUMBER, PAIRS, SEPARATORS, Rows, columns_of, fields_of, quote, stem_of, weight_of

LONGEST_NAME = 10_000  # characters
INTEGER = re.compile(r"-?\d+(\.0+)?", re.ASCII)
NOTHING = frozenset({"nan", "na", "n/a", "none", "null", "<na>"})
INVISIBLE = re.compile("[\x00-\x1f\x7f\u200b-\u200d\u2060\ufeff]")
STRONG_NAMES = frozenset(name for pair in PAIRS for name in pair)
EXPECTED = "expected 'node', 'source target' or 'source target weight'"
TWO_NAMES = "expected two names before the attributes, found more; write the list with the option delimiter=','"
NAME_COLUMNS = "name the columns in a first line, such as 'source target weight' with the separator of the file"


@dataclass
class Columns:
    """Columns of a table by position, and the position of the first row with an edge."""

    source: int = 0
    target: int = 1
    weight: int | None = 2
    first: int = 0
    header: list[str] = field(default_factory=list)

    @property
    def links(self) -> dict[str, int]:
        """Positions of the columns of `LINK` and `ROUND` that the header names."""
        used = (self.source, self.target, self.weight)
        names = (*LINK, ROUND)
        return {name.casefold(): k for k, name in enumerate(self.header) if name.casefold() in names and k not in used}

    @property
    def described(self) -> list[str]:
        """Use of each named column."""
        if not self.header:
            return []
        used = {self.source: "source", self.target: "target", self.weight: "weight"}
        used |= {k: name for name, k in self.links.items()}
        kept = [f"{quote(self.header[k])} is the {use}" for k, use in used.items() if k is not None]
        others = [quote(name) if name else "one without a name" for k, name in enumerate(self.header) if k not in used]
        more = f" and {len(others) - 6} more" if len(others) > 6 else ""
        return [f"column {', '.join(kept)}", *([f"columns left out: {', '.join(others[:6])}{more}"] if others else [])]


def read(rows: Rows, directed: bool | None, limits: Limits) -> Content:
    """Return the nodes and edges of a list or a table.

    Args:
        directed: whether the edges are directed; None if the user has not said so.

    Raises:
        ValueError: a row is not an edge, or the rows can be read in two ways; the text names the line.
    """
    columns = _columns(rows)
    kind = "edge list of networkx" if rows.attributes is not None else "table of edges" if columns.header else "edge list"
    found = Content(f"{kind} separated by {SEPARATORS[rows.separator]}", dropped=dict(rows.dropped))
    found.details += columns.described
    for k in range(columns.first, len(rows.fields)):
        try:
            _take(rows, k, columns, bool(directed), found)
            limits.check(len(found.nodes), len(found.edges))
        except ValueError as error:
            raise ValueError(f"line {rows.numbers[k]}: {error}{_header_hint(rows, k, columns)}") from error
    if rows.attributes is not None:
        _describe_attributes(rows, found)
    _refuse_similar_names(rows, columns, found)
    if not columns.header:
        _refuse_ambiguous(rows, found)
    if directed is None:
        _check_direction(rows, columns, found)
    order_by_number(found)
    return found


def weight_number(text: str) -> float:
    """Return a weight: a positive number, without signs that group its digits.

    Raises:
        ValueError: it is something else.
    """
    weight = float(text) if NUMBER.fullmatch(text) else 0.0
    if not 0 < weight < inf:
        hint = "; write a decimal point, and no sign that groups digits" if re.fullmatch(r"\d+,\d+", text) else ""
        raise ValueError(f"a weight must be a positive number, got {text[:40]!r}{hint}")
    return weight


def order_by_number(found: Content) -> None:
    """Order the nodes by their numbers, if all names are integers."""
    keys = {}
    for name in found.nodes:
        if not INTEGER.fullmatch(name):
            return
        digits = name.lstrip("-").partition(".")[0].lstrip("0")
        keys[name] = (len(digits), digits, name)
    negative = sorted((name for name in keys if name.startswith("-")), key=lambda name: keys[name], reverse=True)
    positive = sorted((name for name in keys if not name.startswith("-")), key=lambda name: keys[name])
    found.nodes = {name: found.nodes[name] for name in [*negative, *positive]}


def _take(rows: Rows, k: int, columns: Columns, directed: bool, found: Content) -> None:
    """Add the node or the edge of one row."""
    fields = rows.fields[k]
    width = len(columns.header) or 3
    alone = len(fields) == 1 and not columns.header
    ends = fields if alone else [_cell(fields, at) for at in (columns.source, columns.target)]
    if not all(ends):
        raise ValueError(f"{EXPECTED}, found an empty name")
    for name in ends:
        if name not in found.nodes:
            _check_name(name)
            found.nodes[name] = {}
    if len(fields) > width and rows.attributes is not None:
        raise ValueError(TWO_NAMES)
    if len(fields) > width:
        what = f"the table has {width} columns" if columns.header else EXPECTED
        remedy = "" if columns.header else f"; {NAME_COLUMNS}, or name an adjacency list .adjlist"
        raise ValueError(f"{what}, found {len(fields)} fields{remedy}")
    if len(ends) == 1:
        return
    text = _cell(fields, columns.weight)
    if rows.attributes is None:
        weight = weight_number(text) if text else None
    elif text:
        raise ValueError(TWO_NAMES)
    else:
        weight = _weight_in(rows.attributes[k])
    found.edges.append((ends[0], ends[1], directed, weight))
    found.add_link(
        {name: _cell(fields, at) for name, at in columns.links.items()} if rows.attributes is None else rows.attributes[k]
    )


def _check_name(name: str) -> None:
    """Raise ValueError for a text that is not the name of a node."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name of a node has more than {LONGEST_NAME} characters")
    if INVISIBLE.search(name):
        raise ValueError(f"the name {name[:40]!a} has an invisible character; remove it")
    if NUMBER.fullmatch(name) and not INTEGER.fullmatch(name):
        raise ValueError(f"{quote(name)} is not the name of a node but a decimal number; {NAME_COLUMNS}")
    if re.search(r"(^|\s)\{.*\}", name):
        raise ValueError(f"the name {quote(name)} has attributes in braces; write the graph with networkx.write_graphml")
    if any(name.count(opening) != name.count(closing) for opening, closing in ("()", "[]", "{}")):
        raise ValueError(
            f"the name {quote(name)} has a bracket without its partner; relabel nodes that are tuples with"
            " networkx.convert_node_labels_to_integers, or remove the bracket"
        )


def _cell(fields: Sequence[str], at: int | None) -> str:
    return fields[at] if at is not None and at < len(fields) else ""


def _weight_in(attributes: dict[str, object]) -> float | None:
    given = [value for key, value in attributes.items() if key.casefold() == "weight"]
    if not given:
        return None
    if len(given) > 1 or isinstance(given[0], bool) or not isinstance(given[0], int | float):
        raise ValueError(f"a weight must be a positive number, got {str(given)[1:-1][:40]}")
    return weight_number(repr(given[0]))


def _describe_attributes(rows: Rows, found: Content) -> None:
    keys = Counter(
        key for attributes in rows.attributes or () for key in attributes if key.casefold() not in ("weight", ROUND, *LINK)
    )
    if keys:
        found.details.append(f"attributes left out: {', '.join(quote(key) for key in list(keys)[:6])}")


# Header


def _columns(rows: Rows) -> Columns:
    """Return the columns of a table: those that its first row, or a comment before it, names.

    Raises:
        ValueError: the first row may have names of columns or of nodes.
    """
    if rows.attributes is not None:
        return Columns()
    first, rest = rows.fields[0], rows.fields[1:]
    width = max((len(fields) for fields in rest), default=0)
    if rows.quoted_first and width == len(first) + 1 and _is_index([fields[0] for fields in rest]):
        first = ["", *first]  # R leaves out the name of the column with the names of rows
    try:
        if (named := _header_columns(first, rest, rows)) is not None:
            return named
    except ValueError as error:
        raise ValueError(f"line {rows.numbers[0]}: {error}") from error
    for comment in rows.comments[::-1]:
        header = fields_of(comment, rows.separator, 1)
        pair = columns_of(header) if len(header) == max(width, len(first)) and '"' not in comment else None
        if pair is not None:
            return Columns(*pair, weight_of(header), 0, header)
    return Columns()


def _header_columns(first: list[str], rest: list[list[str]], rows: Rows) -> Columns | None:
    """Return the columns that a first row names; None if it is an edge."""
    if len(first) < 2 or not rest:
        pair = columns_of(first) if len(first) > 1 else None
        if pair is not None and any(first[k].casefold() in STRONG_NAMES for k in pair):
            raise ValueError("it names columns, and no line with an edge follows")
        return None
    numbers = all(INTEGER.fullmatch(name) for fields in rest for name in fields[:2])
    pair = columns_of(first, short=numbers)
    if pair is None:
        return _unknown_names(first, rest, rows, numbers)
    names = [first[k] for k in pair]
    others = {_cell(fields, k) for fields in rest for k in pair} | {fields[0] for fields in rest if len(fields) == 1}
    if not others.isdisjoint(names):
        if any(name.casefold() in STRONG_NAMES for name in names):
            raise ValueError(f"{names} may be names of columns or of nodes, as they also occur below; {NAME_COLUMNS}")
        return None
    stems = {stem_of(name) for name in names} - {None, ""}
    if any(stem_of(name) in stems for name in others):
        raise ValueError(f"{names} may be names of columns or of nodes; {NAME_COLUMNS}")
    return Columns(*pair, weight_of(first), 1, first)


def _unknown_names(first: list[str], rest: list[list[str]], rows: Rows, numbers: bool) -> Columns | None:
    """Return the columns if the evidence is that the first row names them; None if it may be an edge.

    Raises:
        ValueError: the first row is no edge, but it is not clear which columns are the source and the target.
    """
    plain = len(first) == 2 and not any(INTEGER.fullmatch(name) for name in first)
    if rows.quoted_first and numbers and plain and all(len(fields) == 2 for fields in rest):
        return Columns(0, 1, None, 1, first)
    node_table = {name.casefold() for name in first} <= {
        "id",
        "label",
        "name",
        "node",
        "latitude",
        "longitude",
        "lat",
        "lon",
    }
    if node_table:
        raise ValueError(f"{first} name the columns of a table of nodes; give the file with the edges")
    text_over_numbers = numbers and not any(NUMBER.fullmatch(name) for name in first)
    no_weight = len(first) > 2 and first[2] and not NUMBER.fullmatch(first[2])
    weights = [fields[2] for fields in rest if len(fields) > 2]
    if not first[0] or text_over_numbers or (no_weight and weights and all(NUMBER.fullmatch(text) for text in weights)):
        matrix = "" if first[0] else "; a matrix needs equal names of rows and of columns, in one order"
        raise ValueError(
            f"{', '.join(map(quote, first[:6]))} look like names of columns; call the two columns of an edge source and"
            f" target, and that of the weight weight, or remove the line{matrix}"
        )
    return None


def _header_hint(rows: Rows, k: int, columns: Columns) -> str:
    """Return a remedy for a first row that is no edge, and has a text in place of a weight."""
    if k or columns.header or len(rows.fields) < 2 or len(rows.fields[0]) != 3 or re.search(r"\d", rows.fields[0][2]):
        return ""
    return "; call columns source, target and weight in a line that names columns"


def _is_index(values: Sequence[str]) -> bool:
    """Return whether values count from 0 or 1."""
    return bool(values) and any(list(values) == [str(k + start) for k in range(len(values))] for start in (0, 1))


# Names


def _refuse_similar_names(rows: Rows, columns: Columns, found: Content) -> None:
    """Raise ValueError for two names that may be one, and for missing values; note other unusual names."""
    same: dict[str, str] = {}
    for name in found.nodes:
        number = INTEGER.fullmatch(name)
        plain = name.partition(".")[0].lstrip("0") or "0" if number else unicodedata.normalize("NFC", name)
        other = same.setdefault(plain, name)
        if other == name:
            continue
        if not number or ("." in name) != ("." in other):
            raise ValueError(
                f"line {_line_of(name, rows, columns)}: {quote(name)} and {quote(other)} may be one node; write equal names"
                " equally"
            )
        found.notes.append(f"{quote(other)} and {quote(name)} are two nodes")
    missing = [name for name in found.nodes if name.casefold() in NOTHING]
    if missing and all(INTEGER.fullmatch(name) for name in found.nodes if name not in missing):
        raise ValueError(f"line {_line_of(missing[0], rows, columns)}: {missing[0]!r} is a missing value; remove the line")
    found.notes += [f"a node is called {name!r}" for name in missing]


def _line_of(name: str, rows: Rows, columns: Columns) -> int:
    ends = (columns.source, columns.target)
    return next(
        number
        for number, fields in zip(rows.numbers[columns.first :], rows.fields[columns.first :], strict=True)
        if name in (fields if len(fields) == 1 else [_cell(fields, at) for at in ends])
    )


# Rows that can be read in two ways


def _refuse_ambiguous(rows: Rows, found: Content) -> None:
    """Raise ValueError if rows without names of columns can be another format, or another table."""
    numbers = [bool(INTEGER.fullmatch(name)) for name in found.nodes]
    _refuse_outlier(rows, found, numbers)
    if rows.attributes is not None:
        return
    if any(comment.startswith("GMT ") for comment in rows.comments):
        raise ValueError(
            "networkx has written the file as an adjacency list; name it .adjlist, or remove its comment with the time"
        )
    if all(len(fields) == 1 for fields in rows.fields):
        found.notes.append("each line has one field: nodes without edges")
        return
    if all(numbers):
        _refuse_counts(rows)
        _refuse_default_header(rows, found)
    _refuse_lonely_first(rows, found)
    _refuse_adjacency(rows, found)
    _refuse_index(rows)


def _refuse_outlier(rows: Rows, found: Content, numbers: Sequence[bool]) -> None:
    """Raise ValueError if the names of one row are text and all others are integers, or the other way round."""
    if all(numbers) or not any(numbers):
        return
    kinds = [[bool(INTEGER.fullmatch(name)) for name in fields[:2]] for fields in rows.fields]
    for kind, what, others in ((False, "text", "integers"), (True, "an integer", "text")):
        odd = [k for k, row in enumerate(kinds) if kind in row]
        if len(odd) == 1 and len(kinds) > 1:
            k = odd[0]
            name = next(name for name, each in zip(rows.fields[k], kinds[k], strict=False) if each is kind)
            raise ValueError(
                f"line {rows.numbers[k]}: {quote(name)} is {what}, but all other names are {others}; if the line is not an"
                f" edge, remove it, otherwise {NAME_COLUMNS}"
            )
    disjoint = {fields[0] for fields in rows.fields}.isdisjoint(fields[1] for fields in rows.fields if len(fields) > 1)
    if disjoint and all(len(row) > 1 and row[0] != row[1] for row in kinds):
        if _is_index([fields[0] for fields in rows.fields]):
            raise ValueError(
                f"line {rows.numbers[0]}: the first column counts the lines, as in a table of nodes or with an"
                f" index; {NAME_COLUMNS}"
            )
        found.notes.append("the two columns have no name in common")


def _refuse_counts(rows: Rows) -> None:
    """Raise ValueError if the first row may have the numbers of nodes and edges, as in METIS."""
    first, rest = rows.fields[0], rows.fields[1:]
    if not rest or len(max(first, key=len)) > 9:
        return
    head = [int(float(text)) for text in first]
    names = {int(name.partition(".")[0]) for fields in rest for name in fields[:2] if len(name) < 10}
    if len(head) == 1:
        fits = any(len(fields) > 1 for fields in rest) and head[0] in (len(rest), len(names), max(names) + 1)
    else:
        edges = (len(rest), len(set(map(tuple, rest))), sum(len(fields) for fields in rest) / 2)
        fits = head[-1] in edges and min(head[:-1]) == max(head[:-1]) >= len(names)
    if fits:
        raise ValueError(
            f"line {rows.numbers[0]}: {' '.join(first)} may be the number of nodes or edges; remove the line if it is,"
            f" otherwise {NAME_COLUMNS}"
        )


def _refuse_default_header(rows: Rows, found: Content) -> None:
    """Raise ValueError if the first row may have the names that pandas gives columns, 0 and 1."""
    first, rest = rows.fields[0], rows.fields[1:]
    if not rows.separator or len(rest) < 1 or first != [str(k) for k in range(len(first))] or len(first) < 2:
        return
    again = any(sorted(fields[:2]) == ["0", "1"] for fields in rest)
    other_form = len(first) > 2 and all("." in fields[2] for fields in rest if len(fields) > 2)
    if again or other_form:
        raise ValueError(
            f"line {rows.numbers[0]}: {', '.join(first)} may be names of columns that pandas has given; remove the line if"
            f" they are, otherwise {NAME_COLUMNS}"
        )
    found.notes.append(f"line {rows.numbers[0]}, {','.join(first)}, was read as an edge; remove it if it names columns")


def _refuse_lonely_first(rows: Rows, found: Content) -> None:
    """Raise ValueError if the two names of the first row occur nowhere else and are text; note it if they are integers."""
    first = rows.fields[0]
    if len(rows.fields) == 1 or len(first) < 2 or first[0] == first[1]:
        return
    if any(name in fields[:2] for fields in rows.fields[1:] for name in first[:2]):
        return
    if len(first) == 2 and not any(INTEGER.fullmatch(name) for name in first):
        raise ValueError(
            f"line {rows.numbers[0]}: {quote(first[0])} and {quote(first[1])} occur in no other line, so that they may"
            f" be names of columns; if they are nodes, {NAME_COLUMNS}"
        )
    if all(INTEGER.fullmatch(name) for name in first[:2]):
        found.notes.append(
            f"line {rows.numbers[0]}, {' '.join(first)[:60]}, was read as an edge; its nodes have no other one"
        )


def _refuse_adjacency(rows: Rows, found: Content) -> None:
    """Raise ValueError if rows of three fields may be rows of an adjacency list, or edges of DIMACS."""
    long = [fields for fields in rows.fields if len(fields) > 2]
    if not long:
        return
    one_letter = len(rows.fields) > 1 and {fields[0] for fields in rows.fields} in ({"a"}, {"e"})
    if one_letter and all(INTEGER.fullmatch(name) for fields in rows.fields for name in fields[1:]):
        raise ValueError(f"line {rows.numbers[0]}: DIMACS is not read; remove the first field of each line")
    known = [fields[2] in found.nodes for fields in long]
    if not (all(known) if len(long) == len(rows.fields) else any(known)):
        return
    starts = [fields[0] for fields in rows.fields]
    complete = len(set(starts)) == len(starts) == len(found.nodes)
    different = all(len(set(fields)) == len(fields) for fields in rows.fields)
    if len(long) < len(rows.fields) or (complete and different):
        k = next(k for k, fields in enumerate(rows.fields) if len(fields) > 2 and fields[2] in found.nodes)
        raise ValueError(
            f"line {rows.numbers[k]}: {quote(rows.fields[k][2])} may be a weight, or a node of an adjacency list; name"
            f" an adjacency list .adjlist, otherwise {NAME_COLUMNS}"
        )


def _refuse_index(rows: Rows) -> None:
    """Raise ValueError if the first of three columns may be the index of pandas."""
    if any(len(fields) != 3 for fields in rows.fields):
        return
    if not _is_index([fields[0] for fields in rows.fields]) or not all(
        INTEGER.fullmatch(fields[2]) for fields in rows.fields
    ):
        return
    if any(("." in fields[1]) != ("." in fields[2]) for fields in rows.fields):
        return
    pairs = [tuple(fields[1:]) for fields in rows.fields]
    if len(set(pairs)) == len(pairs) and all(a != b for a, b in pairs):
        raise ValueError(
            f"line {rows.numbers[0]}: the first column counts the lines, so that it may be an index, or the source;"
            f" {NAME_COLUMNS}"
        )


def _check_direction(rows: Rows, columns: Columns, found: Content) -> None:
    """Note a comment, or refuse a column, that says that the edges are directed, if the user has not said so."""
    saying = {"type": {"directed"}, "directed": {"directed", "true", "t", "yes", "1"}}
    kinds = [(k, saying[name.casefold()]) for k, name in enumerate(columns.header) if name.casefold() in saying]
    if kinds:
        for number, fields in zip(rows.numbers[columns.first :], rows.fields[columns.first :], strict=True):
            if any(_cell(fields, k).casefold() in said for k, said in kinds):
                raise ValueError(f"line {number}: the edge is directed; set directed = true, or false to use it both ways")
    if any(re.search(r"(?<!un)(?<!un-)\bdirected\b|^asym\b", comment, re.I) for comment in rows.comments):
        found.notes.append(
            "a comment says that the graph is directed, and its edges were used both ways; see the option directed"
        )
