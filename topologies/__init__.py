"""Who may talk to whom: named graphs on NetworkX. Knows nothing of learning or messages."""

from topologies.builders import BUILDERS, build, neighbours

__all__ = ["BUILDERS", "build", "neighbours"]
