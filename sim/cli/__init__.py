"""Command `p2pfl-sim` and its subcommands.

Parsing and printing only; the work is done in the other subpackages.
"""
