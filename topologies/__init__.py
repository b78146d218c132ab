"""Topologies: named graphs, graphs from files, and their properties, based on NetworkX.

This package is independent of learning and messages.
"""

from p2pfl.topologies.builders import BUILDERS, build, labels, neighbours
from p2pfl.topologies.files import read
from p2pfl.topologies.geography import places
from p2pfl.topologies.properties import complete_properties, properties

__all__ = ["BUILDERS", "build", "complete_properties", "labels", "neighbours", "places", "properties", "read"]
