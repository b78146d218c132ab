"""Pace of rounds: when a node begins its next round, and for which peers it waits.

The simulator uses the same rules.
"""
