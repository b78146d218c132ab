"""Limits of a simulated node: the time and the loss of its frames, and the budget of what it may receive.

A limit is one number for all, or a range [low, high]. From a range each node, or each pair of nodes for a latency or a
loss, draws its own value from the seed of the run. The loss and the latency of a link may also come from the edges of the
topology's file, and `links` sets those of single links: `link_values` looks all of them up in the graph, once.

`Network` and `Budgets` are the tables of a scenario; `Links` is the network at run time, which a simulation asks for the
time of arrival of each frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import msgspec
import networkx as nx
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError, must_be, unknown
from p2pfl.policy import Budget
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.formatting import some
from p2pfl.sim.scenario.availability import Presence
from p2pfl.topologies.geography import FIBRE, Point, great_circle, spread

Range = tuple[float, float]
Limit = int | tuple[int, int]
LOSS = "at least 0 and below 1"
LIMITED = ("models", "held", "bytes", "trainings")  # keys of a budget whose limits are whole numbers


class LinkRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Values of some links, in place of those that the network has for all.

    A node is given by its number, its name (`node-07`), or its label in the topology, its places or its data.

    Attributes:
        nodes: the values are those of all links of each of these nodes; where two nodes of a link have one, the larger
            counts.
        between: the values are those of the link between these two nodes, in both directions; they count before those
            of `nodes`.
        loss: probability that a frame never arrives.
        latency: seconds for every frame.
        bandwidth: maximum bytes per second that each of the `nodes` sends and receives; 0 is no limit.
    """

    nodes: tuple[int | str, ...] = ()
    between: tuple[int | str, int | str] | None = None
    loss: float | None = None
    latency: float | None = None
    bandwidth: float | None = None

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        if bool(self.nodes) == (self.between is not None):
            raise _links_error("each entry needs `nodes`, a list of nodes, or `between`, two nodes, and not both")
        if self.loss is None and self.latency is None and self.bandwidth is None:
            raise _links_error("each entry needs a loss, a latency or a bandwidth")
        if self.loss is not None and not 0 <= self.loss < 1:
            raise must_be("network.links: loss", LOSS, self.loss)
        for key, value in (("latency", self.latency), ("bandwidth", self.bandwidth)):
            if value is not None and not 0 <= value < inf:
                raise must_be(f"network.links: {key}", "0 or more, and finite", value)
        if self.bandwidth is not None and self.between is not None:
            raise _links_error("a bandwidth is that of a node's line and not of a link; give it to `nodes`")


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delays and bandwidths between the nodes.

    Attributes:
        latency: seconds for every frame; a pair [low, high] draws one value for each pair of nodes; "geography" is the
            time of light in a fibre (200,000 km/s) along the great circle between the nodes' places; "edges" takes the
            attribute `latency` of the edges in the topology's file.
        places: a GraphML file with the nodes' coordinates, or the name of a shipped graph, for latency "geography": node
            k is at the place of its k-th node, so that several topologies can use the same places; "" takes the
            coordinates of the topology.
        stretch: length of a fibre relative to the great circle, with latency "geography".
        jitter: maximum random delay of each frame, in seconds.
        bandwidth: maximum bytes per second that a node sends and receives; 0 is no limit. Frames queue for it.
        loss: the probability that a frame never arrives; above 0 it needs a finite deadline. A pair [low, high] draws one
            value for each pair of nodes; "edges" takes the attribute `loss` of the edges in the topology's file.
        links: the loss, the latency or the bandwidth of some links or nodes, such as
            [{ nodes = [3, 7], loss = 0.2 }, { between = [1, 2], latency = 0.5 }]; see the table of its keys.
    """

    latency: float | Range | Literal["geography", "edges"] = 0.0
    places: str = ""
    stretch: float = 1.0
    jitter: float = 0.0
    bandwidth: float | Range = 0.0
    loss: float | Range | Literal["edges"] = 0.0
    links: tuple[LinkRule, ...] = ()

    @property
    def loses(self) -> bool:
        """Whether a link may lose frames."""
        return self.loss not in (0.0, (0.0, 0.0)) or any(rule.loss for rule in self.links)

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        if self.latency != "geography":
            if self.latency != "edges":
                check_range("network.latency", self.latency)
            for key, given in (("stretch", self.stretch != 1.0), ("places", self.places)):
                if given:
                    raise ConfigurationError(
                        f'network.{key} needs network.latency = "geography"', f"network.{key}", "network.latency"
                    )
        if not 0 < self.stretch < inf:
            raise must_be("network.stretch", "a positive number", self.stretch)
        check_range("network.bandwidth", self.bandwidth)
        check_number("network.jitter", self.jitter)
        if isinstance(self.loss, float | int):
            if not 0 <= self.loss < 1:
                raise must_be("network.loss", LOSS, self.loss)
        elif self.loss != "edges" and not 0 <= self.loss[0] <= self.loss[1] < 1:
            raise must_be("network.loss", f"{LOSS}, or a pair [low, high] of such numbers", list(self.loss))
        for rule in self.links:
            rule.check()


def _links_error(text: str, *keys: str) -> ConfigurationError:
    return ConfigurationError(f"network.links: {text}", "network.links", *keys)


def check_number(key: str, value: float) -> None:
    if not 0 <= value < inf:
        raise must_be(key, "0 or more, and finite", value)


def check_range(key: str, value: float | Range) -> None:
    low, high = value if isinstance(value, Sequence) else (value, value)
    if not 0 <= low <= high < inf:
        raise must_be(key, "a number of 0 or more, or a pair [low, high] of them", value)


def draw(value: float | Range, seed: int, name: str, purpose: str) -> float:
    """Return a fixed value unchanged, or draw one uniformly from a range, for a node or a pair of nodes."""
    if not isinstance(value, Sequence):
        return value
    return float(RandomStreams(seed, name).generator(0, purpose).uniform(*value))


@dataclass
class LinkValues:
    """Values of single links and nodes, by the names of the nodes.

    Attributes:
        edges: loss and latency by sender and receiver, as the topology's file gives them.
        between: loss and latency by sender and receiver, as `links` gives them.
        nodes: loss, latency and bandwidth by node, as `links` gives them.
    """

    edges: dict[str, dict[tuple[str, str], float]] = field(default_factory=lambda: {"loss": {}, "latency": {}})
    between: dict[str, dict[tuple[str, str], float]] = field(default_factory=lambda: {"loss": {}, "latency": {}})
    nodes: dict[str, dict[str, float]] = field(default_factory=lambda: {"loss": {}, "latency": {}, "bandwidth": {}})
    notes: list[str] = field(default_factory=list)

    def find(self, key: str, source: str, target: str) -> float | None:
        """Return the loss or the latency that `links` gives the link from one node to another; None if it gives none."""
        own = self.between[key].get((source, target))
        if own is None:
            ends = self.nodes[key]
            own = max((ends[name] for name in (source, target) if name in ends), default=None)
        return own

    def largest(self, key: str) -> float:
        """Return the largest of all values of a loss, a latency or a bandwidth; 0 without one."""
        tables = (self.edges.get(key, {}), self.between.get(key, {}), self.nodes[key])
        return max((value for table in tables for value in table.values()), default=0.0)


class Nodes:
    """Names of the nodes, and their labels in the topology, its places or its data; there may be no labels."""

    def __init__(self, names: Sequence[str], called: Sequence[str]) -> None:
        self.names = names
        self._called = called
        self._numbers: dict[str, set[int]] = {}
        for k, name in [*enumerate(names), *enumerate(called)]:
            self._numbers.setdefault(name, set()).add(k)

    def label(self, node: int) -> str:
        """Return the label of a node, or else its name."""
        return self._called[node] if self._called else self.names[node]

    def number(self, node: int | str) -> int:
        """Return the number of a node that `links` names.

        Raises:
            ConfigurationError: there is no such node, or several.
        """
        if isinstance(node, int):
            if not 0 <= node < len(self.names):
                most = len(self.names) - 1
                raise _links_error(f"nodes must be numbers from 0 to {most}, or names, got {node}", "nodes")
            return node
        found = sorted(self._numbers.get(node, ()))
        if not found:
            raise _links_error(str(unknown("node", node, self._numbers)), "topology")
        if len(found) > 1:
            raise _links_error(f"several nodes are called {node!r}; use one of their numbers: {some(map(str, found))}")
        return found[0]


def link_values(network: Network, graph: nx.Graph, nodes: Nodes, around: Sequence[Sequence[str]]) -> LinkValues:
    """Return the values of single links and nodes of a network.

    Args:
        graph: the topology; a complete one may lack its edges.
        around: names of the neighbours of each node.

    Raises:
        ConfigurationError: an edge has no valid value, or `links` names a node that does not exist.
    """
    found, number, names = LinkValues(), {node: k for k, node in enumerate(graph)}, nodes.names
    for key in ("loss", "latency"):
        given = [edge for edge in graph.edges(data=key) if edge[2] is not None]
        if getattr(network, key) == "edges":
            _take_edges(key, given, number, nodes, found)
            if lacking := graph.number_of_edges() - len(given):
                found.notes.append(f"{lacking} of {graph.number_of_edges()} edges have no {key}, which counts as 0")
        elif given:
            found.notes.append(f'the edges of the topology have a {key}, which is not used; network.{key} = "edges" uses it')
    for rule in network.links:
        ends = [nodes.number(node) for node in rule.between or rule.nodes]
        chosen = [names[k] for k in ends]
        for key in ("loss", "latency", "bandwidth"):
            value = getattr(rule, key)
            if value is None:
                continue
            table: dict[str, float] | dict[tuple[str, str], float] = found.nodes[key]
            keys: Sequence[str | tuple[str, str]] = list(dict.fromkeys(chosen))
            if rule.between is not None:
                table, keys = found.between[key], [(chosen[0], chosen[1]), (chosen[1], chosen[0])]
            if any(each in table for each in keys):
                whose = " and ".join(chosen) if rule.between else some(chosen)
                raise _links_error(f"two entries give {whose} a {key}")
            table.update(dict.fromkeys(keys, value))  # type: ignore[arg-type]  # keys and table are of one kind
        if rule.between is not None and chosen[1] not in around[ends[0]] and chosen[0] not in around[ends[1]]:
            found.notes.append(f"network.links: {chosen[0]} and {chosen[1]} are not neighbours in the topology")
    return found


def _take_edges(
    key: str, given: Sequence[tuple[int, int, object]], number: Mapping[int, int], nodes: Nodes, found: LinkValues
) -> None:
    """Add the losses or the latencies of a topology's edges."""
    if not given:
        raise ConfigurationError(
            f'network.{key} = "edges" needs a topology from a file whose edges have the attribute {key}, or a table with'
            f" the column {key}",
            f"network.{key}",
            "topology",
        )
    values = found.edges[key]
    for source, target, text in given:
        i, j = number[source], number[target]
        try:
            value = float(str(text))
        except ValueError:
            value = -1.0
        if not 0 <= value < (1 if key == "loss" else inf):
            limits = LOSS if key == "loss" else "0 or more, and finite"
            raise ConfigurationError(
                f'network.{key} = "edges": the {key} of the edge between {nodes.label(i)} and {nodes.label(j)} must be'
                f" {limits}, got {str(text)!r}",
                f"network.{key}",
                "topology",
            )
        values[nodes.names[i], nodes.names[j]] = value
    for (one, other), value in list(values.items()):
        values.setdefault((other, one), value)  # frames go both ways over each edge


