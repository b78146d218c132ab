"""Codecs that make a model smaller on the wire, and sparse updates against a model that the receiver already has.

A codec knows no network; the node's exchange decides when it applies.
"""
