"""Readers of two formats of networkx that hold attributes: node-link JSON and GML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import networkx as nx

from p2pfl.topologies.edge_lists import LONGEST_NAME, weight_number
from p2pfl.topologies.graph_facts import Content, Limits
from p2pfl.topologies.text_rows import decode, quote

Attributes = Mapping[str, Any]
CONVERT = "write the graph with networkx.node_link_data, or with networkx.write_graphml"
OTHER_JSON = {"elements": "Cytoscape's JSON", "adjacency": "networkx's adjacency_data", "children": "networkx's tree_data"}


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
        raise ValueError(f"the JSON must be an object with 'nodes' and 'edges'; {CONVERT}")
    if other := next((name for key, name in OTHER_JSON.items() if key in tree), ""):
        raise ValueError(f"{other} is not read; {CONVERT}")
    lists = [key for key in ("edges", "links") if key in tree]
    if len(lists) != 1 or not all(isinstance(tree.get(key), list) for key in ("nodes", *lists)):
        raise ValueError(f"the JSON must have the lists 'nodes', and 'edges' or 'links'; {CONVERT}")
    directed = tree.get("directed", False)
    if not isinstance(directed, bool):
        raise ValueError("'directed' must be true or false")
    found = Content(f"node-link JSON with {lists[0]!r}")
    if "directed" not in tree:
        found.notes.append("the file does not state whether it is directed, and its edges were used both ways")
    limits.check(len(tree["nodes"]), len(tree[lists[0]]))
    for k, node in enumerate(tree["nodes"]):
        if not isinstance(node, dict) or "id" not in node:
            raise ValueError(f"node {k} has no 'id'; {CONVERT}")
        _add_node(found, _name(node["id"], f"node {k}"), node, wanted)
    for k, edge in enumerate(tree[lists[0]]):
        if not isinstance(edge, dict) or not {"source", "target"} <= edge.keys():
            raise ValueError(f"edge {k} has no 'source' or no 'target'; {CONVERT}")
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
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _describe(found: Content, edges: Any, known: set[str]) -> None:
    others = dict.fromkeys(key for edge in edges for key in edge if key.lower() not in {"weight", *known})
    if others:
        found.details.append(f"attributes of edges left out: {', '.join(quote(key) for key in list(others)[:6])}")
