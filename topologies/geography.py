"""Geography of nodes: their coordinates on the globe, and the distances between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import asin, atan2, cos, degrees, hypot, radians, sin, sqrt

import networkx as nx
import numpy as np

EARTH = 6371.0088  # km, the mean radius
FIBRE = 200_000.0  # km/s, the speed of light in glass: two thirds of that in a vacuum

Point = tuple[float, float]  # latitude and longitude in degrees


@dataclass(frozen=True)
class Places:
    """Coordinates of the nodes of a graph.

    Attributes:
        points: of each node, in the order of the graph; None if unknown.
        estimated: nodes, by index in the graph, without coordinates of their own; they have the mean of their
            neighbours'.
        unknown: nodes without a position: no path leads from them to a node with coordinates.
    """

    points: tuple[Point | None, ...]
    estimated: tuple[int, ...]
    unknown: tuple[int, ...]


def coordinates(graph: nx.Graph) -> list[Point | None]:
    """Return each node's attributes `latitude` and `longitude` (or `Latitude`, `Longitude`), None if one is missing.

    Raises:
        ValueError: a value is not a valid number of degrees.
    """
    points: list[Point | None] = []
    for node, attributes in graph.nodes(data=True):
        found = {str(key).lower(): value for key, value in attributes.items()}
        values = [found.get(key) for key in ("latitude", "longitude")]
        if any(value is None or value == "" for value in values):
            points.append(None)
            continue
        try:
            latitude, longitude = (float(value) for value in values if value is not None)
        except (TypeError, ValueError):
            latitude = longitude = float("nan")
        if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
            name = found.get("label", node)
            raise ValueError(f"the latitude and longitude of {name} must be from -90 to 90 and -180 to 180, got {values}")
        points.append((latitude, longitude))
    return points


def places(graph: nx.Graph) -> Places:
    """Return the coordinates of all nodes.

    A node without coordinates is placed in the middle of its neighbours with coordinates: at the mean of their
    directions from the centre of the Earth. The estimate proceeds outwards from the nodes with coordinates, so that
    neighbours without any are placed first if possible.

    Raises:
        ValueError: fewer than two nodes have coordinates, or a coordinate is not a valid number of degrees.
    """
    points = coordinates(graph)
    if sum(point is not None for point in points) < min(2, len(points)):
        raise ValueError("fewer than two nodes of the topology have coordinates (attributes latitude and longitude)")
    place = {node: k for k, node in enumerate(graph.nodes)}
    around = graph.to_undirected(as_view=True) if graph.is_directed() else graph
    near = [sorted({place[other] for other in around.neighbors(node)}) for node in graph.nodes]
    missing = [k for k, point in enumerate(points) if point is None]
    left = missing
    while left:
        known = {k: _middle([point for j in near[k] if (point := points[j]) is not None]) for k in left}
        for k, point in known.items():
            points[k] = point
        if all(point is None for point in known.values()):
            break
        left = [k for k in left if points[k] is None]
    unknown = {k for k in missing if points[k] is None}
    return Places(tuple(points), tuple(k for k in missing if k not in unknown), tuple(sorted(unknown)))


def great_circle(one: Point, other: Point) -> float:
    """Return the distance between two points along the surface of a sphere in km (haversine); it is symmetric."""
    (a, b), (c, d) = one, other
    latitudes = cos(radians(a)) * cos(radians(c))
    chord = sin(radians(c - a) / 2) ** 2 + latitudes * sin(radians(d - b) / 2) ** 2
    return 2 * EARTH * asin(sqrt(min(1.0, chord)))


def spread(points: Sequence[Point]) -> tuple[float, float]:
    """Return the mean and the longest distance between two of the points in km; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0, 0.0
    where = np.radians(np.array(points))
    total = longest = 0.0
    for k in range(len(where) - 1):
        half = np.sin((where[k + 1 :] - where[k]) / 2) ** 2
        chord = half[:, 0] + np.cos(where[k, 0]) * np.cos(where[k + 1 :, 0]) * half[:, 1]
        far = 2 * EARTH * np.arcsin(np.sqrt(np.minimum(chord, 1.0)))
        total += float(far.sum())
        longest = max(longest, float(far.max()))
    return total / (len(where) * (len(where) - 1) / 2), longest


def _middle(points: Sequence[Point]) -> Point | None:
    """Return the mean of directions from the centre of the Earth; None if undefined, as for opposite points."""
    x = y = z = 0.0
    for latitude, longitude in points:
        x += cos(radians(latitude)) * cos(radians(longitude))
        y += cos(radians(latitude)) * sin(radians(longitude))
        z += sin(radians(latitude))
    if hypot(x, y, z) < 1e-9:
        return None
    return degrees(atan2(z, hypot(x, y))), degrees(atan2(y, x))
