"""Topologies: named graphs, graphs from files, rules with a graph for each round, and their properties.

This package is independent of learning and messages. Static graphs are those of NetworkX, which is loaded at the first use:
a node needs only `schedules`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from p2pfl.errors import needs_extra

if TYPE_CHECKING:
    from p2pfl.topologies.builders import BUILDERS, build, labels, neighbours
    from p2pfl.topologies.files import read
    from p2pfl.topologies.geography import places
    from p2pfl.topologies.graph_properties import complete_properties, properties
    from p2pfl.topologies.schedules import SCHEDULES, GraphSchedule, RoundGraph, make_schedule

_LAZY = {
    "BUILDERS": "builders",
    "SCHEDULES": "schedules",
    "GraphSchedule": "schedules",
    "RoundGraph": "schedules",
    "build": "builders",
    "complete_properties": "graph_properties",
    "labels": "builders",
    "make_schedule": "schedules",
    "neighbours": "builders",
    "places": "geography",
    "properties": "graph_properties",
    "read": "files",
}

__all__ = [
    "BUILDERS",
    "SCHEDULES",
    "GraphSchedule",
    "RoundGraph",
    "build",
    "complete_properties",
    "labels",
    "make_schedule",
    "neighbours",
    "places",
    "properties",
    "read",
]

if not TYPE_CHECKING:  # a type checker uses the imports above, and reports unknown names

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"p2pfl.topologies.{name}"):
            return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
