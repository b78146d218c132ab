"""Folder of a node: its configuration, settings of rounds, and the incarnation counter.

Everything that a node keeps is in this one folder.
"""
