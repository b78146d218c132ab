"""Command `p2pfl-node` and its subcommands.

They only parse and print; the other subpackages do the work.
"""
