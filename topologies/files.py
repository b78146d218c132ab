"""Graphs from files: GraphML, GML, node-link JSON, lists and tables of edges, adjacency lists and matrices.

Sizes are limited before anything is read. The result is always a simple graph on the nodes 0..n-1: parallel edges count
once, edges from a node to itself are left out, and nodes without edges are kept. A reader recognises a format by all lines
of a file, or refuses the file in one line; the facts of what it understood are in the graph.
"""

from __future__ import annotations

import gzip
import zlib
from io import BytesIO
from pathlib import Path

import networkx as nx

from p2pfl.topologies import adjacency, edge_lists, graphml, networkx_formats, text_rows
from p2pfl.topologies.foreign_formats import refuse_suffix, refuse_text
from p2pfl.topologies.graph_facts import Content, GraphFacts, Limits

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
WANTED = frozenset({"label", "latitude", "longitude", "weight"})


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
    columns only `weight` is used. A matrix may have names of rows and columns.

    Args:
        directed: whether an edge allows only the target to fetch from the source; false by default. GraphML, GML and
            JSON state their direction themselves.

    Returns:
        A Graph, or a DiGraph if any edge is directed; the others then go both ways. Its nodes are 0..n-1, in the
        order in which the file first names them. If all nodes of a list, table or matrix without names are integers, they
        are in numerical order. Each has the attribute `label`, and `latitude` and `longitude` in degrees if the file gives
        them. Edges have the attribute `weight`, a positive number, if any edge of the file has one. It is then 1 for edges
        without a weight, and the largest one counts for parallel edges. The dict graph.graph contains `name`, the file's
        name without its suffix, `notes`, lines about what was left out or should be checked, and `facts`, a
        p2pfl.topologies.graph_facts.GraphFacts.

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
        reader = networkx_formats.read_gml if suffix == ".gml" else networkx_formats.read_json
        return reader(content, WANTED, limits)
    text = text_rows.decode(content)
    refuse_text(text, name)
    rows = text_rows.split(text, MOST_NODES + MOST_EDGES, tabular=suffix in TABLES)
    if not rows.fields:
        return Content("edge list")
    if suffix in ADJACENCY_LISTS:
        return adjacency.read_list(rows, directed, limits)
    rows = adjacency.name_rows(rows)
    names = adjacency.matrix_names(rows)
    if names is not None:
        return adjacency.read_matrix(rows, names, directed, limits)
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
    for one, other, directed, weight in found.edges:
        i, j = place[one], place[other]
        if i == j:
            loops += 1
            continue
        if graph.has_edge(i, j):
            parallel += 1
            conflicts += bool(weights) and graph.edges[i, j]["weight"] != (weight or 1.0)
        ways = [(i, j)] if directed or not graph.is_directed() else [(i, j), (j, i)]
        for i, j in ways:
            old = graph.edges[i, j] if graph.has_edge(i, j) else {}
            graph.add_edge(i, j, **({"weight": max(old.get("weight", 0.0), weight or 1.0)} if weights else {}))
    left_out = (
        (loops, "edge from a node to itself", "edges from nodes to themselves"),
        (parallel, "parallel edge", "parallel edges"),
    )
    notes = [f"left out: {count} {what if count == 1 else other}" for count, what, other in left_out if count]
    if conflicts:
        found.details.append("the largest weight of parallel edges counts")
    graph.graph["notes"] = [*notes, *found.notes]
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
