"""Command `p2pfl-node` and its subcommands.

Parsing and printing only; the work is done in the other subpackages.
"""
