"""Reader of untrusted GraphML files, and writer.

Document type declarations are refused as soon as one begins, and with them entities that grow without bound or refer to
other files. The parser, expat, passes on one element after another, so limits apply before memory is allocated. networkx's
own reader is not used: it first builds the whole tree of elements, has no limits, refuses files with both directed and
undirected edges, and adds nodes that only edges name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers.expat import ErrorString, ExpatError, ParserCreate

import networkx as nx

from p2pfl.topologies.graph_facts import LINK

LONGEST_TEXT = 10_000  # characters of one attribute, or of a node's id
DEEPEST = 100  # nested elements
MOST_NAMED = 6  # attributes that were left out
TRUTH = {"true": True, "1": True, "false": False, "0": False}  # of XML


@dataclass
class GraphML:
    """Content of a file.

    Attributes:
        nodes: each id with its wanted attributes, by name; in the order of the file.
        edges: source, target, whether it is directed, attributes; in the order of the file.
        left_out: names of the other attributes of edges.
        undeclared: whether the graph does not state whether its edges are directed.
    """

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str, bool, dict[str, str]]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    undeclared: bool = False


def parse(content: bytes, wanted: Callable[[str], bool], most_nodes: int, most_edges: int) -> GraphML:
    """Parse a GraphML document. Ignore ports and vendors' elements; refuse hyperedges and nested graphs.

    Args:
        wanted: whether to keep an attribute of nodes or edges, by its name.
        most_nodes, most_edges: limits of the numbers of nodes and edges.

    Raises:
        ValueError: the document is broken or has an unsupported feature; the text names the line.
    """
    reader = _Reader(wanted, most_nodes, most_edges)
    parser = ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = reader.start
    parser.CharacterDataHandler = reader.data
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(content, True)
    except ExpatError as error:
        raise ValueError(f"line {error.lineno}: {ErrorString(error.code)}") from error
    except (ValueError, LookupError) as error:  # LookupError: an encoding unknown to Python
        raise ValueError(f"line {parser.CurrentLineNumber}: {error}") from error
    return reader.found


def _refuse_doctype(*_: object) -> NoReturn:
    raise ValueError("a document type declaration is not allowed; remove it")


class _Reader:
    """Handlers of expat that keep the wanted content."""

    def __init__(self, wanted: Callable[[str], bool], most_nodes: int, most_edges: int) -> None:
        self.found = GraphML()
        self._wanted = wanted
        self._most = {"nodes": most_nodes, "edges": most_edges}
        self._names: dict[str, str] = {}  # of the wanted attributes, by the id of their key
        self._defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
        self._open: list[str] = []
        self._graphs = 0
        self._directed = False
        self._targets: list[dict[str, str]] = []  # receive the text of the open <data> or <default>
        self._name = ""
        self._text: list[str] | None = None  # None: the text is not wanted
        self._left = 0  # remaining characters of the text

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        if not self._open and name != "graphml":
            remedy = "convert it, for example with networkx.read_gexf and networkx.write_graphml"
            raise ValueError(f"the file is not GraphML: it begins with <{name}>; {remedy}")
        if len(self._open) >= DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        match name:
            case "key":
                self._key(attributes)
            case "graph":
                self._graph(attributes)
            case "node":
                self._node(attributes)
            case "edge":
                self._edge(attributes)
            case "data":
                self._name = self._names.get(attributes.get("key", ""), "")
                self._begin_text(bool(self._name) and self._open[-1] in ("node", "edge"))
            case "default":
                self._begin_text(bool(self._name))
            case "hyperedge":
                raise ValueError("hyperedges are not supported")
        self._open.append(name)

    def data(self, data: str) -> None:
        if self._text is None or self._open[-1] not in ("data", "default"):
            return
        self._text.append(data)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"{self._name} has more than {LONGEST_TEXT} characters")

    def end(self, tag: str) -> None:
        name = self._open.pop()
        if name in ("data", "default") and self._text is not None:
            for target in self._targets:
                target[self._name] = "".join(self._text).strip()
            self._text = None

    def _begin_text(self, wanted: bool) -> None:
        self._text = [] if wanted else None
        self._left = LONGEST_TEXT

    def _key(self, attributes: dict[str, str]) -> None:
        """Record the name of an attribute; a key may also contain its default."""
        id, domain = attributes.get("id", ""), attributes.get("for", "all")
        name = attributes.get("attr.name") or id  # some programs, such as JUNG, write only the id
        self._name = name if self._wanted(name) and domain in ("node", "edge", "all") else ""
        if not self._name and domain == "edge" and len(self.found.left_out) < MOST_NAMED:
            self.found.left_out.append(repr(name[:40]))
        if self._name:
            self._names[id] = name
        self._targets = [self._defaults[kind] for kind in self._defaults if domain in (kind, "all")]

    def _graph(self, attributes: dict[str, str]) -> None:
        self._graphs += 1
        if self._graphs > 1:
            raise ValueError("more than one graph, or a nested graph, is not supported")
        default = attributes.get("edgedefault", "")
        if default not in ("directed", "undirected", ""):
            raise ValueError(f"edgedefault must be 'directed' or 'undirected', got {default[:40]!r}")
        self._directed = default == "directed"
        self.found.undeclared = not default

    def _node(self, attributes: dict[str, str]) -> None:
        id, nodes = attributes.get("id", ""), self.found.nodes
        if not id or id in nodes:
            raise ValueError(f"two nodes have the id {id!r}" if id else "a node has no id")
        if len(id) > LONGEST_TEXT:
            raise ValueError(f"an id has more than {LONGEST_TEXT} characters")
        self._check_count("nodes", len(nodes))
        nodes[id] = dict(self._defaults["node"])
        self._targets = [nodes[id]]

    def _edge(self, attributes: dict[str, str]) -> None:
        source, target = attributes.get("source", ""), attributes.get("target", "")
        if not source or not target:
            raise ValueError("an edge has no source or no target")
        self._check_count("edges", len(self.found.edges))
        given = attributes.get("directed", "")
        if given not in ("", *TRUTH):
            raise ValueError(f"directed must be 'true' or 'false', got {given[:40]!r}")
        directed = TRUTH.get(given, self._directed)
        own = dict(self._defaults["edge"])
        self.found.edges.append((source, target, directed, own))
        self._targets = [own]

    def _check_count(self, what: str, before: int) -> None:
        if before >= self._most[what]:
            raise ValueError(f"more than {self._most[what]} {what}, the maximum")


def to_graphml(graph: nx.Graph) -> bytes:
    """Return a graph as GraphML: label and place of each node, and direction, weight, loss and latency of each edge."""
    plain = nx.DiGraph() if graph.is_directed() else nx.Graph()
    number = {node: str(k) for k, node in enumerate(graph.nodes)}
    for node, attributes in graph.nodes(data=True):
        kept = {name: str(attributes[name]) for name in ("latitude", "longitude") if name in attributes}
        plain.add_node(number[node], label=str(attributes.get("label", node)), **kept)
    for source, target, attributes in graph.edges(data=True):
        weight = {"weight": float(attributes["weight"])} if "weight" in attributes else {}
        link = {name: str(attributes[name]) for name in LINK if name in attributes}
        plain.add_edge(number[source], number[target], **weight, **link)
    return "\n".join(nx.generate_graphml(plain)).encode()
