"""Catalogue of reproduced tables, and the figures that were measured for them.

Command: `p2pfl-sim reproduce`.
"""
