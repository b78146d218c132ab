"""Readers of adjacency lists and adjacency matrices.

The dialect of adjacency lists is that of networkx.write_adjlist, in which each node begins one line. networkx's own
reader accepts lines of any form, so that names with blanks become other nodes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, isclose

from p2pfl.topologies.column_names import columns_of
from p2pfl.topologies.edge_lists import LONGEST_NAME, order_by_number
from p2pfl.topologies.graph_facts import Content, Limits
from p2pfl.topologies.text_rows import NUMBER, SEPARATORS, Rows, quote

CONVERT = "write the graph with networkx.write_graphml"
ROUNDING = 1e-9  # relative difference of two entries that are one weight, as in a matrix of correlations
NO_WEIGHTS = frozenset({"", "nan", "na", "<na>", "none", "null", "inf", "infinity", "true", "false"})
FEWEST_COLUMNS = 4  # of a matrix that names only its columns; fewer may be the columns of a table


def read_list(rows: Rows, directed: bool | None, limits: Limits) -> Content:
    """Return the content of an adjacency list: lines with a node, and the nodes to which it has edges.

    Args:
        directed: whether the edges are directed; None if the user has not said so.

    Raises:
        ValueError: a node does not begin exactly one line; the text names the line.
    """
    if rows.attributes is not None or all(len(fields) == 2 and fields[1] == "0" for fields in rows.fields):
        raise ValueError(f"a multi-line adjacency list is not read; {CONVERT}")
    found = Content(f"adjacency list separated by {SEPARATORS[rows.separator]}", dropped=dict(rows.dropped))
    for number, (node, *_) in zip(rows.numbers, rows.fields, strict=True):
        if not node or len(node) > LONGEST_NAME:
            raise ValueError(f"line {number}: a node has no name, or one of more than {LONGEST_NAME} characters")
        if node in found.nodes:
            raise ValueError(f"line {number}: {quote(node)} begins two lines; put all its neighbours into one line")
        found.nodes[node] = {}
    named: set[tuple[str, str]] = set()
    twice = 0
    for number, (node, *others) in zip(rows.numbers, rows.fields, strict=True):
        for other in others:
            if other not in found.nodes:
                raise ValueError(
                    f"line {number}: {quote(other)} begins no line, but each node must; if it is a part of a name with"
                    f" blanks, {CONVERT}"
                )
            if not directed and (other, node) in named and other != node:
                twice += 1  # both lines of an undirected edge may name it
                continue
            named.add((node, other))
            found.edges.append((node, other, bool(directed), None))
        limits.check(len(found.nodes), len(found.edges))
    if directed is None and 0 < twice < sum(a != b for a, b in named):
        found.notes.append(
            f"{twice} of the edges are named by both of their nodes, others by one, and all were used both ways; see the"
            " option directed"
        )
    order_by_number(found)
    return found


def name_rows(rows: Rows) -> Rows:
    """Return a matrix that names only its columns, as pandas writes it without an index, with names of its rows.

    Other rows are returned as they are.

    Raises:
        ValueError: the rows can be such a matrix, or a table.
    """
    names, *table = rows.fields
    size = len(names)
    square = len(table) == size >= FEWEST_COLUMNS and len(set(names)) == size and all(names)
    if rows.attributes is not None or not square or (all(map(NUMBER.fullmatch, names)) and not _counts(names)):
        return rows
    if any(len(fields) != size or not all(map(NUMBER.fullmatch, fields)) for fields in table):
        return rows
    values = [list(map(float, fields)) for fields in table]
    if _is_symmetric(values) and not any(values[k][k] for k in range(size)):
        fields = [["", *names], *([name, *row] for name, row in zip(names, table, strict=True))]
        return replace(rows, fields=fields)
    if _names_edges(names):
        return rows
    raise ValueError(
        f"line {rows.numbers[0]}: the rows may be an adjacency matrix with names of its columns; give its rows names, too"
    )


def _counts(names: list[str]) -> bool:
    """Return whether names are 0, 1, 2, ..., as pandas names columns, or 1, 2, 3, ..."""
    return any(names == [str(k + start) for k in range(len(names))] for start in (0, 1))


def _names_edges(names: list[str]) -> bool:
    try:
        return columns_of(names) is not None
    except ValueError:
        return False


def _is_symmetric(values: list[list[float]]) -> bool:
    return all(isclose(values[i][j], values[j][i], rel_tol=ROUNDING) for i in range(len(values)) for j in range(i))


def matrix_names(rows: Rows) -> list[str] | None:
    """Return the names of the nodes of a matrix, with or without names of rows and columns; None if it is none.

    Raises:
        ValueError: the rows can be a matrix, or edges.
    """
    if rows.attributes is not None:
        return None
    names = _named_matrix(rows)
    size = len(rows.fields) if names is None else len(names)
    if names is None:
        if size < 2 or any(len(fields) != size or not all(map(NUMBER.fullmatch, fields)) for fields in rows.fields):
            return None
        table = rows.fields
    else:
        table = [fields[1:] for fields in rows.fields[1:]]  # pandas names rows and columns of edges in this way, too
        texts = any(text and not NUMBER.fullmatch(text) for fields in table for text in fields)
        if size > 3 or names != [str(k) for k in range(size)] or texts:
            return names
    values = [[float(text or 0) for text in fields] for fields in table]
    hollow = not any(values[k][k] for k in range(size))
    symmetric = _is_symmetric(values)
    as_edges = size == 2 or (size == 3 and all(row[2] > 0 for row in values))
    if as_edges and size == 2:
        ambiguous = not (hollow and (values[0][1], values[1][0]) in ((0, 1), (1, 0), (1, 1)))
        ambiguous = ambiguous and (hollow or names is not None)
    else:
        ambiguous = as_edges and (symmetric or names is not None)
    if ambiguous:
        raise ValueError(
            f"line {rows.numbers[0]}: the rows may be an adjacency matrix, or edges; give a matrix names of rows and"
            " columns that are no numbers, and a list of edges a first line 'source target weight'"
        )
    if names is not None:
        return names
    return [str(k) for k in range(size)] if not as_edges and (hollow or symmetric) else None


def _named_matrix(rows: Rows) -> list[str] | None:
    """Return the names of the nodes, if rows and columns have equal names; None otherwise."""
    first, rest = rows.fields[0], rows.fields[1:]
    names = [fields[0] for fields in rest]
    entries = {text for fields in rest for text in fields[1:] if not NUMBER.fullmatch(text)}
    width = len(names) + 1  # without empty entries at the end
    even = max(map(len, rest), default=0) <= width and all(map(_is_no_weight, entries))
    even = even and (bool(entries) or all(len(fields) == width for fields in rest) or len(names) >= FEWEST_COLUMNS)
    if not names or not even:
        return None
    if first == names:
        return names if len(names) > 1 else None
    return names if first[1:] == names and (not first[0] or (len(names) > 1 and not NUMBER.fullmatch(first[0]))) else None


def _is_no_weight(text: str) -> bool:
    """Return whether a text stands in a matrix for a missing or infinite weight, a truth value, or has a decimal comma."""
    return text.casefold().lstrip("-") in NO_WEIGHTS or re.fullmatch(r"\d+,\d+", text) is not None


def read_matrix(rows: Rows, names: list[str], directed: bool | None, limits: Limits) -> Content:
    """Return the content of an adjacency matrix; an entry in row i and column j is the weight of the edge from i to j.

    Args:
        names: see `matrix_names`.

    Raises:
        ValueError: an entry is not a weight, or the matrix is not symmetric and `directed` is None.
    """
    labelled = len(rows.fields) > len(names)
    kind = "adjacency matrix with names" if labelled else "adjacency matrix"
    found = Content(f"{kind} separated by {SEPARATORS[rows.separator]}", dropped=dict(rows.dropped))
    limits.check(len(names), 0)
    if len(set(names)) < len(names):
        raise ValueError("two rows of the matrix have the same name")
    found.nodes = {name: {} for name in names}
    entries = {}
    start = int(labelled)
    for i, (number, fields) in enumerate(zip(rows.numbers[start:], rows.fields[start:], strict=True)):
        values = fields[start:] + [""] * (len(names) + start - len(fields) if labelled else 0)
        if len(values) != len(names):
            raise ValueError(f"line {number}: expected {len(names)} entries of a matrix, found {len(values)}")
        for j, text in enumerate(values):
            weight = float(text) if NUMBER.fullmatch(text) else -1.0
            if not 0 <= weight < inf:
                remedy = "; write a decimal point" if "," in text else "; write 0 where there is no edge"
                remedy = remedy if _is_no_weight(text) else ""
                raise ValueError(
                    f"line {number}: an entry of a matrix must be 0 or a positive number, got {text[:40]!r}{remedy}"
                )
            if weight:
                entries[i, j] = weight
        limits.check(len(names), len(entries))
    lopsided = next(
        ((i, j) for (i, j), weight in entries.items() if not isclose(entries.get((j, i), 0), weight, rel_tol=ROUNDING)), None
    )
    if lopsided and directed is None:
        i, j = lopsided
        raise ValueError(
            f"line {rows.numbers[i + start]}: the matrix is not symmetric: the entry from {names[i]} to {names[j]} is"
            f" {entries[i, j]:g}, the other way it is {entries.get((j, i), 0):g}; set directed = true, or false to take"
            " the larger"
        )
    weighted = any(weight != 1 for weight in entries.values())
    for (i, j), weight in entries.items():
        if directed or i <= j or (j, i) not in entries or lopsided:
            found.edges.append((names[i], names[j], bool(directed), weight if weighted else None))
    return found
