"""Folder of a node: its configuration, and the incarnation counter.

Everything that a node keeps is in this one folder.
"""
