"""Codecs that reduce the size of a model on the wire, and sparse updates relative to a model that the receiver has.

Codecs do not depend on the network; the node's exchange decides when to apply them.
"""
