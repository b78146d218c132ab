"""Configuration from TOML: bounded reading, typed binding, and names that stand for objects.

Nothing that arrives from a peer is resolved here, except options that the node's owner has approved.
"""
