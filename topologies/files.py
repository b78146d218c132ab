"""Graphs from files: GraphML, GML, node-link JSON, lists and tables of edges, adjacency lists and matrices.

Sizes are limited before anything is read. The result is always a simple graph on the nodes 0..n-1: parallel edges count
once, edges from a node to itself are left out, and nodes without edges are kept. The suffix selects the reader. Among
lists, tables and matrices of numbers all lines decide, or the file is refused in one line; the facts of what it understood
are in the graph.

Files come under any name: a graph of DIMACS, METIS or DOT in a file `.txt` would otherwise be taken for a list of edges.
Such formats are refused with the command that converts them. The dialect of adjacency lists is that of
networkx.write_adjlist, in which each node begins one line. networkx's own reader accepts lines of any form, so that names
with blanks become other nodes.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from math import inf, isclose
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np

from p2pfl.topologies import edge_lists, graphml, text_rows
from p2pfl.topologies.edge_lists import LONGEST_NAME, order_by_number, weight_number
from p2pfl.topologies.graph_facts import LINK, ROUND, Content, GraphFacts, Limits
from p2pfl.topologies.schedules import Listed
from p2pfl.topologies.text_rows import NUMBER, SEPARATORS, Rows, columns_of, decode, quote

GRAPHML = (".graphml", ".xml")
ADJACENCY_LISTS = (".adjlist",)
TABLES = (".csv", ".tsv", ".tab")
EDGE_LISTS = (".edges", ".edgelist", ".el", ".ncol", *TABLES, ".txt")
FORMATS = {
    "GraphML": GRAPHML,
    "GML": (".gml",),
    "node-link JSON": (".json",),
    "an adjacency list": ADJACENCY_LISTS,
    "a list or a table of edges, or a matrix": EDGE_LISTS,
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
LARGEST = 32 * 2**20  # bytes of a file, and of its content if it is compressed
MOST_NODES = 20_000
MOST_EDGES = 1_000_000
MOST_ROUNDS = 10_000
WANTED = frozenset({"label", "latitude", "longitude", "weight", ROUND, *LINK})
BY_SUFFIX = {  # the name of the format, and the function of networkx that reads it; "" if none does
    ".gexf": ("GEXF", "nx.read_gexf({file!r})"),
    ".net": ("Pajek", "nx.Graph(nx.read_pajek({file!r}))"),
    ".paj": ("Pajek", "nx.Graph(nx.read_pajek({file!r}))"),
    ".g6": ("graph6", "nx.read_graph6({file!r})"),
    ".graph6": ("graph6", "nx.read_graph6({file!r})"),
    ".s6": ("sparse6", "nx.read_sparse6({file!r})"),
    ".sparse6": ("sparse6", "nx.read_sparse6({file!r})"),
    ".lgr": ("LEDA", "nx.read_leda({file!r})"),
    ".leda": ("LEDA", "nx.read_leda({file!r})"),
    ".gw": ("LEDA", "nx.read_leda({file!r})"),
    ".mtx": ("Matrix Market", "nx.from_scipy_sparse_array(scipy.io.mmread({file!r}))"),
    ".npy": ("an array of NumPy", "nx.from_numpy_array(numpy.load({file!r}))"),
    ".npz": ("an archive of NumPy or SciPy", "nx.from_scipy_sparse_array(scipy.sparse.load_npz({file!r}))"),
    ".dot": ("DOT", "nx.Graph(nx.nx_pydot.read_dot({file!r}))"),
    ".gv": ("DOT", "nx.Graph(nx.nx_pydot.read_dot({file!r}))"),
    ".graph": ("METIS", ""),
    ".metis": ("METIS", ""),
    ".col": ("DIMACS", ""),
    ".clq": ("DIMACS", ""),
    ".dimacs": ("DIMACS", ""),
    ".gr": ("DIMACS", ""),
    ".tgf": ("Trivial Graph Format", ""),
    ".lgl": ("LGL", ""),
    ".dl": ("UCINET DL", ""),
    ".pickle": ("a pickle", ""),
    ".pkl": ("a pickle", ""),
    ".gpickle": ("a pickle", ""),
    ".parquet": ("Parquet", "nx.from_pandas_edgelist(pandas.read_parquet({file!r}))"),
    ".xlsx": ("a spreadsheet", "nx.from_pandas_edgelist(pandas.read_excel({file!r}))"),
}
# First characters of a text after empty lines; `%` and `#` lines that are only comments do not count.
SIGNATURES = (
    (re.compile(r"%%MatrixMarket", re.I), ".mtx"),
    (re.compile(r"\*(vertices|network|arcs|edges|matrix)\b", re.I), ".net"),
    (re.compile(r"LEDA\.GRAPH"), ".lgr"),
    (re.compile(r">>graph6<<"), ".g6"),
    (re.compile(r">>sparse6<<"), ".s6"),
    (re.compile(r"(strict\s+)?(di)?graph\b[^\n\[,;]*\{", re.I), ".dot"),
    (re.compile(r"dl\s+(n|nr|nm)\s*=", re.I), ".dl"),
    (re.compile(r"(c(\s[^\n]*)?\n\s*)*p\s+(edge|col|sp|max|min|cut|td|tw)\s+\d+\s+\d+"), ".dimacs"),
)
OTHER_SUFFIX = (
    (re.compile(r"<\?xml|<graphml|<gexf|<!DOCTYPE", re.I), "XML", ".graphml"),
    (re.compile(r"(Creator\s[^\n]*\n\s*)?(Version\s[^\n]*\n\s*)?graph\s*\[", re.I), "GML", ".gml"),
    (re.compile(r"[\[{]\s*([\"{\[]|\]|\})"), "JSON", ".json"),
)
BEGINNING = 4_000  # characters of a text that are compared with the signatures
Attributes = Mapping[str, Any]
CONVERT_GRAPH = "write the graph with networkx.node_link_data, or with networkx.write_graphml"
OTHER_JSON = {"elements": "Cytoscape's JSON", "adjacency": "networkx's adjacency_data", "children": "networkx's tree_data"}
CONVERT_MATRIX = "write the graph with networkx.write_graphml"
ROUNDING = 1e-9  # relative difference of two entries that are one weight, as in a matrix of correlations
NO_WEIGHTS = frozenset({"", "nan", "na", "<na>", "none", "null", "inf", "infinity", "true", "false"})
FEWEST_COLUMNS = 4  # of a matrix that names only its columns; fewer may be the columns of a table


def read(file: str, directed: bool | None = None) -> nx.Graph:
    """Read a graph from a file, which may be compressed by gzip.

    The suffix selects the format: GraphML (.graphml, .xml), GML (.gml), node-link JSON as of networkx.node_link_data
    (.json), or an adjacency list as of networkx.write_adjlist, in which each node begins one line (.adjlist). Edge lists,
    tables of edges and adjacency matrices have the suffixes .edges, .edgelist, .el, .ncol, .csv, .tsv, .tab and .txt.

    An edge list has a line `source target` or `source target weight` for each edge. It may end in a dict of attributes,
    as of networkx.write_edgelist. Commas, semicolons, tabs or blanks separate the fields, the same in all lines. Double
    quotes are for names that contain a separator. A line with one name is a node, with or without edges. Lines that
    begin with `#` or `%` are comments, and also the end of a line after `#` between blanks.

    The first line of a table names the columns of the source and the target, for example `source,target`. Of the other
    columns only `weight`, `round`, `loss` and `latency` are used. A matrix may have names of rows and columns.

    Args:
        directed: whether an edge allows only the target to fetch from the source; false by default. GraphML, GML and
            JSON state their direction themselves.

    Returns:
        A Graph, or a DiGraph if any edge is directed; the others then go both ways. Its nodes are 0..n-1, in the
        order in which the file first names them. If all nodes of a list, table or matrix without names are integers, they
        are in numerical order. Each has the attribute `label`, and `latitude` and `longitude` in degrees if the file gives
        them. Edges have the attribute `weight`, a positive number, if any edge of the file has one. It is then 1 for edges
        without a weight, and the largest one counts for parallel edges. They have the attributes `loss` and `latency` if
        the file gives them, as texts; those of parallel edges that differ become one text that is no number. Edges with the
        attribute `round` exist in that round only: the graph has those of all rounds, and graph.graph["schedule"] is the
        p2pfl.topologies.GraphSchedule that has each round's in turn. The dict
        graph.graph contains `name`, the file's name without its suffix, `notes`, lines about what was left out or should
        be checked, and `facts`, a p2pfl.topologies.graph_facts.GraphFacts.

    Raises:
        ValueError: the file is invalid or ambiguous; the text is one line with the fault, its position and the remedy.
    """
    path = Path(file)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    content = _content(path, suffix)
    try:
        found = _parse(content, suffix, path.name, directed)
        if not found.nodes:
            raise ValueError("the file has no nodes")
        graph = _simple(found, path.name)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    graph.graph["name"] = path.stem if suffixes[-1:] != [".gz"] else Path(path.stem).stem
    return graph


def _content(path: Path, suffix: str) -> bytes:
    refuse = f"{path.name} must be " + ", or ".join(f"{what} ({', '.join(some)})" for what, some in FORMATS.items())
    try:
        refuse_suffix(suffix, path.name)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    if suffix not in SUFFIXES:
        raise ValueError(refuse)
    if not path.is_file():
        raise ValueError(f"the file {path} does not exist")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if content[:2] == b"\x1f\x8b" and len(content) <= LARGEST:
            content = gzip.GzipFile(fileobj=BytesIO(content)).read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path.name}: the compressed file is damaged: {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{path.name} is larger than {LARGEST // 2**20} MiB, the maximum")
    return content


def _parse(content: bytes, suffix: str, name: str, directed: bool | None) -> Content:
    limits = Limits(MOST_NODES, MOST_EDGES)
    if suffix in (*GRAPHML, ".gml", ".json"):
        if directed is not None:
            kind = next(kind for kind, suffixes in FORMATS.items() if suffix in suffixes)
            raise ValueError(f"a {kind} file states itself whether it is directed; remove the option directed")
        if suffix in GRAPHML:
            return _from_graphml(content)
        reader = read_gml if suffix == ".gml" else read_json
        return reader(content, WANTED, limits)
    text = text_rows.decode(content)
    refuse_text(text, name)
    rows = text_rows.split(text, MOST_NODES + MOST_EDGES, tabular=suffix in TABLES)
    if not rows.fields:
        return Content("edge list")
    if suffix in ADJACENCY_LISTS:
        return read_list(rows, directed, limits)
    rows = name_rows(rows)
    names = matrix_names(rows)
    if names is not None:
        return read_matrix(rows, names, directed, limits)
    return edge_lists.read(rows, directed, limits)


def _from_graphml(content: bytes) -> Content:
    parsed = graphml.parse(content, lambda name: name.lower() in WANTED, MOST_NODES, MOST_EDGES)
    found = Content("GraphML")
    for source, target, directed, attributes in parsed.edges:
        for end in (source, target):
            if end not in parsed.nodes:
                raise ValueError(f"an edge refers to {end!r}, which is not a node of the file")
        weight = next((text for name, text in attributes.items() if name.lower() == "weight"), "")
        found.edges.append((source, target, directed, edge_lists.weight_number(weight) if weight else None))
        found.add_link(attributes)
    found.nodes = {id: {name.lower(): text for name, text in given.items()} for id, given in parsed.nodes.items()}
    if parsed.left_out:
        found.details.append(f"attributes of edges left out: {', '.join(parsed.left_out[:6])}")
    if parsed.undeclared and found.edges:
        found.notes.append("the file does not state whether its edges are directed, and they were used both ways")
    return found


def _simple(found: Content, source: str) -> nx.Graph:
    """Make the graph; see `read`."""
    graph = nx.DiGraph() if any(directed for _, _, directed, _ in found.edges) else nx.Graph()
    place = {name: k for k, name in enumerate(found.nodes)}
    for name, attributes in found.nodes.items():
        graph.add_node(place[name], **{**attributes, "label": attributes.get("label") or name})
    weights = [weight for *_, weight in found.edges if weight is not None]
    loops = parallel = conflicts = 0
    rounds = _rounds(found)
    by_round: dict[int, dict[tuple[int, int], float]] = {}  # in each round, the weight of each pair (target, source)
    for k, (one, other, directed, weight) in enumerate(found.edges):
        i, j = place[one], place[other]
        if i == j:
            loops += 1
            continue
        here = by_round.setdefault(rounds[k], {}) if rounds else None
        if graph.has_edge(i, j) if here is None else (j, i) in here:
            parallel += 1
            known = graph.edges[i, j].get("weight") if here is None else here[j, i]
            conflicts += bool(weights) and known != (weight or 1.0)
        if here is not None:
            for pair in ((j, i), *([] if directed else [(i, j)])):
                here[pair] = max(here.get(pair, 0.0), weight or 1.0)
        ways = [(i, j)] if directed or not graph.is_directed() else [(i, j), (j, i)]
        for i, j in ways:
            old = graph.edges[i, j] if graph.has_edge(i, j) else {}
            graph.add_edge(i, j, **({"weight": max(old.get("weight", 0.0), weight or 1.0)} if weights else {}))
            for key, text in found.links.get(k, {}).items():
                if key == ROUND:
                    continue
                known = old.get(key, text)
                graph.edges[i, j][key] = text if known == text else f"{known} and {text}"[:60]
    left_out = (
        (loops, "edge from a node to itself", "edges from nodes to themselves"),
        (parallel, "parallel edge", "parallel edges"),
    )
    notes = [f"left out: {count} {what if count == 1 else other}" for count, what, other in left_out if count]
    if conflicts:
        found.details.append("the largest weight of parallel edges counts")
    graph.graph["notes"] = [*notes, *found.notes]
    if rounds:
        last = max(rounds)
        graph.graph["schedule"] = _schedule(by_round, last, graph)
        empty = last - len(by_round)
        without = f", {empty} of them without edges" if empty else ""
        found.details.append(f"one graph for each of {last} rounds, which then repeat{without}")
    graph.graph["facts"] = GraphFacts(
        source=source,
        format=found.format,
        nodes=len(graph),
        edges=graph.number_of_edges(),
        isolated=nx.number_of_isolates(graph),
        directed=graph.is_directed(),
        weights=(min(weights), max(weights)) if weights else None,
        unweighted=sum(weight is None for *_, weight in found.edges) if weights else 0,
        details=tuple(found.details),
        dropped={**found.dropped, "edges from nodes to themselves": loops, "parallel edges": parallel},
        notes=tuple(graph.graph["notes"]),
    )
    return graph


def _rounds(found: Content) -> list[int]:
    """Return the round of each edge; none if the edges of the file exist in all rounds.

    Raises:
        ValueError: an edge has no round, or an invalid one.
    """
    texts = [found.links.get(k, {}).get(ROUND, "") for k in range(len(found.edges))]
    if not any(texts):
        return []
    numbers = []
    for (one, other, *_), text in zip(found.edges, texts, strict=True):
        number = int(float(text)) if re.fullmatch(r"\d{1,6}(\.0+)?", text, re.ASCII) else 0
        if not 1 <= number <= MOST_ROUNDS:
            raise ValueError(
                f"the edge between {quote(one)} and {quote(other)}: its round must be a whole number from 1 to"
                f" {MOST_ROUNDS:,}, got {quote(text)}; if the column or attribute {ROUND!r} is something else, rename it"
            )
        numbers.append(number)
    return numbers


def _schedule(by_round: Mapping[int, Mapping[tuple[int, int], float]], last: int, graph: nx.Graph) -> Listed:
    """Return the rule that has the graphs of a file in turn."""
    rounds = []
    for round in range(1, last + 1):
        edges = by_round.get(round, {})
        to, source = np.array([*edges], np.int64).reshape(-1, 2).T
        rounds.append((to, source, np.array([*edges.values()], np.float64)))
    schedule = Listed(len(graph), rounds, graph.is_directed())
    schedule.name = "file"
    return schedule


def refuse_suffix(suffix: str, file: str) -> None:
    """Raise ValueError if the format of a suffix is known and not read."""
    if suffix in BY_SUFFIX:
        raise ValueError(describe(suffix, file))


def refuse_text(text: str, file: str) -> None:
    """Raise ValueError if a text begins like another format than a list of edges or a table."""
    beginning = text[:BEGINNING].lstrip()
    for pattern, suffix in SIGNATURES:
        if pattern.match(beginning):
            raise ValueError(f"line 1: {describe(suffix, file)}")
    beginning = re.sub(r"^(?:[#%][^\n]*\n\s*)+", "", beginning)
    for pattern, suffix in SIGNATURES:
        if pattern.match(beginning):
            raise ValueError(describe(suffix, file))
    for pattern, name, suffix in OTHER_SUFFIX:
        if pattern.match(beginning):
            raise ValueError(f"the file begins like {name}; give it a name that ends in {suffix}")


def describe(suffix: str, file: str) -> str:
    """Return the line that refuses a format, with the remedy."""
    name, reader = BY_SUFFIX[suffix]
    if not reader:
        return f"{name} is not read; convert the file to GraphML, or to a list with a line 'source target' for each edge"
    target = file.partition(".")[0] + ".graphml"
    libraries = [library for library in ("numpy", "pandas", "scipy") if f"{library}." in reader]
    imports = ", ".join(["networkx as nx", *({"scipy": "scipy.io, scipy.sparse"}.get(each, each) for each in libraries)])
    command = f"import {imports}; nx.write_graphml({reader.format(file=file)}, {target!r})"
    return f'{name} is not read; convert the file to GraphML: python -c "{command}"'


def read_json(content: bytes, wanted: frozenset[str], limits: Limits) -> Content:
    """Return the content of a node-link JSON file, as of networkx.node_link_data.

    Raises:
        ValueError: the file is broken, or has another form.
    """
    try:
        tree = msgspec.json.decode(decode(content))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the JSON is malformed: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"the JSON must be an object with 'nodes' and 'edges'; {CONVERT_GRAPH}")
    if other := next((name for key, name in OTHER_JSON.items() if key in tree), ""):
        raise ValueError(f"{other} is not read; {CONVERT_GRAPH}")
    lists = [key for key in ("edges", "links") if key in tree]
    if len(lists) != 1 or not all(isinstance(tree.get(key), list) for key in ("nodes", *lists)):
        raise ValueError(f"the JSON must have the lists 'nodes', and 'edges' or 'links'; {CONVERT_GRAPH}")
    directed = tree.get("directed", False)
    if not isinstance(directed, bool):
        raise ValueError("'directed' must be true or false")
    found = Content(f"node-link JSON with {lists[0]!r}")
    if "directed" not in tree:
        found.notes.append("the file does not state whether it is directed, and its edges were used both ways")
    limits.check(len(tree["nodes"]), len(tree[lists[0]]))
    for k, node in enumerate(tree["nodes"]):
        if not isinstance(node, dict) or "id" not in node:
            raise ValueError(f"node {k} has no 'id'; {CONVERT_GRAPH}")
        _add_node(found, _name(node["id"], f"node {k}"), node, wanted)
    for k, edge in enumerate(tree[lists[0]]):
        if not isinstance(edge, dict) or not {"source", "target"} <= edge.keys():
            raise ValueError(f"edge {k} has no 'source' or no 'target'; {CONVERT_GRAPH}")
        ends = [_name(edge[end], f"edge {k}") for end in ("source", "target")]
        _add_edge(found, ends, directed, edge, f"edge {k}")
    _describe(found, (edge for edge in tree[lists[0]]), {"source", "target", "key", "id"})
    return found


def read_gml(content: bytes, wanted: frozenset[str], limits: Limits) -> Content:
    """Return the content of a GML file, by networkx's reader.

    Raises:
        ValueError: the file is broken.
    """
    text = decode(content)
    limits.check(*(len(re.findall(rf"\b{kind}\s*\[", text)) for kind in ("node", "edge")))
    try:
        graph = nx.parse_gml(text, label="id")
    except IndexError as error:  # of networkx, at an empty line between two double quotes
        raise ValueError("the GML is malformed: a text in double quotes contains an empty line; remove that line") from error
    except (nx.NetworkXError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        remedy = "; add the line 'multigraph 1' to the graph" if "is duplicated" in str(error) else ""
        raise ValueError(f"the GML is malformed: {' '.join(str(error).split())[:300]}{remedy}") from error
    found = Content("GML")
    for node, attributes in graph.nodes(data=True):
        _add_node(found, _name(node, "a node"), attributes, wanted)
    for source, target, attributes in graph.edges(data=True):
        ends = [_name(source, "an edge"), _name(target, "an edge")]
        _add_edge(found, ends, graph.is_directed(), attributes, f"the edge {source}-{target}")
    limits.check(len(found.nodes), len(found.edges))
    _describe(found, (attributes for *_, attributes in graph.edges(data=True)), {"id", "label"})
    return found


def _name(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "" or len(str(value)) > LONGEST_NAME:
        raise ValueError(f"{where}: the name of a node must be a text or an integer, got {quote(str(value))}")
    return str(value)


def _add_node(found: Content, name: str, attributes: Attributes, wanted: frozenset[str]) -> None:
    if name in found.nodes:
        raise ValueError(f"two nodes have the id {quote(name)}")
    found.nodes[name] = {
        key.lower(): str(value)
        for key, value in attributes.items()
        if key.lower() in wanted and isinstance(value, str | int | float) and not isinstance(value, bool)
    }


def _add_edge(found: Content, ends: list[str], directed: bool, attributes: Attributes, where: str) -> None:
    for end in ends:
        if end not in found.nodes:
            raise ValueError(f"{where} refers to {quote(end)}, which is not a node of the file")
    weight = next((value for key, value in attributes.items() if key.lower() == "weight" and value is not None), None)
    if isinstance(weight, bool | list | dict):
        raise ValueError(f"{where}: a weight must be a positive number, got {quote(str(weight))}")
    try:
        found.edges.append((ends[0], ends[1], directed, None if weight is None else weight_number(str(weight))))
        found.add_link(attributes)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _describe(found: Content, edges: Any, known: set[str]) -> None:
    others = dict.fromkeys(key for edge in edges for key in edge if key.lower() not in {"weight", ROUND, *LINK, *known})
    if others:
        found.details.append(f"attributes of edges left out: {', '.join(quote(key) for key in list(others)[:6])}")


def read_list(rows: Rows, directed: bool | None, limits: Limits) -> Content:
    """Return the content of an adjacency list: lines with a node, and the nodes to which it has edges.

    Args:
        directed: whether the edges are directed; None if the user has not said so.

    Raises:
        ValueError: a node does not begin exactly one line; the text names the line.
    """
    if rows.attributes is not None or all(len(fields) == 2 and fields[1] == "0" for fields in rows.fields):
        raise ValueError(f"a multi-line adjacency list is not read; {CONVERT_MATRIX}")
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
                    f" blanks, {CONVERT_MATRIX}"
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
