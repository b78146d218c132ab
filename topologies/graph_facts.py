"""Facts of a graph file as its reader understood it, for the user to compare with what they meant.

`p2pfl-sim topology` shows them, and `p2pfl-sim run` prints their line and writes them to `summary.json`. They have the
shape of p2pfl.data_facts.DataFacts, with nodes and edges in place of samples and columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

ROUND = "round"  # attribute of edges that exist in one round only
Edge = tuple[str, str, bool, float | None]  # source, target, whether it is directed, weight
LINK = ("loss", "latency")  # attributes of edges that a simulation may use; see p2pfl.sim.scenario.network.Network


class Limits:
    """Maximum numbers of nodes and edges."""

    def __init__(self, nodes: int, edges: int) -> None:
        self.nodes = nodes
        self.edges = edges

    def check(self, nodes: int, edges: int) -> None:
        """Raise ValueError if there are more nodes or edges."""
        if nodes > self.nodes or edges > self.edges:
            raise ValueError(f"more than {self.nodes} nodes or {self.edges} edges, the maximum")


@dataclass
class Content:
    """Nodes and edges as a file lists them, before loops and parallel edges are left out.

    Attributes:
        format: kind of the format with its dialect, for example "edge list separated by ','".
        nodes: the attributes of each node, by its name; in the order of the graph.
        edges: in the order of the file.
        links: the values of `LINK` and `ROUND` that the file gives an edge, unchecked, by the position of the edge in
            `edges`.
        details: further facts for the line, for example "columns id_1 (source), id_2 (target)".
        dropped: number of lines that were left out, by reason in the plural ("comment lines").
        notes: sentences about what the user should check.
    """

    format: str
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    links: dict[int, dict[str, str]] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_link(self, attributes: Mapping[str, Any]) -> None:
        """Keep the values of `LINK` and `ROUND` among the attributes of the edge added last."""
        given = {key.lower(): str(value).strip() for key, value in attributes.items() if key.lower() in (*LINK, ROUND)}
        if given := {key: text for key, text in given.items() if text and text != "None"}:
            self.links[len(self.edges) - 1] = given


@dataclass(frozen=True)
class GraphFacts:
    """Result of reading one graph file, for people to check.

    Attributes:
        source: name of the file.
        format, details, dropped, notes: see `Content`; `dropped` also counts edges.
        nodes, edges: numbers of the graph's nodes and edges.
        isolated: number of nodes without edges.
        directed: whether the graph is directed.
        weights: the least and the largest weight; None without weights.
        unweighted: number of edges without a weight, if others have one.
    """

    source: str
    format: str
    nodes: int
    edges: int
    isolated: int
    directed: bool
    weights: tuple[float, float] | None
    unweighted: int
    details: Sequence[str]
    dropped: Mapping[str, int]
    notes: Sequence[str]

    @property
    def dropped_lines(self) -> int:
        """Number of lines that were left out, without edges."""
        return sum(count for reason, count in self.dropped.items() if "line" in reason)

    @property
    def line(self) -> str:
        """The facts in one line, without the notes."""
        parts = [
            f"{self.format}, {self.nodes:,} {_plural('node', self.nodes)}, {self.edges:,} {_plural('edge', self.edges)}"
        ]
        parts += [*self.details, "directed" if self.directed else "undirected"]
        if self.weights is None:
            parts.append("no weights")
        else:
            least, most = self.weights
            parts.append(f"weights from {least:g} to {most:g}")
        if self.unweighted:
            parts.append(f"{self.unweighted:,} {_plural('edge', self.unweighted)} without a weight, which counts as 1")
        if self.isolated:
            parts.append(f"{self.isolated:,} {_plural('node', self.isolated)} without edges")
        if dropped := [f"{reason} {count:,}" for reason, count in self.dropped.items() if count]:
            parts.append(f"left out: {', '.join(dropped)}")
        return f"{self.source}: {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return {
            "source": self.source,
            "line": self.line,
            "format": self.format,
            "nodes": self.nodes,
            "edges": self.edges,
            "isolated": self.isolated,
            "directed": self.directed,
            "weights": None if self.weights is None else list(self.weights),
            "unweighted": self.unweighted,
            "details": list(self.details),
            "dropped": {reason: count for reason, count in self.dropped.items() if count},
            "notes": list(self.notes),
        }


def facts_of(graph: nx.Graph) -> GraphFacts | None:
    """Return the facts of a graph that p2pfl.topologies.read has read from a file; None for others."""
    facts = graph.graph.get("facts")
    return facts if isinstance(facts, GraphFacts) else None


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
