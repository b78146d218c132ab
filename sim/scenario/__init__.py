"""Scenarios: one TOML file for one table of a paper, checked and resolved.

Also topologies, network models, budgets and sweeps as scenarios name them.
"""
