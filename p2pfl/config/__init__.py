"""Configuration from TOML: reading with limits, typed binding, and names that resolve to objects.

Names that arrive from a peer are never resolved, except options that the node's owner has approved.
"""