class Links:
    """Network between named nodes; see p2pfl.protocols.transports.in_process.Model.

    Args:
        values: of single links and nodes; see `link_values`.
        presence: see below.
        points: coordinates of each node, for latency "geography". The latency of a frame to or from a node without
            coordinates (None) is the average of all other pairs.

    Attributes:
        instant: frames arrive when they are sent.
        steady: the time of a frame depends only on its link, and no frame is lost.
        longest: the maximum seconds that a frame takes.
        loses: whether a link may lose frames, or an end of it may be away.
        presence: when nodes are present; None if they always are.
    """

    def __init__(
        self,
        network: Network,
        seed: int,
        points: Mapping[str, Point | None] | None = None,
        values: LinkValues | None = None,
        presence: Presence | None = None,
    ) -> None:
        network.check()
        self._values = values or LinkValues()
        self._points = points or {}
        self._network = network
        self._seed = seed
        self._drawn: dict[str, dict[tuple[str, str], float]] = {"loss": {}, "latency": {}}
        self._bandwidths: dict[str, float] = {}
        self._sending: dict[str, float] = {}  # time until which a node's outgoing or incoming line is busy
        self._receiving: dict[str, float] = {}
        self._frames: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str], float] = {}  # latest time of arrival at the end of a link
        self.presence = presence
        self.instant = network == Network() and presence is None
        self._contended = network.bandwidth != 0.0 or bool(self._values.nodes["bandwidth"])
        drawn = network.loss if isinstance(network.loss, tuple | list) else (0.0, 0.0)
        fixed = network.loss if isinstance(network.loss, float | int) else drawn[1]
        self.loses = max(fixed, self._values.largest("loss")) > 0 or presence is not None
        self.steady = not (self._contended or self.loses or network.jitter)
        highest = max(self._highest(), self._values.largest("latency"))
        self.longest = inf if self._contended or self.loses else highest + network.jitter

    def latency(self, source: str, target: str) -> float:
        """Return the minimum seconds that a frame takes.

        It is the same in both directions, unless the edges of a directed topology give each its own.
        """
        return self._of_link("latency", self._network.latency, source, target)

    def loss(self, source: str, target: str) -> float:
        """Return the probability that a frame is lost; with the same exception as for `latency`."""
        return self._of_link("loss", self._network.loss, source, target)

    def _of_link(self, key: str, given: float | Range | str, source: str, target: str) -> float:
        if self._network.links and (own := self._values.find(key, source, target)) is not None:
            return own
        if isinstance(given, float | int):
            return given
        if given == "edges":
            return self._values.edges[key].get((source, target), 0.0)
        drawn, pair = self._drawn[key], (source, target) if source < target else (target, source)
        if pair not in drawn:
            drawn[pair] = self._along_fibre(pair) if isinstance(given, str) else draw(given, self._seed, "/".join(pair), key)
        return drawn[pair]

    def bandwidth(self, node: str) -> float:
        """Return the bytes per second that a node sends and receives; 0 is no limit."""
        if node not in self._bandwidths:
            own = self._values.nodes["bandwidth"].get(node)
            drawn = draw(self._network.bandwidth, self._seed, node, "bandwidth") if own is None else own
            self._bandwidths[node] = drawn
        return self._bandwidths[node]

    def _highest(self) -> float:
        """Return the maximum latency of all links without an own value."""
        latency = self._network.latency
        if latency == "edges":
            return 0.0  # the edges are in the values
        if latency == "geography":
            mean, longest = spread([point for point in self._points.values() if point is not None])
            self._seconds_per_km = self._network.stretch / FIBRE
            self._mean = mean * self._seconds_per_km
            return longest * self._seconds_per_km * (1 + 1e-12)  # margin: great_circle computes it differently
        return latency if isinstance(latency, float | int) else latency[1]

    def _along_fibre(self, pair: tuple[str, str]) -> float:
        one, other = (self._points[name] for name in pair)
        return self._mean if one is None or other is None else great_circle(one, other) * self._seconds_per_km

    def arrival(self, source: str, target: str, size: int, now: float) -> float | None:
        """Return the arrival time of a frame that is sent now, or None if it is lost.

        A link keeps the order of its frames: none arrives before an earlier one.
        """
        if self.instant:
            return now
        presence = self.presence
        if presence is None:
            return self._arrival(source, target, size, now)
        if not presence.there(source, now):
            return None
        when = self._arrival(source, target, size, now)
        return when if when is not None and presence.there(target, when) else None

    def _arrival(self, source: str, target: str, size: int, now: float) -> float | None:
        network = self._network
        lost, late = self._chance(source, target) if self.loses or network.jitter else (1.0, 0.0)
        when = self._queue(self._sending, source, size, now) if self._contended else now
        if self.loses and lost < self.loss(source, target):
            return None
        when += self.latency(source, target) + late * network.jitter
        if network.jitter:
            self._newest[source, target] = when = max(when, self._newest.get((source, target), 0.0))
        return self._queue(self._receiving, target, size, when) if self._contended else when

    def _queue(self, taken: dict[str, float], node: str, size: int, when: float) -> float:
        """Return the time at which a frame that starts at `when` is through; the node's line is busy until then."""
        bandwidth = self.bandwidth(node)
        taken[node] = max(when, taken.get(node, 0.0)) + (size / bandwidth if bandwidth else 0.0)
        return taken[node]

    def _chance(self, source: str, target: str) -> tuple[float, float]:
        """Return two numbers from 0 to 1 for the next frame of a link."""
        link = source, target
        self._frames[link] = count = self._frames.get(link, 0) + 1
        digest = hashlib.blake2b(f"{self._seed}\0{source}\0{target}\0{count}".encode(), digest_size=16).digest()
        return int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:], "little") / 2**64


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on what each node may receive, and on its trainings (see p2pfl.policy.Budget); 0 means no limit.

    Attributes:
        models: received in one round: a number for all nodes, a pair [low, high] from which each node's is drawn, both
            ends included, or a share of all nodes, above 0 and below 1: rounded, and at least one.
        held: received models held at once: a number for all nodes, or such a pair.
        bytes: of models received in one round: a number for all nodes, or such a pair.
        trainings: in the whole run, the sum over all rounds and the preparation: a number for all nodes, or such a pair.
        joules: of these trainings: a number for all nodes, or a pair [low, high] of them.
    """

    models: Limit | float = 0
    held: Limit = 0
    bytes: Limit = 0
    trainings: Limit = 0
    joules: float | Range = 0.0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        check_range("budget.joules", self.joules)
        for key in LIMITED:
            limit, name = getattr(self, key), f"budget.{key}"
            if isinstance(limit, float):
                if not 0 < limit < 1:
                    raise must_be(name, "a share of the nodes above 0 and below 1, or a whole number", limit)
            elif isinstance(limit, int):
                if limit < 0:
                    raise must_be(name, "0 (no limit) or more", limit)
            elif not 1 <= limit[0] <= limit[1]:
                raise must_be(name, "a number, or a pair [low, high] with 1 <= low <= high", list(limit))

    def of(self, seed: int, name: str, nodes: int) -> Budget:
        """Return the budget of one node; `nodes` is the number of all nodes."""
        limits = {key: _limit_of(getattr(self, key), seed, name, f"budget {key}", nodes) for key in LIMITED}
        return Budget(**limits, joules=draw(self.joules, seed, name, "budget joules"))

    def of_each(self, seed: int, names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Return the limits of all nodes on what they receive, by key, int64 [N] each."""
        found = {}
        for key in ("models", "held", "bytes"):
            limit, count = getattr(self, key), len(names)
            drawn = names if isinstance(limit, Sequence) else names[:1]  # a number is the same for all
            each = np.array([_limit_of(limit, seed, name, f"budget {key}", count) for name in drawn], np.int64)
            found[key] = each if len(each) == count else np.repeat(each, count)
        return found


def _limit_of(limit: Limit | float, seed: int, name: str, purpose: str, nodes: int) -> int:
    if isinstance(limit, int):
        return limit
    if isinstance(limit, float):
        return max(1, round(limit * nodes))
    return int(RandomStreams(seed, name).generator(0, purpose).integers(limit[0], limit[1], endpoint=True))
