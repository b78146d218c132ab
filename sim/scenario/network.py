"""Limits of a simulated node: the time and the loss of its frames, and the budget of what it may receive.

A limit is one number for all, or a range [low, high]. From a range each node, or each pair of nodes for a latency, draws
its own value from the seed of the run. `Network` and `Budgets` are the tables of a scenario; `Links` is the network at run
time, which a simulation asks for the time of arrival of each frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal

import msgspec

from p2pfl.errors import ConfigurationError, must_be
from p2pfl.policy import Budget
from p2pfl.random_streams import RandomStreams
from p2pfl.topologies.geography import FIBRE, Point, great_circle, spread

Range = tuple[float, float]
Limit = int | tuple[int, int]


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delays and bandwidths between the nodes.

    Attributes:
        latency: seconds for every frame; a pair [low, high] draws one value for each pair of nodes; "geography" is the
            time of light in a fibre (200,000 km/s) along the great circle between the nodes' places.
        places: a GraphML file with the nodes' coordinates, or the name of a shipped graph, for latency "geography": node
            k is at the place of its k-th node, so that several topologies can use the same places; "" takes the
            coordinates of the topology.
        stretch: length of a fibre relative to the great circle, with latency "geography".
        jitter: maximum random delay of each frame, in seconds.
        bandwidth: maximum bytes per second that a node sends and receives; 0 is no limit. Frames queue for it.
        loss: the probability that a frame never arrives; above 0 it needs a finite deadline.
    """

    latency: float | Range | Literal["geography"] = 0.0
    places: str = ""
    stretch: float = 1.0
    jitter: float = 0.0
    bandwidth: float | Range = 0.0
    loss: float = 0.0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        if self.latency != "geography":
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
        if not 0 <= self.loss < 1:
            raise must_be("network.loss", "at least 0 and below 1", self.loss)


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


class Links:
    """Network between named nodes; see p2pfl.protocols.transports.in_process.Model.

    Args:
        points: coordinates of each node, for latency "geography". The latency of a frame to or from a node without
            coordinates (None) is the average of all other pairs.

    Attributes:
        instant: frames arrive when they are sent.
        steady: the time of a frame depends only on its link, and no frame is lost.
        longest: the maximum seconds that a frame takes.
    """

    def __init__(self, network: Network, seed: int, points: Mapping[str, Point | None] | None = None) -> None:
        network.check()
        self._points = points or {}
        self._network = network
        self._seed = seed
        self._latencies: dict[tuple[str, str], float] = {}
        self._bandwidths: dict[str, float] = {}
        self._sending: dict[str, float] = {}  # time until which a node's outgoing or incoming line is busy
        self._receiving: dict[str, float] = {}
        self._frames: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str], float] = {}  # latest time of arrival at the end of a link
        self.instant = network == Network()
        self._contended = network.bandwidth != 0.0
        self.steady = not (self._contended or network.loss or network.jitter)
        highest = self._highest()
        self.longest = inf if self._contended or network.loss else highest + network.jitter

    def latency(self, source: str, target: str) -> float:
        """Return the minimum seconds that a frame takes; the same in both directions."""
        latency = self._network.latency
        if isinstance(latency, float | int):
            return latency
        pair = (source, target) if source < target else (target, source)
        if pair not in self._latencies:
            drawn = (
                self._along_fibre(pair) if latency == "geography" else draw(latency, self._seed, "/".join(pair), "latency")
            )
            self._latencies[pair] = drawn
        return self._latencies[pair]

    def _highest(self) -> float:
        """Return the maximum latency of all links."""
        latency = self._network.latency
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
        network = self._network
        lost, late = self._chance(source, target) if network.loss or network.jitter else (1.0, 0.0)
        when = self._queue(self._sending, source, size, now) if self._contended else now
        if lost < network.loss:
            return None
        when += self.latency(source, target) + late * network.jitter
        if network.jitter:
            self._newest[source, target] = when = max(when, self._newest.get((source, target), 0.0))
        return self._queue(self._receiving, target, size, when) if self._contended else when

    def _queue(self, taken: dict[str, float], node: str, size: int, when: float) -> float:
        """Return the time at which a frame that starts at `when` is through; the node's line is busy until then."""
        if node not in self._bandwidths:
            self._bandwidths[node] = draw(self._network.bandwidth, self._seed, node, "bandwidth")
        bandwidth = self._bandwidths[node]
        taken[node] = max(when, taken.get(node, 0.0)) + (size / bandwidth if bandwidth else 0.0)
        return taken[node]

    def _chance(self, source: str, target: str) -> tuple[float, float]:
        """Return two numbers from 0 to 1 for the next frame of a link."""
        link = source, target
        self._frames[link] = count = self._frames.get(link, 0) + 1
        digest = hashlib.blake2b(f"{self._seed}\0{source}\0{target}\0{count}".encode(), digest_size=16).digest()
        return int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:], "little") / 2**64


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on what each node may receive (see p2pfl.policy.Budget); 0 means no limit.

    Attributes:
        models: received in one round: a number for all nodes, a pair [low, high] from which each node's is drawn, both
            ends included, or a share of all nodes, above 0 and below 1: rounded, and at least one.
        held: received models held at once: a number for all nodes, or such a pair.
        bytes: of models received in one round: a number for all nodes, or such a pair.
    """

    models: Limit | float = 0
    held: Limit = 0
    bytes: Limit = 0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        for key in self.__struct_fields__:
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
        limits = {key: _limit_of(getattr(self, key), seed, name, f"budget {key}", nodes) for key in self.__struct_fields__}
        return Budget(**limits)


def _limit_of(limit: Limit | float, seed: int, name: str, purpose: str, nodes: int) -> int:
    if isinstance(limit, int):
        return limit
    if isinstance(limit, float):
        return max(1, round(limit * nodes))
    return int(RandomStreams(seed, name).generator(0, purpose).integers(limit[0], limit[1], endpoint=True))
