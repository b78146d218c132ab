"""Who may talk to whom: named graphs, graphs from files, and what they are like, on NetworkX.

Knows nothing of learning or messages.
"""

from topologies.builders import BUILDERS, build, labels, neighbours
from topologies.files import read
from topologies.geography import places
from topologies.properties import properties

__all__ = ["BUILDERS", "build", "labels", "neighbours", "places", "properties", "read"]
