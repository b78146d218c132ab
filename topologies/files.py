"""Graphs from files: GraphML, for example of the Internet Topology Zoo, and lists of edges.

Sizes are limited before anything is read. The result is always a simple graph on the nodes 0..n-1: parallel edges count
once, edges from a node to itself are left out, and nodes without edges are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from pathlib import Path

import networkx as nx

from p2pfl.topologies import graphml

GRAPHML = (".graphml", ".xml")
EDGE_LISTS = (".edges", ".edgelist", ".csv", ".tsv", ".txt")
LARGEST = 32 * 2**20  # bytes of a file
MOST_NODES = 20_000
MOST_EDGES = 1_000_000
LONGEST_NAME = graphml.LONGEST_TEXT
WANTED = ("label", "latitude", "longitude", "weight")

Edge = tuple[str, str, bool, float | None]  # source, target, whether it is directed, weight


def read(file: str, directed: bool | None = None) -> nx.Graph:
    """Read a graph from a file: GraphML (.graphml, .xml) or a list of edges (.edges, .edgelist, .csv, .tsv, .txt).

    A list has a line `source target`, or `source target weight`, for each edge. The first line determines the
    separator: commas, semicolons, tabs or blanks. A line with one name is a node, with or without edges. Text after `#`
    in a line, and a first line `source,target`, are ignored.

    Args:
        directed: whether an edge of a list allows only the target to fetch from the source; false by default. A GraphML
            file states its direction itself.

    Returns: A Graph, or a DiGraph if any edge is directed; the others then go both ways. Its nodes are 0..n-1, in the
        order in which the file first names them. If all nodes of a list are integers, they are in numerical order. Each
        has the attribute `label`, and `latitude` and `longitude` in degrees if the file gives them. Edges have the
        attribute `weight`, a positive number, if any edge of the file has one. It is then 1 for edges without a weight,
        and the largest one counts for parallel edges. The dict graph.graph contains `name`, the file's name without its
        suffix, and `notes`, lines about what was left out.

    Raises:
        ValueError: the file is invalid; the text is one line with the fault and its position.
    """
    path = Path(file)
    content = _content(path)
    try:
        if path.suffix.lower() in GRAPHML:
            if directed is not None:
                raise ValueError("a GraphML file states itself whether it is directed; remove the option directed")
            nodes, edges = _from_graphml(content)
        else:
            nodes, edges = _from_list(content, bool(directed))
        if not nodes:
            raise ValueError("the file has no nodes")
        graph = _simple(nodes, edges)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    graph.graph["name"] = path.stem
    return graph


def _content(path: Path) -> bytes:
    if path.suffix.lower() not in (*GRAPHML, *EDGE_LISTS):
        raise ValueError(f"{path.name} must be GraphML ({', '.join(GRAPHML)}) or a list of edges ({', '.join(EDGE_LISTS)})")
    if not path.is_file():
        raise ValueError(f"the file {path} does not exist")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{path.name} is larger than {LARGEST // 2**20} MiB, the maximum")
    return content


def _from_graphml(content: bytes) -> tuple[dict[str, dict[str, str]], list[Edge]]:
    found = graphml.parse(content, lambda name: name.lower() in WANTED, MOST_NODES, MOST_EDGES)
    edges: list[Edge] = []
    for source, target, directed, attributes in found.edges:
        for end in (source, target):
            if end not in found.nodes:
                raise ValueError(f"an edge refers to {end!r}, which is not a node of the file")
        weight = next((text for name, text in attributes.items() if name.lower() == "weight"), "")
        edges.append((source, target, directed, _weight(weight) if weight else None))
    nodes = {id: {name.lower(): text for name, text in attributes.items()} for id, attributes in found.nodes.items()}
    return nodes, edges


def _from_list(content: bytes, directed: bool) -> tuple[dict[str, dict[str, str]], list[Edge]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text") from error
    nodes: dict[str, dict[str, str]] = {}
    edges: list[Edge] = []
    separator: str | None = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        first = separator == ""
        if first:
            separator = next((sign for sign in ",;\t" if sign in line), None)
        fields = [field.strip() for field in line.split(separator)]
        if first and [field.lower() for field in fields[:2]] == ["source", "target"]:
            continue
        try:
            _take(fields, directed, nodes, edges)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    if all(name.isascii() and name.isdigit() for name in nodes):
        nodes = dict(sorted(nodes.items(), key=lambda item: (len(item[0].lstrip("0")), item[0].lstrip("0"), item[0])))
    return nodes, edges


def _take(fields: list[str], directed: bool, nodes: dict[str, dict[str, str]], edges: list[Edge]) -> None:
    """Add the node or the edge of one line of a list."""
    ends = fields[:2]
    if len(fields) > 3 or not all(ends):
        raise ValueError("expected 'node', 'source target' or 'source target weight'")
    for name in ends:
        if len(name) > LONGEST_NAME:
            raise ValueError(f"the name of a node has more than {LONGEST_NAME} characters")
        nodes.setdefault(name, {})
    if len(nodes) > MOST_NODES or len(edges) >= MOST_EDGES:
        raise ValueError(f"more than {MOST_NODES} nodes or {MOST_EDGES} edges, the maximum")
    if len(fields) > 1:
        edges.append((fields[0], fields[1], directed, _weight(fields[2]) if len(fields) > 2 and fields[2] else None))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < inf:
        raise ValueError(f"a weight must be a positive number, got {text[:40]!r}")
    return weight


def _simple(nodes: dict[str, dict[str, str]], edges: Iterable[Edge]) -> nx.Graph:
    """Make the graph; see `read`."""
    edges = list(edges)
    graph = nx.DiGraph() if any(directed for _, _, directed, _ in edges) else nx.Graph()
    place = {name: k for k, name in enumerate(nodes)}
    for name, attributes in nodes.items():
        graph.add_node(place[name], **{**attributes, "label": attributes.get("label") or name})
    weighted = any(weight is not None for *_, weight in edges)
    loops = parallel = 0
    for source, target, directed, weight in edges:
        i, j = place[source], place[target]
        if i == j:
            loops += 1
            continue
        parallel += graph.has_edge(i, j)
        ways = [(i, j)] if directed or not graph.is_directed() else [(i, j), (j, i)]
        for i, j in ways:
            old = graph.edges[i, j] if graph.has_edge(i, j) else {}
            graph.add_edge(i, j, **({"weight": max(old.get("weight", 0.0), weight or 1.0)} if weighted else {}))
    left_out = (
        (loops, "edge from a node to itself", "edges from nodes to themselves"),
        (parallel, "parallel edge", "parallel edges"),
    )
    graph.graph["notes"] = [f"left out: {count} {what if count == 1 else other}" for count, what, other in left_out if count]
    return graph
